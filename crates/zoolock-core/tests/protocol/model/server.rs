//! The servers: how they carry out a request.

use zoolock_core::acquisition::{
    Directory as Reading, HoldOp, Node, NodeFlags, Refusal, ReleaseOp, Reply, Request, RequestFailure,
    RequestId,
};
use zoolock_core::names;
use zoolock_core::record::{HolderState, Marker};
use zoolock_core::{Record, SessionId, Zxid};

use super::bugs::Bug;
use super::ghost::{Trace, Violation};
use super::scenario::Scenario;
use super::tree::{Child, LASTING_CHILD, Name, Op, Tree};
use super::world::{Inbound, Sent, Watch, World};

type Outcome = Result<Reply, RequestFailure>;

/// The handling of a request by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handling {
    Usual,
    /// The server gives the create a negative sequence number. This is possible only after the last
    /// sequence number.
    Negative,
    /// The connected server refuses the request for now, and does not pass it on.
    Throttled,
    /// The connected server refuses the request for good, and does not pass it on.
    Denied,
}

impl World {
    /// Handles the next request of a client.
    pub(crate) fn process(&mut self, i: usize, handling: Handling, scenario: &Scenario) {
        let sent = self.clients[i].requests.remove(0);
        let mut of_release = Err(RequestFailure::Throttled);
        let outcome = if handling == Handling::Throttled {
            Err(RequestFailure::Throttled)
        } else if handling == Handling::Denied {
            of_release = Err(RequestFailure::Refused(Refusal::Denied));
            of_release.clone()
        } else if is_write(&sent.request) {
            self.refuse_late_writes(i, scenario);
            let negative = handling == Handling::Negative;
            let outcome = match &sent.release {
                Some(release) => {
                    let outcome;
                    (of_release, outcome) = self.release_and_join(i, &sent, release, negative, scenario);
                    outcome
                }
                None => self.write(i, &sent, negative, scenario),
            };
            // The follower replies only after it has applied the log up to this request. It does so
            // too when the reply is an error.
            self.catch_up(i);
            outcome
        } else {
            self.read(i, &sent, scenario)
        };
        if let Some((mate, release)) = sent.release.as_deref() {
            let client = &mut *self.clients[*mate];
            if client.is_running() && release.round == client.round {
                client.inbox.push(Inbound::Answer {
                    at: release.at,
                    id: release.id,
                    outcome: of_release,
                    set: None,
                    about: None,
                    known_to_exist: false,
                });
            }
        }
        let client = &mut *self.clients[i];
        if !client.is_running() || sent.round != client.round {
            return;
        }
        let (set, about) = match &sent.request {
            Request::Watch { name, watch } => {
                let own = client.ghost.traces.iter().find(|trace| trace.name.text() == *name);
                (Some(*watch), own.map(|trace| trace.name))
            }
            Request::WatchOwn { node, watch } => (Some(*watch), Some(Name::of(node))),
            Request::WatchChildren(watch) => (Some(*watch), None),
            Request::Exists(node) => (None, Some(Name::of(node))),
            _ => (None, None),
        };
        let set = set.filter(|_| outcome.is_ok());
        let Sent { at, id, known_to_exist, .. } = sent;
        client.inbox.push(Inbound::Answer {
            at,
            id,
            outcome,
            set,
            about,
            known_to_exist: known_to_exist != 0,
        });
    }

    /// Refuses the writes of the session that are still on their way from another server, because the leader has handled a
    /// write of the server that owns the session now.
    fn refuse_late_writes(&mut self, i: usize, scenario: &Scenario) {
        for mate in scenario.same_session(i) {
            if !self.clients[mate].late.is_empty() {
                let late = std::mem::take(&mut self.clients[mate].late);
                if self.budget.retakes > 0 {
                    self.clients[mate].refused.extend(late);
                }
            }
        }
    }

    /// Makes an earlier server own the session again. Its refused writes can then arrive, except the first `lost` ones of
    /// this client, which the leader has handled before. The present server closes the connection.
    pub(crate) fn retake(&mut self, i: usize, lost: usize, scenario: &Scenario) {
        for mate in scenario.same_session(i) {
            let mut refused = std::mem::take(&mut self.clients[mate].refused);
            if mate == i {
                refused.drain(..lost);
            }
            self.clients[mate].late.splice(0..0, refused);
            self.clients[mate].retaken = true;
        }
        scenario.same_session(i).for_each(|mate| self.disconnect(mate, scenario));
    }

