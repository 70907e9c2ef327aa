//! Round trips: requests that are sent together, and whose answers are handled together.
//!
//! The server answers the requests of a session in order, and the last answer ends the round trip. If the connection is
//! lost, the round trip ends with [`RequestFailure::Unknown`] for each answer that is missing. An event of a watch is
//! handled only after the end of the round trip that has set the watch.

use super::*;

/// The reason for a round trip. It selects the handler of the answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    // Of the whole acquisition.
    /// Create our znodes, and read the queues.
    Create,
    MakeDirectories,
    /// Wait for an answer of the leader. After it, no earlier create can still arrive.
    Barrier,
    /// Find our znodes after a lost reply.
    Search,
    /// Read all our znodes again before the grant.
    Verify,
    /// Write the `held` markers.
    Begin,
    ReleaseAll,
    /// Wait before the next try.
    Pause,
    /// Wait until the caller must have taken the grant.
    Claim,
    // To the directory that is retired.
    RetireRead,
    RetireDelete,
    RetirePause,
    // Of a holder that becomes a reader.
    Downgrade,
    DowngradeCheck,
    DowngradePause,
    // Of one position.
    Position(PositionPurpose),
    /// Delete the znode that was created by this transaction.
    Cleanup(Zxid, CleanupPurpose),
}

/// The reason for a round trip of one position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum PositionPurpose {
    // Before the grant.
    /// Read the directory, then our own znode.
    Look,
    /// List the children, read the directory, then our own znode.
    List,
    /// Watch the predecessor. For look-ahead also read the directory, and watch our own znode.
    Watch,
    /// Read our own znode, because the znode of the predecessor is younger.
    CheckOwn,
    WriteSize,
    /// Wait before the next read of the queue.
    LookPause,
    /// Wait, so that the waiters do not all list at the same time.
    Spread,
    /// Wait before the grant, because the previous holder may have crashed.
    Delay,
    // When our znode is the head of the queue.
    WatchOwn,
    OwnPause,
    MarkGranted,
    ReadRecord,
    RecordPause,
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
            _ => None,
        }
    }
}

/// Maximum number of requests of a round trip to one directory.
const MAX_PARTS: usize = 4;
/// Maximum number of round trips to one directory that are open at the same time.
const MAX_ROUND_TRIPS: u8 = 64;

/// The answer to one request.
pub(super) type Answer<T = Reply> = Result<T, RequestFailure>;

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

/// The answers of a round trip to one directory. A value is `None` if the round trip has no such request, or while the
/// answer is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Answers {
    main: Option<Answer>,
    pub(super) sync: Option<Answer<()>>,
    pub(super) predecessor: Option<Answer<NodeRead>>,
    pub(super) children: Option<Answer<Children>>,
    pub(super) directory: Option<Answer<Directory>>,
    pub(super) own: Option<Answer<NodeRead>>,
    pub(super) reader: Option<Answer<Node>>,
}

impl Answers {
    pub(super) fn add(&mut self, kind: RequestKind, outcome: Answer) {
        // A reply of an unexpected type counts as lost.
        const UNEXPECTED: RequestFailure = RequestFailure::Unknown;
        let node = |reply| match reply {
            Reply::Node { czxid, owner, version, flags } => Ok(NodeRead { czxid, owner, version, flags }),
            _ => Err(UNEXPECTED),
        };
        let children = |reply| match reply {
            Reply::Children { names, pzxid } => Ok(Children { names, pzxid }),
            _ => Err(UNEXPECTED),
        };
        let directory =
            |reply| if let Reply::Directory(directory) = reply { Ok(directory) } else { Err(UNEXPECTED) };
        let reader = |reply| if let Reply::Joined(reader) = reply { Ok(reader) } else { Err(UNEXPECTED) };
        match kind {
            RequestKind::Main => self.main = Some(outcome),
            RequestKind::Timer => {}
            RequestKind::Sync => self.sync = Some(outcome.map(|_| ())),
            RequestKind::Predecessor(_) => self.predecessor = Some(outcome.and_then(node)),
            RequestKind::Own(_) => self.own = Some(outcome.and_then(node)),
            RequestKind::Reader => self.reader = Some(outcome.and_then(reader)),
            RequestKind::Children(_) => self.children = Some(outcome.and_then(children)),
            RequestKind::Directory => self.directory = Some(outcome.and_then(directory)),
        }
    }

