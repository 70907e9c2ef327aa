//! What the service does with a request.

use zoolock_core::contender::{Directory as Reading, Failure, Node, Reply, Request, Says};
use zoolock_core::names::{Name, Prefix, Role};
use zoolock_core::record::Marker;
use zoolock_core::{Record, Sequence, SessionId, Zxid};

use crate::ghost::{Fate, Trace};
use crate::scenario::Scenario;
use crate::tree::{Called, Child, Op, Tree, called};
use crate::world::{Inbound, Sent, Watch, World};

type Outcome = Result<Reply, Failure>;

impl World {
    /// Carries out the next request of a client.
    pub(crate) fn process(&mut self, i: usize, scenario: &Scenario) {
        let sent = self.clients[i].requests.remove(0);
        let outcome = if is_write(&sent.request) {
            // A write of the session through the quorum: nothing that was sent before it can still arrive.
            self.clients[i].late.clear();
            let outcome = self.write(i, &sent, scenario);
            // The reply comes from the follower, once it has applied the transaction; also that of an error.
            self.catch_up(i);
            outcome
        } else {
            self.read(i, &sent)
        };
        let client = &mut *self.clients[i];
        if client.is_running() && sent.round == client.round {
            let set = match (&sent.request, &outcome) {
                (Request::Watch { watch, .. }, Ok(_)) => Some(*watch),
                _ => None,
            };
            let about = match &sent.request {
                Request::Exists(node) => Some(called(node)),
                Request::Watch { name, .. } => Some(parsed(name)),
                _ => None,
            };
            let Sent { directory, id, looked, .. } = sent;
            let looked = looked != 0;
            client.inbox.push(Inbound::Answer { directory, id, outcome, set, about, looked });
        }
    }

    /// A write of a lost connection arrives after all.
    pub(crate) fn arrive_late(&mut self, i: usize, scenario: &Scenario) {
        let sent = self.clients[i].late.remove(0);
        let _ = self.write(i, &sent, scenario);
    }

    fn write(&mut self, i: usize, sent: &Sent, scenario: &Scenario) -> Outcome {
        let at = sent.directory;
        let ops = match &sent.request {
            Request::Join => {
                let nodes = self.create(i, sent, &[at], scenario)?;
                return Ok(Reply::Joined(nodes[0]));
            }
            Request::JoinAll => {
                return self.create(i, sent, &scenario.wants[i], scenario).map(Reply::AllJoined);
            }
            Request::MakeDirectory if self.leader.0[at].is_some() => return Ok(Reply::Done),
            Request::MakeDirectory => vec![(at, Op::Make)],
            Request::Delete(node) | Request::Withdraw(node) => self.leaving(at, *node, None)?,
            Request::Release { node, marker, version } => {
                self.leaving(at, *node, Some((*marker, *version)))?
            }
            Request::ReleaseAll(partings) => {
                let mut ops = Vec::new();
                for (parting, &at) in partings.iter().zip(&scenario.wants[i]) {
                    ops.extend(self.leaving(at, parting.node, parting.marker)?);
                }
                ops
            }
            Request::Hold { node, marker, version } => {
                let there = node.is_none_or(|node| self.leader.child(at, called(&node)).is_some());
                if !there {
                    return Err(Failure::NoNode);
                }
                vec![self.record(at, *marker, Some(*version))?]
            }
            Request::DeleteDirectory => {
                self.leader.created(at).ok_or(Failure::NoNode)?;
                if !self.leader.children(at).is_empty() {
                    return Err(Failure::NotEmpty);
                }
                vec![(at, Op::Remove)]
            }
            _ => unreachable!("not a write"),
        };
        self.commit(ops, Some((i, sent)), scenario);
        Ok(Reply::Done)
    }

    /// One node in each directory, or none at all.
    fn create(
        &mut self,
        i: usize,
        sent: &Sent,
        at: &[usize],
        scenario: &Scenario,
    ) -> Result<Vec<Node>, Failure> {
        self.clients[i].arrived = true;
        // The transaction is named before it is made, so that it finds the traces.
        let (czxid, round) = (self.zxid + 1, sent.round);
        let number = |&at: &usize| self.leader.0[at].as_ref().map(|d| (at, d.czxid, d.counter));
        let prefix = if scenario.readers[i] { Prefix::Read } else { Prefix::Lock };
        let numbers: Option<Vec<_>> = at.iter().map(number).collect();
        let numbers = numbers.ok_or(Failure::NoNode)?;
        if round == self.clients[i].round {
            let traces = numbers.iter().map(|&(directory, made, number)| Trace {
                directory,
                made,
                czxid,
                called: (prefix, number),
                fate: Fate::There,
                fresh: false,
            });
            self.clients[i].ghost.traces.extend(traces);
        }
        let owner = i as u8;
        let create = |&(at, _, number)| (at, Op::Create { called: (prefix, number), owner, round });
        self.commit(numbers.iter().map(create).collect(), None, scenario);
        let node = |&(_, _, number)| Node { prefix, sequence: Sequence(number), czxid: Zxid(czxid) };
        Ok(numbers.iter().map(node).collect())
    }

