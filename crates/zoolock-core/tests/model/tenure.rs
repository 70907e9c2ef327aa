//! Who may be in, who has been in alone, and what may be said of it: obviously right, as nobody knows it who is inside.

use zoolock_core::Record;
use zoolock_core::contender::Node;
use zoolock_core::contender::{Grant, Previous};
use zoolock_core::names::Prefix;

use crate::ghost::{Fate, Foul, From};
use crate::plan::Plan;
use crate::scenario::Scenario;
use crate::tree::{Child, Directory, Name, Tree};
use crate::world::{Client, World};

/// Somebody was alone, or has said that it begins to be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tenure {
    pub(crate) directory: i64,
    /// In which order they were alone: by place, and a reader that writes right after whoever was alone before it read.
    pub(crate) order: (i64, i64),
    /// The node that was granted.
    pub(crate) czxid: i64,
    pub(crate) name: Name,
    /// It leaves the record as its successors expect it.
    pub(crate) tells: bool,
    /// The holder was told.
    pub(crate) granted: bool,
    pub(crate) end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    /// There is none yet.
    No,
    /// It released the lock as its holder.
    Clean,
    /// Anything else.
    Gone,
}

/// Whether two of these never hold together.
pub(crate) fn exclude_each_other(one: Prefix, other: Prefix) -> bool {
    let permit = |prefix| matches!(prefix, Prefix::Permit(_));
    let both_upgradable = one == Prefix::Upgradable && other == Prefix::Upgradable;
    one.is_exclusive() || other.is_exclusive() || both_upgradable || permit(one) != permit(other)
}

/// Whether nobody stands in the way of this child, at this moment.
pub(crate) fn is_clear(tree: &Tree, child: &Child, from: Option<From>, plan: Plan) -> bool {
    let mut before = tree.children().iter().filter(|other| other.place < child.place);
    match (child.name.prefix, from) {
        (_, Some(from)) => {
            // Whoever waits for the reader does not matter.
            let harmless = |other: &Child| {
                let waits = exclude_each_other(from.prefix, other.name.prefix) && other.place > from.place;
                other.czxid == from.node || waits
            };
            tree.holds(from.node) && before.all(harmless)
        }
        (Prefix::Permit(take), _) => {
            let weights = |other: &Child| match other.name.prefix {
                Prefix::Permit(take) => Some(take),
                _ => None,
            };
            let ahead: Option<u32> = before.map(weights).sum();
            // Whoever comes first writes its own.
            let own = if let Plan::Permits { size, .. } = plan { Some(size) } else { None };
            let (Some(ahead), Some(size)) = (ahead, tree.size().or(own)) else { return false };
            ahead + take <= size
        }
        (prefix, _) => before.all(|other| !exclude_each_other(prefix, other.name.prefix)),
    }
}

/// Whether two hold together who must not, or more permits are held than there ever were.
pub(crate) fn too_many_hold(world: &World) -> bool {
    let mut permits = 0;
    let mut holders: Vec<(Prefix, Option<i64>, i64)> = Vec::new();
    for client in &world.clients {
        let Some(node) = holding(world, client) else { continue };
        let from = client.ghost.from.map(|from| from.node);
        if let Prefix::Permit(take) = node.prefix {
            permits += take;
        }
        holders.push((node.prefix, from, node.czxid.0));
    }
    let collide = |one: &(Prefix, Option<i64>, i64), other: &(Prefix, Option<i64>, i64)| {
        exclude_each_other(one.0, other.0) && one.1 != Some(other.2) && other.1 != Some(one.2)
    };
    let pairs = |(at, one): (usize, &_)| holders[at + 1..].iter().any(|other| collide(one, other));
    permits > world.most || holders.iter().enumerate().any(pairs)
}

/// What a client believes that it holds, with a node and a session to show for it; and with the reader's node, if it
/// is a reader that writes.
pub(crate) fn holding(world: &World, client: &Client) -> Option<Node> {
    let node = client.machine().and_then(|machine| machine.holding())?;
    let there = |czxid| world.leader.holds(czxid);
    let shown =
        client.session && there(node.czxid.0) && client.ghost.from.is_none_or(|from| there(from.node));
    shown.then_some(node)
}

impl World {
    pub(crate) fn see_who_is_clear(&mut self, scenario: &Scenario) {
        let tree = &self.leader;
        for (client, plan) in self.clients.iter_mut().zip(&scenario.clients) {
            let from = client.ghost.from;
            for at in 0..client.ghost.traces.len() {
                let trace = &client.ghost.traces[at];
                let child = tree.children().iter().find(|child| child.czxid == trace.czxid);
                if trace.fate == Fate::There
                    && !trace.was_clear
                    && child.is_some_and(|child| is_clear(tree, child, from, *plan))
                {
                    client.ghost.traces[at].was_clear = true;
                }
            }
        }
    }

    /// Somebody who is to be alone says that it begins.
    pub(crate) fn begun(&mut self, i: usize, node: &Node) {
        self.open(i, node.czxid.0, false);
    }

    fn order(&self, i: usize, czxid: i64) -> (i64, i64) {
        let ghost = &self.clients[i].ghost;
        match ghost.from {
            Some(from) => (from.place, czxid),
            None => (ghost.trace(czxid).map_or(czxid, |trace| trace.place), 0),
        }
    }