    /// Returns the answer to the write, the barrier or the search.
    pub(super) fn main(&self) -> Answer<&Reply> {
        match &self.main {
            Some(outcome) => outcome.as_ref().map_err(|failure| *failure),
            None => Err(RequestFailure::Unknown),
        }
    }

    /// Returns whether the read of this kind has succeeded. If the read sets a watch, the watch is then in force.
    fn has_set(&self, kind: RequestKind) -> bool {
        match kind {
            RequestKind::Predecessor(_) => matches!(self.predecessor, Some(Ok(_))),
            RequestKind::Own(_) => matches!(self.own, Some(Ok(_))),
            RequestKind::Children(_) => matches!(self.children, Some(Ok(_))),
            _ => false,
        }
    }
}

/// A round trip that waits for answers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RoundTrip {
    number: u8,
    /// The directory; `None` for a round trip to all directories.
    pub(super) index: Option<usize>,
    purpose: Purpose,
    parts: [Option<RequestKind>; MAX_PARTS],
    /// Number of requests without an answer.
    missing: u16,
    pub(super) answers: Answers,
    /// Events of watches of this round trip that came before its last answer: the watch, and whether its znode was
    /// deleted.
    early: Vec<(WatchId, bool)>,
    /// Set if the answers are ignored.
    is_void: bool,
}

impl RoundTrip {
    fn is_to(&self, index: usize) -> bool {
        self.index.is_none_or(|to| to == index)
    }

    /// Returns the watch on the predecessor or on the children, if a request sets one.
    pub(super) fn watch(&self) -> Option<WatchId> {
        self.parts.iter().flatten().find_map(|part| match part {
            RequestKind::Predecessor(watch) => Some(*watch),
            RequestKind::Children(watch) => *watch,
            _ => None,
        })
    }

    /// Returns the watch on our own znode, if a request sets one.
    pub(super) fn own_watch(&self) -> Option<WatchId> {
        let own = |part: &RequestKind| if let RequestKind::Own(watch) = part { *watch } else { None };
        self.parts.iter().flatten().find_map(own)
    }

    /// Returns whether a watch of this round trip has fired already.
    pub(super) fn has_fired(&self, watch: WatchId) -> bool {
        self.early.iter().any(|(fired, _)| *fired == watch)
    }
}

/// The round trips that wait for answers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RoundTrips {
    open: Vec<RoundTrip>,
}

/// Returns the index of the directory that a request is for.
pub fn lock_index(id: RequestId) -> usize {
    usize::from(id.0 >> 8)
}

fn request_id(index: usize, number: u8, part: usize) -> RequestId {
    RequestId((index as u16) << 8 | u16::from(number) << 2 | part as u16)
}

impl RoundTrips {
    /// Returns an empty table. It has room for the fast path, so that the steps of the fast path allocate nothing.
    pub(super) fn new() -> RoundTrips {
        RoundTrips { open: Vec::with_capacity(2) }
    }

    /// Sends a round trip to one directory.
    pub(super) fn send(
        &mut self,
        index: usize,
        purpose: Purpose,
        requests: impl IntoIterator<Item = (RequestKind, Request)>,
        step: &mut Step,
    ) {
        let is_used = |number: &u8| self.open.iter().any(|trip| trip.is_to(index) && trip.number == *number);
        let number = (0..MAX_ROUND_TRIPS).find(|number| !is_used(number));
        self.push(number, Some(index), purpose);
        for (kind, request) in requests {
            self.add(index, kind, request, step);
        }
    }

    /// Waits for some milliseconds.
    pub(super) fn sleep(&mut self, index: usize, purpose: Purpose, ms: u32, step: &mut Step) {
        self.send(index, purpose, [(RequestKind::Timer, Request::Sleep(ms))], step);
    }

    /// Begins a round trip to all directories. Its requests follow with [`RoundTrips::add`].
    pub(super) fn begin(&mut self, purpose: Purpose) {
        let is_used = |number: &u8| self.open.iter().any(|trip| trip.number == *number);
        let number = (0..MAX_ROUND_TRIPS).rev().find(|number| !is_used(number));
        self.push(number, None, purpose);
    }

    fn push(&mut self, number: Option<u8>, index: Option<usize>, purpose: Purpose) {
        self.open.push(RoundTrip {
            number: number.expect("a machine has few open round trips"),
            index,
            purpose,
            parts: [None; MAX_PARTS],
            missing: 0,
            answers: Answers::default(),
            early: Vec::new(),
            is_void: false,
        });
    }

