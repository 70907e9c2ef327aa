//! Round trips: requests that are sent together, and whose answers are handled together.
//!
//! The server answers the requests of a session in order, and the last answer ends the round trip. If
//! the connection is lost, the round trip ends with [`RequestFailure::Unknown`] for each answer that is
//! missing. An event of a watch is handled only after the end of the round trip that has set the watch.

use super::*;

/// The reason for a round trip. It selects the handler of the answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    // Round trips of the whole acquisition.
    /// Create our znodes, and read the queues.
    Create,
    MakeDirectories,
    /// Wait for an answer of the leader. After it, no earlier create can still arrive.
    Barrier,
    /// Find our znodes after a lost reply.
    Search,
    /// Read all our znodes again before the grant.
    Verify,
    /// Write the `held` markers of a multi-lock.
    BeginAll,
    ReleaseAll,
    /// Wait before the next try.
    Pause,
    // Round trips to the directory that is retired.
    RetireRead,
    RetireDelete,
    RetirePause,
    // Round trips to one directory, before the grant.
    /// Read the directory, then our own znode.
    Look,
    /// List the children, read the directory, then our own znode.
    List,
    /// Watch the predecessor. For look-ahead also read the directory, and watch our own znode.
    Watch,
    /// Read our own znode, because the znode of the predecessor is younger.
    CheckOwn,
    WriteSize,
    /// Write the `held` marker of one lock.
    Begin,
    /// Wait before the next read of the queue.
    LookPause,
    /// Wait, so that the waiters do not all list at the same time.
    Spread,
    /// Wait before the grant, because the previous holder may have crashed.
    Delay,
    // Round trips to one directory, when our znode is the head of its queue.
    WatchOwn,
    OwnPause,
    MarkGranted,
    ReadRecord,
    RecordPause,
    Downgrade,
    DowngradeCheck,
    DowngradePause,
    // Round trips to the directory of a clean-up. The value is the czxid of the znode that must be
    // deleted.
    Delete(Zxid),
    Check(Zxid),
    CleanupPause(Zxid),
}

impl Purpose {
    fn is_of_cleanup(self) -> bool {
        matches!(self, Purpose::Delete(_) | Purpose::Check(_) | Purpose::CleanupPause(_))
    }
}

/// The kind of a request in a round trip. It selects the field of `Answers` that keeps the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum RequestKind {
    /// A write, a barrier or a search.
    Main,
    Predecessor(WatchId),
    Children(Option<WatchId>),
    Directory,
    Own(Option<WatchId>),
    /// A read of the reader's znode after a downgrade.
    Reader,
    Sync,
    Timer,
}

impl RequestKind {
    /// Returns the watch that the request sets, if it sets one.
    fn watch(self) -> Option<WatchId> {
        match self {
            RequestKind::Predecessor(watch) => Some(watch),
            RequestKind::Children(watch) | RequestKind::Own(watch) => watch,
            RequestKind::Main
            | RequestKind::Directory
            | RequestKind::Reader
            | RequestKind::Sync
            | RequestKind::Timer => None,
        }
    }
}

/// Maximum number of requests of a round trip to one directory.
const MAX_PARTS: usize = 4;
/// Maximum number of round trips to one directory that are open at the same time.
const MAX_ROUND_TRIPS: u8 = 64;

/// The names of the children at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Children {
    pub(super) names: Vec<String>,
    pub(super) pzxid: Zxid,
}

/// One read of a contender's znode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct NodeRead {
    pub(super) czxid: Zxid,
    pub(super) owner: SessionId,
    pub(super) version: i32,
    pub(super) flags: NodeFlags,
}

/// The answers of a round trip to one directory. A value is `None` if the round trip has no such request,
/// or while the answer is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Answers {
    pub(super) main: Option<Result<Reply, RequestFailure>>,
    pub(super) sync: Option<Result<(), RequestFailure>>,
    pub(super) predecessor: Option<Result<NodeRead, RequestFailure>>,
    pub(super) children: Option<Result<Children, RequestFailure>>,
    pub(super) directory: Option<Result<Directory, RequestFailure>>,
    pub(super) own: Option<Result<NodeRead, RequestFailure>>,
    pub(super) reader: Option<Result<Node, RequestFailure>>,
}

