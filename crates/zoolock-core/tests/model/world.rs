//! The whole world of one lock: the leader, a follower and a connection for each client, and the clients' machines.
//!
//! Requests of a session are carried out in the order they were sent; replies and watch events reach it in the order
//! they were made, and the event of a change before any reply that shows it. A client reads from its follower, which
//! may lag behind the leader by whole transactions but always shows the session's own confirmed writes.

use zoolock_core::contender::{
    Action, Config, Contender, Directory as Reading, Event, Failure, Mode, Node, Reply, Request, RequestId,
    SessionEnd, WatchId,
};
use zoolock_core::record::Left;
use zoolock_core::{Record, Sequence, SessionId, Zxid};

use crate::bugs::Bug;
use crate::ghost::{Fate, From, Ghost, Trace};
use crate::scenario::{Budget, Scenario};
use crate::shared::Shared;
use crate::tenure::Tenure;
use crate::tree::{Name, Op, Tree, Txn};

/// A state of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) leader: Tree,
    pub(crate) zxid: i64,
    pub(crate) clients: Vec<Shared<Client>>,
    pub(crate) budget: Budget,
    /// The record of the last directory that was deleted.
    pub(crate) backup: Record,
    /// Who was alone, and how it ended.
    pub(crate) tenures: Vec<Tenure>,
    /// The largest size that the semaphore had.
    pub(crate) most: u32,
    /// How many readers became writers.
    pub(crate) upgraded: u8,
    /// The highest token granted.
    pub(crate) token: i64,
    pub(crate) fouls: u16,
}

/// A client: one session, and one acquisition after the other on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) stage: Stage,
    /// Which acquisition it is at.
    pub(crate) round: u8,
    /// Whether the session lives, on the leader.
    pub(crate) session: bool,
    /// Whether the client may believe that it does.
    pub(crate) lease: bool,
    /// Whether a create of its first acquisition was carried out.
    pub(crate) arrived: bool,
    /// On the way to the server.
    pub(crate) requests: Vec<Sent>,
    /// On the way from the server.
    pub(crate) inbox: Vec<Inbound>,
    pub(crate) sleeps: Vec<(RequestId, u32)>,
    /// In force at the server.
    pub(crate) watches: Vec<Watch>,
    /// Writes on a connection that was lost. They may arrive until the session's next write does.
    pub(crate) late: Vec<Sent>,
    /// The client's follower, while it lags.
    pub(crate) follower: Option<Follower>,
    pub(crate) ghost: Ghost,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "most clients are running most of the time")]
