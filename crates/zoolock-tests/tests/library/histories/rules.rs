//! What one name allows.

use std::collections::BTreeMap;

use zoolock::{FencingToken, Previous};

/// What somebody inside may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Role {
    Reader,
    Upgradable,
    Writer,
    Permits(u32),
    /// It lets go, and need not have heard of it.
    Leaving,
}

impl Role {
    fn excludes(self, other: Role) -> bool {
        match (self, other) {
            (Role::Leaving, _) | (_, Role::Leaving) => false,
            (Role::Writer, _) | (_, Role::Writer) => true,
            (Role::Upgradable, Role::Upgradable) => true,
            // Weights are summed up elsewhere.
            _ => false,
        }
    }

    pub(crate) fn weight(self) -> u32 {
        match self {
            Role::Permits(weight) => weight,
            _ => 0,
        }
    }
}

/// How the last one that held alone is known to have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Inside,
    Clean,
    /// In a panic, or without a word.
    Crashed,
    /// Somebody took the lock away from it.
    NotClean,
    /// It was about to leave when somebody took the lock away, or it could not hear the answer.
    Unsure,
}

/// A name, and what was seen there.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) name: &'static str,
    /// The number of permits, if it is a semaphore.
    pub(crate) size: Option<u32>,
    /// Nothing is broken there, so that what is said of the last holder is never unknown.
    pub(crate) exact: bool,
    /// The last one that held alone; at first somebody who made the name, and let go.
    pub(crate) last: (u64, End),
    newest: BTreeMap<Role, FencingToken>,
    /// The highest token of somebody who held alone.
    highest: Option<(u64, FencingToken)>,
    /// For those who were granted permits: how much was left by them and by those before them.
    left: BTreeMap<FencingToken, i64>,
}

impl Room {
    pub(crate) fn new(name: &'static str, size: Option<u32>, exact: bool) -> Room {
        Room {
            name,
            size,
            exact,
            last: (0, End::Clean),
            newest: BTreeMap::new(),
            highest: None,
            left: BTreeMap::new(),
        }
    }

    /// Which of those inside may not be beside the one that comes: one of them at least.
    pub(crate) fn in_the_way<'a>(
        &self,
        role: Role,
        inside: impl Iterator<Item = (&'a u64, Role)> + Clone,
    ) -> Vec<u64> {
        match self.size {
            None => inside.filter(|(_, theirs)| role.excludes(*theirs)).map(|(id, _)| *id).collect(),
            Some(size) => {
                let sum: u32 = inside.clone().map(|(_, role)| role.weight()).sum();
                if sum + role.weight() <= size { Vec::new() } else { inside.map(|(id, _)| *id).collect() }
            }
        }
    }

    /// First come, first served. `ahead`: the permits of those inside who came before.
    pub(crate) fn in_turn(&mut self, role: Role, ticket: FencingToken, ahead: u32) -> Result<(), String> {
        if let Some(size) = self.size {
            let weight = i64::from(role.weight());
            for (later, left) in self.left.range_mut(ticket..) {
                if *left < weight {
                    return Err(format!(
                        "{ticket} has {weight} permits of {size} after the later {later}, which had left only {left}"
                    ));
                }
                *left -= weight;
            }
            self.left.insert(ticket, i64::from(size) - i64::from(ahead) - weight);
            return Ok(());
        }
        for (theirs, newest) in &self.newest {
            if role.excludes(*theirs) && *newest > ticket {
                return Err(format!("{role:?} {ticket} has its turn after the later {theirs:?} {newest}"));
            }
        }
        let newest = self.newest.entry(role).or_insert(ticket);
        *newest = ticket.max(*newest);
        Ok(())
    }

    /// Somebody holds alone from now on.
    pub(crate) fn alone(&mut self, id: u64, token: FencingToken) -> Result<(), String> {
        if let Some((who, highest)) = self.highest
            && (token < highest || (token == highest && who != id))
        {
            return Err(format!("token {token} of #{id} after {highest} of #{who}"));
        }
        self.highest = Some((id, token));
        self.last = (id, End::Inside);
        Ok(())
    }

    pub(crate) fn ended(&mut self, id: u64, end: End) {
        if self.last.0 == id {
            self.last.1 = end;
        }
    }
}

/// Whether that may be said of the last holders of these names.
pub(crate) fn may_say(said: Previous, rooms: &[&Room]) -> bool {
    let ends: Vec<End> = rooms.iter().map(|room| room.last.1).collect();
    let unsure = |end: &End| matches!(end, End::Unsure | End::Inside);
    match said {
        Previous::Clean => ends.iter().all(|end| *end == End::Clean || unsure(end)),
        Previous::Crashed => {
            ends.iter().any(|end| matches!(end, End::Crashed | End::NotClean) || unsure(end))
        }
        _ => {
            let known = |end: &End| matches!(end, End::Clean | End::Crashed);
            !(rooms.iter().all(|room| room.exact) && ends.iter().all(known))
        }
    }
}
