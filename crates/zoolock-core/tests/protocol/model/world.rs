//! A state of the world: the leader, the clients' state machines, and a follower and a connection
//! for each client.
//!
//! The server carries out the requests of a session in the order in which they were sent. Replies
//! and watch events arrive in the order in which the server sent them. The event of a change
//! arrives before any reply that shows the change. A client reads from its follower. The follower
//! may lag behind the leader by whole transactions, but it shows the session's own confirmed
//! writes.

use zoolock_core::acquisition::{
    Action, Config, Event, Loss, Mode, Node, Reply, Request, RequestFailure, RequestId, SessionEnd, WatchId,
    lock_index,
};
use zoolock_core::record::{HolderState, Marker};
use zoolock_core::{Machine, Record, Rules, Sequence, SessionId, Zxid};

use super::bugs::Bug;
use super::ghost::{Fate, Ghost, History, Reader, Trace};
use super::plan::Plan;
use super::scenario::{Budget, Scenario};
use super::server::{deleted_znodes, is_write};
use super::shared::Shared;
use super::tree::{Name, Op, Tree, Txn};

/// A state of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) leader: Shared<Tree>,
    pub(crate) zxid: i64,
    pub(crate) clients: Vec<Shared<Client>>,
    pub(crate) budget: Budget,
    pub(crate) history: Shared<History>,
}

/// A client: a session, and one acquisition after the other on that session. A client with the plan
/// `Upgrade` or `Next` uses the session of another client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) stage: Stage,
    /// The number of its current acquisition.
    pub(crate) round: u8,
    /// Set while the session exists on the leader.
    pub(crate) session: bool,
    /// Set if the lease of the session is valid.
    pub(crate) lease: bool,
    /// Set if a create of its first acquisition was carried out.
    pub(crate) arrived: bool,
    /// Requests on the way to the server.
    pub(crate) requests: Vec<Sent>,
    /// Messages on the way from the server.
    pub(crate) inbox: Vec<Inbound>,
    pub(crate) timers: Vec<Timer>,
    /// Watches that are set on the server.
    pub(crate) watches: Vec<Watch>,
    /// Writes that were sent on a connection that was lost. Each of them can still arrive, until
    /// the session's next write arrives.
    pub(crate) late: Vec<Sent>,
    /// Writes of lost connections that the leader refuses, because another server owns the session now. After a `retake`
    /// they can arrive.
    pub(crate) refused: Vec<Sent>,
    /// Set if a server has owned the session again, so that the session looks for strays.
    pub(crate) retaken: bool,
    /// The znodes of which the current acquisition has been told. Recorded only if the scenario has retakes.
    pub(crate) registered: Vec<i64>,
    /// The follower to which the client is connected. `None` if that follower does not lag.
    pub(crate) follower: Option<Follower>,
    pub(crate) ghost: Ghost,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "most clients are running most of the time")]