impl Answers {
    pub(super) fn add(&mut self, part: RequestKind, outcome: Result<Reply, RequestFailure>) {
        // A reply of an unexpected type counts as lost.
        let node = |outcome| match outcome {
            Ok(Reply::Node { czxid, owner, version, flags }) => Ok(NodeRead { czxid, owner, version, flags }),
            Ok(_) => Err(RequestFailure::Unknown),
            Err(failure) => Err(failure),
        };
        match part {
            RequestKind::Main => self.main = Some(outcome),
            RequestKind::Timer => {}
            RequestKind::Sync => self.sync = Some(outcome.map(|_| ())),
            RequestKind::Predecessor(_) => self.predecessor = Some(node(outcome)),
            RequestKind::Own(_) => self.own = Some(node(outcome)),
            RequestKind::Reader => {
                self.reader = Some(match outcome {
                    Ok(Reply::Joined(reader)) => Ok(reader),
                    Ok(_) => Err(RequestFailure::Unknown),
                    Err(failure) => Err(failure),
                });
            }
            RequestKind::Children(_) => {
                self.children = Some(match outcome {
                    Ok(Reply::Children { names, pzxid }) => Ok(Children { names, pzxid }),
                    Ok(_) => Err(RequestFailure::Unknown),
                    Err(failure) => Err(failure),
                });
            }
            RequestKind::Directory => {
                self.directory = Some(match outcome {
                    Ok(Reply::Directory(directory)) => Ok(directory),
                    Ok(_) => Err(RequestFailure::Unknown),
                    Err(failure) => Err(failure),
                });
            }
        }
    }

    /// Returns whether the read of this part has succeeded. If the read sets a watch, the watch is
    /// then in force.
    fn has_set(&self, part: RequestKind) -> bool {
        match part {
            RequestKind::Predecessor(_) => matches!(self.predecessor, Some(Ok(_))),
            RequestKind::Own(_) => matches!(self.own, Some(Ok(_))),
            RequestKind::Children(_) => matches!(self.children, Some(Ok(_))),
            RequestKind::Main
            | RequestKind::Directory
            | RequestKind::Reader
            | RequestKind::Sync
            | RequestKind::Timer => false,
        }
    }
}

/// A round trip that waits for answers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RoundTrip {
    number: u8,
    /// The directory; `None` for a round trip to all directories.
    lock_index: Option<usize>,
    pub(super) purpose: Purpose,
    parts: [Option<RequestKind>; MAX_PARTS],
    /// Number of requests without an answer.
    missing: u16,
    answers: Answers,
    /// Events of watches of this round trip that came before its last answer: the watch, and whether
    /// its znode was deleted.
    early: Vec<(WatchId, bool)>,
    /// Set if the answers are ignored.
    is_void: bool,
}

/// Returns the index of the directory that a request is for.
pub fn lock_index(id: RequestId) -> usize {
    usize::from(id.0 >> 8)
}

fn request_id(lock_index: usize, number: u8, part: usize) -> RequestId {
    RequestId((lock_index as u16) << 8 | u16::from(number) << 2 | part as u16)
}

fn main_answer(answers: Answers) -> Result<Reply, RequestFailure> {
    answers.main.unwrap_or(Err(RequestFailure::Unknown))
}

impl Machine {
    /// Sends a round trip to one directory.
    pub(super) fn send_round_trip(
        &mut self,
        lock_index: usize,
        purpose: Purpose,
        requests: impl IntoIterator<Item = (RequestKind, Request)>,
        step: &mut Step,
    ) {
        let is_used = |number: &u8| {
            let shares = |trip: &&RoundTrip| trip.lock_index.is_none_or(|of| of == lock_index);
            self.trips.iter().filter(shares).any(|trip| trip.number == *number)
        };
        let number = (0..MAX_ROUND_TRIPS).find(|number| !is_used(number));
        self.open_round_trip(number, Some(lock_index), purpose);
        for (part, request) in requests {
            self.add_request(lock_index, part, request, step);
        }
    }

