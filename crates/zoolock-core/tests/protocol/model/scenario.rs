//! A scenario: which locks the clients acquire, and how often each fault may strike.

use std::fmt::Display;

use zoolock_core::names::Naming;
use zoolock_core::record::{HolderState, Marker, Size};
use zoolock_core::{Record, Rules, Sequence, Zxid};

use super::bugs::Bug;
use super::plan::Plan;

/// The number of times that each fault may still strike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// A waiter cancels, or its deadline passes.
    pub(crate) cancels: u8,
    /// A connection is lost, with all requests and replies that are under way on it.
    pub(crate) disconnects: u8,
    /// A server carries out an attach that the client has given up, and owns the session again.
    pub(crate) retakes: u8,
    /// The connected server refuses a request for now, and does not pass it on.
    pub(crate) throttles: u8,
    /// The connected server refuses a create for good, and does not pass it on.
    pub(crate) denials: u8,
    /// A follower falls behind.
    pub(crate) lags: u8,
    /// A lease runs out; the session may then expire.
    pub(crate) lapses: u8,
    /// A process dies.
    pub(crate) crashes: u8,
    /// A holder releases while it unwinds from a panic.
    pub(crate) panics: u8,
    /// An operator deletes a directory and its children.
    pub(crate) removals: u8,
    /// An operator deletes the znode of a contender.
    pub(crate) breaks: u8,
    /// Other software deletes an empty directory.
    pub(crate) reaps: u8,
    /// A directory is created with the data of a directory that was deleted before.
    pub(crate) copies: u8,
    /// An operator overwrites the record.
    pub(crate) scribbles: u8,
    /// After the last sequence number, a create gets a negative number.
    pub(crate) negatives: u8,
    /// A client reads a retired directory again, though nothing has changed.
    pub(crate) polls: u8,
    /// An operator gives a semaphore another size.
    pub(crate) resizes: u8,
    /// An operator asks the owner of a znode to release.
    pub(crate) revokes: u8,
    /// A caller never polls its future after the grant. If this is zero at the start, all callers take their grants at
    /// once.
    pub(crate) forgets: u8,
}

/// Faults that are searched alone and in pairs. Searches with the last two take the longest.
pub(crate) const FAULTS: [&str; 10] =
    ["cancel", "lag", "crash", "panic", "remove", "break", "reap", "scribble", "disconnect", "lapse"];

/// Number of faults at the start of [`FAULTS`] that are cheap to search.
pub(crate) const CHEAP: usize = 8;

/// Returns each pair of faults, and each fault twice.
pub(crate) fn pairs(faults: &'static [&'static str]) -> impl Iterator<Item = [&'static str; 2]> {
    faults.iter().enumerate().flat_map(|(i, &one)| faults[i..].iter().map(move |&other| [one, other]))
}

impl Budget {
    /// Allows the fault of this name once more.
    fn add(&mut self, fault: &str) {
        let budget = match fault {
            "cancel" => &mut self.cancels,
            "disconnect" => &mut self.disconnects,
            "retake" => &mut self.retakes,
            "throttle" => &mut self.throttles,
            "deny" => &mut self.denials,
            "lag" => &mut self.lags,
            "lapse" => &mut self.lapses,
            "crash" => &mut self.crashes,
            "panic" => &mut self.panics,
            "remove" => &mut self.removals,
            "break" => &mut self.breaks,
            "reap" => &mut self.reaps,
            "copy" => &mut self.copies,
            "scribble" => &mut self.scribbles,
            "negative number" => &mut self.negatives,
            "poll" => &mut self.polls,
            "resize" => &mut self.resizes,
            "revoke" => &mut self.revokes,
            "forget" => &mut self.forgets,
            _ => panic!("{fault} is not the name of a fault"),
        };
        *budget += 1;
    }
}