    /// Returns the znodes of the client's session that no acquisition knows: the directory, the client that created the
    /// znode, and its znode. Returns none while an acquisition may still be told of one of them.
    pub(crate) fn strays(&self, i: usize, scenario: &Scenario) -> Vec<(usize, usize, Node)> {
        let may_learn = |mate: usize| {
            self.clients[mate].machine().is_some_and(|machine| {
                (0..scenario.wants[mate].len()).any(|seat| machine.may_learn_of_node(seat))
            })
        };
        if scenario.same_session(i).any(may_learn) {
            return Vec::new();
        }
        let all = (0..self.leader.0.len())
            .flat_map(|at| self.leader.children(at).iter().map(move |child| (at, child)));
        let of_session = all.filter(|(_, child)| scenario.session(child.owner.into()) == scenario.session(i));
        let unknown = of_session.filter(|(_, child)| {
            scenario.same_session(i).all(|mate| !self.clients[mate].registered.contains(&child.czxid))
        });
        unknown.map(|(at, child)| (at, usize::from(child.owner), child.name.node(child.czxid))).collect()
    }

    /// Deletes the strays of the client's session, behind a write that the leader has handled.
    pub(crate) fn delete_strays(&mut self, i: usize, scenario: &Scenario) {
        self.refuse_late_writes(i, scenario);
        for (at, owner, node) in self.strays(i, scenario) {
            let sent = Sent {
                round: self.clients[owner].round,
                order: 0,
                id: RequestId(0),
                at,
                request: Request::Delete(node),
                known_to_exist: 1,
                cleanly: false,
                granted: false,
                release: None,
            };
            self.commit(vec![(at, Op::Delete(Name::of(&node)))], Some((owner, &sent)), scenario);
        }
    }

    /// Carries out a write of a lost connection that arrives late.
    pub(crate) fn arrive_late(&mut self, i: usize, scenario: &Scenario) {
        let sent = self.clients[i].late.remove(0);
        if let Request::Downgrade { node, .. } = &sent.request {
            let ours = |child: &Child| child.czxid == node.czxid.0;
            if !self.leader.child(sent.at, Name::of(node)).is_none_or(ours) {
                // Another contender's znode has the writer's name now. ZooKeeper would delete that
                // znode, and create a reader's znode of which this client does not know. That can
                // happen only if a name repeats while the downgrade waits in a deposed leader. The
                // protocol does not prevent this case, so the model leaves it out.
                return;
            }
        }
        match &sent.release {
            Some(release) => drop(self.release_and_join(i, &sent, release, false, scenario)),
            None => drop(self.write(i, &sent, false, scenario)),
        }
    }