    /// Sends a round trip of one request.
    pub(super) fn send_one(
        &mut self,
        lock_index: usize,
        purpose: Purpose,
        part: RequestKind,
        request: Request,
        step: &mut Step,
    ) {
        self.send_round_trip(lock_index, purpose, [(part, request)], step);
    }

    /// Sends a round trip with at most one request to each directory.
    pub(super) fn send_to_all(
        &mut self,
        purpose: Purpose,
        part: RequestKind,
        request: impl Fn(&Position) -> Option<Request>,
        step: &mut Step,
    ) {
        self.open_to_all(purpose);
        for lock_index in 0..self.positions.len() {
            if let Some(request) = request(&self.positions[lock_index]) {
                self.add_request(lock_index, part, request, step);
            }
        }
    }

    /// Begins a round trip to all directories. Its requests follow with [`Machine::add_request`].
    pub(super) fn open_to_all(&mut self, purpose: Purpose) {
        let is_used = |number: &u8| self.trips.iter().any(|trip| trip.number == *number);
        let number = (0..MAX_ROUND_TRIPS).rev().find(|number| !is_used(number));
        self.open_round_trip(number, None, purpose);
    }

    fn open_round_trip(&mut self, number: Option<u8>, lock_index: Option<usize>, purpose: Purpose) {
        self.trips.push(RoundTrip {
            number: number.expect("a machine has few open round trips"),
            lock_index,
            purpose,
            parts: [None; MAX_PARTS],
            missing: 0,
            answers: Answers::default(),
            early: Vec::new(),
            is_void: false,
        });
    }

    /// Sends a request of the round trip that was opened last.
    pub(super) fn add_request(
        &mut self,
        lock_index: usize,
        part: RequestKind,
        request: Request,
        step: &mut Step,
    ) {
        let Some(trip) = self.trips.last_mut() else { return };
        let is_free = |known: &Option<RequestKind>| known.is_none_or(|known| known == part);
        let at =
            trip.parts.iter().position(is_free).expect("a round trip has few requests for one directory");
        trip.parts[at] = Some(part);
        trip.missing += 1;
        step.actions.push(Action::Send(request_id(lock_index, trip.number, at), request));
    }

    /// Waits for some milliseconds.
    pub(super) fn sleep(&mut self, lock_index: usize, purpose: Purpose, ms: u32, step: &mut Step) {
        self.send_one(lock_index, purpose, RequestKind::Timer, Request::Sleep(ms), step);
    }

    /// Waits before the next try, longer after each failure in a row.
    pub(super) fn back_off(&mut self, lock_index: usize, purpose: Purpose, step: &mut Step) {
        let wait = backoff(&mut self.tries);
        self.sleep(lock_index, purpose, wait, step);
    }

    /// Handles the answer to one request. The last answer of a round trip ends it.
    pub(super) fn handle_answer(
        &mut self,
        id: RequestId,
        outcome: Result<Reply, RequestFailure>,
        step: &mut Step,
    ) {
        let (lock_index, number, at) = (lock_index(id), id.0 as u8 >> 2, usize::from(id.0 & 3));
        let is_it =
            |trip: &RoundTrip| trip.number == number && trip.lock_index.is_none_or(|of| of == lock_index);
        let Some(index) = self.trips.iter().position(is_it) else { return };
        let trip = &mut self.trips[index];
        let Some(part) = trip.parts[at] else { return };
        trip.missing -= 1;
        let ends = trip.missing == 0;
        if trip.is_void {
            if let (Some(watch), Ok(_)) = (part.watch(), &outcome) {
                step.actions.push(Action::Unwatch(watch));
            }
        } else {
            if outcome.is_ok() && part != RequestKind::Timer {
                self.tries = 0;
            }
            match trip.purpose {
                Purpose::Create if lock_index > 0 => {
                    if let Some(position) = self.positions.get_mut(lock_index) {
                        position.early_answers.get_or_insert_default().add(part, outcome);
                    }
                }
                Purpose::MakeDirectories => self.record_directory_answer(outcome),
                Purpose::Search => self.record_search_answer(lock_index, outcome),
                Purpose::Verify => self.record_verify_answer(lock_index, outcome),
                _ => trip.answers.add(part, outcome),
            }
        }
        if ends {
            let trip = self.trips.remove(index);
            if !trip.is_void {
                self.end_round_trip(lock_index, trip, step);
            }
        }
    }

