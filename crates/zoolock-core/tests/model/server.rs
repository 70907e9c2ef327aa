//! What the service does with a request.

use zoolock_core::contender::{Failure, Node, Reply, Request, Says};
use zoolock_core::names::{Name, Prefix};
use zoolock_core::{Record, Sequence, SessionId, Zxid};

use crate::ghost::{Fate, Trace};
use crate::scenario::Scenario;
use crate::tree::{Child, Op};
use crate::world::{Inbound, Sent, Watch, World, is_write, reading};

type Outcome = Result<Reply, Failure>;

impl World {
    /// Carries out the next request of a client.
    pub(crate) fn process(&mut self, i: usize, negative: bool, scenario: &Scenario) {
        let sent = self.clients[i].requests.remove(0);
        let outcome = if is_write(&sent.request) {
            // A write of the session through the quorum: nothing that was sent before it can still arrive.
            self.clients[i].late.clear();
            let outcome = self.write(i, &sent, negative, scenario);
            // The reply comes from the follower, once it has applied the transaction; also that of an error.
            self.catch_up(i);
            outcome
        } else {
            self.read(i, &sent)
        };
        let client = &mut self.clients[i];
        if client.is_running() && sent.round == client.round {
            let set = match (&sent.request, &outcome) {
                (Request::Watch { watch, .. }, Ok(_)) => Some(*watch),
                _ => None,
            };
            client.inbox.push(Inbound::Answer { id: sent.id, outcome, set, looked: sent.looked });
        }
    }

    /// A write of a lost connection arrives after all.
    pub(crate) fn arrive_late(&mut self, i: usize, scenario: &Scenario) {
        let sent = self.clients[i].late.remove(0);
        let _ = self.write(i, &sent, false, scenario);
    }

    fn write(&mut self, i: usize, sent: &Sent, negative: bool, scenario: &Scenario) -> Outcome {
        if sent.request == Request::Join {
            self.clients[i].arrived = true;
        }
        let by = Some((i, sent));
        let directory = self.leader.0.as_ref().map(|d| (d.czxid, d.version, d.children.is_empty()));
        let Some((directory, now, empty)) = directory else {
            if sent.request == Request::MakeDirectory {
                self.commit(vec![Op::Make(Record::Empty)], by);
                return Ok(Reply::Done);
            }
            return Err(Failure::NoNode);
        };
        match sent.request {
            Request::Join => {
                let sequence = self.number(negative, scenario)?;
                let owner = i as u8;
                self.create(i, sent.round, directory, Op::Create { sequence, owner, round: sent.round })
            }
            Request::MakeDirectory => Ok(Reply::Done),
            Request::Delete(node) => {
                self.leader.child(node.sequence.0).ok_or(Failure::NoNode)?;
                self.commit(vec![Op::Delete(node.sequence.0)], by);
                Ok(Reply::Done)
            }
            Request::Release { node, marker, version } => {
                let sequence = node.sequence;
                self.leader.child(sequence.0).ok_or(Failure::NoNode)?;
                if version.is_some_and(|version| version != now) {
                    return Err(Failure::BadVersion);
                }
                self.commit(vec![Op::Delete(sequence.0), Op::Write(Record::Marker(marker))], by);
                Ok(Reply::Done)
            }
            Request::DeleteDirectory => {
                if !empty {
                    return Err(Failure::NotEmpty);
                }
                self.remove_directory(by);
                Ok(Reply::Done)
            }
            _ => unreachable!("not a write"),
        }
    }

    /// The number of the next child. Past the end the counter sticks, as that of 3.8.0 does: the last name is used
    /// again or refused, and a create that is prepared behind another one gets a negative number.
    fn number(&self, negative: bool, scenario: &Scenario) -> Result<i32, Failure> {
        let counter = self.leader.0.as_ref().map_or(0, |directory| directory.counter);
        let free = |sequence: &i32| self.leader.child(*sequence).is_none();
        if counter < scenario.last {
            Ok(counter)
        } else if negative {
            Ok((i32::MIN..).find(free).expect("there are fewer children than numbers"))
        } else {
            Some(scenario.last).filter(free).ok_or(Failure::NodeExists)
        }
    }

    fn create(&mut self, i: usize, round: u8, directory: i64, op: Op) -> Outcome {
        let Op::Create { sequence, .. } = op else { unreachable!("called with a create") };
        // The transaction is named before it is made, so that it finds the trace.
        let czxid = self.zxid + 1;
        if round == self.clients[i].round {
            let fate = Fate::There;
            let trace = Trace { czxid, sequence, directory, was_first: false, fate, fresh: false };
            self.clients[i].ghost.traces.push(trace);
        }
        self.commit(vec![op], None);
        Ok(Reply::Joined(Node { prefix: Prefix::Lock, sequence: Sequence(sequence), czxid: Zxid(czxid) }))
    }

    pub(crate) fn remove_directory(&mut self, by: Option<(usize, &Sent)>) {
        if let Some(directory) = &self.leader.0 {
            self.backup = directory.record;
        }
        self.commit(vec![Op::Remove], by);
    }

    fn read(&mut self, i: usize, sent: &Sent) -> Outcome {
        if sent.request == Request::Sync {
            self.catch_up(i);
            return Ok(Reply::Done);
        }
        let client = &self.clients[i];
        let view = client.view(&self.leader);
        let there = |child: &Child| Reply::Node {
            czxid: Zxid(child.czxid),
            owner: SessionId(child.owner.into()),
            version: 0,
            says: Says::default(),
        };
        match &sent.request {
            Request::ReadDirectory => reading(view).map(Reply::Directory).ok_or(Failure::NoNode),
            Request::List if view.0.is_none() => Err(Failure::NoNode),
            Request::List => {
                let name = |child: &Child| Prefix::Lock.name(Sequence(child.sequence));
                let names = view.children().iter().map(name).collect();
                Ok(Reply::Children { names, pzxid: Zxid(view.0.as_ref().map_or(0, |d| d.pzxid)) })
            }
            Request::FindMine => {
                let mine = |child: &&Child| (child.owner as usize, child.round) == (i, sent.round);
                let node = |c: &Child| Node {
                    prefix: Prefix::Lock,
                    sequence: Sequence(c.sequence),
                    czxid: Zxid(c.czxid),
                };
                Ok(Reply::Mine(view.children().iter().filter(mine).map(node).collect()))
            }
            Request::Exists(node) => view.child(node.sequence.0).map(there).ok_or(Failure::NoNode),
            Request::Watch { name, watch } => {
                let sequence = Name::parse(name).expect("machines watch contenders").sequence.0;
                let child = view.child(sequence).cloned().ok_or(Failure::NoNode)?;
                self.clients[i].watches.push(Watch { id: *watch, sequence, czxid: child.czxid });
                Ok(there(&child))
            }
            _ => unreachable!("not a read"),
        }
    }
}