    fn write(&mut self, i: usize, sent: &Sent, negative: bool, scenario: &Scenario) -> Outcome {
        let at = sent.at;
        let ops = match &sent.request {
            Request::Join | Request::JoinAll => return self.join(i, sent, negative, scenario),
            Request::Barrier => self.leader.created(at).map(|_| Vec::new()).ok_or(RequestFailure::NoNode)?,
            Request::MakeDirectory if self.leader.0[at].is_some() => return Ok(Reply::Done),
            Request::MakeDirectory => vec![(at, Op::Make(Record::Empty))],
            Request::Delete(node) => {
                self.existing(at, node)?;
                vec![(at, Op::Delete(Name::of(node)))]
            }
            Request::Withdraw(node) => {
                self.checked_release_ops(i, sent, &[(at, ReleaseOp { node: *node, marker: None })], scenario)?
            }
            Request::Release { node, marker, version } => {
                let release = ReleaseOp { node: *node, marker: Some((*marker, *version)) };
                self.checked_release_ops(i, sent, &[(at, release)], scenario)?
            }
            Request::ReleaseAll(releases) => {
                let places = scenario.wants[i].iter().copied();
                let releases: Vec<_> = places.zip(releases.iter().copied()).collect();
                self.checked_release_ops(i, sent, &releases, scenario)?
            }
            Request::Hold { node, marker, version } => {
                node.as_ref().map(|node| self.existing(at, node)).transpose()?;
                self.check_version(at, Some(*version))?;
                if let Some(node) = node {
                    self.on_begun(i, at, node);
                }
                vec![(at, Op::Write(Record::Marker(*marker)))]
            }
            Request::HoldAll(holds) => {
                let mut ops = Vec::new();
                for HoldOp { lock_index, node, marker, version } in holds {
                    let at = scenario.wants[i][*lock_index];
                    self.existing(at, node)?;
                    self.check_version(at, Some(*version))?;
                    ops.push((at, Op::Write(Record::Marker(*marker))));
                }
                for HoldOp { lock_index, node, .. } in holds {
                    self.on_begun(i, scenario.wants[i][*lock_index], node);
                }
                ops
            }
            Request::WriteSize { size, version } => {
                self.check_version(at, Some(*version))?;
                vec![(at, Op::Write(Record::Semaphore(*size)))]
            }
            Request::MarkGranted { node, version, .. } => {
                if self.existing(at, node)?.version != *version {
                    return Err(RequestFailure::BadVersion);
                }
                vec![(at, Op::MarkGranted(Name::of(node)))]
            }
            Request::Downgrade { node, marker } => {
                return self.carry_out_downgrade(i, sent, node, *marker, scenario);
            }
            Request::DeleteDirectory => {
                self.leader.created(at).ok_or(RequestFailure::NoNode)?;
                if self.leader.0[at].as_ref().is_some_and(|directory| directory.child_count() > 0) {
                    return Err(RequestFailure::NotEmpty);
                }
                self.remove_directory(at, Some((i, sent)), scenario);
                return Ok(Reply::Done);
            }
            _ => unreachable!("not a write"),
        };
        self.commit(ops, Some((i, sent)), scenario);
        Ok(Reply::Done)
    }

    fn existing(&self, at: usize, node: &Node) -> Result<&Child, RequestFailure> {
        self.leader.child(at, Name::of(node)).ok_or(RequestFailure::NoNode)
    }

    /// Checks the version of the record. `None` accepts any version.
    fn check_version(&self, at: usize, version: Option<i32>) -> Result<(), RequestFailure> {
        let now = self.leader.0[at].as_ref().ok_or(RequestFailure::NoNode)?.version;
        if version.is_some_and(|version| version != now) { Err(RequestFailure::BadVersion) } else { Ok(()) }
    }

    /// Creates one znode in each directory of the request. If one create fails, creates none.
    fn join(&mut self, i: usize, sent: &Sent, negative: bool, scenario: &Scenario) -> Outcome {
        self.clients[i].arrived = true;
        if scenario.has(Bug::OneNodeForASession)
            && let Some(child) = self.leader.children(sent.at).first()
        {
            return Ok(Reply::Joined(child.name.node(child.czxid)));
        }
        let all = sent.request == Request::JoinAll;
        let places = if all { &scenario.wants[i][..] } else { std::slice::from_ref(&sent.at) };
        let mut ops = Vec::new();
        for &at in places {
            let number = self.next_sequence_number(i, at, negative, scenario);
            let (sequence, counts) = number.map_err(|failure| match failure {
                RequestFailure::NodeExists if all => RequestFailure::NodeExistsAt(ops.len()),
                failure => failure,
            })?;
            let name = Name { prefix: scenario.prefix(i), sequence };
            ops.push((at, Op::Create { name, owner: i as u8, round: sent.round, position: None, counts }));
        }
        let nodes = self.create(i, sent, ops, scenario);
        Ok(if all { Reply::AllJoined(nodes) } else { Reply::Joined(nodes[0]) })
    }