    fn open(&mut self, i: usize, czxid: i64, granted: bool) {
        if let Some(tenure) = self.tenures.iter_mut().find(|tenure| tenure.czxid == czxid) {
            tenure.granted |= granted;
            return;
        }
        let Some(trace) = self.clients[i].ghost.trace(czxid) else { return };
        if trace.fate != Fate::There {
            // It was not there any more when it began.
            return;
        }
        let end = End::No;
        let (directory, name, order) = (trace.directory, trace.name, self.order(i, czxid));
        self.tenures.push(Tenure { directory, order, czxid, name, tells: false, granted, end });
    }

    /// A node is gone. `own`: by a request of its acquisition; `cleanly`: in which its holder let go.
    pub(crate) fn ended(&mut self, czxid: i64, own: bool, cleanly: bool) {
        let Some(at) = self.tenures.iter().position(|tenure| tenure.czxid == czxid) else { return };
        if own && !self.tenures[at].granted {
            // It gave up before it was told, and has taken back what it said.
            self.tenures.remove(at);
        } else {
            self.tenures[at].end = if cleanly { End::Clean } else { End::Gone };
        }
    }

    pub(crate) fn check_previous(&mut self, i: usize, directory: i64, grant: &Grant, scenario: &Scenario) {
        let czxid = grant.node.czxid.0;
        self.clients[i].ghost.read = !scenario.looks_ahead(i) || grant.previous != Previous::Unknown;
        self.is_it_so(i, directory, czxid, Name::of(&grant.node), grant.previous, scenario);
        if grant.node.prefix.is_exclusive() {
            self.open(i, czxid, true);
        }
    }

    /// Is it so, what a holder was told of the one before it?
    pub(crate) fn is_it_so(
        &mut self,
        i: usize,
        directory: i64,
        czxid: i64,
        name: Name,
        previous: Previous,
        scenario: &Scenario,
    ) {
        let order = self.order(i, czxid);
        let earlier = |tenure: &&Tenure| tenure.directory == directory && tenure.order < order;
        let last = self.tenures.iter().filter(earlier).max_by_key(|tenure| tenure.order);
        let last_granted =
            self.tenures.iter().filter(|t| earlier(t) && t.granted).max_by_key(|tenure| tenure.order);
        let clean = last_granted.is_some_and(|tenure| tenure.end == End::Clean);
        let crashed = last.is_some_and(|tenure| tenure.end == End::Gone);
        // A reader that writes, and whose reader's node alone is broken, stands behind whoever is next then, and lives as
        // far as that one can see. It may go between that look and the grant.
        let stood = |tenure: &Tenure| tenure.order.1 != 0 && tenure.czxid > czxid;
        let meddled = scenario.budget.breaks > 0 && last.is_some_and(stood);
        let untold =
            crashed && last.is_some_and(|tenure| tenure.granted) && scenario.keeps_its_records() && !meddled;
        // Whoever lists first and reads the record then may read of those who came after it, if its node went in
        // between. It is told so next.
        let from = self.clients[i].ghost.from.map(|from| from.node);
        let there = [Some(czxid), from].into_iter().flatten().all(|czxid| self.leader.holds(czxid));
        let read_at_once = name.prefix == Prefix::Lock;
        match previous {
            Previous::Clean if !clean && (there || read_at_once) => self.note(Foul::FalseClean),
            Previous::Crashed if !crashed && (there || read_at_once) => self.note(Foul::FalseCrash),
            Previous::Unknown if untold => self.note(Foul::UntoldCrash),
            Previous::Unknown
                if self.clients[i].ghost.read
                    && self
                        .right_before(directory, name)
                        .is_some_and(|tenure| tenure.tells && tenure.end == End::Clean)
                    && self.leader.0.as_ref().is_some_and(|directory| !directory.astray)
                    && scenario.budget.scribbles + scenario.budget.copies + scenario.budget.resizes == 0 =>
            {
                self.note(Foul::Untold);
            }
            _ => {}
        }
    }

    /// Who was alone under the number right before this one, which was a mutex.
    fn right_before(&self, directory: i64, name: Name) -> Option<&Tenure> {
        let before = Name { sequence: name.sequence.wrapping_sub(1), ..name };
        let is_it =
            |tenure: &&Tenure| tenure.directory == directory && tenure.name == before && tenure.granted;
        self.tenures.iter().find(is_it).filter(|_| name.prefix == Prefix::Lock)
    }

    /// A release writes its marker. Where it was not known what stands there, it may only be wrong about one that went
    /// without a word.
    pub(crate) fn written_over(&mut self, i: usize, node: &Node) {
        let Some(Directory { czxid, record, .. }) = self.leader.0 else { return };
        let released =
            self.right_before(czxid, Name::of(node)).is_some_and(|tenure| tenure.end == End::Clean);
        let ghost = self.clients[i].ghost.clone();
        if record == Record::Foreign && (ghost.read || ghost.held != node.czxid.0 || released) {
            self.note(Foul::WroteOver);
        }
    }

    /// A holder lets go. Whoever knows the record, or is right about it, leaves it so that the next one can read it.
    pub(crate) fn lets_go(&mut self, i: usize) {
        let ghost = &self.clients[i].ghost;
        let Some(trace) = ghost.trace(ghost.held) else { return };
        let (read, czxid) = (ghost.read, ghost.held);
        let before = self.right_before(trace.directory, trace.name);
        // One that was interrupted before it could read writes nothing on a guess.
        let guesses = !ghost.interrupted && before.is_some_and(|tenure| tenure.end == End::Clean);
        let tells = read || guesses;
        if let Some(tenure) = self.tenures.iter_mut().find(|tenure| tenure.czxid == czxid) {
            tenure.tells = tells;
        }
    }
}