    /// Sends a request of the round trip that was begun last.
    pub(super) fn add(&mut self, index: usize, kind: RequestKind, request: Request, step: &mut Step) {
        let Some(trip) = self.open.last_mut() else { return };
        let is_free = |known: &Option<RequestKind>| known.is_none_or(|known| known == kind);
        let part = trip.parts.iter().position(is_free);
        let part = part.expect("a round trip has few requests for one directory");
        trip.parts[part] = Some(kind);
        trip.missing += 1;
        step.actions.push(Action::Send(request_id(index, trip.number, part), request));
    }

    /// Keeps the event of a watch for later, if the round trip that has set the watch is still open. Returns whether
    /// the event was kept.
    pub(super) fn keep_early_event(&mut self, watch: WatchId, deleted: bool) -> bool {
        let sets = |trip: &&mut RoundTrip| {
            let mut parts = trip.parts.iter().flatten();
            !trip.is_void && parts.any(|part| part.watch() == Some(watch) && trip.answers.has_set(*part))
        };
        let trip = self.open.iter_mut().find(sets);
        trip.map(|trip| trip.early.push((watch, deleted))).is_some()
    }

    /// Ignores the answers of all round trips except those of clean-ups. Removes the watches that the ignored round
    /// trips set.
    pub(super) fn void_all(&mut self, step: &mut Step) {
        self.void_if(step, |_| true);
    }

    /// Ignores the answers of the round trips to one directory, except those of clean-ups. Removes the watches that the
    /// ignored round trips set.
    pub(super) fn void(&mut self, index: usize, step: &mut Step) {
        self.void_if(step, |trip| trip.index == Some(index));
    }

    fn void_if(&mut self, step: &mut Step, is_meant: impl Fn(&RoundTrip) -> bool) {
        for trip in &mut self.open {
            if trip.is_void || matches!(trip.purpose, Purpose::Cleanup(..)) || !is_meant(trip) {
                continue;
            }
            trip.is_void = true;
            for part in trip.parts.iter().flatten().filter(|part| trip.answers.has_set(**part)) {
                step.actions
                    .extend(part.watch().filter(|watch| !trip.has_fired(*watch)).map(Action::Unwatch));
            }
        }
    }

    /// Ignores the answers of all round trips of a holder except those of clean-ups. A watch on our own znode that is
    /// still being set stays, because our delete makes it fire, which ends it without a request.
    pub(super) fn void_holder(&mut self, step: &mut Step) {
        use PositionPurpose::{OwnPause, ReadRecord, RecordPause, WatchOwn};
        for trip in &mut self.open {
            if let Purpose::Position(WatchOwn | OwnPause | RecordPause | ReadRecord) = trip.purpose {
                trip.is_void = true;
                trip.parts.iter_mut().flatten().for_each(|part| {
                    if let RequestKind::Own(watch) = part {
                        *watch = None;
                    }
                });
            }
        }
        self.void_all(step);
    }

    /// Ends all round trips without answers.
    pub(super) fn clear(&mut self) {
        self.open.clear();
    }

    /// Returns our new znode in the directory, if the create is answered and other answers of its round trip are still
    /// missing.
    pub(super) fn created_node(&self, index: usize) -> Option<Node> {
        let is_create = |trip: &&RoundTrip| trip.purpose == Purpose::Create;
        match self.open.iter().find(is_create)?.answers.main() {
            Ok(Reply::Joined(node)) if index == 0 => Some(*node),
            Ok(Reply::AllJoined(nodes)) => nodes.get(index).copied(),
            _ => None,
        }
    }

    /// Returns whether an answer may tell us of another znode of ours.
    pub(super) fn may_find_nodes(&self) -> bool {
        let finds =
            |trip: &RoundTrip| matches!(trip.purpose, Purpose::Create | Purpose::Barrier | Purpose::Search);
        self.open.iter().any(finds)
    }

    /// Returns whether a round trip with this purpose is open in the directory.
    pub(super) fn is_open(&self, index: usize, purpose: Purpose) -> bool {
        self.open.iter().any(|trip| !trip.is_void && trip.purpose == purpose && trip.is_to(index))
    }