    /// Handles the answers of a round trip, and then the events of the watches that it has set.
    fn end_round_trip(&mut self, lock_index: usize, trip: RoundTrip, step: &mut Step) {
        let RoundTrip { purpose, parts, answers, early, .. } = trip;
        let parts = || parts.iter().flatten();
        let own = parts().find_map(|part| if let RequestKind::Own(watch) = part { *watch } else { None });
        let watch = parts().find_map(|part| match part {
            RequestKind::Predecessor(watch) => Some(*watch),
            RequestKind::Children(watch) => *watch,
            _ => None,
        });
        match purpose {
            Purpose::Create => self.handle_create_answer(answers, step),
            Purpose::MakeDirectories => self.handle_directory_answers(step),
            Purpose::Barrier => self.handle_barrier_answer(&main_answer(answers), step),
            Purpose::Search => self.handle_search_results(step),
            Purpose::Verify => self.handle_verify_answers(step),
            Purpose::BeginAll => self.handle_held_record_answers(main_answer(answers), step),
            Purpose::ReleaseAll => self.handle_joint_release_answer(main_answer(answers), step),
            Purpose::Pause => self.end_pause(step),
            Purpose::RetireRead => self.handle_retired_read(answers, step),
            Purpose::RetireDelete => self.handle_retired_delete(main_answer(answers), step),
            Purpose::RetirePause => self.read_retired(step),
            Purpose::Look => self.handle_queue_read(lock_index, answers, step),
            Purpose::List => self.handle_listing(lock_index, watch, answers, &early, step),
            Purpose::Watch => {
                if let Some(watch) = watch {
                    self.handle_predecessor_watch_answer(lock_index, watch, own, &answers, step);
                }
            }
            Purpose::CheckOwn => self.handle_own_check(lock_index, answers, step),
            Purpose::WriteSize => self.handle_size_answer(lock_index, main_answer(answers), step),
            Purpose::Begin => self.handle_held_record_answer(lock_index, main_answer(answers), step),
            Purpose::LookPause => self.read_queue(lock_index, step),
            Purpose::Spread => self.send_listing(lock_index, false, step),
            Purpose::Delay => self.handle_delay_end(lock_index, step),
            Purpose::WatchOwn => {
                if let Some(watch) = own {
                    self.handle_own_watch_answer(lock_index, watch, &answers, step);
                }
            }
            Purpose::OwnPause => self.watch_own(lock_index, step),
            Purpose::MarkGranted => self.handle_mark_granted_answer(lock_index, &main_answer(answers), step),
            Purpose::ReadRecord => self.handle_record_answer(lock_index, answers, step),
            Purpose::RecordPause => self.read_record(lock_index, step),
            Purpose::Downgrade => self.handle_downgrade_answer(answers, step),
            Purpose::DowngradeCheck => self.handle_downgrade_check(answers, step),
            Purpose::DowngradePause => self.check_downgrade(step),
            Purpose::Delete(czxid) => {
                self.handle_delete_answer(lock_index, czxid, main_answer(answers), step)
            }
            Purpose::Check(czxid) => self.handle_cleanup_check(lock_index, czxid, answers, step),
            Purpose::CleanupPause(czxid) => self.check_cleanup(lock_index, czxid, step),
        }
        for (watch, deleted) in early {
            self.handle_watch_event(watch, deleted, step);
        }
    }

    /// Keeps the event of a watch for later, if the round trip that has set the watch is still open.
    /// Returns whether the event was kept.
    pub(super) fn keep_early_event(&mut self, watch: WatchId, deleted: bool) -> bool {
        let sets = |trip: &&mut RoundTrip| {
            let mut parts = trip.parts.iter().flatten();
            !trip.is_void && parts.any(|part| part.watch() == Some(watch) && trip.answers.has_set(*part))
        };
        let trip = self.trips.iter_mut().find(sets);
        trip.map(|trip| trip.early.push((watch, deleted))).is_some()
    }