    /// Carries out a release and the create after it as one transaction. Returns the outcome of the
    /// release, and then that of the create.
    fn release_and_join(
        &mut self,
        i: usize,
        sent: &Sent,
        (mate, release): &(usize, Sent),
        negative: bool,
        scenario: &Scenario,
    ) -> (Outcome, Outcome) {
        let (at, of_both) = (sent.at, scenario.has(Bug::OneErrorForBoth));
        let op = match release.request {
            Request::Delete(node) => ReleaseOp { node, marker: None },
            Request::Release { node, marker, version } => ReleaseOp { node, marker: Some((marker, version)) },
            _ => unreachable!("not a release"),
        };
        let releases = [(at, op)];
        if let Err(failure) = self.check_releases(&releases) {
            return (Err(failure), Err(if of_both { failure } else { RequestFailure::Throttled }));
        }
        let (sequence, counts) = match self.next_sequence_number(i, at, negative, scenario) {
            Ok(number) => number,
            Err(failure) => {
                return (Err(if of_both { failure } else { RequestFailure::Throttled }), Err(failure));
            }
        };
        self.clients[i].arrived = true;
        let mut ops = match op.marker {
            Some(_) => self.release_ops(*mate, release, &releases, scenario),
            None => vec![(at, Op::Delete(Name::of(&op.node)))],
        };
        let name = Name { prefix: scenario.prefix(i), sequence };
        ops.push((at, Op::Create { name, owner: i as u8, round: sent.round, position: None, counts }));
        let nodes = self.record_traces(i, sent, &ops);
        self.commit(ops, Some((*mate, release)), scenario);
        (Ok(Reply::Done), Ok(Reply::Joined(nodes[0])))
    }

    /// Returns the sequence number of the next child, and whether its create increases the
    /// directory's counter. When the counter has reached the last number, it stays there, as in
    /// ZooKeeper 3.8.0. Every further create then gets the last number, or fails with `NodeExists`
    /// while a znode has that name. With `negative` it gets a negative number instead: ZooKeeper
    /// gives one to a create that it prepares while another create is under way.
    fn next_sequence_number(
        &self,
        i: usize,
        at: usize,
        negative: bool,
        scenario: &Scenario,
    ) -> Result<(i32, bool), RequestFailure> {
        let counter = self.leader.0[at].as_ref().ok_or(RequestFailure::NoNode)?.counter;
        let prefix = scenario.prefix(i);
        let free = |&sequence: &i32| self.leader.child(at, Name { prefix, sequence }).is_none();
        if counter < scenario.last {
            Ok((counter, true))
        } else if negative {
            Ok(((i32::MIN..).find(free).expect("there are fewer children than numbers"), false))
        } else {
            Some(scenario.last).filter(free).map(|last| (last, false)).ok_or(RequestFailure::NodeExists)
        }
    }

    /// Commits a transaction that creates znodes. Returns these znodes.
    fn create(&mut self, i: usize, sent: &Sent, ops: Vec<(usize, Op)>, scenario: &Scenario) -> Vec<Node> {
        let nodes = self.record_traces(i, sent, &ops);
        self.commit(ops, Some((i, sent)), scenario);
        nodes
    }

    /// Records a [`Trace`] of each znode that a transaction is about to create. The commit updates
    /// the traces, so call this before the commit. Records nothing for a request of an earlier
    /// acquisition. Returns the znodes.
    fn record_traces(&mut self, i: usize, sent: &Sent, ops: &[(usize, Op)]) -> Vec<Node> {
        let czxid = self.zxid + 1;
        let mut nodes = Vec::new();
        for (at, op) in ops {
            let (at, &Op::Create { name, position, .. }) = (*at, op) else { continue };
            nodes.push(name.node(czxid));
            if sent.round == self.clients[i].round {
                let directory =
                    self.leader.created(at).expect("the caller checked that the directory exists");
                let trace = Trace::new(at, directory, czxid, name, position.unwrap_or(czxid));
                self.clients[i].ghost.traces.push(trace);
            }
        }
        nodes
    }

    /// Returns the operations that delete the znodes and write their markers, as the library sends
    /// them. Fails if a znode is missing, or if a record has another version.
    ///
    /// If a release has no marker, or its holder panicked, the operations write to the znode before
    /// they delete it. The successor's watch then reports a change and not a deletion. So a
    /// successor that looks ahead reads the record, and does not take the deletion for a grant.
    fn checked_release_ops(
        &mut self,
        i: usize,
        sent: &Sent,
        releases: &[(usize, ReleaseOp)],
        scenario: &Scenario,
    ) -> Result<Vec<(usize, Op)>, RequestFailure> {
        self.check_releases(releases)?;
        Ok(self.release_ops(i, sent, releases, scenario))
    }

