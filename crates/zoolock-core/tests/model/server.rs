//! What the service does with a request.

use zoolock_core::contender::{Failure, Node, Reply, Request, Says};
use zoolock_core::names;
use zoolock_core::record::{Left, Marker};
use zoolock_core::{Record, Sequence, SessionId, Zxid};

use crate::bugs::Bug;
use crate::ghost::{Fate, Foul, Trace};
use crate::scenario::Scenario;
use crate::tree::{Child, Name, Op};
use crate::world::{Inbound, Sent, Watch, World, is_write, reading};

type Outcome = Result<Reply, Failure>;

impl World {
    /// Carries out the next request of a client.
    pub(crate) fn process(&mut self, i: usize, negative: bool, scenario: &Scenario) {
        let sent = self.clients[i].requests.remove(0);
        let outcome = if is_write(&sent.request) {
            // A write of the session through the quorum: nothing that was sent before it can still arrive.
            for mate in scenario.mates(i) {
                if !self.clients[mate].late.is_empty() {
                    self.clients[mate].late.clear();
                }
            }
            let outcome = self.write(i, &sent, negative, scenario);
            // The reply comes from the follower, once it has applied the transaction; also that of an error.
            self.catch_up(i);
            outcome
        } else {
            self.read(i, &sent, scenario)
        };
        let client = &mut *self.clients[i];
        if client.is_running() && sent.round == client.round {
            let set = match (&sent.request, &outcome) {
                (
                    Request::Watch { watch, .. }
                    | Request::WatchOwn { watch, .. }
                    | Request::WatchChildren(watch),
                    Ok(_),
                ) => Some(*watch),
                _ => None,
            };
            client.inbox.push(Inbound::Answer { id: sent.id, outcome, set, looked: sent.looked });
        }
    }

    /// A write of a lost connection arrives after all.
    pub(crate) fn arrive_late(&mut self, i: usize, scenario: &Scenario) {
        let sent = self.clients[i].late.remove(0);
        if let Request::Downgrade { node, .. } = &sent.request {
            let ours = |child: &Child| child.czxid == node.czxid.0;
            if !self.leader.child(Name::of(node)).is_none_or(ours) {
                // It would delete another's node and leave a reader's of ours behind, of which we do not hear. This takes
                // a name that repeats while a request hangs in a leader that was deposed, and stays open.
                return;
            }
        }
        let _ = self.write(i, &sent, false, scenario);
    }

    fn write(&mut self, i: usize, sent: &Sent, negative: bool, scenario: &Scenario) -> Outcome {
        if sent.request == Request::Join {
            self.clients[i].arrived = true;
        }
        let by = Some((i, sent));
        let directory = self.leader.0.as_ref().map(|d| (d.version, d.children.is_empty()));
        let Some((now, empty)) = directory else {
            if sent.request == Request::MakeDirectory {
                self.commit(vec![Op::Make(Record::Empty)], by, scenario);
                return Ok(Reply::Done);
            }
            return Err(Failure::NoNode);
        };
        let there = |node: &Node| self.leader.child(Name::of(node)).ok_or(Failure::NoNode);
        let checked = |version: Option<i32>| match version {
            Some(version) if version != now => Err(Failure::BadVersion),
            _ => Ok(()),
        };
        let ops = match &sent.request {
            Request::Join if scenario.has(Bug::OneNodeForASession) && !empty => {
                return Ok(Reply::Joined(node_of(&self.leader.children()[0])));
            }
            Request::Join => {
                let (sequence, counts) = self.number(i, negative, scenario)?;
                let name = Name { prefix: scenario.prefix(i), sequence };
                let op = Op::Create { name, owner: i as u8, round: sent.round, place: None, counts };
                return Ok(self.create(i, sent, vec![op], None, scenario));
            }
            Request::MakeDirectory => return Ok(Reply::Done),
            Request::Delete(node) => {
                there(node)?;
                vec![Op::Delete(Name::of(node))]
            }
            Request::Withdraw(node) => {
                there(node)?;
                vec![Op::Touch(Name::of(node)), Op::Delete(Name::of(node))]
            }
            Request::Release { node, marker, version } => {
                there(node)?;
                checked(*version)?;
                let written = self.leader.0.as_ref().and_then(|directory| match directory.record {
                    Record::Marker(marker) => Some(marker),
                    _ => None,
                });
                let own = [*marker, node.beginning_in(marker.directory)];
                if !sent.granted && written.is_some_and(|written| !own.contains(&written)) {
                    self.note(Foul::WroteOverAnothers);
                }
                let alarm = (marker.left == Left::Panicked).then(|| Op::Touch(Name::of(node)));
                let ops = [Op::Delete(Name::of(node)), Op::Write(Record::Marker(*marker))];
                let ops = alarm.into_iter().chain(ops).collect();
                // In a directory that was made again under it, it is the sliver that stays open between look and delete.
                if version.is_some() && self.leader.created() == Some(marker.directory.0) {
                    self.written_over(i, node);
                }
                ops
            }
            Request::Hold { node, marker, version } => {
                node.as_ref().map(there).transpose()?;
                checked(Some(*version))?;
                if let Some(node) = node {
                    self.begun(i, node);
                }
                vec![Op::Write(Record::Marker(*marker))]
            }
            Request::WriteSize { size, version } => {
                checked(Some(*version))?;
                vec![Op::Write(Record::Semaphore(*size))]
            }
            Request::SayGranted { node, version, .. } => {
                if there(node)?.version != *version {
                    return Err(Failure::BadVersion);
                }
                vec![Op::SayGranted(Name::of(node))]
            }
            Request::Downgrade { node, marker } => return self.downgraded(i, sent, node, *marker, scenario),
            Request::DeleteDirectory => {
                if !empty {
                    return Err(Failure::NotEmpty);
                }
                self.remove_directory(by, scenario);
                return Ok(Reply::Done);
            }
            _ => unreachable!("not a write"),
        };
        self.commit(ops, by, scenario);
        Ok(Reply::Done)
    }

