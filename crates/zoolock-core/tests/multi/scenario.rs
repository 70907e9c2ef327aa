//! Who wants which locks, what may go wrong, and how often.

use zoolock_core::Rules;

/// How often each fault may still strike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// A waiting caller gives up, or its deadline passes.
    pub(crate) cancels: u8,
    /// A connection is lost, with everything that is under way on it.
    pub(crate) disconnects: u8,
    /// A follower falls behind.
    pub(crate) lags: u8,
    /// A lease runs out; the session may then expire.
    pub(crate) lapses: u8,
    /// A process dies.
    pub(crate) crashes: u8,
    /// A holder lets go while it unwinds.
    pub(crate) panics: u8,
    /// Somebody deletes a directory and what is in it.
    pub(crate) removals: u8,
    /// Somebody deletes one contender's node.
    pub(crate) breaks: u8,
    /// An empty directory is reaped.
    pub(crate) reaps: u8,
    /// Somebody writes over a record.
    pub(crate) scribbles: u8,
    /// Somebody asks the owner of a node to let go.
    pub(crate) revokes: u8,
    /// A retired directory is looked at though nothing has changed.
    pub(crate) polls: u8,
}

/// One search.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    /// The directories that each client wants, in its own order. Who wants one of them is a plain mutex.
    pub(crate) wants: Vec<Vec<usize>>,
    /// Who of them only reads.
    pub(crate) readers: Vec<bool>,
    /// Whose acquisition begins when that client holds, and is over before that one lets go: locks one after another.
    pub(crate) inside: Vec<Option<usize>>,
    /// How many acquisitions each client makes, one after the other.
    pub(crate) rounds: u8,
    /// The last client only tries.
    pub(crate) tries: bool,
    /// Crashes are tracked.
    pub(crate) tracks: bool,
    /// Whether machines are told of a lost connection before they hear what it has cost them, or not at all.
    pub(crate) told_offline: bool,
    pub(crate) budget: Budget,
    pub(crate) rules: Rules,
    /// Whether a holder's own node is watched only after a while.
    pub(crate) watches_late: bool,
    /// The first number at which a directory is retired.
    pub(crate) retire_from: i32,
    /// The next number of each directory, where it is there from the start.
    pub(crate) directories: Vec<Option<i32>>,
}

/// One more of some fault.
#[derive(Clone, Copy)]
pub(crate) struct Fault(pub(crate) &'static str, pub(crate) fn(&mut Budget));

/// Those that are searched alone and in pairs.
pub(crate) const FAULTS: [Fault; 11] = [
    Fault("cancel", |b| b.cancels += 1),
    Fault("lag", |b| b.lags += 1),
    Fault("crash", |b| b.crashes += 1),
    Fault("panic", |b| b.panics += 1),
    Fault("remove", |b| b.removals += 1),
    Fault("break", |b| b.breaks += 1),
    Fault("reap", |b| b.reaps += 1),
    Fault("scribble", |b| b.scribbles += 1),
    Fault("revoke", |b| b.revokes += 1),
    // The two that cost most.
    Fault("disconnect", |b| b.disconnects += 1),
    Fault("lapse", |b| b.lapses += 1),
];

pub(crate) fn fault(name: &str) -> Fault {
    FAULTS.into_iter().find(|fault| fault.0 == name).expect("the name of a fault")
}

impl Scenario {
    pub(crate) fn new(wants: &[&[usize]], budget: Budget) -> Scenario {
        let directories = wants.iter().flat_map(|wants| wants.iter()).max().map_or(0, |most| most + 1);
        Scenario {
            name: format!("{wants:?}"),
            wants: wants.iter().map(|wants| wants.to_vec()).collect(),
            readers: vec![false; wants.len()],
            inside: vec![None; wants.len()],
            rounds: 1,
            tries: false,
            tracks: false,
            told_offline: false,
            budget,
            rules: Rules::all(),
            watches_late: false,
            retire_from: 90,
            directories: vec![Some(0); directories],
        }
    }

    /// With some faults, once each.
    pub(crate) fn with(wants: &[&[usize]], faults: &[&str]) -> Scenario {
        let mut budget = Budget::default();
        for name in faults {
            fault(name).1(&mut budget);
        }
        let scenario = Scenario::new(wants, budget);
        Scenario { name: format!("{}, {}", scenario.name, faults.join(" and ")), ..scenario }
    }

    /// Some only read.
    pub(crate) fn reading(self, readers: &[bool]) -> Scenario {
        let name = format!("{}, readers {readers:?}", self.name);
        Scenario { readers: readers.to_vec(), name, ..self }
    }

    /// Some begin when others hold.
    pub(crate) fn inside(self, inside: &[Option<usize>]) -> Scenario {
        Scenario { inside: inside.to_vec(), name: format!("{}, inside {inside:?}", self.name), ..self }
    }

    /// The acquisitions that a client makes while it holds.
    pub(crate) fn inner(&self, i: usize) -> impl Iterator<Item = usize> {
        (0..self.inside.len()).filter(move |&j| self.inside[j] == Some(i))
    }

    pub(crate) fn rounds(self, rounds: u8) -> Scenario {
        Scenario { rounds, name: format!("{}, {rounds} rounds", self.name), ..self }
    }

    pub(crate) fn rules(self, rules: Rules) -> Scenario {
        Scenario { rules, ..self }
    }

    pub(crate) fn trying(self) -> Scenario {
        Scenario { tries: true, name: format!("{}, the last one only tries", self.name), ..self }
    }

    pub(crate) fn tracking(self) -> Scenario {
        Scenario { tracks: true, name: format!("{}, crashes tracked", self.name), ..self }
    }

    pub(crate) fn told_offline(self) -> Scenario {
        Scenario { told_offline: true, name: format!("{}, told", self.name), ..self }
    }

    /// The first directory is not there.
    pub(crate) fn one_missing(mut self) -> Scenario {
        self.directories[0] = None;
        Scenario { name: format!("{}, one missing", self.name), ..self }
    }

    /// The next number of the first directory is another one.
    pub(crate) fn numbered(mut self, next: i32) -> Scenario {
        self.directories[0] = Some(next);
        Scenario { name: format!("{}, at {next}", self.name), ..self }
    }

    /// Directories are retired from 2 on, and the next number of the first one is `next`.
    pub(crate) fn near_the_end(self, next: i32) -> Scenario {
        let scenario = self.numbered(next);
        Scenario { retire_from: 2, name: format!("{} of 2", scenario.name), ..scenario }
    }
}