/// The setup of one search: the clients, the faults, and the directories.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) plans: Vec<Plan>,
    /// The directories in which each client acquires, in the order in which the client names them.
    pub(crate) wants: Vec<Vec<usize>>,
    /// The naming of each client's znodes; native for a client without an entry.
    pub(crate) namings: Vec<Naming>,
    /// Number of acquisitions that each client makes, one after the other.
    pub(crate) rounds: u8,
    /// Set if the last client fails if the lock is not free, and does not wait.
    pub(crate) tries: bool,
    /// Set if all clients track crashes.
    pub(crate) tracks: bool,
    /// Set if the first client tracks crashes.
    pub(crate) one_tracks: bool,
    /// The delay after a holder that did not release cleanly, in milliseconds.
    pub(crate) delay: u32,
    /// Set if the clients look ahead.
    pub(crate) looks_ahead: bool,
    /// Set if a release and the create that follows it at once on the same session are one transaction.
    pub(crate) merges: bool,
    /// Set if the last client does not look ahead, and reads before its grant how its predecessor
    /// left.
    pub(crate) one_reads: bool,
    /// Set if the clients' state machines receive `Event::Disconnected` when a connection is lost,
    /// before they receive `Unknown` for the requests without a reply.
    pub(crate) reports_disconnects: bool,
    pub(crate) budget: Budget,
    pub(crate) rules: Rules,
    pub(crate) bug: Option<Bug>,
    /// Set if a holder sets the watch on its own znode some time after its grant, and not at once.
    pub(crate) watches_late: bool,
    /// The first sequence number at which a directory is retired.
    pub(crate) retire_from: i32,
    /// The last sequence number that a directory can give.
    pub(crate) last: i32,
    /// Set if the first directory has a child at the start that is no contender, such as the
    /// directory of another lock. An operator deletes it together with the directory.
    pub(crate) has_lasting_child: bool,
    /// The record and the next sequence number of each directory. `None` if the directory does not
    /// exist at the start.
    pub(crate) directories: Vec<Option<(Record, i32)>>,
}

impl Scenario {
    /// The usual value of `retire_from`, far above every sequence number that a search reaches.
    pub(crate) const RETIRE_FROM: i32 = 90;

    /// Returns a scenario of clients with these plans in one directory, without faults.
    pub(crate) fn of(plans: &[Plan]) -> Scenario {
        Scenario {
            name: format!("{plans:?}"),
            plans: plans.to_vec(),
            wants: vec![vec![0]; plans.len()],
            namings: Vec::new(),
            rounds: 1,
            tries: false,
            tracks: false,
            one_tracks: false,
            delay: 0,
            looks_ahead: false,
            merges: false,
            one_reads: false,
            reports_disconnects: true,
            budget: Budget::default(),
            rules: Rules::all(),
            bug: None,
            watches_late: false,
            retire_from: Scenario::RETIRE_FROM,
            last: 99,
            has_lasting_child: false,
            directories: vec![Some((Record::Empty, 0))],
        }
    }

    pub(crate) fn mutexes(clients: usize) -> Scenario {
        Scenario { name: format!("{clients} mutexes"), ..Scenario::of(&vec![Plan::Mutex; clients]) }
    }

    /// Returns a scenario of clients that acquire mutexes in these directories. The clients are not told when a connection
    /// is lost.
    pub(crate) fn over(wants: &[&[usize]]) -> Scenario {
        let directories = wants.iter().flat_map(|wants| wants.iter()).max().map_or(0, |most| most + 1);
        Scenario {
            name: format!("{wants:?}"),
            wants: wants.iter().map(|wants| wants.to_vec()).collect(),
            reports_disconnects: false,
            directories: vec![Some((Record::Empty, 0)); directories],
            ..Scenario::of(&vec![Plan::Mutex; wants.len()])
        }
    }

    fn noted(self, what: impl Display) -> Scenario {
        Scenario { name: format!("{}, {what}", self.name), ..self }
    }

    /// Adds these faults, once each.
    pub(crate) fn with(mut self, faults: &[&str]) -> Scenario {
        faults.iter().for_each(|fault| self.budget.add(fault));
        if faults.is_empty() { self } else { self.noted(faults.join(" and ")) }
    }