    /// The number of the next child, and whether the counter goes on. Past the end it sticks, as that of 3.8.0 does:
    /// the last name is used again or refused, and a create that is prepared behind another one gets a negative number.
    fn number(&self, i: usize, negative: bool, scenario: &Scenario) -> Result<(i32, bool), Failure> {
        let counter = self.leader.0.as_ref().map_or(0, |directory| directory.counter);
        let prefix = scenario.prefix(i);
        let free = |&sequence: &i32| self.leader.child(Name { prefix, sequence }).is_none();
        if counter < scenario.last {
            Ok((counter, true))
        } else if negative {
            Ok(((i32::MIN..).find(free).expect("there are fewer children than numbers"), false))
        } else {
            Some(scenario.last).filter(free).map(|last| (last, false)).ok_or(Failure::NodeExists)
        }
    }

    /// `ops` begin with a create, or with a delete and a create in the same place.
    fn create(
        &mut self,
        i: usize,
        sent: &Sent,
        ops: Vec<Op>,
        place: Option<i64>,
        scenario: &Scenario,
    ) -> Reply {
        let created =
            ops.iter().find_map(|op| if let Op::Create { name, .. } = op { Some(*name) } else { None });
        let name = created.expect("called with a create");
        // The transaction is named before it is made, so that it finds the trace.
        let czxid = self.zxid + 1;
        if sent.round == self.clients[i].round {
            let directory = self.leader.created().expect("the caller found it");
            let place = place.unwrap_or(czxid);
            let (fate, was_clear, fresh) = (Fate::There, false, false);
            let trace = Trace { czxid, name, place, directory, was_clear, fate, fresh };
            self.clients[i].ghost.traces.push(trace);
        }
        self.commit(ops, Some((i, sent)), scenario);
        Reply::Joined(Node { prefix: name.prefix, sequence: Sequence(name.sequence), czxid: Zxid(czxid) })
    }

