//! What goes wrong between client and service, and what followers and watches make of a transaction.

use zoolock_core::contender::{Event, Failure, Reply, Request};

use crate::bugs::Bug;
use crate::ghost::{Fate, Foul};
use crate::scenario::Scenario;
use crate::tree::{Change, Op, Txn};
use crate::world::{Follower, Inbound, Sent, Stage, World, is_write};

impl World {
    /// The connection breaks and is made again. What was sent may have been carried out, may still be, or never will.
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
                    // A client knows of a watch from the reply on.
                    unknown.push((id, Err(Failure::Unknown)));
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
        let once = if client.ghost.released { Bug::ReleasesOnce } else { Bug::CleansUpOnce };
        let outcome = |sent: &Sent| match sent.request {
            Request::Delete(_) | Request::Withdraw(_) | Request::Release { .. } if scenario.has(once) => {
                Ok(Reply::Done)
            }
            _ => Err(Failure::Unknown),
        };
        let of_now = sent.iter().filter(|sent| sent.round == client.round);
        unknown.extend(of_now.map(|sent| (sent.id, outcome(sent))));
        client.late.extend(sent.into_iter().filter(|sent| is_write(&sent.request)));
        // The client registers again what it knows of. Where something has changed since, that fires at once.
        // In any order, so in this one: that in which they were set.
        watches.sort_by_key(|watch| watch.id);
        let view = client.view(&leader);
        let mut fired = Vec::new();
        watches.retain(|watch| {
            let now = match watch.name {
                Some(name) => view.child(name).map(|child| child.mzxid),
                None => view.0.as_ref().map(|directory| directory.pzxid),
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
        client.watches = watches;
        client.inbox = fired;
        client.inbox.push(if ended { Inbound::SessionOver } else { Inbound::Reconnected });
        // Said before anything that comes over the next connection.
        self.step(i, Event::Disconnected, scenario);
        for (id, outcome) in unknown {
            self.step(i, Event::Answer(id, outcome), scenario);
        }
    }

    /// The session is over, and the acquisition goes on in the next one, at a follower that has not heard yet.
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
        client.watches.clear();
        client.inbox = vec![Inbound::Reconnected];
        client.follower = Some(Follower { tree, behind: Vec::new() });
        let owned = self.leader.children().iter().filter(|child| child.owner as usize == i);
        let ops: Vec<_> = owned.map(|child| Op::Delete(child.name)).collect();
        if !ops.is_empty() {
            self.commit(ops, None, scenario);
        }
        // They were those of another session: a grant to one of them is none.
        for trace in &mut self.clients[i].ghost.traces {
            trace.was_clear = false;
        }
        for id in unknown {
            self.step(i, Event::Answer(id, Err(Failure::Unknown)), scenario);
        }
    }

    pub(crate) fn lag(&mut self, i: usize) {
        self.clients[i].follower = Some(Follower { tree: self.leader.clone(), behind: Vec::new() });
    }

    pub(crate) fn lose_lease(&mut self, i: usize, scenario: &Scenario) {
        for i in scenario.mates(i) {
            self.clients[i].lease = false;
            self.clients[i].ghost.lease_lost = true;
            self.step(i, Event::LeaseLost, scenario);
        }
    }

    pub(crate) fn renew_lease(&mut self, i: usize, scenario: &Scenario) {
        for i in scenario.mates(i) {
            self.clients[i].lease = true;
            self.step(i, Event::LeaseRenewed, scenario);
        }
    }

    pub(crate) fn expire(&mut self, i: usize, scenario: &Scenario) {
        for i in scenario.mates(i) {
            let client = &mut *self.clients[i];
            client.session = false;
            client.requests.clear();
            client.late.clear();
            client.watches.clear();
            client.follower = None;
            if client.is_running() {
                client.inbox.push(Inbound::SessionOver);
            }
        }
        let session = scenario.session(i);
        let owned = self.leader.children().iter().filter(|c| scenario.session(c.owner.into()) == session);
        let ops: Vec<_> = owned.map(|child| Op::Delete(child.name)).collect();
        if !ops.is_empty() {
            self.commit(ops, None, scenario);
        }
    }

    pub(crate) fn crash(&mut self, i: usize, scenario: &Scenario) {
        for i in scenario.mates(i) {
            self.clients[i].stage = Stage::Crashed;
            self.forget(i);
        }
    }

    // ---- followers ----

    fn fire(&mut self, i: usize, changes: &[Change]) {
        let client = &mut self.clients[i];
        for change in changes {
            let (name, deleted) = match change {
                Change::Deleted(child) => (Some(child.name), true),
                Change::Written(name) => (Some(*name), false),
                Change::Children { gone } => (None, *gone),
            };
            while let Some(at) = client.watches.iter().position(|watch| watch.name == name) {
                let watch = client.watches.remove(at);
                client.inbox.push(Inbound::Fired { watch, deleted });
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
    pub(crate) fn commit(&mut self, ops: Vec<Op>, by: Option<(usize, &Sent)>, scenario: &Scenario) {
        self.zxid += 1;
        let txn = Txn { zxid: self.zxid, ops };
        let changes = self.leader.apply(&txn);
        for change in &changes {
            let Change::Deleted(child) = change else { continue };
            let own = by.is_some_and(|(i, sent)| (child.owner as usize, child.round) == (i, sent.round));
            let fate = if own { Fate::Withdrawn } else { Fate::Taken };
            for trace in self.clients[child.owner as usize].ghost.traces.iter_mut() {
                if trace.czxid == child.czxid {
                    trace.fate = fate;
                }
            }
            let cleanly = own && by.is_some_and(|(_, sent)| sent.cleanly);
            self.ended(child.czxid, own, cleanly);
            if let Some((_, sent)) = by
                && !own
                && !sent.looked
            {
                self.note(Foul::DeletedAnothers);
            }
        }
        self.most = self.most.max(self.leader.size().unwrap_or(0));
        self.see_who_is_clear(scenario);
        for i in 0..self.clients.len() {
            if self.clients[i].follower.is_none() {
                self.fire(i, &changes);
            } else if let Some(follower) = &mut self.clients[i].follower {
                follower.behind.push(txn.clone());
            }
        }
    }
}
