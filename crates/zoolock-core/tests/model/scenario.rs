//! What may go wrong, how often, and for how many.

use zoolock_core::names::Naming;
use zoolock_core::record::{Left, Marker, Size};
use zoolock_core::{Record, Rules, Sequence, Zxid};

use crate::bugs::Bug;
use crate::plan::Plan;

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
    /// Somebody deletes the directory and what is in it.
    pub(crate) removals: u8,
    /// Somebody deletes one contender's node.
    pub(crate) breaks: u8,
    /// An empty directory is reaped.
    pub(crate) reaps: u8,
    /// The directory is made with the data of one that was deleted before.
    pub(crate) copies: u8,
    /// Somebody writes over the record.
    pub(crate) scribbles: u8,
    /// A create past the end of the numbers gets a negative one.
    pub(crate) negatives: u8,
    /// A retired directory is looked at though nothing has changed.
    pub(crate) polls: u8,
    /// Somebody gives a semaphore another size.
    pub(crate) resizes: u8,
}

/// One search.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) clients: Vec<Plan>,
    /// How each client's nodes are called; all in our own way where it is empty.
    pub(crate) namings: Vec<Naming>,
    /// How many acquisitions each client makes, one after the other.
    pub(crate) rounds: u8,
    /// The last client only tries.
    pub(crate) tries: bool,
    /// Holders say that they have begun.
    pub(crate) tracks: bool,
    /// How long to wait after one that did not leave cleanly, in milliseconds.
    pub(crate) delay: u32,
    /// Whether they look further ahead than they need to.
    pub(crate) looks_ahead: bool,
    /// All but the last, which reads how the one before it left.
    pub(crate) one_reads: bool,
    /// Only the first client says that it has begun.
    pub(crate) one_tracks: bool,
    pub(crate) budget: Budget,
    pub(crate) rules: Rules,
    /// What clients do otherwise than ours.
    pub(crate) bug: Option<Bug>,
    /// Whether a holder's own node is watched only after a while.
    pub(crate) watches_late: bool,
    /// The first number at which a directory is retired.
    pub(crate) retire_from: i32,
    /// The last number that this world's directories can give.
    pub(crate) last: i32,
    /// Whether the directory is there from the start, with what in it, and its next number.
    pub(crate) directory: Option<(Record, i32)>,
}

impl Budget {
    /// No bad luck at all.
    pub(crate) const NONE: Budget = Budget {
        cancels: 0,
        disconnects: 0,
        lags: 0,
        lapses: 0,
        crashes: 0,
        panics: 0,
        removals: 0,
        breaks: 0,
        reaps: 0,
        copies: 0,
        scribbles: 0,
        negatives: 0,
        polls: 0,
        resizes: 0,
    };
}