    /// Ignores the answers of all round trips except those of clean-ups. Removes the watches that the
    /// ignored round trips set.
    pub(super) fn void_all(&mut self, step: &mut Step) {
        self.void_round_trips(step, |_| true);
    }

    /// Ignores the answers of the round trips to one directory, except those of clean-ups. Removes the
    /// watches that the ignored round trips set.
    pub(super) fn void_position(&mut self, lock_index: usize, step: &mut Step) {
        self.void_round_trips(step, |trip| trip.lock_index == Some(lock_index));
    }

    fn void_round_trips(&mut self, step: &mut Step, is_meant: impl Fn(&RoundTrip) -> bool) {
        for trip in &mut self.trips {
            if trip.is_void || trip.purpose.is_of_cleanup() || !is_meant(trip) {
                continue;
            }
            trip.is_void = true;
            let fired = |watch| trip.early.iter().any(|(early, _)| *early == watch);
            for part in trip.parts.iter().flatten().filter(|part| trip.answers.has_set(**part)) {
                step.actions.extend(part.watch().filter(|watch| !fired(*watch)).map(Action::Unwatch));
            }
        }
    }

    /// Ignores the answers that only a holder needs. A watch on our own znode that is still being set
    /// stays, because our delete makes it fire, which ends it without a request.
    pub(super) fn void_own_reads(&mut self, lock_index: usize) {
        for trip in &mut self.trips {
            let is_of_holder = matches!(
                trip.purpose,
                Purpose::WatchOwn | Purpose::OwnPause | Purpose::RecordPause | Purpose::ReadRecord
            );
            if is_of_holder && trip.lock_index == Some(lock_index) {
                trip.is_void = true;
                trip.parts.iter_mut().flatten().for_each(|part| {
                    if let RequestKind::Own(watch) = part {
                        *watch = None;
                    }
                });
            }
        }
    }

    /// Returns our new znode in the directory, if the create is answered and other answers of its
    /// round trip are still missing.
    pub(super) fn created_node(&self, lock_index: usize) -> Option<Node> {
        let is_create = |trip: &&RoundTrip| trip.purpose == Purpose::Create;
        match &self.trips.iter().find(is_create)?.answers.main {
            Some(Ok(Reply::Joined(node))) if lock_index == 0 => Some(*node),
            Some(Ok(Reply::AllJoined(nodes))) => nodes.get(lock_index).copied(),
            _ => None,
        }
    }

    /// Returns whether a round trip with this purpose is open in the directory.
    pub(super) fn is_open(&self, lock_index: usize, purpose: Purpose) -> bool {
        let is_it = |trip: &RoundTrip| {
            !trip.is_void && trip.purpose == purpose && trip.lock_index.is_none_or(|of| of == lock_index)
        };
        self.trips.iter().any(is_it)
    }

    /// Returns an unused id for a new watch in this directory.
    pub(super) fn new_watch(&self, lock_index: usize) -> WatchId {
        let position = &self.positions[lock_index];
        let is_set = |watch: &WatchId| {
            let waiting =
                matches!(position.state, PositionState::Waiting { watch: known, .. } if known == *watch);
            waiting || position.own_watch == Some(*watch) || position.ahead.own_watch() == Some(*watch)
        };
        let is_sent = |watch: &WatchId| {
            self.trips.iter().flat_map(|trip| trip.parts).flatten().any(|part| part.watch() == Some(*watch))
        };
        let upper = (lock_index as u16) << 8;
        let free = (0..=0xff).map(|low| WatchId(upper | low)).find(|watch| !is_set(watch) && !is_sent(watch));
        free.expect("a machine has few watches in one directory")
    }
}

/// Returns the wait before the next try: 10 ms, doubled for each failure in a row, at most 640 ms.
pub(super) fn backoff(tries: &mut u8) -> u32 {
    let wait = 10u32 << (*tries).min(6);
    *tries = tries.saturating_add(1).min(7);
    wait
}
