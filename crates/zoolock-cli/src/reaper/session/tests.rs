//! A model of a killed zoolock, its reaper and the server. It tries every order of events, and the real [`Evidence::decide`].
//!
//! The property: when the server grants the lock to the next contender, either the session timeout has passed since zoolock
//! was last heard, or zoolock is dead and no descendant is left. Each fault in the evidence must break it.

use std::collections::HashSet;

use super::{Decision, Evidence};

/// A fault in the evidence, or in the use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The end of the socket counts as the death of zoolock.
    NoPidfd,
    /// A search of `/proc`, during which a process forks, counts as the kernel's word.
    Search,
    /// Processes that zoolock may not signal are left out.
    SignalableOnly,
    /// The reaper of the last command of `--keep` was not dismissed.
    TwoReapers,
    /// The order to release comes before the end of the command.
    EarlyRelease,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Zoolock {
    Runs,
    Stopped,
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Socket {
    Open,
    Ended,
}

/// The reaper after its dismissal, or after its last act, does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reaper {
    Watches,
    Closes,
    Idle,
}

/// The session as the server sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Session {
    Lives,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    zoolock: Zoolock,
    socket: Socket,
    reaper: Reaper,
    /// The reaper of an earlier command of `--keep`.
    old_reaper: Reaper,
    /// Descendants that zoolock may kill.
    own: u8,
    /// Descendants of another user.
    foreign: u8,
    releases: bool,
    session: Session,
    /// Thirds of the session timeout since zoolock was last heard.
    thirds: u8,
}

const MAX_PROCESSES: u8 = 3;

impl World {
    fn evidence(&self, fault: Fault, command_may_live: bool) -> Evidence {
        let has_child = match fault {
            Fault::SignalableOnly => self.own > 0,
            // The search misses a process whose parent has just ended.
            Fault::Search => self.own + self.foreign > 1,
            _ => self.own + self.foreign > 0,
        };
        Evidence {
            is_zoolock_dead: Some(self.zoolock == Zoolock::Dead || fault == Fault::NoPidfd),
            has_child,
            command_may_live,
            is_late: self.thirds > 0,
        }
    }

    /// Returns the worlds after each possible event.
    fn next(self, fault: Fault) -> Vec<World> {
        let mut worlds = Vec::new();
        let mut add = |world: World| worlds.push(world);
        let lives = self.zoolock != Zoolock::Dead;
        let killed = self.socket == Socket::Ended;
        // zoolock is killed, stopped or continued, or its socket breaks.
        if lives {
            add(World { zoolock: Zoolock::Dead, socket: Socket::Ended, ..self });
            add(World { socket: Socket::Ended, ..self });
            let other = if self.zoolock == Zoolock::Runs { Zoolock::Stopped } else { Zoolock::Runs };
            add(World { zoolock: other, ..self });
        }
        // zoolock renews, releases after the end of the command, and closes its session.
        if self.zoolock == Zoolock::Runs && self.session == Session::Lives {
            add(World { thirds: 0, ..self });
            if self.own + self.foreign == 0 || fault == Fault::EarlyRelease {
                add(World { releases: true, ..self });
            }
            if self.releases && self.own + self.foreign == 0 {
                add(World { session: Session::Ended, reaper: Reaper::Idle, ..self });
            }
        }
        // Descendants fork and end. The reaper kills its own ones when the socket has ended.
        if self.own > 0 {
            add(World { own: self.own - 1, ..self });
            if self.own + self.foreign < MAX_PROCESSES {
                add(World { own: self.own + 1, ..self });
                // A set-user-ID program.
                add(World { foreign: self.foreign + 1, ..self });
            }
        }
        if self.foreign > 0 {
            add(World { foreign: self.foreign - 1, ..self });
            if self.own + self.foreign < MAX_PROCESSES {
                // It may start a process of this user.
                add(World { own: self.own + 1, ..self });
            }
        }
        // Time passes. The server expires a session that it has not heard of.
        if self.thirds < 3 {
            add(World { thirds: self.thirds + 1, ..self });
        } else {
            add(World { session: Session::Ended, ..self });
        }
        // The reaper decides, and its close arrives later or never.
        if killed && self.reaper == Reaper::Watches {
            match self.evidence(fault, !self.releases).decide() {
                Decision::End => add(World { reaper: Reaper::Closes, ..self }),
                Decision::Keep(_) => add(World { reaper: Reaper::Idle, ..self }),
                Decision::Wait => {}
            }
        }
        for (from, ended) in [
            (self.reaper, World { reaper: Reaper::Idle, ..self }),
            (self.old_reaper, World { old_reaper: Reaper::Idle, ..self }),
        ] {
            if from == Reaper::Closes {
                add(ended);
                add(World { session: Session::Ended, ..ended });
            }
        }
        // The old reaper has no child.
        if self.old_reaper == Reaper::Watches && killed {
            let evidence = Evidence { has_child: false, ..self.evidence(fault, true) };
            if evidence.decide() == Decision::End {
                add(World { old_reaper: Reaper::Closes, ..self });
            }
        }
        worlds
    }

    /// Returns whether the next contender may hold the lock in this world.
    fn is_safe(&self) -> bool {
        let all_dead = self.own + self.foreign == 0 && (self.zoolock == Zoolock::Dead || self.releases);
        self.session == Session::Lives || self.thirds == 3 || all_dead
    }
}

/// Returns the number of worlds, and one in which two commands may run.
fn explore(fault: Fault) -> (usize, Option<World>) {
    let old_reaper = if fault == Fault::TwoReapers { Reaper::Watches } else { Reaper::Idle };
    let first = World {
        zoolock: Zoolock::Runs,
        socket: Socket::Open,
        reaper: Reaper::Watches,
        old_reaper,
        own: 1,
        foreign: 0,
        releases: false,
        session: Session::Lives,
        thirds: 0,
    };
    let (mut seen, mut left) = (HashSet::from([first]), vec![first]);
    while let Some(world) = left.pop() {
        for next in world.next(fault) {
            if !next.is_safe() && world.is_safe() {
                return (seen.len(), Some(next));
            }
            // After the grant, nothing that happens here matters.
            if next.session == Session::Lives && seen.insert(next) {
                left.push(next);
            }
        }
    }
    (seen.len(), None)
}

#[test]
fn next_holder_begins_after_the_last_descendant() {
    let (worlds, unsafe_world) = explore(Fault::None);
    assert_eq!(unsafe_world, None);
    assert!(worlds > 300, "{worlds} worlds");
}

#[test]
fn each_fault_in_the_evidence_is_found() {
    let faults =
        [Fault::NoPidfd, Fault::Search, Fault::SignalableOnly, Fault::TwoReapers, Fault::EarlyRelease];
    for fault in faults {
        assert!(explore(fault).1.is_some(), "{fault:?}");
    }
}

#[test]
fn late_evidence_ends_no_session() {
    for (is_zoolock_dead, has_child, command_may_live) in
        [(true, false, true), (true, false, false), (true, true, true), (false, false, false)]
    {
        let evidence =
            Evidence { is_zoolock_dead: Some(is_zoolock_dead), has_child, command_may_live, is_late: true };
        assert!(matches!(evidence.decide(), Decision::Keep(_)), "{evidence:?}");
    }
}
