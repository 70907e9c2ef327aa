//! Handles the replies and watch events of one acquisition. Replies are handled in the order of
//! their requests. The machine is the acquisition's state machine.

use std::pin::Pin;
use std::sync::Arc;

use zoolock_core::acquisition::{self, Node, Reply, RequestId};
use zoolock_core::{ContenderId, Event};

use super::expected::{ArrivedReply, Interpreted};
use super::{Acquisition, AcquisitionState, Progress, SentRequest};
use crate::base::events::LockEvent;
use crate::base::metrics;
use crate::base::path::LockPath;
use crate::base::sync::lock;
use crate::session::member::SessionAcquisition;
use crate::zk::session::{Arrival, ReplyAddress, TransactionPart, WatchNumber, ZkError};

impl SessionAcquisition for Acquisition {
    fn id(&self) -> ContenderId {
        self.id
    }

    fn directories(&self) -> &[LockPath] {
        &self.directories
    }

    fn held_node(&self) -> Option<Node> {
        let state = lock(&self.state);
        let is_granted = matches!(state.progress, Progress::Granted(_));
        let has_ended = state.hold_end.is_some() || state.departed.is_some() || state.machine.is_leaving();
        if is_granted && !has_ended { state.machine.node(0) } else { None }
    }

    fn may_learn_of_znode_in(&self, directory: &LockPath) -> bool {
        let lock_index = self.directories.iter().position(|own| own == directory);
        lock_index.is_some_and(|lock_index| lock(&self.state).machine.may_learn_of_node(lock_index))
    }

    fn is_leaving(&self) -> bool {
        lock(&self.state).machine.is_leaving()
    }

    fn wait_until_ended(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.wait(|state| state.has_ended.then_some(())))
    }

    fn tell(self: Arc<Self>, event: Event) {
        let state = &mut *lock(&self.state);
        // Since the session found that the lease had ended, the lease may have been renewed, and the lock granted.
        if event != Event::LeaseLost || !self.session.lease_valid() {
            self.handle_event_in(state, event);
        }
    }

    fn receive(self: Arc<Self>, arrival: Arrival) {
        match arrival {
            Arrival::Reply { to, sent, outcome } => {
                self.record_reply(to.request, ArrivedReply { part: to.part, sent, outcome });
            }
            Arrival::Fired { watch, is_deleted, .. } => self.handle_watch_event(watch, is_deleted),
            Arrival::Timer { request, .. } => self.handle_event(Event::Answer(request, Ok(Reply::Done))),
            Arrival::Disconnected => self.handle_event(Event::Disconnected),
            Arrival::Reconnected => self.handle_event(Event::Reconnected),
        }
    }

    fn report_connection(&self, is_suspect: bool) {
        let state = lock(&self.state);
        if state.hold_end.is_none() && state.departed.is_none() && !state.machine.is_leaving() {
            self.report(&state, if is_suspect { LockEvent::Suspect } else { LockEvent::Confirmed });
        }
    }
}

impl Acquisition {
    /// Records a reply. If its request has all its replies, translates them at once. Handles the answers in the order in which
    /// their requests were sent.
    ///
    /// Unlocks the state in between, because the translation of a search and the renewal of the lease lock the states of other
    /// acquisitions.
    fn record_reply(self: &Arc<Self>, request: RequestId, reply: ArrivedReply) {
        let complete = {
            let in_flight = &mut lock(&self.state).in_flight;
            let Some(sent) = in_flight.iter_mut().find(|sent| sent.id == request) else { return };
            sent.sent = sent.sent.or(Some(reply.sent));
            sent.replies.push(reply);
            sent.take_replies()
        };
        if let Some((expected, replies)) = complete {
            let interpreted = self.interpret(request, expected, replies);
            self.continue_request(request, interpreted);
        }
        while let Some((id, result)) = self.take_answer() {
            self.handle_result(id, result);
        }
    }

