//! From "first" to "held": how the last holder left, the delay after a crash, the mark of one that begins.

use super::*;
use crate::names::{Name, Role};

/// What the record said before a mark of beginning was to be written, and which version that was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Undo {
    pub(super) marker: Marker,
    pub(super) version: i32,
}

impl Node {
    /// The mark of its beginning.
    pub fn beginning_in(self, directory: Zxid) -> Marker {
        Marker { directory, left: Left::Held, sequence: self.sequence, tracked: true }
    }
}

impl Contender {
    /// Nobody stands in our way, and `directory` was read after that had become so, with these `others` still there.
    pub(super) fn first(
        &mut self,
        me: Node,
        directory: Option<Directory>,
        others: &[String],
        turn: &mut Turn,
    ) {
        if !turn.lease_valid && self.on(Rule::GrantOnLease) {
            self.phase = Phase::AwaitingLease { me };
            return;
        }
        let previous = directory.map_or(Previous::Unknown, |directory| self.previous(&directory, me, others));
        if self.config.delay > 0 && !self.delayed && previous != Previous::Clean {
            self.phase = Phase::Delaying { me };
            return self.send(Purpose::Delay, Request::Sleep(self.config.delay), turn);
        }
        self.begin(me, directory, previous, others, turn);
    }

    pub(super) fn lease_renewed(&mut self, turn: &mut Turn) {
        if let Phase::AwaitingLease { me } = self.phase {
            self.look(me, turn);
        }
    }

    pub(super) fn waited_out(&mut self, turn: &mut Turn) {
        if let Phase::Delaying { me } = self.phase {
            self.delayed = true;
            self.look(me, turn);
        }
    }

    /// Says that we begin, where crashes are tracked, and holds.
    fn begin(
        &mut self,
        me: Node,
        directory: Option<Directory>,
        previous: Previous,
        others: &[String],
        turn: &mut Turn,
    ) {
        let alone = me.prefix.is_exclusive();
        let marker = directory.and_then(|directory| directory.record.marker_of(directory.czxid));
        let tracked = marker.is_some_and(|marker| marker.tracked);
        let begun = marker.is_some_and(|marker| marker == me.beginning_in(marker.directory));
        if !alone || !(tracked || self.config.tracks_crashes) || begun {
            return self.hold(me, directory, previous, turn);
        }
        let Some(directory) = directory.filter(|seen| seen.record.is_writable(seen.czxid)) else {
            // What is not ours to write over for the beginning is not for the undoing either.
            self.undo = None;
            return self.fail(Reason::ForeignRecord, turn);
        };
        let beginning = me.beginning_in(directory.czxid);
        self.before = Some(previous);
        // If we give up now: as it was, so that a crash before us is not forgotten. But who has begun and still stands
        // here has not crashed, and will not be there when the next one looks.
        let marker = match marker {
            Some(marker) if is_of_one_who_stands(&marker, others) => Marker { left: Left::Broken, ..marker },
            Some(marker) => marker,
            None => Marker { left: Left::Broken, ..beginning },
        };
        self.undo = Some(Undo { marker, version: directory.version });
        self.phase = Phase::Marking { me, directory, previous };
        let node = self.on(Rule::HeldWithOwnNode).then_some(me);
        let version = directory.version;
        self.send(Purpose::Mark, Request::Hold { node, marker: beginning, version }, turn);
    }

    pub(super) fn marked(&mut self, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Phase::Marking { me, directory, previous } = self.phase else { return };
        match outcome {
            Ok(_) if !turn.lease_valid => self.phase = Phase::AwaitingLease { me },
            Ok(_) => {
                let record = Record::Marker(me.beginning_in(directory.czxid));
                let version = directory.version.wrapping_add(1);
                self.hold(me, Some(Directory { record, version, ..directory }), previous, turn);
            }
            Err(Failure::Unknown) => {
                self.perhaps_marked = true;
                self.pause(After::Look(me), turn);
            }
            Err(failure) => {
                if !self.perhaps_marked {
                    // What we have not written we must not take back: it would write over what others wrote since.
                    self.undo = None;
                }
                match failure {
                    Failure::Throttled => self.pause(After::Look(me), turn),
                    // Somebody wrote there meanwhile, or our node is gone.
                    Failure::BadVersion | Failure::NoNode => self.look(me, turn),
                    _ => self.fail(Reason::Refused(failure), turn),
                }
            }
        }
    }

    fn hold(&mut self, me: Node, directory: Option<Directory>, previous: Previous, turn: &mut Turn) {
        self.phase = Phase::Held { me, directory, watch: None };
        turn.actions.push(Action::Granted(Grant { node: me, previous }));
        self.say_granted(me, turn);
        match self.config.watch_own_after {
            0 => self.watch_own(turn),
            // Most holders are gone before anybody could take it from them: each would pay for a request and an event.
            pause => self.send(Purpose::PauseOwn, Request::Sleep(pause), turn),
        }
    }

    /// Whether the marker in this directory was left by the holder right before `me`.
    pub(super) fn hands_to(&self, directory: &Directory, me: Node) -> bool {
        let marker = self.marker_in(directory);
        marker.is_some_and(|marker| marker.left.hands_over() && self.is_right_before(marker.sequence, me))
    }

    fn marker_in(&self, directory: &Directory) -> Option<Marker> {
        match directory.record {
            Record::Marker(marker) if !self.on(Rule::MarkerOfThisDirectory) => Some(marker),
            record => record.marker_of(directory.czxid),
        }
    }

    /// Whether nobody that we would have to wait for can stand between number `theirs` and us.
    fn is_right_before(&self, theirs: Sequence, me: Node) -> bool {
        let reads = me.prefix.reads();
        me.sequence.before() == Some(theirs) || (reads && self.behind == Some(theirs))
    }

    pub(super) fn previous(&self, directory: &Directory, me: Node, others: &[String]) -> Previous {
        let Some(marker) = self.marker_in(directory) else { return Previous::Unknown };
        if marker.left == Left::Held && marker.sequence == me.sequence {
            // Our own: we were interrupted after we had written it.
            return self.before.unwrap_or(Previous::Unknown);
        }
        if is_of_one_who_stands(&marker, others) {
            return Previous::Unknown;
        }
        // Where crashes are tracked nobody has held since whom the record does not know.
        let last = marker.tracked || self.is_right_before(marker.sequence, me);
        match marker.left {
            Left::Released | Left::Downgraded if last => Previous::Clean,
            Left::Panicked | Left::Held if last => Previous::Crashed,
            _ => Previous::Unknown,
        }
    }
}

/// Whether it says of a node that is still there that it has begun: a reader that wrote, whose writer's node goes later
/// than the reader's, after a lost reply. It lives.
fn is_of_one_who_stands(marker: &Marker, others: &[String]) -> bool {
    let is_its_writer = |other: &String| {
        let name = Name::parse(other).filter(|name| name.role == Role::Exclusive);
        name.is_some_and(|name| name.sequence == marker.sequence)
    };
    marker.left == Left::Held && others.iter().any(is_its_writer)
}