pub(crate) enum Stage {
    Running(Machine),
    /// No acquisition runs: none has begun, or the last one has ended.
    Done,
    /// The client's process died.
    Crashed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sent {
    pub(crate) round: u8,
    /// The position of the request in the order of the session's requests.
    pub(crate) order: u8,
    pub(crate) id: RequestId,
    /// The directory. For a request to several directories: the first one.
    pub(crate) at: usize,
    pub(crate) request: Request,
    /// For a delete: one bit for each znode, set if the client knew that the znode exists ([`super::ghost::Trace::fresh`]).
    /// For a read of the client's own znode: set if the znode existed when the read was sent. If not, an answer that shows
    /// the znode is out of date.
    pub(crate) known_to_exist: u8,
    /// For a delete: set if a holder releases with it, and is not unwinding from a panic.
    pub(crate) cleanly: bool,
    /// Set if the acquisition had been granted when the request was sent.
    pub(crate) granted: bool,
    /// For a create: the release in the same transaction, and the client that releases.
    pub(crate) release: Option<Box<(usize, Sent)>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Inbound {
    Answer {
        at: usize,
        id: RequestId,
        outcome: Result<Reply, RequestFailure>,
        /// The watch that the request set.
        set: Option<WatchId>,
        /// The client's own znode that the request read.
        about: Option<Name>,
        /// As in [`Sent`].
        known_to_exist: bool,
    },
    Fired {
        watch: Watch,
        deleted: bool,
    },
    Reconnected,
    SessionOver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Timer {
    pub(crate) id: RequestId,
    pub(crate) at: usize,
    pub(crate) duration: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watch {
    pub(crate) id: WatchId,
    pub(crate) at: usize,
    /// The child; `None` for the list of children.
    pub(crate) name: Option<Name>,
    pub(crate) czxid: i64,
    /// The zxid of the last change before the watch was set. Only a later change fires the watch.
    pub(crate) zxid: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Follower {
    pub(crate) tree: Shared<Tree>,
    pub(crate) behind: Vec<Txn>,
}

impl Client {
    fn new() -> Client {
        Client {
            stage: Stage::Done,
            round: 0,
            session: true,
            lease: true,
            arrived: false,
            requests: Vec::new(),
            inbox: Vec::new(),
            timers: Vec::new(),
            watches: Vec::new(),
            late: Vec::new(),
            refused: Vec::new(),
            retaken: false,
            registered: Vec::new(),
            follower: None,
            ghost: Ghost::default(),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running(_))
    }

    pub(crate) fn machine(&self) -> Option<&Machine> {
        match &self.stage {
            Stage::Running(machine) => Some(machine),
            _ => None,
        }
    }

    /// Returns the tree that the client would read now.
    pub(crate) fn view<'a>(&'a self, leader: &'a Tree) -> &'a Tree {
        self.follower.as_ref().map_or(leader, |follower| &follower.tree)
    }
}

impl World {
    pub(crate) fn new(scenario: &Scenario) -> World {
        let mut world = World {
            leader: Shared::new(Tree(vec![None; scenario.directories.len()])),
            // The marker of `Scenario::in_a_copy` belongs to a directory with the czxid 1. The
            // first transaction of the model has the zxid 2, so no directory of the model has that
            // czxid.
            zxid: 1,
            clients: scenario.plans.iter().map(|_| Shared::new(Client::new())).collect(),
            budget: scenario.budget,
            history: Shared::new(History::new(scenario)),
        };
        for (at, directory) in scenario.directories.iter().enumerate() {
            if let Some((record, counter)) = directory {
                world.commit(vec![(at, Op::Make(*record))], None, scenario);
                let directory = world.leader.0[at].as_mut().expect("directory was just created");
                directory.counter = *counter;
                directory.has_lasting_child = scenario.has_lasting_child && at == 0;
            }
        }
        for (i, plan) in scenario.plans.iter().enumerate() {
            if plan.begins_by_itself() {
                world.begin(i, None, scenario);
            }
        }
        world
    }

    fn begin(&mut self, i: usize, from: Option<Node>, scenario: &Scenario) {
        let tries = scenario.tries && i + 1 == self.clients.len();
        let config = Config {
            session: SessionId(scenario.session(i) as i64),
            kind: scenario.plans[i].kind(from),
            tracks_crashes: scenario.tracks(i),
            delay: scenario.delay,
            mode: if tries { Mode::Try } else { Mode::Wait },
            watch_own_after: u32::from(scenario.watches_late),
            claim_timeout: u32::from(scenario.claims_late()),
            retire_from: Sequence(scenario.retire_from),
            names: scenario.names(i),
            looks_ahead: scenario.looks_ahead(i),
            id: Scenario::id(i),
            rules: scenario.rules,
        };
        self.clients[i].stage = Stage::Running(Machine::new(config, scenario.wants[i].len()));
        self.step(i, Event::Start, scenario);
    }

    /// Begins the acquisitions that wait for this client's grant or downgrade.
    fn begin_inner(&mut self, i: usize, node: Node, scenario: &Scenario) {
        for (j, plan) in scenario.plans.iter().enumerate() {
            match plan {
                Plan::Inside(outer) if usize::from(*outer) == i => self.begin(j, None, scenario),
                Plan::Upgrade(reader) if usize::from(*reader) == i => {
                    self.begin_upgrade(i, j, node, scenario);
                }
                _ => {}
            }
        }
    }

    fn begin_upgrade(&mut self, i: usize, j: usize, reader: Node, scenario: &Scenario) {
        let (client, upgrade) = (&self.clients[i], &self.clients[j]);
        let may_begin = reader.prefix.reads() && !client.ghost.released;
        if !may_begin || upgrade.stage != Stage::Done || !upgrade.session {
            return;
        }
        let position = client.ghost.traces_of(reader.czxid.0).next().map_or(0, |trace| trace.position);
        let token = client.ghost.token;
        let upgrade = &mut *self.clients[j];
        upgrade.round += 1;
        upgrade.ghost.reader = Some(Reader { czxid: reader.czxid.0, prefix: reader.prefix, position });
        upgrade.ghost.token = token;
        self.begin(j, Some(reader), scenario);
    }

    // ---- the client ----

    /// Passes an event to the machine, and carries out the machine's actions.
    pub(crate) fn step(&mut self, i: usize, event: Event, scenario: &Scenario) {
        let client = &mut *self.clients[i];
        let Stage::Running(machine) = &mut client.stage else { return };
        let mut actions = Vec::new();
        // A session that rests must have a step between the end of its rest and a grant, because the first one may end its
        // lease. Some weakened rules grant a lock in one step.
        let may_be_granted = machine.needs_lease() || scenario.rules != Rules::all();
        machine.step(event, client.lease, &mut actions);
        let is_granted = actions.iter().any(|action| matches!(action, Action::Granted(_)));
        for action in actions {
            match action {
                Action::Send(id, request) => self.send(i, id, request, scenario),
                Action::Unwatch(id) => {
                    let client = &mut *self.clients[i];
                    client.watches.retain(|watch| watch.id != id);
                    client
                        .inbox
                        .retain(|inbound| !matches!(inbound, Inbound::Fired { watch, .. } if watch.id == id));
                }
                Action::Granted(grant) => {
                    assert!(may_be_granted, "client {i} was granted a lock in the step that ended its rest");
                    self.on_granted(i, grant, scenario);
                }
                Action::Unclaimed(_) => self.on_unclaimed(i),
                Action::Previous(previous) => self.on_previous(i, previous, scenario),
                Action::CrashFound { marker, .. } => assert!(
                    matches!(marker.state, HolderState::Held | HolderState::Panicked),
                    "only these markers show a crash: {marker:?}"
                ),
                Action::Failed(reason) => self.on_failed(i, reason, scenario),
                Action::Lost(loss) => self.on_lost(i, loss, scenario),
                Action::Released(departed) => self.on_released(i, departed, scenario),
                Action::Downgraded(node) => {
                    self.on_downgraded(i, node);
                    self.begin_inner(i, node, scenario);
                }
                Action::Revoked => self.on_revoked(i),
                Action::Finished => {
                    self.on_over(i);
                    return self.end_acquisition(i, scenario);
                }
            }
        }
        if is_granted && !scenario.claims_late() {
            self.claim(i, scenario);
        }
    }

    /// The caller takes the grant.
    pub(crate) fn claim(&mut self, i: usize, scenario: &Scenario) {
        self.step(i, Event::Claimed, scenario);
        let node = self.clients[i].machine().and_then(Machine::held_node);
        if let Some(node) = node.filter(|_| self.clients[i].ghost.granted) {
            self.clients[i].ghost.claimed = true;
            self.begin_inner(i, node, scenario);
        }
    }

    fn send(&mut self, i: usize, id: RequestId, request: Request, scenario: &Scenario) {
        let wants = &scenario.wants[i];
        let at = wants[lock_index(id)];
        if let Request::Sleep(duration) = request {
            return self.clients[i].timers.push(Timer { id, at, duration });
        }
        // Only a session with several clients needs an order: the requests of one client are in order already.
        let mates = scenario.same_session(i).filter(|_| scenario.same_session(i).count() > 1);
        let under_way = mates.flat_map(|mate| &self.clients[mate].requests);
        let order = under_way.map(|sent| sent.order + 1).max().unwrap_or(0);
        let client = &mut *self.clients[i];
        if !client.session {
            // No answer will come. The end of the session is reported instead.
            return;
        }
        let request = match request {
            Request::Delete(node) if scenario.has(Bug::WaiterLeavesMarker) && !client.ghost.granted => {
                let directory = Zxid(self.leader.created(at).unwrap_or_default());
                let (state, sequence) = (HolderState::Released, node.sequence);
                let marker = Marker { directory, state, sequence, tracked: false };
                Request::Release { node, marker, version: None }
            }
            request => request,
        };
        let mut known_to_exist = 0;
        for (bit, node) in deleted_znodes(&request).iter().enumerate() {
            let at = if matches!(request, Request::ReleaseAll(_)) { wants[bit] } else { at };
            for trace in client.ghost.traces_named(at, Name::of(node)) {
                known_to_exist |= u8::from(trace.take_fresh()) << bit;
            }
            known_to_exist |= u8::from(std::mem::take(&mut client.ghost.seen_missing));
        }
        if let Request::Exists(node) = &request {
            let exists =
                client.ghost.traces_named(at, Name::of(node)).any(|trace| trace.fate == Fate::Exists);
            known_to_exist = u8::from(exists);
        }
        let ghost = &client.ghost;
        let cleanly = match request {
            // A writer that becomes a reader has finished its writes, even if it loses the lock during the downgrade.
            Request::Downgrade { .. } => ghost.held_until_downgrade,
            // If one znode of a multi-lock was deleted, the holder still holds the other locks. So
            // it still releases those cleanly.
            _ => ghost.cleanly && matches!(ghost.lost, None | Some(Loss::Broken)),
        };
        let granted = ghost.granted;
        let (round, release) = (client.round, None);
        let mut sent = Sent { round, order, id, at, request, known_to_exist, cleanly, granted, release };
        if scenario.merges && sent.request == Request::Join {
            sent.release = self.take_release(i, &sent, scenario).map(Box::new);
        }
        self.clients[i].requests.push(sent);
    }

    /// Removes and returns the release that was sent right before a create, in the same directory on the same session.
    fn take_release(&mut self, i: usize, create: &Sent, scenario: &Scenario) -> Option<(usize, Sent)> {
        scenario.same_session(i).find_map(|mate| {
            let deferred = |sent: &mut Sent| {
                let release = match sent.request {
                    Request::Delete(_) => true,
                    Request::Release { marker, .. } => marker.state != HolderState::Panicked,
                    _ => false,
                };
                release && sent.at == create.at && sent.order + 1 == create.order
            };
            self.clients[mate].requests.pop_if(deferred).map(|sent| (mate, sent))
        })
    }

    /// Ends the acquisition. Begins the client's next acquisition, if there is one.
    fn end_acquisition(&mut self, i: usize, scenario: &Scenario) {
        let client = &mut *self.clients[i];
        client.stage = Stage::Done;
        client.ghost = Ghost::default();
        client.registered.clear();
        self.drop_pending(i);
        let client = &mut *self.clients[i];
        let begins_by_itself = scenario.plans[i].begins_by_itself();
        if client.session && client.round + 1 < scenario.rounds && begins_by_itself {
            client.round += 1;
            self.begin(i, None, scenario);
        }
    }

    /// Drops everything that the client waits for. Writes that were sent still arrive.
    pub(crate) fn drop_pending(&mut self, i: usize) {
        let client = &mut *self.clients[i];
        client.timers.clear();
        client.watches.clear();
        client.inbox.clear();
        client.requests.retain(|sent| is_write(&sent.request));
    }

    pub(crate) fn deliver(&mut self, i: usize, scenario: &Scenario) {
        let client = &mut *self.clients[i];
        let event = match client.inbox.remove(0) {
            Inbound::Answer { at, id, outcome, about, known_to_exist, .. } => {
                client.ghost.on_answer(at, &outcome, about, known_to_exist, &scenario.wants[i]);
                if scenario.budget.retakes > 0 {
                    let nodes = match &outcome {
                        Ok(Reply::Joined(node)) => std::slice::from_ref(node),
                        Ok(Reply::AllJoined(nodes) | Reply::Mine(nodes)) => nodes,
                        _ => &[],
                    };
                    client.registered.extend(nodes.iter().map(|node| node.czxid.0));
                }
                Event::Answer(id, outcome)
            }
            Inbound::Fired { watch, deleted } => {
                let ghost = &mut client.ghost;
                let is_own = |trace: &Trace| (trace.at, trace.czxid) == (watch.at, watch.czxid);
                let ends_a_wait = !ghost.granted && !ghost.gave_up && !ghost.traces.iter().any(is_own);
                for trace in &mut ghost.traces {
                    trace.fresh &= !ends_a_wait && (!deleted || !is_own(trace));
                }
                Event::Fired { watch: watch.id, deleted }
            }
            Inbound::Reconnected => Event::Reconnected,
            Inbound::SessionOver => Event::SessionOver(SessionEnd::Expired),
        };
        self.step(i, event, scenario);
    }

    pub(crate) fn wake(&mut self, i: usize, timer: usize, scenario: &Scenario) {
        let Timer { id, .. } = self.clients[i].timers.remove(timer);
        self.step(i, Event::Answer(id, Ok(Reply::Done)), scenario);
    }

    /// Begins the acquisition that waits until this client releases or gives up.
    fn begin_next(&mut self, i: usize, scenario: &Scenario) {
        let Some(j) = scenario.next_of(i) else { return };
        let next = &mut *self.clients[j];
        if next.stage == Stage::Done && next.session {
            next.round += 1;
            next.ghost = Ghost::default();
            self.begin(j, None, scenario);
        }
    }

    /// Releases the lock of a holder. If the holder has an upgrade, releases the upgrade first.
    pub(crate) fn release(&mut self, i: usize, left: HolderState, scenario: &Scenario) {
        for j in scenario.upgrade_of(i).into_iter().chain([i]) {
            let ghost = &mut self.clients[j].ghost;
            if ghost.claimed && !ghost.released {
                ghost.released = true;
                ghost.cleanly = left == HolderState::Released;
                self.on_release(j);
                let left = if scenario.has(Bug::UnwindsAsReleased) { HolderState::Released } else { left };
                self.step(j, Event::Release(left), scenario);
            }
        }
        self.begin_next(i, scenario);
    }

    pub(crate) fn downgrade(&mut self, i: usize, scenario: &Scenario) {
        let ghost = &mut self.clients[i].ghost;
        ghost.downgrading = true;
        ghost.held_until_downgrade = ghost.lost.is_none();
        self.step(i, Event::Downgrade, scenario);
    }

    pub(crate) fn give_up(&mut self, i: usize, timed_out: bool, scenario: &Scenario) {
        let is_queued = self.clients[i].machine().is_none_or(|machine| machine.node(0).is_some());
        if scenario.has(if is_queued { Bug::DropsWhoWaits } else { Bug::DropsWhoIsJoining }) {
            return self.end_acquisition(i, scenario);
        }
        if self.clients[i].ghost.granted {
            self.on_unclaimed(i);
        }
        let ghost = &mut self.clients[i].ghost;
        ghost.gave_up = true;
        ghost.timed_out = timed_out;
        self.step(i, if timed_out { Event::TimedOut } else { Event::Cancel }, scenario);
        self.begin_next(i, scenario);
    }

    /// Deletes a directory and its children.
    pub(crate) fn remove_all(&mut self, at: usize, scenario: &Scenario) {
        while let Some(child) = self.leader.children(at).first() {
            let name = child.name;
            self.commit(vec![(at, Op::Delete(name))], None, scenario);
        }
        self.remove_directory(at, None, scenario);
    }

    /// Deletes an empty directory.
    pub(crate) fn remove_directory(&mut self, at: usize, by: Option<(usize, &Sent)>, scenario: &Scenario) {
        let record = self.leader.0[at].as_ref().map(|directory| directory.record);
        if let Some(record) = record.filter(|record| *record != self.history.last_record) {
            self.history.last_record = record;
        }
        self.commit(vec![(at, Op::Remove)], by, scenario);
    }

    /// Creates a directory with the record of the directory that was deleted last.
    pub(crate) fn copy_directory(&mut self, at: usize, scenario: &Scenario) {
        let record: Record = self.history.last_record;
        self.commit(vec![(at, Op::Make(record))], None, scenario);
    }
}
