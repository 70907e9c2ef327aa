//! From the head of the queue to the grant: how the last holder left, the delay after a crash, the marker of
//! a holder that begins.

use super::*;
use crate::names::{Name, Role};

/// The state before the marker of our beginning: the marker to restore, and the version of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Undo {
    pub(super) marker: Marker,
    pub(super) version: i32,
}

impl Node {
    /// Returns the marker of its beginning.
    pub fn beginning_in(self, directory: Zxid) -> Marker {
        Marker { directory, left: Left::Held, sequence: self.sequence, tracked: true }
    }
}

impl Contender {
    /// Continues at the head of the queue. `directory` was read after our znode had become the head, and `others` are the
    /// znodes that still existed then.
    pub(super) fn reached_head(
        &mut self,
        me: Node,
        directory: Option<Directory>,
        others: &[String],
        context: &mut StepContext,
    ) {
        if !context.lease_valid && self.on(Rule::GrantOnLease) {
            self.phase = Phase::AwaitingLease { me };
            return;
        }
        let previous = directory.map_or(Previous::Unknown, |directory| self.previous(&directory, me, others));
        if self.config.delay > 0 && !self.delayed && previous != Previous::Clean {
            self.phase = Phase::Delaying { me };
            return self.send(Purpose::Delay, Request::Sleep(self.config.delay), context);
        }
        self.begin(me, directory, previous, others, context);
    }

    pub(super) fn lease_renewed(&mut self, context: &mut StepContext) {
        if let Phase::AwaitingLease { me } = self.phase {
            self.look(me, context);
        }
    }

    pub(super) fn delay_ended(&mut self, context: &mut StepContext) {
        if let Phase::Delaying { me } = self.phase {
            self.delayed = true;
            self.look(me, context);
        }
    }

    /// Writes the marker of our beginning if crashes are tracked, and holds.
    fn begin(
        &mut self,
        me: Node,
        directory: Option<Directory>,
        previous: Previous,
        others: &[String],
        context: &mut StepContext,
    ) {
        self.unrecorded_undo = None;
        let alone = me.prefix.is_exclusive();
        let marker = directory.and_then(|directory| directory.record.marker_of(directory.czxid));
        let tracked = marker.is_some_and(|marker| marker.tracked);
        let begun = marker.is_some_and(|marker| marker == me.beginning_in(marker.directory));
        if !alone || !(tracked || self.config.tracks_crashes) || begun {
            return self.hold(me, directory, previous, context);
        }
        let Some(directory) = directory.filter(|seen| seen.record.is_writable(seen.czxid)) else {
            // A record that we may not overwrite at the beginning must not be undone either.
            self.undo = None;
            return self.fail(Reason::ForeignRecord, context);
        };
        let beginning = me.beginning_in(directory.czxid);
        self.previous = Some(previous);
        // Giving up restores the marker, so that the crash of an earlier holder stays known. But a holder whose znode still
        // exists has not crashed. Its znode will be missing when the next waiter looks, so its marker becomes `Broken`.
        let marker = match marker {
            Some(marker) if is_of_present_contender(&marker, others) => {
                Marker { left: Left::Broken, ..marker }
            }
            Some(marker) => marker,
            None => Marker { left: Left::Broken, ..beginning },
        };
        let undo = Undo { marker, version: directory.version };
        if self.begins_with_others && self.on(Rule::BeginTogether) {
            self.unrecorded_undo = Some(undo);
            return self.hold(me, Some(directory), previous, context);
        }
        self.undo = Some(undo);
        self.phase = Phase::Marking { me, directory, previous };
        let node = self.on(Rule::HeldWithOwnNode).then_some(me);
        let version = directory.version;
        self.send(Purpose::Mark, Request::Hold { node, marker: beginning, version }, context);
    }

    pub(super) fn marked(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let Phase::Marking { me, directory, previous } = self.phase else { return };
        match outcome {
            Ok(_) if !context.lease_valid => self.phase = Phase::AwaitingLease { me },
            Ok(_) => {
                let record = Record::Marker(me.beginning_in(directory.czxid));
                let version = directory.version.wrapping_add(1);
                self.hold(me, Some(Directory { record, version, ..directory }), previous, context);
            }
            Err(Failure::Unknown) => {
                self.perhaps_marked = true;
                self.pause(After::Look(me), context);
            }
            Err(failure) => {
                self.not_marked();
                match failure {
                    Failure::Throttled => self.pause(After::Look(me), context),
                    // Another client wrote meanwhile, or our znode is deleted.
                    Failure::BadVersion | Failure::NoNode => self.look(me, context),
                    _ => self.fail(Reason::Refused(failure), context),
                }
            }
        }
    }

