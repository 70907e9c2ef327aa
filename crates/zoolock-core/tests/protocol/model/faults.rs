//! Faults between clients and servers, and the effects of a transaction on followers and watches.

use zoolock_core::acquisition::{Event, Reply, Request, RequestFailure};

use super::bugs::Bug;
use super::ghost::{Fate, Violation};
use super::scenario::Scenario;
use super::server::{deleted_znodes, is_write};
use super::tree::{Change, Op, Txn};
use super::world::{Follower, Inbound, Sent, Stage, World};

impl World {
    /// Breaks the client's connection, and makes a new connection. Each pending request may have
    /// been carried out, or may be carried out later or never.
    pub(crate) fn disconnect(&mut self, i: usize, scenario: &Scenario) {
        let leader = self.leader.clone();
        let client = &mut *self.clients[i];
        client.ghost.interrupted |= client.ghost.granted && !client.ghost.read;
        let (mut unknown, mut unheard) = (Vec::new(), Vec::new());
        let mut watches = std::mem::take(&mut client.watches);
        let mut ended = false;
        for inbound in std::mem::take(&mut client.inbox) {
            match inbound {
                Inbound::Answer { id, set, .. } => {
                    // The client learns of a watch from the reply. That reply is lost, so the watch is lost, too.
                    unknown.push((id, Err(RequestFailure::Unknown)));
                    unheard.extend(set);
                    watches.retain(|watch| Some(watch.id) != set);
                }
                // The watch has fired, and its event is lost. If the client knows of the watch, it will set the watch
                // again.
                Inbound::Fired { watch, .. } if unheard.contains(&watch.id) => {}
                Inbound::Fired { watch, .. } => watches.push(watch),
                Inbound::Reconnected => {}
                Inbound::SessionOver => ended = true,
            }
        }
        let sent = std::mem::take(&mut client.requests);
        let once = if client.ghost.released { Bug::ReleasesOnce } else { Bug::CleansUpOnce };
        let outcome = |sent: &Sent| match sent.request {
            Request::Delete(_) | Request::Withdraw(_) | Request::Release { .. } if scenario.has(once) => {
                Ok(Reply::Done)
            }
            _ => Err(RequestFailure::Unknown),
        };
        let of_now = sent.iter().filter(|sent| sent.round == client.round);
        unknown.extend(of_now.map(|sent| (sent.id, outcome(sent))));
        let releases = sent.iter().filter_map(|sent| sent.release.as_deref());
        let releases: Vec<_> = releases.map(|(mate, release)| (*mate, release.round, release.id)).collect();
        client.late.extend(sent.into_iter().filter(|sent| is_write(&sent.request)));
        // The client sets the watches of which it knows again. A watch fires at once if the znode,
        // or the list of children, has changed since the watch was first set. A server fires them
        // in any order. The model fires them in the order of their ids.
        watches.sort_by_key(|watch| watch.id);
        let view = client.view(&leader);
        let mut fired = Vec::new();
        watches.retain(|watch| {
            let now = match watch.name {
                Some(name) => view.child(watch.at, name).map(|child| child.mzxid),
                None => view.0[watch.at].as_ref().map(|directory| directory.pzxid),
            };
            if now != Some(watch.zxid) {
                fired.push(Inbound::Fired { watch: watch.clone(), deleted: now.is_none() });
            }
            now == Some(watch.zxid)
        });
        if scenario.has(Bug::ForgetsWatches) {
            watches.clear();
            fired.clear();
        }
        if !client.is_running() {
            return;
        }
        client.watches = watches;
        client.inbox = fired;
        client.inbox.push(if ended { Inbound::SessionOver } else { Inbound::Reconnected });
        // The client's state machine is told of the disconnect before anything that comes over the
        // next connection.
        if scenario.reports_disconnects {
            self.step(i, Event::Disconnected, scenario);
        }
        for (mate, round, id) in releases {
            if self.clients[mate].round == round {
                self.step(mate, Event::Answer(id, Err(RequestFailure::Unknown)), scenario);
            }
        }
        for (id, outcome) in unknown {
            self.step(i, Event::Answer(id, outcome), scenario);
        }
    }

    /// Expires the session. The acquisition continues in the next session, at a follower that still
    /// shows the znodes of the expired session.
    pub(crate) fn next_session(&mut self, i: usize, scenario: &Scenario) {
        let tree = self.leader.clone();
        let client = &mut *self.clients[i];
        let answers = client.inbox.iter().filter_map(|inbound| match inbound {
            Inbound::Answer { id, .. } => Some(*id),
            _ => None,
        });
        let unknown: Vec<_> = answers.chain(client.requests.iter().map(|sent| sent.id)).collect();
        client.requests.clear();
        client.late.clear();
        client.refused.clear();
        client.watches.clear();
        client.inbox = vec![Inbound::Reconnected];
        client.follower = Some(Follower { tree, behind: Vec::new() });
        self.delete_ephemerals(i, scenario);
        // The existing znodes of the acquisition belonged to the expired session, so a grant with
        // one of them is wrong.
        for trace in &mut self.clients[i].ghost.traces {
            trace.was_clear = false;
        }
        for id in unknown {
            self.step(i, Event::Answer(id, Err(RequestFailure::Unknown)), scenario);
        }
    }