pub(crate) enum Stage {
    Running(Contender),
    /// All its acquisitions are over.
    Done,
    /// Its process died.
    Crashed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sent {
    pub(crate) round: u8,
    /// Its place among what is under way on the session.
    pub(crate) order: u8,
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    /// For a delete: it relies on a look at the node. See [`crate::ghost::Trace::fresh`]. For a look at our own node:
    /// it was there when the look was sent, so that what comes back is no older than that.
    pub(crate) looked: bool,
    /// For a delete: it is the release of a holder that was not unwinding.
    pub(crate) cleanly: bool,
    /// Its acquisition had been granted, which may be over when it arrives.
    pub(crate) granted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Inbound {
    Answer {
        id: RequestId,
        outcome: Result<Reply, Failure>,
        /// The watch that the request set.
        set: Option<WatchId>,
        /// As in [`Sent`].
        looked: bool,
    },
    Fired {
        watch: Watch,
        deleted: bool,
    },
    Reconnected,
    SessionOver,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watch {
    pub(crate) id: WatchId,
    /// The child, or that it is on the children.
    pub(crate) name: Option<Name>,
    pub(crate) czxid: i64,
    /// The last change that it does not stand for.
    pub(crate) zxid: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Follower {
    pub(crate) tree: Tree,
    pub(crate) behind: Vec<Txn>,
}

impl Client {
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running(_))
    }

    pub(crate) fn machine(&self) -> Option<&Contender> {
        match &self.stage {
            Stage::Running(machine) => Some(machine),
            _ => None,
        }
    }

    /// What the client would read now.
    pub(crate) fn view<'a>(&'a self, leader: &'a Tree) -> &'a Tree {
        self.follower.as_ref().map_or(leader, |follower| &follower.tree)
    }
}

impl World {
    pub(crate) fn new(scenario: &Scenario) -> World {
        let mut world = World {
            leader: Tree::default(),
            zxid: 0,
            clients: Vec::new(),
            budget: scenario.budget,
            backup: Record::Empty,
            tenures: Vec::new(),
            most: 0,
            upgraded: 0,
            token: 0,
            fouls: 0,
        };
        if let Some((record, counter)) = scenario.directory {
            // Transaction 1 was the directory that the record, if it is a marker, was written for.
            world.zxid = 1;
            world.commit(vec![Op::Make(record)], None, scenario);
            world.leader.0.as_mut().expect("it was just made").counter = counter;
        }
        for _ in &scenario.clients {
            world.clients.push(Shared::new(Client {
                stage: Stage::Done,
                round: 0,
                session: true,
                lease: true,
                arrived: false,
                requests: Vec::new(),
                inbox: Vec::new(),
                sleeps: Vec::new(),
                watches: Vec::new(),
                late: Vec::new(),
                follower: None,
                ghost: Ghost::default(),
            }));
        }
        for (i, plan) in scenario.clients.iter().enumerate() {
            if !plan.is_upgrade() {
                world.begin(i, None, scenario);
            }
        }
        world
    }

    fn begin(&mut self, i: usize, from: Option<Node>, scenario: &Scenario) {
        let tries = scenario.tries && i + 1 == self.clients.len();
        let config = Config {
            session: SessionId(scenario.session(i) as i64),
            kind: scenario.clients[i].kind(from),
            tracks_crashes: scenario.tracks(i),
            delay: scenario.delay,
            mode: if tries { Mode::Try } else { Mode::Wait },
            watch_own_after: u32::from(scenario.watches_late),
            retire_from: Sequence(scenario.retire_from),
            names: scenario.names(i),
            looks_ahead: scenario.looks_ahead(i),
            id: Scenario::id(i),
            rules: scenario.rules,
        };
        self.clients[i].stage = Stage::Running(Contender::new(config));
        self.step(i, Event::Start, scenario);
    }

    /// A reader holds: whoever wants to write on its session begins.
    pub(crate) fn begin_upgrade(&mut self, i: usize, reader: Node, scenario: &Scenario) {
        let Some(j) = scenario.upgrade_of(i) else { return };
        let shared = reader.prefix.reads();
        if !shared
            || self.clients[i].ghost.released
            || self.clients[j].stage != Stage::Done
            || !self.clients[j].session
        {
            return;
        }
        let place = self.clients[i].ghost.trace(reader.czxid.0).map_or(0, |trace| trace.place);
        let token = self.clients[i].ghost.token;
        let upgrade = &mut *self.clients[j];
        upgrade.round += 1;
        upgrade.ghost.from = Some(From { node: reader.czxid.0, prefix: reader.prefix, place });
        upgrade.ghost.token = token;
        self.begin(j, Some(reader), scenario);
    }

    // ---- the client ----

    /// Gives the machine an event and does what it says.
    pub(crate) fn step(&mut self, i: usize, event: Event, scenario: &Scenario) {
        let client = &mut *self.clients[i];
        let Stage::Running(machine) = &mut client.stage else { return };
        for action in machine.step(event, client.lease) {
            match action {
                Action::Send(id, Request::Sleep(duration)) => self.clients[i].sleeps.push((id, duration)),
                Action::Send(id, request) => self.send(i, id, request, scenario),
                Action::Unwatch(id) => {
                    let client = &mut *self.clients[i];
                    client.watches.retain(|watch| watch.id != id);
                    client
                        .inbox
                        .retain(|inbound| !matches!(inbound, Inbound::Fired { watch, .. } if watch.id == id));
                }
                Action::Granted(grant) => {
                    self.on_granted(i, grant, scenario);
                    self.begin_upgrade(i, grant.node, scenario);
                }
                Action::Previous(previous) => self.on_previous(i, previous, scenario),
                Action::Failed(reason) => self.on_failed(i, reason, scenario),
                Action::Lost(loss) => self.on_lost(i, loss),
                Action::Released(departed) => self.on_released(i, departed),
                Action::Downgraded(node) => {
                    self.on_downgraded(i, node);
                    self.begin_upgrade(i, node, scenario);
                }
                Action::Revoked => unreachable!("nobody asks for it"),
                Action::Over => {
                    self.on_over(i);
                    return self.end(i, scenario);
                }
            }
        }
    }

    fn send(&mut self, i: usize, id: RequestId, request: Request, scenario: &Scenario) {
        // One alone on its session has its queue.
        let mates = scenario.mates(i).filter(|_| scenario.mates(i).count() > 1);
        let under_way = mates.flat_map(|mate| &self.clients[mate].requests);
        let order = under_way.map(|sent| sent.order + 1).max().unwrap_or(0);
        let client = &mut *self.clients[i];
        if !client.session {
            // Nobody answers any more; the end of the session will be told.
            return;
        }
        let mut looked = false;
        match &request {
            Request::Delete(node)
            | Request::Withdraw(node)
            | Request::Release { node, .. }
            | Request::Downgrade { node, .. } => {
                let name = Name::of(node);
                for trace in client.ghost.traces.iter_mut().filter(|trace| trace.name == name) {
                    looked |= std::mem::take(&mut trace.fresh);
                }
                looked |= std::mem::take(&mut client.ghost.seen_gone);
            }
            Request::Exists(node) => {
                let name = Name::of(node);
                let there = |trace: &Trace| trace.name == name && trace.fate == Fate::There;
                looked = client.ghost.traces.iter().any(there);
            }
            _ => {}
        }
        let cleanly = match request {
            // One that becomes a reader writes no more, whatever it hears on the way and however it leaves as a reader.
            Request::Downgrade { .. } => client.ghost.wrote_all,
            _ => client.ghost.cleanly && !client.ghost.lost,
        };
        let granted = client.ghost.granted;
        client.requests.push(Sent { round: client.round, order, id, request, looked, cleanly, granted });
    }

    /// The machine is over: the next acquisition begins, or the client is done.
    fn end(&mut self, i: usize, scenario: &Scenario) {
        let client = &mut *self.clients[i];
        client.stage = Stage::Done;
        client.ghost = Ghost::default();
        self.forget(i);
        let client = &mut *self.clients[i];
        let upgrade = scenario.clients[i].is_upgrade();
        if client.session && client.round + 1 < scenario.rounds && !upgrade {
            client.round += 1;
            self.begin(i, None, scenario);
        }
    }

    pub(crate) fn downgrade(&mut self, i: usize, scenario: &Scenario) {
        let ghost = &mut self.clients[i].ghost;
        ghost.downgrading = true;
        ghost.wrote_all = !ghost.lost;
        self.step(i, Event::Downgrade, scenario);
    }

    /// Nobody waits for anything any more; what was sent and changes something still goes its way.
    pub(crate) fn forget(&mut self, i: usize) {
        let client = &mut *self.clients[i];
        client.sleeps.clear();
        client.watches.clear();
        client.inbox.clear();
        client.requests.retain(|sent| is_write(&sent.request));
    }

    pub(crate) fn deliver(&mut self, i: usize, scenario: &Scenario) {
        let client = &mut *self.clients[i];
        let event = match client.inbox.remove(0) {
            Inbound::Answer { id, outcome, looked, .. } => {
                // A look that relies on a sync, by one that may have become a reader already.
                let gone = outcome == Err(Failure::NoNode);
                client.ghost.seen_gone = gone && client.ghost.downgrading;
                let seen: Vec<i64> = match &outcome {
                    Ok(Reply::Joined(node)) => vec![node.czxid.0],
                    Ok(Reply::Node { czxid, .. }) if looked => vec![czxid.0],
                    Ok(Reply::Mine(nodes)) => nodes.iter().map(|node| node.czxid.0).collect(),
                    _ => Vec::new(),
                };
                for trace in client.ghost.traces.iter_mut().filter(|trace| seen.contains(&trace.czxid)) {
                    trace.fresh = true;
                }
                Event::Answer(id, outcome)
            }
            Inbound::Fired { watch, deleted } => {
                for trace in client.ghost.traces.iter_mut().filter(|trace| trace.czxid == watch.czxid) {
                    trace.fresh &= !deleted;
                }
                Event::Fired { watch: watch.id, deleted }
            }
            Inbound::Reconnected => Event::Reconnected,
            Inbound::SessionOver => Event::SessionOver(SessionEnd::Expired),
        };
        self.step(i, event, scenario);
    }

    pub(crate) fn wake(&mut self, i: usize, at: usize, scenario: &Scenario) {
        let (id, _) = self.clients[i].sleeps.remove(at);
        self.step(i, Event::Answer(id, Ok(Reply::Done)), scenario);
    }

    /// The holder lets go, with all that it has become.
    pub(crate) fn release(&mut self, i: usize, left: Left, scenario: &Scenario) {
        for j in scenario.upgrade_of(i).into_iter().chain([i]) {
            let ghost = &mut self.clients[j].ghost;
            if ghost.granted && !ghost.released {
                ghost.released = true;
                ghost.cleanly = left == Left::Released;
                self.lets_go(j);
                let left = if scenario.has(Bug::UnwindsAsReleased) { Left::Released } else { left };
                self.step(j, Event::Release(left), scenario);
            }
        }
    }

    pub(crate) fn give_up(&mut self, i: usize, timed_out: bool, scenario: &Scenario) {
        let joining = self.clients[i].machine().is_some_and(|machine| machine.node().is_none());
        if scenario.has(if joining { Bug::DropsWhoIsJoining } else { Bug::DropsWhoWaits }) {
            return self.end(i, scenario);
        }
        let ghost = &mut self.clients[i].ghost;
        ghost.gave_up = true;
        ghost.timed_out = timed_out;
        self.step(i, if timed_out { Event::TimedOut } else { Event::Cancel }, scenario);
    }
}

/// Whether a request can change anything.
pub(crate) fn is_write(request: &Request) -> bool {
    matches!(
        request,
        Request::Join
            | Request::MakeDirectory
            | Request::Delete(_)
            | Request::Withdraw(_)
            | Request::Release { .. }
            | Request::Hold { .. }
            | Request::WriteSize { .. }
            | Request::SayGranted { .. }
            | Request::Downgrade { .. }
            | Request::DeleteDirectory
    )
}

/// A reading of the directory.
pub(crate) fn reading(tree: &Tree) -> Option<Reading> {
    tree.0.as_ref().map(|directory| Reading {
        czxid: Zxid(directory.czxid),
        pzxid: Zxid(directory.pzxid),
        version: directory.version,
        children: directory.children.len() as u32,
        record: directory.record,
    })
}
