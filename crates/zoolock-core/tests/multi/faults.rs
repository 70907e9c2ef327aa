//! What goes wrong between a client and the service.

use zoolock_core::contender::{Event, Failure};

use crate::scenario::Scenario;
use crate::server::is_write;
use crate::tree::Op;
use crate::world::{Follower, Inbound, Stage, World};

impl World {
    /// The connection breaks and is made again. What was sent may have been carried out, may still be, or never will.
    pub(crate) fn disconnect(&mut self, i: usize, scenario: &Scenario) {
        let leader = self.leader.clone();
        let client = &mut *self.clients[i];
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
        // The client registers again what it knows of. Where the node is gone, or was written to, or is a later one,
        // that fires at once.
        let view = client.view(&leader);
        let mut fired = Vec::new();
        watches.retain(|watch| match view.child(watch.directory, watch.called) {
            Some(child) if child.czxid == watch.czxid && !child.revoked => true,
            other => {
                fired.push(Inbound::Fired { watch: watch.clone(), deleted: other.is_none() });
                false
            }
        });
        client.watches = watches;
        client.inbox = fired;
        client.inbox.push(if ended { Inbound::SessionOver } else { Inbound::Reconnected });
        if scenario.told_offline {
            self.step(i, Event::Disconnected, scenario);
        }
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

    pub(crate) fn expire(&mut self, i: usize, scenario: &Scenario) {
        let client = &mut *self.clients[i];
        client.session = false;
        client.requests.clear();
        client.late.clear();
        client.watches.clear();
        client.follower = None;
        if client.is_running() {
            client.inbox.push(Inbound::SessionOver);
        }
        let mut ops = Vec::new();
        for at in 0..self.leader.0.len() {
            let owned = self.leader.children(at).iter().filter(|child| child.owner as usize == i);
            ops.extend(owned.map(|child| (at, Op::Delete(child.called))));
        }
        if !ops.is_empty() {
            self.commit(ops, None, scenario);
        }
    }

    pub(crate) fn crash(&mut self, i: usize) {
        self.clients[i].stage = Stage::Crashed;
        self.forget(i);
    }
}