/// One more of some fault.
#[derive(Clone, Copy)]
pub(crate) struct Fault(pub(crate) &'static str, pub(crate) fn(&mut Budget));

/// Those that are searched alone and in pairs.
pub(crate) const FAULTS: [Fault; 10] = [
    Fault("cancel", |b| b.cancels += 1),
    Fault("lag", |b| b.lags += 1),
    Fault("crash", |b| b.crashes += 1),
    Fault("panic", |b| b.panics += 1),
    Fault("remove", |b| b.removals += 1),
    Fault("break", |b| b.breaks += 1),
    Fault("reap", |b| b.reaps += 1),
    Fault("scribble", |b| b.scribbles += 1),
    // The two that cost most.
    Fault("disconnect", |b| b.disconnects += 1),
    Fault("lapse", |b| b.lapses += 1),
];

/// How many of [`FAULTS`] are cheap to search.
pub(crate) const CHEAP: usize = 8;

impl Scenario {
    pub(crate) fn new(name: &str, clients: u8, budget: Budget) -> Scenario {
        Scenario {
            name: name.to_owned(),
            clients: vec![Plan::Mutex; clients.into()],
            namings: Vec::new(),
            rounds: 1,
            tries: false,
            tracks: false,
            delay: 0,
            looks_ahead: false,
            one_reads: false,
            one_tracks: false,
            budget,
            rules: Rules::all(),
            bug: None,
            watches_late: false,
            retire_from: 90,
            last: 99,
            directory: Some((Record::Empty, 0)),
        }
    }

    /// Its holders watch their own nodes only after a while.
    pub(crate) fn watching_late(self) -> Scenario {
        Scenario { watches_late: true, name: format!("{}, watching late", self.name), ..self }
    }

    /// With some faults, once each.
    pub(crate) fn with(clients: u8, faults: &[Fault]) -> Scenario {
        let mut budget = Budget::NONE;
        let mut names = Vec::new();
        for Fault(name, add) in faults {
            add(&mut budget);
            names.push(*name);
        }
        Scenario::new(&format!("{clients} contenders, {}", names.join(" and ")), clients, budget)
    }

    pub(crate) fn rounds(self, rounds: u8) -> Scenario {
        Scenario { rounds, name: format!("{}, {rounds} rounds", self.name), ..self }
    }

    pub(crate) fn rules(self, rules: Rules) -> Scenario {
        Scenario { rules, ..self }
    }

    pub(crate) fn with_bug(self, bug: Bug) -> Scenario {
        Scenario { bug: Some(bug), name: format!("{}, {bug:?}", self.name), ..self }
    }

    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub(crate) fn without_directory(self) -> Scenario {
        Scenario { directory: None, name: format!("{}, no directory", self.name), ..self }
    }

    /// The directory is a copy: its record was written for another one, and says that number 1 released the lock.
    pub(crate) fn in_a_copy(self) -> Scenario {
        let marker =
            Marker { directory: Zxid(1), left: Left::Released, sequence: Sequence(1), tracked: false };
        let directory = Some((Record::Marker(marker), 0));
        Scenario { directory, name: format!("{}, in a copy", self.name), ..self }
    }

    /// The numbers end at 4, directories are retired from 2 on, and the next number is `next`.
    pub(crate) fn near_the_end(self, next: i32) -> Scenario {
        let directory = Some((Record::Empty, next));
        let name = format!("{}, at {next} of 4", self.name);
        Scenario { retire_from: 2, last: 4, directory, name, ..self }
    }

    pub(crate) fn trying(self) -> Scenario {
        Scenario { tries: true, name: format!("{}, the last one only tries", self.name), ..self }
    }

    pub(crate) fn tracking(self) -> Scenario {
        Scenario { tracks: true, name: format!("{}, tracking crashes", self.name), ..self }
    }

    pub(crate) fn looking_ahead(self) -> Scenario {
        Scenario { looks_ahead: true, name: format!("{}, looking ahead", self.name), ..self }
    }

    pub(crate) fn with_one_that_tracks(self) -> Scenario {
        Scenario { one_tracks: true, name: format!("{}, one tracks crashes", self.name), ..self }
    }

    pub(crate) fn with_one_that_reads(self) -> Scenario {
        Scenario { one_reads: true, name: format!("{}, one reads", self.name), ..self }
    }

    /// Whether this client looks further ahead than it needs to.
    pub(crate) fn looks_ahead(&self, i: usize) -> bool {
        self.looks_ahead && !(self.one_reads && i + 1 == self.clients.len())
    }

    /// Whether this client says that it has begun.
    pub(crate) fn tracks(&self, i: usize) -> bool {
        self.tracks || (self.one_tracks && i == 0)
    }

    pub(crate) fn delaying(self) -> Scenario {
        Scenario { delay: 1, name: format!("{}, with a delay", self.name), ..self }
    }

    /// The directory says already how many permits there are.
    pub(crate) fn of_size(self, permits: u32) -> Scenario {
        // The transaction that makes the directory, see `World::new`.
        let directory = Some((Record::Semaphore(Size { directory: Zxid(2), permits }), 0));
        Scenario { directory, name: format!("{}, sized", self.name), ..self }
    }
}