    /// As the driver does it: one transaction, and then a look at the reader's node, which may be an earlier one's.
    fn downgraded(
        &mut self,
        i: usize,
        sent: &Sent,
        writer: &Node,
        marker: Option<(Marker, Option<i32>)>,
        scenario: &Scenario,
    ) -> Outcome {
        let prefix = writer.prefix.as_reader().expect("a writer");
        let (name, moved) = match &self.leader.0 {
            Some(directory) if scenario.has(Bug::DowngradesToTheEnd) => {
                (Name { prefix, sequence: directory.counter }, true)
            }
            _ => (Name { prefix, sequence: writer.sequence.0 }, false),
        };
        let found = self.leader.child(name).cloned();
        let Some(place) = self.leader.child(Name::of(writer)).map(|child| child.place) else {
            let ours = |child: &Child| (child.owner as usize, child.round) == (i, sent.round);
            return match found.filter(ours) {
                Some(child) => Ok(Reply::Joined(node_of(&child))),
                None => Err(Failure::NoNode),
            };
        };
        if found.is_some() {
            return Err(Failure::NodeExists);
        }
        let directory = self.leader.0.as_ref().expect("its child is there");
        let counts = directory.counter < scenario.last;
        let place = Some(place).filter(|_| !moved);
        let create = Op::Create { name, owner: i as u8, round: sent.round, place, counts };
        let mut ops = vec![Op::Delete(Name::of(writer)), create];
        if let Some((marker, version)) = marker {
            if version.is_some_and(|version| version != directory.version) {
                return Err(Failure::BadVersion);
            }
            ops.push(Op::Write(Record::Marker(marker)));
        }
        Ok(self.create(i, sent, ops, place, scenario))
    }

    pub(crate) fn remove_directory(&mut self, by: Option<(usize, &Sent)>, scenario: &Scenario) {
        if let Some(directory) = &self.leader.0 {
            self.backup = directory.record;
        }
        self.commit(vec![Op::Remove], by, scenario);
    }

    fn read(&mut self, i: usize, sent: &Sent, scenario: &Scenario) -> Outcome {
        if sent.request == Request::Sync {
            self.catch_up(i);
            return Ok(Reply::Done);
        }
        let client = &self.clients[i];
        let view = client.view(&self.leader);
        let there = |child: &Child, says: Says| Reply::Node {
            czxid: Zxid(child.czxid),
            owner: SessionId(scenario.session(child.owner.into()) as i64),
            version: child.version,
            says,
        };
        match &sent.request {
            Request::ReadDirectory => reading(view).map(Reply::Directory).ok_or(Failure::NoNode),
            Request::List | Request::WatchChildren(_) => {
                let pzxid = view.0.as_ref().ok_or(Failure::NoNode)?.pzxid;
                let mut names: Vec<String> = view.children().iter().map(|child| child.name.text()).collect();
                let own = |child: &&Child| (child.owner as usize, child.round) == (i, sent.round);
                if let Some(own) = view.children().iter().find(own).map(|child| child.name.text())
                    && scenario.has(Bug::SortsWholeNames)
                {
                    names.retain(|name| *name <= own);
                }
                if let Request::WatchChildren(id) = sent.request {
                    let watch = Watch { id, name: None, czxid: 0, zxid: pzxid };
                    self.clients[i].watches.push(watch);
                }
                Ok(Reply::Children { names, pzxid: Zxid(pzxid) })
            }
            Request::FindMine => {
                let prefix = scenario.prefix(i);
                let mine = |child: &&Child| {
                    (child.owner as usize, child.round) == (i, sent.round) && child.name.prefix == prefix
                };
                Ok(Reply::Mine(view.children().iter().filter(mine).map(node_of).collect()))
            }
            Request::Exists(node) => {
                let child = view.child(Name::of(node)).ok_or(Failure::NoNode)?;
                Ok(there(child, Says::default()))
            }
            Request::Watch { name, watch } => {
                let child = view.children().iter().find(|child| child.name.text() == *name);
                let child = child.cloned().ok_or(Failure::NoNode)?;
                assert!(names::Name::parse(name).is_some(), "machines watch contenders");
                let (id, name) = (*watch, Some(child.name));
                self.clients[i].watches.push(Watch { id, name, czxid: child.czxid, zxid: child.mzxid });
                let untracked = !scenario.tracks(child.owner.into());
                Ok(there(&child, Says { granted: child.granted, revoked: false, untracked }))
            }
            Request::WatchOwn { node, watch } => {
                let child = view.child(Name::of(node)).cloned().ok_or(Failure::NoNode)?;
                let (id, name) = (*watch, Some(child.name));
                self.clients[i].watches.push(Watch { id, name, czxid: child.czxid, zxid: child.mzxid });
                Ok(there(&child, Says::default()))
            }
            _ => unreachable!("not a read"),
        }
    }
}

fn node_of(child: &Child) -> Node {
    let Name { prefix, sequence } = child.name;
    Node { prefix, sequence: Sequence(sequence), czxid: Zxid(child.czxid) }
}
