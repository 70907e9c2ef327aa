//! The whole world of a few locks: the leader, a follower and a connection for each client, and the clients' machines.
//!
//! Requests of a session are carried out in the order they were sent; replies and watch events reach it in the order
//! they were made, and the event of a change before any reply that shows it. A client reads from its follower, which
//! may lag behind the leader by whole transactions but always shows the session's own confirmed writes.

use zoolock_core::contender::{
    Action, Config, Contender, Event, Failure, Kind, Loss, Mode, Node, Reply, Request, RequestId, SessionEnd,
    WatchId,
};
use zoolock_core::names::Names;
use zoolock_core::record::Left;
use zoolock_core::{ContenderId, Multi, Sequence, SessionId, multi};

use crate::ghost::{Fate, Foul, Ghost, Trace};
use crate::scenario::{Budget, Scenario};
use crate::server::{deletes, is_write};
use crate::shared::Shared;
use crate::tree::{Called, Change, Op, Tree, Txn, called};

/// A state of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) leader: Tree,
    pub(crate) zxid: i64,
    pub(crate) clients: Vec<Shared<Client>>,
    pub(crate) budget: Budget,
    /// Who released a lock as its holder: creation of the directory, and number.
    pub(crate) clean: Vec<(i64, i32)>,
    /// The last holder in each directory, and whether it released.
    pub(crate) holders: Vec<(i64, i32, bool)>,
    /// The highest token granted in each directory.
    pub(crate) tokens: Vec<i64>,
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
    pub(crate) sleeps: Vec<Sleep>,
    /// In force at the server.
    pub(crate) watches: Vec<Watch>,
    /// Writes on a connection that was lost. They may arrive until the session's next write does.
    pub(crate) late: Vec<Sent>,
    /// The client's follower, while it lags.
    pub(crate) follower: Option<Follower>,
    pub(crate) ghost: Ghost,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    One(Box<Contender>),
    Several(Box<Multi>),
    /// All its acquisitions are over.
    Done,
    /// Its process died.
    Crashed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sent {
    pub(crate) round: u8,
    pub(crate) id: RequestId,
    pub(crate) directory: usize,
    pub(crate) request: Request,
    /// For each delete in it: it relies on a look at the node. See [`Trace::fresh`]. For a look at our own node: it
    /// was there when the look was sent, so that what comes back is no older than that.
    pub(crate) looked: u8,
    /// For a delete: it is the release of a holder that was not unwinding.
    pub(crate) cleanly: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sleep {
    pub(crate) id: RequestId,
    pub(crate) directory: usize,
    pub(crate) duration: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Inbound {
    Answer {
        directory: usize,
        id: RequestId,
        outcome: Result<Reply, Failure>,
        /// The watch that the request set.
        set: Option<WatchId>,
        /// The node that was looked at.
        about: Option<Called>,
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
    pub(crate) directory: usize,
    pub(crate) called: Called,
    pub(crate) czxid: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Follower {
    pub(crate) tree: Tree,
    pub(crate) behind: Vec<Txn>,
}

impl Client {
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.stage, Stage::One(_) | Stage::Several(_))
    }

    /// The nodes with which it believes that it holds its locks.
    pub(crate) fn holding(&self) -> Option<Vec<Node>> {
        match &self.stage {
            Stage::One(machine) => machine.holding().map(|node| vec![node]),
            Stage::Several(machine) => machine.holding(),
            Stage::Done | Stage::Crashed => None,
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
            leader: Tree(vec![None; scenario.directories.len()]),
            zxid: 0,
            clients: Vec::new(),
            budget: scenario.budget,
            clean: Vec::new(),
            holders: Vec::new(),
            tokens: vec![0; scenario.directories.len()],
            fouls: 0,
        };
        for (at, next) in scenario.directories.iter().enumerate() {
            if let Some(next) = next {
                world.commit(vec![(at, Op::Make)], None, scenario);
                world.leader.0[at].as_mut().expect("it was just made").counter = *next;
            }
        }
        for i in 0..scenario.wants.len() {
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
            if scenario.inside[i].is_none() {
                world.begin(i, scenario);
            }
        }
        world
    }

    fn begin(&mut self, i: usize, scenario: &Scenario) {
        let tries = scenario.tries && i + 1 == scenario.wants.len();
        let config = Config {
            session: SessionId(i as i64),
            kind: if scenario.readers[i] { Kind::Read } else { Kind::Mutex },
            tracks_crashes: scenario.tracks,
            delay: 0,
            mode: if tries { Mode::Try } else { Mode::Wait },
            watch_own_after: u32::from(scenario.watches_late),
            retire_from: Sequence(scenario.retire_from),
            names: Names::default(),
            // Those that want one lock do it in the model of one lock; those that want several never do.
            looks_ahead: scenario.wants[i].len() > 1,
            id: ContenderId(i as u128),
            rules: scenario.rules,
        };
        self.clients[i].stage = match scenario.wants[i].len() {
            1 => Stage::One(Box::new(Contender::new(config))),
            places => Stage::Several(Box::new(Multi::new(config, places))),
        };
        self.step(i, Event::Start, scenario);
    }

    // ---- the client ----

    /// Gives the machine an event and does what it says.
    pub(crate) fn step(&mut self, i: usize, event: Event, scenario: &Scenario) {
        let client = &mut *self.clients[i];
        let actions = match &mut client.stage {
            Stage::One(machine) => machine.step(event, client.lease),
            Stage::Several(machine) => machine.step(event, client.lease),
            Stage::Done | Stage::Crashed => return,
        };
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
                    self.on_granted(i, grant, scenario);
                    scenario.inner(i).for_each(|j| self.begin(j, scenario));
                }
                Action::Failed(reason) => self.on_failed(i, reason, scenario),
                Action::Lost(loss) => self.on_lost(i, loss),
                Action::Released(departed) => self.on_released(i, departed),
                Action::Revoked => self.on_revoked(i),
                Action::Previous(_) => unreachable!("the parts look no further ahead than they need to"),
                Action::Downgraded(_) => unreachable!("nobody asks for it"),
                Action::Over => {
                    self.on_over(i);
                    return self.end(i, scenario);
                }
            }
        }
    }

    fn send(&mut self, i: usize, id: RequestId, request: Request, scenario: &Scenario) {
        let wants = &scenario.wants[i];
        let directory = if wants.len() == 1 { wants[0] } else { wants[multi::place(id)] };
        let client = &mut *self.clients[i];
        if let Request::Sleep(duration) = request {
            return client.sleeps.push(Sleep { id, directory, duration });
        }
        if !client.session {
            // Nobody answers any more; the end of the session will be told.
            return;
        }
        let mut looked = 0;
        for (bit, node) in deletes(&request).iter().enumerate() {
            let at = if matches!(request, Request::ReleaseAll(_)) { wants[bit] } else { directory };
            let named = |trace: &&mut Trace| (trace.directory, trace.called) == (at, called(node));
            for trace in client.ghost.traces.iter_mut().filter(named) {
                looked |= u8::from(std::mem::take(&mut trace.fresh)) << bit;
            }
        }
        if let Request::Exists(node) = &request {
            let there = |trace: &Trace| {
                (trace.directory, trace.called) == (directory, called(node)) && trace.fate == Fate::There
            };
            looked = u8::from(client.ghost.traces.iter().any(there));
        }
        // Whoever has lost one of its locks by another's hand still holds the others, and releases them.
        let held = matches!(client.ghost.lost, None | Some(Loss::Broken));
        let cleanly = client.ghost.granted && client.ghost.cleanly && held;
        client.requests.push(Sent { round: client.round, id, directory, request, looked, cleanly });
    }

    /// The machine is over: the next acquisition begins, or the client is done.
    fn end(&mut self, i: usize, scenario: &Scenario) {
        let client = &mut *self.clients[i];
        client.stage = Stage::Done;
        client.ghost = Ghost::default();
        self.forget(i);
        let client = &mut *self.clients[i];
        if client.session && client.round + 1 < scenario.rounds {
            client.round += 1;
            self.begin(i, scenario);
        }
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
        let wants = &scenario.wants[i];
        let event = match client.inbox.remove(0) {
            Inbound::Answer { directory, id, outcome, about, looked, .. } => {
                let seen: Vec<(usize, i64)> = match &outcome {
                    Ok(Reply::Joined(node)) => vec![(directory, node.czxid.0)],
                    Ok(Reply::AllJoined(nodes)) => {
                        wants.iter().zip(nodes).map(|(&at, node)| (at, node.czxid.0)).collect()
                    }
                    Ok(Reply::Node { czxid, .. }) if looked => vec![(directory, czxid.0)],
                    Ok(Reply::Mine(nodes)) => nodes.iter().map(|node| (directory, node.czxid.0)).collect(),
                    _ => Vec::new(),
                };
                let now = match &outcome {
                    Ok(Reply::Node { czxid, .. }) => Some(czxid.0),
                    Err(Failure::NoNode) => Some(0),
                    _ => None,
                };
                for trace in &mut client.ghost.traces {
                    let named = trace.directory == directory && about == Some(trace.called);
                    trace.fresh |= seen.contains(&(trace.directory, trace.czxid));
                    trace.fresh &= !named || now.is_none_or(|now| now == trace.czxid);
                }
                Event::Answer(id, outcome)
            }
            Inbound::Fired { watch, deleted } => {
                for trace in &mut client.ghost.traces {
                    let other = (trace.directory, trace.czxid) != (watch.directory, watch.czxid);
                    trace.fresh &= !deleted || other;
                }
                Event::Fired { watch: watch.id, deleted }
            }
            Inbound::Reconnected => Event::Reconnected,
            Inbound::SessionOver => Event::SessionOver(SessionEnd::Expired),
        };
        self.step(i, event, scenario);
    }

    pub(crate) fn wake(&mut self, i: usize, at: usize, scenario: &Scenario) {
        let Sleep { id, .. } = self.clients[i].sleeps.remove(at);
        self.step(i, Event::Answer(id, Ok(Reply::Done)), scenario);
    }

    pub(crate) fn release(&mut self, i: usize, left: Left, scenario: &Scenario) {
        let ghost = &mut self.clients[i].ghost;
        ghost.released = true;
        ghost.cleanly = left == Left::Released;
        self.step(i, Event::Release(left), scenario);
    }

    pub(crate) fn give_up(&mut self, i: usize, timed_out: bool, scenario: &Scenario) {
        let ghost = &mut self.clients[i].ghost;
        ghost.gave_up = true;
        ghost.timed_out = timed_out;
        self.step(i, if timed_out { Event::TimedOut } else { Event::Cancel }, scenario);
    }

    // ---- followers ----

    fn fire(&mut self, i: usize, changes: &[Change]) {
        let client = &mut self.clients[i];
        for Change { directory, child, deleted } in changes {
            let on_it = |watch: &Watch| (watch.directory, watch.called) == (*directory, child.called);
            while let Some(at) = client.watches.iter().position(on_it) {
                let watch = client.watches.remove(at);
                client.inbox.push(Inbound::Fired { watch, deleted: *deleted });
            }
        }
    }

    /// The client's follower applies one transaction.
    pub(crate) fn apply(&mut self, i: usize) {
        let Some(follower) = &mut self.clients[i].follower else { return };
        let changes = if follower.behind.is_empty() {
            Vec::new()
        } else {
            follower.tree.apply(&follower.behind.remove(0))
        };
        if follower.behind.is_empty() {
            self.clients[i].follower = None;
        }
        self.fire(i, &changes);
    }

    pub(crate) fn catch_up(&mut self, i: usize) {
        while self.clients[i].follower.is_some() {
            self.apply(i);
        }
    }

    /// Makes a transaction, applies it where nobody lags, and keeps the observer's books. `by`: the acquisition whose
    /// request it is.
    pub(crate) fn commit(&mut self, ops: Vec<(usize, Op)>, by: Option<(usize, &Sent)>, scenario: &Scenario) {
        self.zxid += 1;
        let txn = Txn { zxid: self.zxid, ops };
        let made: Vec<_> = (0..self.leader.0.len()).map(|at| self.leader.created(at)).collect();
        let changes = self.leader.apply(&txn);
        for (bit, Change { directory, child, deleted }) in changes.iter().enumerate() {
            // A delete that hits a later node of its name is none of that one's owner, even if that is the same.
            let meant = by.and_then(|(_, sent)| deletes(&sent.request).get(bit).copied());
            let own = by.is_some_and(|(i, _)| child.owner as usize == i)
                && meant.is_some_and(|node| node.czxid.0 == child.czxid);
            let owner = &mut self.clients[child.owner as usize];
            owner.ghost.asked |= !deleted && child.round == owner.round;
            let this = |trace: &&mut Trace| (trace.directory, trace.czxid) == (*directory, child.czxid);
            for trace in owner.ghost.traces.iter_mut().filter(this).filter(|_| *deleted) {
                trace.fate = if own { Fate::Withdrawn } else { Fate::Taken };
            }
            if let Some((_, sent)) = by {
                if !own && sent.looked & (1 << bit) == 0 {
                    self.note(Foul::DeletedAnothers);
                }
                if own && sent.cleanly {
                    let made = made[*directory].expect("its child was just deleted");
                    self.on_left_cleanly(made, child.called.1);
                }
            }
        }
        self.see_who_is_first(scenario);
        for i in 0..self.clients.len() {
            if self.clients[i].follower.is_none() {
                self.fire(i, &changes);
            } else if let Some(follower) = &mut self.clients[i].follower {
                follower.behind.push(txn.clone());
            }
        }
    }
}