    fn leaving(
        &self,
        at: usize,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
    ) -> Result<Vec<(usize, Op)>, Failure> {
        self.leader.child(at, called(&node)).ok_or(Failure::NoNode)?;
        let mut ops = vec![(at, Op::Delete(called(&node)))];
        if let Some((marker, version)) = marker {
            ops.push(self.record(at, marker, version)?);
        }
        Ok(ops)
    }

    fn record(&self, at: usize, marker: Marker, version: Option<i32>) -> Result<(usize, Op), Failure> {
        let now = self.leader.0[at].as_ref().ok_or(Failure::NoNode)?.version;
        if version.is_some_and(|version| version != now) {
            return Err(Failure::BadVersion);
        }
        Ok((at, Op::Write(Record::Marker(marker))))
    }

    fn read(&mut self, i: usize, sent: &Sent) -> Outcome {
        if sent.request == Request::Sync {
            self.catch_up(i);
            return Ok(Reply::Done);
        }
        let at = sent.directory;
        let client = &self.clients[i];
        let view = client.view(&self.leader);
        let there = |child: &Child, revoked: bool| Reply::Node {
            czxid: Zxid(child.czxid),
            owner: SessionId(child.owner.into()),
            version: 0,
            says: Says { granted: false, revoked, untracked: true },
        };
        match &sent.request {
            Request::ReadDirectory => reading(view, at).map(Reply::Directory).ok_or(Failure::NoNode),
            Request::List => {
                let directory = view.0[at].as_ref().ok_or(Failure::NoNode)?;
                let name = |child: &Child| child.node().name();
                let names = directory.children.iter().map(name).collect();
                Ok(Reply::Children { names, pzxid: Zxid(directory.pzxid) })
            }
            Request::FindMine => {
                let mine = |child: &&Child| (child.owner as usize, child.round) == (i, sent.round);
                Ok(Reply::Mine(view.children(at).iter().filter(mine).map(Child::node).collect()))
            }
            Request::Exists(node) => {
                let child = view.child(at, called(node)).ok_or(Failure::NoNode)?;
                Ok(there(child, false))
            }
            Request::Watch { name, watch } => {
                let called = parsed(name);
                let child = view.child(at, called).cloned().ok_or(Failure::NoNode)?;
                let watch = Watch { id: *watch, directory: at, called, czxid: child.czxid };
                self.clients[i].watches.push(watch);
                Ok(there(&child, child.revoked))
            }
            _ => unreachable!("not a read"),
        }
    }
}

fn parsed(name: &str) -> Called {
    let name = Name::parse(name).expect("machines watch contenders");
    (if name.role == Role::Shared { Prefix::Read } else { Prefix::Lock }, name.sequence.0)
}

/// Whether a request can change anything.
pub(crate) fn is_write(request: &Request) -> bool {
    matches!(
        request,
        Request::Join
            | Request::JoinAll
            | Request::MakeDirectory
            | Request::Delete(_)
            | Request::Withdraw(_)
            | Request::Release { .. }
            | Request::ReleaseAll(_)
            | Request::Hold { .. }
            | Request::DeleteDirectory
    )
}

/// The nodes that a request deletes.
pub(crate) fn deletes(request: &Request) -> Vec<Node> {
    match request {
        Request::Delete(node) | Request::Withdraw(node) | Request::Release { node, .. } => vec![*node],
        Request::ReleaseAll(partings) => partings.iter().map(|parting| parting.node).collect(),
        _ => Vec::new(),
    }
}

fn reading(tree: &Tree, at: usize) -> Option<Reading> {
    tree.0[at].as_ref().map(|directory| Reading {
        czxid: Zxid(directory.czxid),
        pzxid: Zxid(directory.pzxid),
        version: directory.version,
        children: directory.children.len() as u32,
        record: directory.record,
    })
}
