//! The whole world of one lock: the leader, a follower and a connection for each client, and the clients' machines.
//!
//! Requests of a session are carried out in the order they were sent; replies and watch events reach it in the order
//! they were made, and the event of a change before any reply that shows it. A client reads from its follower, which
//! may lag behind the leader by whole transactions but always shows the session's own confirmed writes.

use zoolock_core::contender::{
    Action, Config, Contender, Directory as Reading, Event, Failure, Kind, Mode, Reply, Request, RequestId,
    SessionEnd, WatchId,
};
use zoolock_core::record::Left;
use zoolock_core::{Record, Sequence, SessionId, Zxid};

use crate::ghost::{Fate, Foul, Ghost, Trace};
use crate::scenario::{Budget, Scenario};
use crate::tree::{Child, Op, Tree, Txn};

/// A state of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) leader: Tree,
    pub(crate) zxid: i64,
    pub(crate) clients: Vec<Client>,
    pub(crate) budget: Budget,
    /// The record of the last directory that was deleted.
    pub(crate) backup: Record,
    /// Who released the lock as its holder: directory and number.
    pub(crate) clean: Vec<(i64, i32)>,
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
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    /// For a delete: it relies on a look at the node. See [`crate::ghost::Trace::fresh`]. For a look at our own node:
    /// it was there when the look was sent, so that what comes back is no older than that.
    pub(crate) looked: bool,
    /// For a delete: it is the release of a holder that was not unwinding.
    pub(crate) cleanly: bool,
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
    pub(crate) sequence: i32,
    pub(crate) czxid: i64,
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
            clean: Vec::new(),
            token: 0,
            fouls: 0,
        };
        if let Some((record, counter)) = scenario.directory {
            // Transaction 1 was the directory that the record, if it is a marker, was written for.
            world.zxid = 1;
            world.commit(vec![Op::Make(record)], None);
            world.leader.0.as_mut().expect("it was just made").counter = counter;
        }
        for i in 0..scenario.clients {
            world.clients.push(Client {
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
            });
            world.begin(i as usize, scenario);
        }
        world
    }

    fn begin(&mut self, i: usize, scenario: &Scenario) {
        let tries =
            scenario.tries && i + 1 == self.clients.len() && self.clients.len() == scenario.clients as usize;
        let config = Config {
            session: SessionId(i as i64),
            kind: Kind::Mutex,
            tracks_crashes: false,
            delay: 0,
            mode: if tries { Mode::Try } else { Mode::Wait },
            retire_from: Sequence(scenario.retire_from),
            rules: scenario.rules,
        };
        self.clients[i].stage = Stage::Running(Contender::new(config));
        self.step(i, Event::Start, scenario);
    }

    // ---- the client ----

    /// Gives the machine an event and does what it says.
    pub(crate) fn step(&mut self, i: usize, event: Event, scenario: &Scenario) {
        let client = &mut self.clients[i];
        let Stage::Running(machine) = &mut client.stage else { return };
        for action in machine.step(event, client.lease) {
            match action {
                Action::Send(id, Request::Sleep(duration)) => self.clients[i].sleeps.push((id, duration)),
                Action::Send(id, request) => self.send(i, id, request),
                Action::Unwatch(id) => {
                    let client = &mut self.clients[i];
                    client.watches.retain(|watch| watch.id != id);
                    client
                        .inbox
                        .retain(|inbound| !matches!(inbound, Inbound::Fired { watch, .. } if watch.id == id));
                }
                Action::Granted(grant) => self.on_granted(i, grant, scenario),
                Action::Failed(reason) => self.on_failed(i, reason, scenario),
                Action::Lost(loss) => self.on_lost(i, loss),
                Action::Released(departed) => self.on_released(i, departed),
                Action::Downgraded(_) | Action::Revoked => unreachable!("nobody asks for it"),
                Action::Over => {
                    self.on_over(i);
                    return self.end(i, scenario);
                }
            }
        }
    }

    fn send(&mut self, i: usize, id: RequestId, request: Request) {
        let client = &mut self.clients[i];
        if !client.session {
            // Nobody answers any more; the end of the session will be told.
            return;
        }
        let mut looked = false;
        match &request {
            Request::Delete(node) | Request::Release { node, .. } => {
                let sequence = node.sequence;
                for trace in client.ghost.traces.iter_mut().filter(|trace| trace.sequence == sequence.0) {
                    looked |= std::mem::take(&mut trace.fresh);
                }
            }
            Request::Exists(node) => {
                let sequence = node.sequence;
                let there = |trace: &Trace| trace.sequence == sequence.0 && trace.fate == Fate::There;
                looked = client.ghost.traces.iter().any(there);
            }
            _ => {}
        }
        let cleanly = client.ghost.cleanly && !client.ghost.lost;
        client.requests.push(Sent { round: client.round, id, request, looked, cleanly });
    }

    /// The machine is over: the next acquisition begins, or the client is done.
    fn end(&mut self, i: usize, scenario: &Scenario) {
        let client = &mut self.clients[i];
        client.stage = Stage::Done;
        client.ghost = Ghost::default();
        self.forget(i);
        let client = &mut self.clients[i];
        if client.session && client.round + 1 < scenario.rounds {
            client.round += 1;
            self.begin(i, scenario);
        }
    }

    /// Nobody waits for anything any more; what was sent and changes something still goes its way.
    fn forget(&mut self, i: usize) {
        let client = &mut self.clients[i];
        client.sleeps.clear();
        client.watches.clear();
        client.inbox.clear();
        client.requests.retain(|sent| is_write(&sent.request));
    }

    pub(crate) fn deliver(&mut self, i: usize, scenario: &Scenario) {
        let client = &mut self.clients[i];
        let event = match client.inbox.remove(0) {
            Inbound::Answer { id, outcome, looked, .. } => {
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

    // ---- what goes wrong between client and service ----

    /// The connection breaks and is made again. What was sent may have been carried out, may still be, or never will.
    pub(crate) fn disconnect(&mut self, i: usize, scenario: &Scenario) {
        let leader = self.leader.clone();
        let client = &mut self.clients[i];
        let (mut unknown, mut unheard) = (Vec::new(), Vec::new());
        let mut watches = std::mem::take(&mut client.watches);
        let mut ended = false;
        for inbound in std::mem::take(&mut client.inbox) {
            match inbound {
                Inbound::Answer { id, set, .. } => {
                    // A client knows of a watch from the reply on.
                    unknown.push(id);
                    unheard.extend(set);
                    watches.retain(|watch| Some(watch.id) != set);
                }
                // It fired, and nobody heard: the client believes it in force, if it knows of it.
                Inbound::Fired { watch, .. } if unheard.contains(&watch.id) => {}
                Inbound::Fired { watch, .. } => watches.push(watch),
                Inbound::Reconnected => {}
                Inbound::SessionOver => ended = true,
            }
        }
        let sent = std::mem::take(&mut client.requests);
        unknown.extend(sent.iter().filter(|sent| sent.round == client.round).map(|sent| sent.id));
        client.late.extend(sent.into_iter().filter(|sent| is_write(&sent.request)));
        // The client registers again what it knows of. Where the node is gone, or is a later one, that fires at once.
        let view = client.view(&leader);
        let mut fired = Vec::new();
        watches.retain(|watch| match view.child(watch.sequence) {
            Some(child) if child.czxid == watch.czxid => true,
            other => {
                fired.push(Inbound::Fired { watch: watch.clone(), deleted: other.is_none() });
                false
            }
        });
        client.watches = watches;
        client.inbox = fired;
        client.inbox.push(if ended { Inbound::SessionOver } else { Inbound::Reconnected });
        for id in unknown {
            self.step(i, Event::Answer(id, Err(Failure::Unknown)), scenario);
        }
    }

    pub(crate) fn lag(&mut self, i: usize) {
        self.clients[i].follower = Some(Follower { tree: self.leader.clone(), behind: Vec::new() });
    }

    pub(crate) fn lose_lease(&mut self, i: usize, scenario: &Scenario) {
        self.clients[i].lease = false;
        self.clients[i].ghost.lease_lost = true;
        self.step(i, Event::LeaseLost, scenario);
    }

    pub(crate) fn renew_lease(&mut self, i: usize, scenario: &Scenario) {
        self.clients[i].lease = true;
        self.step(i, Event::LeaseRenewed, scenario);
    }

    pub(crate) fn expire(&mut self, i: usize) {
        let client = &mut self.clients[i];
        client.session = false;
        client.requests.clear();
        client.late.clear();
        client.watches.clear();
        client.follower = None;
        if client.is_running() {
            client.inbox.push(Inbound::SessionOver);
        }
        let owned = |child: &&Child| child.owner as usize == i;
        let ops: Vec<_> =
            self.leader.children().iter().filter(owned).map(|c| Op::Delete(c.sequence)).collect();
        if !ops.is_empty() {
            self.commit(ops, None);
        }
    }

    pub(crate) fn crash(&mut self, i: usize) {
        self.clients[i].stage = Stage::Crashed;
        self.forget(i);
    }

    // ---- followers ----

    pub(crate) fn fire(&mut self, i: usize, deleted: &[Child]) {
        let client = &mut self.clients[i];
        for child in deleted {
            while let Some(at) = client.watches.iter().position(|watch| watch.sequence == child.sequence) {
                let watch = client.watches.remove(at);
                client.inbox.push(Inbound::Fired { watch, deleted: true });
            }
        }
    }

    /// The client's follower applies one transaction.
    pub(crate) fn apply(&mut self, i: usize) {
        let Some(follower) = &mut self.clients[i].follower else { return };
        let deleted = if follower.behind.is_empty() {
            Vec::new()
        } else {
            follower.tree.apply(&follower.behind.remove(0))
        };
        if follower.behind.is_empty() {
            self.clients[i].follower = None;
        }
        self.fire(i, &deleted);
    }

    pub(crate) fn catch_up(&mut self, i: usize) {
        while self.clients[i].follower.is_some() {
            self.apply(i);
        }
    }

    /// Makes a transaction, applies it where nobody lags, and keeps the observer's books. `by`: the acquisition whose
    /// request it is.
    pub(crate) fn commit(&mut self, ops: Vec<Op>, by: Option<(usize, &Sent)>) -> i64 {
        self.zxid += 1;
        let directory = self.leader.created();
        let txn = Txn { zxid: self.zxid, ops };
        let deleted = self.leader.apply(&txn);
        for child in &deleted {
            let own = by.is_some_and(|(i, sent)| (child.owner as usize, child.round) == (i, sent.round));
            let fate = if own { Fate::Withdrawn } else { Fate::Taken };
            for trace in self.clients[child.owner as usize].ghost.traces.iter_mut() {
                if trace.czxid == child.czxid {
                    trace.fate = fate;
                }
            }
            if let Some((_, sent)) = by {
                if !own && !sent.looked {
                    self.note(Foul::DeletedAnothers);
                }
                if own && sent.cleanly {
                    self.clean.push((directory.expect("its child was just deleted"), child.sequence));
                }
            }
        }
        if let Some(first) = self.leader.children().first() {
            for trace in self.clients.iter_mut().flat_map(|client| client.ghost.traces.iter_mut()) {
                trace.was_first |= trace.czxid == first.czxid;
            }
        }
        for i in 0..self.clients.len() {
            match &mut self.clients[i].follower {
                Some(follower) => follower.behind.push(txn.clone()),
                None => self.fire(i, &deleted),
            }
        }
        self.zxid
    }
}

/// Whether a request can change anything.
pub(crate) fn is_write(request: &Request) -> bool {
    matches!(
        request,
        Request::Join
            | Request::MakeDirectory
            | Request::Delete(_)
            | Request::Release { .. }
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