    fn check_releases(&self, releases: &[(usize, ReleaseOp)]) -> Result<(), RequestFailure> {
        releases.iter().try_for_each(|(at, ReleaseOp { node, marker })| {
            self.existing(*at, node)?;
            self.check_version(*at, marker.and_then(|(_, version)| version))
        })
    }

    fn release_ops(
        &mut self,
        i: usize,
        sent: &Sent,
        releases: &[(usize, ReleaseOp)],
        scenario: &Scenario,
    ) -> Vec<(usize, Op)> {
        let mut ops = Vec::new();
        for &(at, ReleaseOp { node, marker }) in releases {
            let as_usual = marker.is_some_and(|(marker, _)| marker.state != HolderState::Panicked);
            ops.extend((!as_usual).then(|| (at, Op::Touch(Name::of(&node)))));
            ops.push((at, Op::Delete(Name::of(&node))));
            let Some((marker, version)) = marker else { continue };
            ops.push((at, Op::Write(Record::Marker(marker))));
            let written = self.leader.0[at].as_ref().and_then(|directory| match directory.record {
                Record::Marker(marker) => Some(marker),
                _ => None,
            });
            let own = [marker, node.held_record_in(marker.directory)];
            let another = written.is_some_and(|written| !own.contains(&written));
            // It is no violation if a multi-lock overwrites another contender's record in a
            // directory that was created again. After its read of this directory, the multi-lock
            // may wait in the queue of another directory before it deletes its znode here. The
            // protocol does not prevent that this directory is deleted and created again in
            // between.
            let made_again = self.leader.created(at) != Some(marker.directory.0);
            if !sent.granted && another && !(made_again && scenario.wants[i].len() > 1) {
                self.record_violation(Violation::WroteOverAnothers);
            }
            if version.is_some() && !made_again {
                self.check_overwritten_record(i, at, &node);
            }
        }
        ops
    }

    /// Carries out a downgrade: deletes the writer's znode and creates the reader's znode, in one
    /// transaction. If the writer's znode is missing, an earlier downgrade of this acquisition may
    /// have created the reader's znode. Then returns that znode.
    fn carry_out_downgrade(
        &mut self,
        i: usize,
        sent: &Sent,
        writer: &Node,
        marker: Option<(Marker, Option<i32>)>,
        scenario: &Scenario,
    ) -> Outcome {
        let at = sent.at;
        let directory = self.leader.0[at].as_ref().ok_or(RequestFailure::NoNode)?;
        let moved = scenario.has(Bug::DowngradesToTheEnd);
        let sequence = if moved { directory.counter } else { writer.sequence.0 };
        let name = Name { prefix: writer.prefix.as_reader().expect("prefix is a writer's"), sequence };
        let found = self.leader.child(at, name);
        let child = self.existing(at, writer)?;
        if found.is_some() {
            return Err(RequestFailure::NodeExists);
        }
        let (owner, counts) = (i as u8, directory.counter < scenario.last);
        let position = Some(child.position).filter(|_| !moved);
        let create = Op::Create { name, owner, round: sent.round, position, counts };
        let mut ops = vec![(at, Op::Delete(Name::of(writer))), (at, create)];
        if let Some((marker, version)) = marker {
            self.check_version(at, version)?;
            ops.push((at, Op::Write(Record::Marker(marker))));
        }
        self.create(i, sent, ops, scenario);
        Ok(Reply::Done)
    }