    /// Sets the plan of each client.
    pub(crate) fn plans(self, plans: &[Plan]) -> Scenario {
        Scenario { plans: plans.to_vec(), ..self.noted(format!("{plans:?}")) }
    }

    /// Sets the naming of each client.
    pub(crate) fn named(self, namings: &[Naming]) -> Scenario {
        Scenario { namings: namings.to_vec(), ..self.noted(format!("named {namings:?}")) }
    }

    pub(crate) fn rounds(self, rounds: u8) -> Scenario {
        Scenario { rounds, ..self.noted(format!("{rounds} rounds")) }
    }

    pub(crate) fn rules(self, rules: Rules) -> Scenario {
        Scenario { rules, ..self }
    }

    pub(crate) fn with_bug(self, bug: Bug) -> Scenario {
        Scenario { bug: Some(bug), ..self.noted(format!("{bug:?}")) }
    }

    /// Returns whether callers take their grants in a step of its own, or never.
    pub(crate) fn claims_late(&self) -> bool {
        self.budget.forgets > 0
    }

    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub(crate) fn watching_late(self) -> Scenario {
        Scenario { watches_late: true, ..self.noted("watching late") }
    }

    pub(crate) fn trying(self) -> Scenario {
        Scenario { tries: true, ..self.noted("the last one only tries") }
    }

    pub(crate) fn tracking(self) -> Scenario {
        Scenario { tracks: true, ..self.noted("crashes tracked") }
    }

    pub(crate) fn with_one_that_tracks(self) -> Scenario {
        Scenario { one_tracks: true, ..self.noted("one tracks crashes") }
    }

    pub(crate) fn looking_ahead(self) -> Scenario {
        Scenario { looks_ahead: true, ..self.noted("looking ahead") }
    }

    pub(crate) fn merging(self) -> Scenario {
        Scenario { merges: true, ..self.noted("merging") }
    }

    pub(crate) fn with_one_that_reads(self) -> Scenario {
        Scenario { one_reads: true, ..self.noted("one reads") }
    }

    pub(crate) fn delaying(self) -> Scenario {
        Scenario { delay: 1, ..self.noted("with a delay") }
    }

    pub(crate) fn reports_disconnects(self) -> Scenario {
        Scenario { reports_disconnects: true, ..self.noted("reports disconnects") }
    }

    /// Removes the first directory.
    pub(crate) fn without_directory(mut self) -> Scenario {
        self.directories[0] = None;
        self.noted("no directory")
    }

    /// Sets the next sequence number of the first directory.
    pub(crate) fn numbered(mut self, next: i32) -> Scenario {
        self.directories[0] = Some((Record::Empty, next));
        self.noted(format!("at {next}"))
    }

    /// Makes `last` the last sequence number, retires directories from number 2 on, and sets the
    /// next number of the first directory to `next`.
    pub(crate) fn near_the_end(self, next: i32, last: i32) -> Scenario {
        Scenario { retire_from: 2, last, ..self.numbered(next).noted(format!("of {last}")) }
    }

    /// Gives the first directory a child that is no contender.
    pub(crate) fn with_lasting_child(self) -> Scenario {
        Scenario { has_lasting_child: true, ..self.noted("with a lasting child") }
    }

    /// Makes the first directory a copy: its record was written for another directory, and says
    /// that the contender with number 1 released the lock there.
    pub(crate) fn in_a_copy(mut self) -> Scenario {
        let marker = Marker {
            directory: Zxid(1),
            state: HolderState::Released,
            sequence: Sequence(1),
            tracked: false,
        };
        self.directories[0] = Some((Record::Marker(marker), 0));
        self.noted("in a copy")
    }

    /// Writes the size of the semaphore into the directory's record.
    pub(crate) fn of_size(mut self, permits: u32) -> Scenario {
        // Transaction 2 creates the directory, see `World::new`.
        let size = Size { directory: Zxid(2), permits };
        self.directories[0] = Some((Record::Semaphore(size), 0));
        self.noted("sized")
    }
}