    /// Returns whether a request that is not answered yet, or whose round trip is open, sets the watch.
    pub(super) fn sets(&self, watch: WatchId) -> bool {
        let mut parts = self.open.iter().flat_map(|trip| trip.parts).flatten();
        parts.any(|part| part.watch() == Some(watch))
    }
}

impl Machine {
    /// Sends a round trip with at most one request to each directory.
    pub(super) fn send_to_all(
        &mut self,
        purpose: Purpose,
        kind: RequestKind,
        request: impl Fn(&Position) -> Option<Request>,
        step: &mut Step,
    ) {
        self.trips.begin(purpose);
        for (index, position) in self.positions.iter().enumerate() {
            if let Some(request) = request(position) {
                self.trips.add(index, kind, request, step);
            }
        }
    }

    /// Waits before the next try, longer after each failure in a row.
    pub(super) fn back_off(&mut self, index: usize, purpose: Purpose, step: &mut Step) {
        let wait = backoff(&mut self.tries);
        self.trips.sleep(index, purpose, wait, step);
    }

    /// Handles the answer to one request. The last answer of a round trip ends it.
    pub(super) fn handle_answer(&mut self, id: RequestId, outcome: Answer, step: &mut Step) {
        let (index, number, part) = (lock_index(id), id.0 as u8 >> 2, usize::from(id.0 & 3));
        let is_it = |trip: &RoundTrip| trip.number == number && trip.is_to(index);
        let Some(at) = self.trips.open.iter().position(is_it) else { return };
        let trip = &mut self.trips.open[at];
        let Some(kind) = trip.parts[part] else { return };
        trip.missing -= 1;
        let ends = trip.missing == 0;
        if trip.is_void {
            if let (Some(watch), Ok(_)) = (kind.watch(), &outcome) {
                step.actions.push(Action::Unwatch(watch));
            }
        } else {
            if outcome.is_ok() && kind != RequestKind::Timer {
                self.tries = 0;
            }
            match trip.purpose {
                Purpose::Create if index > 0 => {
                    if let Some(position) = self.positions.get_mut(index) {
                        position.early_answers.get_or_insert_default().add(kind, outcome);
                    }
                }
                Purpose::MakeDirectories => self.record_directory_answer(outcome),
                Purpose::Search => self.record_search_answer(index, outcome),
                Purpose::Verify => self.record_verify_answer(index, outcome),
                _ => trip.answers.add(kind, outcome),
            }
        }
        if ends {
            let trip = self.trips.open.remove(at);
            if !trip.is_void {
                self.end_round_trip(index, &trip, step);
            }
        }
    }

    /// Handles the answers of a round trip, and then the events of the watches that it has set.
    fn end_round_trip(&mut self, index: usize, trip: &RoundTrip, step: &mut Step) {
        let answers = &trip.answers;
        match trip.purpose {
            Purpose::Create => self.handle_create_answer(answers, step),
            Purpose::MakeDirectories => self.handle_directory_answers(step),
            Purpose::Barrier => self.handle_barrier_answer(answers, step),
            Purpose::Search => self.handle_search_results(step),
            Purpose::Verify => self.handle_verify_answers(step),
            Purpose::Begin => self.handle_held_record_answer(trip.index, answers, step),
            Purpose::ReleaseAll => self.handle_joint_release_answer(answers, step),
            Purpose::Pause => self.end_pause(step),
            Purpose::Claim => self.end_claim(step),
            Purpose::RetireRead => self.handle_retired_read(answers, step),
            Purpose::RetireDelete => self.handle_retired_delete(answers, step),
            Purpose::RetirePause => self.read_retired(step),
            Purpose::Downgrade => self.handle_downgrade_answer(answers, step),
            Purpose::DowngradeCheck => self.handle_downgrade_check(answers, step),
            Purpose::DowngradePause => self.check_downgrade(step),
            Purpose::Position(purpose) => {
                self.at(index, step, |position, here| position.handle_answers(purpose, trip, here));
            }
            Purpose::Cleanup(czxid, purpose) => {
                self.handle_cleanup_answers(index, czxid, purpose, answers, step);
            }
        }
        for (watch, deleted) in &trip.early {
            self.handle_watch_event(*watch, *deleted, step);
        }
    }
}

/// Returns the wait before the next try: 10 ms, doubled for each failure in a row, at most 640 ms.
pub(super) fn backoff(tries: &mut u8) -> u32 {
    let wait = 10u32 << (*tries).min(6);
    *tries = tries.saturating_add(1).min(7);
    wait
}