    fn read(&mut self, i: usize, sent: &Sent, scenario: &Scenario) -> Outcome {
        if sent.request == Request::Sync {
            self.catch_up(i);
            return Ok(Reply::Done);
        }
        let at = sent.at;
        let client = &self.clients[i];
        let view = client.view(&self.leader);
        let reply = |child: &Child, flags: NodeFlags| Reply::Node {
            czxid: Zxid(child.czxid),
            owner: SessionId(scenario.session(child.owner.into()) as i64),
            version: child.version,
            flags,
        };
        let own = |child: &&Child| (child.owner as usize, child.round) == (i, sent.round);
        let watched = |child: &Child, id| {
            let (name, czxid, zxid) = (Some(child.name), child.czxid, child.mzxid);
            Watch { id, at, name, czxid, zxid }
        };
        let (outcome, watch) = match &sent.request {
            Request::ReadDirectory => {
                return directory_reply(view, at).map(Reply::Directory).ok_or(RequestFailure::NoNode);
            }
            Request::List | Request::WatchChildren(_) => {
                let pzxid = view.0[at].as_ref().ok_or(RequestFailure::NoNode)?.pzxid;
                let children = view.children(at);
                let mut names: Vec<String> = children.iter().map(|child| child.name.text()).collect();
                if scenario.has(Bug::SortsWholeNames)
                    && let Some(own) = children.iter().find(own).map(|child| child.name.text())
                {
                    names.retain(|name| *name <= own);
                }
                if view.0[at].as_ref().is_some_and(|directory| directory.has_lasting_child) {
                    names.push(LASTING_CHILD.to_owned());
                }
                let watch = match sent.request {
                    Request::WatchChildren(id) => Some(Watch { id, at, name: None, czxid: 0, zxid: pzxid }),
                    _ => None,
                };
                (Reply::Children { names, pzxid: Zxid(pzxid) }, watch)
            }
            Request::FindMine => {
                let prefix = scenario.prefix(i);
                let mine = |child: &&Child| own(child) && child.name.prefix == prefix;
                let mine = view.children(at).iter().filter(mine);
                return Ok(Reply::Mine(mine.map(|child| child.name.node(child.czxid)).collect()));
            }
            Request::FindReader(writer) => {
                let prefix = writer.prefix.as_reader().expect("prefix is a writer's");
                let of_writer =
                    |child: &&Child| child.name.prefix == prefix && child.name.sequence == writer.sequence.0;
                let moved = scenario.has(Bug::DowngradesToTheEnd);
                let found = view.children(at).iter().find(|child| own(child) && (moved || of_writer(child)));
                let child = found.ok_or(RequestFailure::NoNode)?;
                return Ok(Reply::Joined(child.name.node(child.czxid)));
            }
            Request::Exists(node) => {
                let child = view.child(at, Name::of(node)).ok_or(RequestFailure::NoNode)?;
                return Ok(reply(child, NodeFlags::default()));
            }
            Request::Watch { name, watch } => {
                assert!(names::Name::parse(name).is_some(), "machines watch contenders");
                let child = view.children(at).iter().find(|child| child.name.text() == *name);
                let child = child.ok_or(RequestFailure::NoNode)?;
                let untracked = !scenario.tracks(child.owner.into());
                let flags = NodeFlags { granted: child.granted, revoked: child.revoked, untracked };
                (reply(child, flags), Some(watched(child, *watch)))
            }
            Request::WatchOwn { node, watch } => {
                let child = view.child(at, Name::of(node)).ok_or(RequestFailure::NoNode)?;
                (reply(child, NodeFlags::default()), Some(watched(child, *watch)))
            }
            _ => unreachable!("not a read"),
        };
        self.clients[i].watches.extend(watch);
        Ok(outcome)
    }
}

/// Returns whether the leader handles this request. `Barrier` is such a request, though it changes
/// nothing.
pub(crate) fn is_write(request: &Request) -> bool {
    matches!(
        request,
        Request::Join
            | Request::JoinAll
            | Request::Barrier
            | Request::MakeDirectory
            | Request::Delete(_)
            | Request::Withdraw(_)
            | Request::Release { .. }
            | Request::ReleaseAll(_)
            | Request::Hold { .. }
            | Request::HoldAll(_)
            | Request::WriteSize { .. }
            | Request::MarkGranted { .. }
            | Request::Downgrade { .. }
            | Request::DeleteDirectory
    )
}

/// Returns the znodes that a request deletes.
pub(crate) fn deleted_znodes(request: &Request) -> Vec<Node> {
    match request {
        Request::Delete(node)
        | Request::Withdraw(node)
        | Request::Release { node, .. }
        | Request::Downgrade { node, .. } => vec![*node],
        Request::ReleaseAll(releases) => releases.iter().map(|release| release.node).collect(),
        _ => Vec::new(),
    }
}

fn directory_reply(tree: &Tree, at: usize) -> Option<Reading> {
    tree.0[at].as_ref().map(|directory| Reading {
        czxid: Zxid(directory.czxid),
        pzxid: Zxid(directory.pzxid),
        version: directory.version,
        children: directory.child_count() as u32,
        record: directory.record,
    })
}