    /// Handles a refused marker.
    fn not_marked(&mut self) {
        if !self.perhaps_marked {
            // A marker that was not written must not be undone: that would overwrite later records.
            self.undo = None;
        }
    }

    // ---- a lock of a multi-lock ----

    /// Returns the beginning that is still to be recorded. From now on the record may contain it.
    pub(crate) fn record_beginning(&mut self, place: usize) -> Option<Beginning> {
        let Phase::Held { me, directory: Some(directory), .. } = self.phase else { return None };
        self.undo = Some(self.unrecorded_undo?);
        let marker = me.beginning_in(directory.czxid);
        Some(Beginning { place, node: me, marker, version: directory.version })
    }

    /// Handles a recorded beginning.
    pub(crate) fn beginning_recorded(&mut self) {
        if let Phase::Held { me, directory: Some(directory), .. } = &mut self.phase
            && self.unrecorded_undo.take().is_some()
        {
            directory.record = Record::Marker(me.beginning_in(directory.czxid));
            directory.version = directory.version.wrapping_add(1);
        }
    }

    /// Handles a beginning that was perhaps not recorded, and reads the record again unless the server refuses
    /// it for good. Returns whether it read again: then the grant is not valid any more.
    pub(super) fn beginning_failed(&mut self, failure: Failure, context: &mut StepContext) -> bool {
        let Phase::Held { me, watch, .. } = self.phase else { return false };
        if self.unrecorded_undo.take().is_none() {
            return false;
        }
        match failure {
            Failure::Unknown => self.perhaps_marked = true,
            _ => self.not_marked(),
        }
        if !failure.is_transient() {
            return false;
        }
        context.actions.extend(watch.map(Action::Unwatch));
        self.void_pending();
        if failure.is_answer() {
            self.look(me, context)
        } else {
            self.pause(After::Look(me), context)
        }
        true
    }

    fn hold(
        &mut self,
        me: Node,
        directory: Option<Directory>,
        previous: Previous,
        context: &mut StepContext,
    ) {
        self.unread = false;
        self.phase = Phase::Held { me, directory, watch: None };
        context.actions.push(Action::Granted(Grant { node: me, previous }));
        self.say_granted(me, context);
        match self.config.watch_own_after {
            0 => self.watch_own(context),
            // Most holders release before another client could break the lock. The watch would cost each of
            // them a request and an event.
            pause => self.send(Purpose::PauseOwn, Request::Sleep(pause), context),
        }
    }

    /// Returns whether the marker was left by the holder directly before `me`.
    pub(super) fn is_released_to(&self, directory: &Directory, me: Node) -> bool {
        let marker = self.marker_in(directory);
        marker.is_some_and(|marker| marker.left.is_release() && self.is_right_before(marker.sequence, me))
    }

    fn marker_in(&self, directory: &Directory) -> Option<Marker> {
        match directory.record {
            Record::Marker(marker) if !self.on(Rule::MarkerOfThisDirectory) => Some(marker),
            record => record.marker_of(directory.czxid),
        }
    }

    /// Returns whether no contender that we must wait for can be between sequence number `theirs` and ours.
    fn is_right_before(&self, theirs: Sequence, me: Node) -> bool {
        let reads = me.prefix.reads();
        me.sequence.before() == Some(theirs) || (reads && self.exclusive_predecessor == Some(theirs))
    }

    pub(super) fn previous(&self, directory: &Directory, me: Node, others: &[String]) -> Previous {
        let Some(marker) = self.marker_in(directory) else { return Previous::Unknown };
        if marker.left == Left::Held && marker.sequence == me.sequence {
            // Our own marker: we were interrupted after it was written.
            return self.previous.unwrap_or(Previous::Unknown);
        }
        if is_of_present_contender(&marker, others) {
            return Previous::Unknown;
        }
        // If crashes are tracked, every holder since is in the record.
        let last = marker.tracked || self.is_right_before(marker.sequence, me);
        match marker.left {
            Left::Released | Left::Downgraded if last => Previous::Clean,
            Left::Panicked | Left::Held if last => Previous::Crashed,
            _ => Previous::Unknown,
        }
    }
}

/// Returns whether the marker says that a contender has begun whose znode still exists. This is a reader that
/// upgraded: after a lost reply its writer's znode is deleted after the reader's. It has not crashed.
fn is_of_present_contender(marker: &Marker, others: &[String]) -> bool {
    let is_its_writer = |other: &String| {
        let name = Name::parse(other).filter(|name| name.role == Role::Exclusive);
        name.is_some_and(|name| name.sequence == marker.sequence)
    };
    marker.left == Left::Held && others.iter().any(is_its_writer)
}