    /// Records the answer to a request, or sends the next round of requests that it needs.
    fn continue_request(&self, id: RequestId, interpreted: Result<Interpreted, ZkError>) {
        let in_flight = &mut lock(&self.state).in_flight;
        let Some(sent) = in_flight.iter_mut().find(|sent| sent.id == id) else {
            // The acquisition has ended meanwhile.
            if let Ok(Interpreted::Send(_, expected)) = interpreted {
                self.continue_alone(expected);
            }
            return;
        };
        match interpreted {
            Ok(Interpreted::Answer(reply)) => sent.answer = Some(Ok(reply)),
            Err(error) => sent.answer = Some(Err(error)),
            Ok(Interpreted::Send(requests, expected)) => {
                sent.expected = expected;
                let Some(zk) = self.session.zk() else { return };
                let to = ReplyAddress { contender: self.id, request: id, part: TransactionPart::All };
                let _batch = (requests.len() > 1).then(|| zk.begin_batch());
                requests.iter().for_each(|request| zk.send(request, to, None));
            }
        }
    }

    /// Takes the answer to the oldest request in flight, if it is known. The request stays in flight until its answer is
    /// handled.
    fn take_answer(&self) -> Option<(RequestId, Result<Reply, ZkError>)> {
        let state = &mut *lock(&self.state);
        let first = state.in_flight.front_mut()?;
        Some((first.id, first.answer.take()?))
    }

    fn handle_result(self: &Arc<Self>, id: RequestId, result: Result<Reply, ZkError>) {
        let sent = {
            let state = &*lock(&self.state);
            let first = state.in_flight.front().filter(|first| first.id == id);
            if let (Some(true), Err(error)) = (first.map(|first| first.deletes_own_znode), &result) {
                metrics::count_failed_cleanup(error.failure);
            }
            let is_unknown =
                matches!(&result, Err(error) if error.failure == acquisition::RequestFailure::Unknown);
            if is_unknown && first.is_some_and(|first| first.creates_own_znode) {
                self.session.record_lost_create(&self.directories);
            }
            first.filter(|first| first.writes).and_then(|first| first.sent)
        };
        // A refusal confirms nothing, because the client's server can refuse a write without the leader.
        if let Some(sent) = sent.filter(|_| result.is_ok()) {
            self.session.record_confirmed_write(sent);
        }
        let state = &mut *lock(&self.state);
        let Some(sent) = state.in_flight.pop_front() else { return };
        if sent.id != id {
            // Puts the popped request back, because it is another one: the request of this answer was
            // dropped when the session ended.
            return state.in_flight.push_front(sent);
        }
        let result = result.map_err(|error| {
            if matches!(error.failure, acquisition::RequestFailure::Refused(_)) {
                state.refusal_message = error.message;
            }
            error.failure
        });
        let created = match &result {
            Ok(Reply::Joined(node)) => std::slice::from_ref(node),
            // Also registers the znodes of `Mine`, which are those of creates whose replies were lost,
            // because another acquisition that searches for its own znodes must skip them.
            Ok(Reply::AllJoined(nodes) | Reply::Mine(nodes)) => nodes,
            _ => &[],
        };
        // The answer has one znode for each directory, or any number for one directory.
        let is_of_all = matches!(&result, Ok(Reply::AllJoined(_)));
        for (at, node) in created.iter().enumerate() {
            let lock_index = if is_of_all { at } else { acquisition::lock_index(id) };
            self.session.register_node(node.czxid, lock_index, self.id);
        }
        let watch = sent.watch.filter(|_| result.is_ok());
        let number = watch.as_ref().map(|watch| watch.number);
        let early = watch.and_then(|watch| state.watches.add(watch));
        self.step(state, Event::Answer(id, result));
        if let (Some(number), Some(is_deleted)) = (number, early) {
            self.handle_watch_event_in(state, number, is_deleted);
        }
        if state.in_flight.is_empty() {
            self.settled.notify_waiters();
        }
    }

    fn handle_watch_event(self: &Arc<Self>, watch: WatchNumber, is_deleted: bool) {
        self.handle_watch_event_in(&mut lock(&self.state), watch, is_deleted);
    }

    /// Handles an event of a watch. Ignores it if the machine has forgotten the watch.
    fn handle_watch_event_in(
        self: &Arc<Self>,
        state: &mut AcquisitionState,
        number: WatchNumber,
        deleted: bool,
    ) {
        let sets = |sent: &SentRequest| sent.watch.as_ref().is_some_and(|watch| watch.number == number);
        if let Some(watch) = state.watches.remove_fired(number) {
            state.metrics.count_wakeup();
            self.step(state, Event::Fired { watch, deleted });
        } else if state.in_flight.iter().any(sets) {
            // Keeps the event, because the reply to the request that set this watch has arrived, but waits
            // for the answer to an earlier request.
            state.watches.keep_early_event(number, deleted);
        }
    }
}