    pub(crate) fn make_follower_lag(&mut self, i: usize) {
        self.clients[i].follower = Some(Follower { tree: self.leader.clone(), behind: Vec::new() });
    }

    pub(crate) fn lose_lease(&mut self, i: usize, scenario: &Scenario) {
        for i in scenario.same_session(i) {
            self.clients[i].lease = false;
            self.clients[i].ghost.lease_lost = true;
            self.step(i, Event::LeaseLost, scenario);
        }
    }

    pub(crate) fn renew_lease(&mut self, i: usize, scenario: &Scenario) {
        for i in scenario.same_session(i) {
            self.clients[i].lease = true;
            self.step(i, Event::LeaseRenewed, scenario);
        }
    }

    pub(crate) fn expire(&mut self, i: usize, scenario: &Scenario) {
        for i in scenario.same_session(i) {
            let client = &mut *self.clients[i];
            client.session = false;
            client.requests.clear();
            client.late.clear();
            client.refused.clear();
            client.watches.clear();
            client.follower = None;
            if client.is_running() {
                client.inbox.push(Inbound::SessionOver);
            }
        }
        self.delete_ephemerals(i, scenario);
    }

    /// Deletes the znodes of the client's session.
    fn delete_ephemerals(&mut self, i: usize, scenario: &Scenario) {
        let session = scenario.session(i);
        let mut ops = Vec::new();
        for at in 0..self.leader.0.len() {
            let children = self.leader.children(at).iter();
            let owned = children.filter(|child| scenario.session(child.owner.into()) == session);
            ops.extend(owned.map(|child| (at, Op::Delete(child.name))));
        }
        if !ops.is_empty() {
            self.commit(ops, None, scenario);
        }
    }

    pub(crate) fn crash(&mut self, i: usize, scenario: &Scenario) {
        for i in scenario.same_session(i) {
            self.clients[i].stage = Stage::Crashed;
            self.drop_pending(i);
        }
    }

    // ---- followers ----

    fn fire_watches(&mut self, i: usize, changes: &[(usize, Change)]) {
        let client = &mut self.clients[i];
        for (at, change) in changes {
            let (name, deleted) = match change {
                Change::Deleted(child) => (Some(child.name), true),
                Change::Written(name) => (Some(*name), false),
                Change::Children { gone } => (None, *gone),
            };
            while let Some(found) = client.watches.iter().position(|w| (w.at, w.name) == (*at, name)) {
                let watch = client.watches.remove(found);
                client.inbox.push(Inbound::Fired { watch, deleted });
            }
        }
    }

    /// Applies one transaction at the client's follower.
    pub(crate) fn apply_at_follower(&mut self, i: usize) {
        let Some(follower) = &mut self.clients[i].follower else { return };
        let changes = if follower.behind.is_empty() {
            Vec::new()
        } else {
            follower.tree.apply(&follower.behind.remove(0))
        };
        if follower.behind.is_empty() {
            self.clients[i].follower = None;
        }
        self.fire_watches(i, &changes);
    }

    pub(crate) fn catch_up(&mut self, i: usize) {
        while self.clients[i].follower.is_some() {
            self.apply_at_follower(i);
        }
    }

    /// Commits a transaction, applies it at each follower that does not lag, and records its
    /// effects. `by`: the client that sent the transaction, and its request; `None` for an
    /// operator, or for the end of a session.
    pub(crate) fn commit(&mut self, ops: Vec<(usize, Op)>, by: Option<(usize, &Sent)>, scenario: &Scenario) {
        self.zxid += 1;
        let txn = Txn { zxid: self.zxid, ops };
        let changes = self.leader.apply(&txn);
        let meant = by.map_or(Vec::new(), |(_, sent)| deleted_znodes(&sent.request));
        let deleted = changes.iter().filter_map(|(at, change)| match change {
            Change::Deleted(child) => Some((*at, child)),
            _ => None,
        });
        for (bit, (at, child)) in deleted.enumerate() {
            // A delete may hit a later znode of the same name. That does not count as a delete by
            // the owner, even if the same client created both znodes.
            let own = by.is_some_and(|(i, _)| child.owner as usize == i)
                && meant.get(bit).is_some_and(|node| node.czxid.0 == child.czxid);
            for trace in &mut self.clients[child.owner as usize].ghost.traces {
                if (trace.at, trace.czxid) == (at, child.czxid) {
                    trace.fate = if own { Fate::Withdrawn } else { Fate::Taken };
                }
            }
            let cleanly = own && by.is_some_and(|(_, sent)| sent.cleanly);
            self.on_deleted(at, child.czxid, own, cleanly);
            if let Some((_, sent)) = by
                && !own
                && sent.known_to_exist & (1 << bit) == 0
            {
                self.record_violation(Violation::DeletedAnothers);
            }
        }
        self.note_size();
        self.record_clear_traces(scenario);
        for i in 0..self.clients.len() {
            if self.clients[i].follower.is_none() {
                self.fire_watches(i, &changes);
            } else if let Some(follower) = &mut self.clients[i].follower {
                follower.behind.push(txn.clone());
            }
        }
    }
}
