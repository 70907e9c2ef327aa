//! A server without clients, which decides and logs random writes, and takes snapshots. A model
//! records the transactions that recovery must restore.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use zoolock_server::acl;
use zoolock_server::log::{Log, LogError, Options, Recovered, SnapshotWriter};
use zoolock_server::tree::NodeRecord;
use zoolock_server::txn::{Change, Password, Txn};
use zoolock_server::{Client, Requester, SessionId, State, StoredSession, Zxid, commit, prepare};
use zoolock_wire::{Acl, CreateRequest, Identity, Request, op, perms};

use crate::sim_disk::{Random, SimDisk};

pub(crate) fn small_options(allocate: u64) -> Options {
    Options { segment_size: 2500, allocate, snapshot_after: 4000 }
}

/// The part of a state that clients can see.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct VisibleState {
    zxid: Zxid,
    sessions: BTreeMap<SessionId, StoredSession>,
    ending: BTreeSet<SessionId>,
    nodes: Vec<NodeRecord>,
}

pub(crate) fn visible_state(state: &State) -> VisibleState {
    let mut nodes: Vec<NodeRecord> = state.tree.records().collect();
    nodes.sort_by(|a, b| a.path.cmp(&b.path));
    let (sessions, ending) = (state.sessions.clone(), state.ending.clone());
    VisibleState { zxid: state.zxid, sessions, ending, nodes }
}

/// The decided transactions, and the number that was acknowledged.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    pub(crate) history: Vec<Txn>,
    /// Number of acknowledged transactions.
    pub(crate) acked: usize,
    pub(crate) epoch: u32,
}

impl Model {
    /// Returns the state after the first `count` transactions.
    pub(crate) fn state(&self, count: usize) -> State {
        let mut state = State::new(0);
        for txn in &self.history[..count] {
            commit(txn, &mut state);
        }
        state
    }

    /// Checks that the recovered state is an earlier state with all acknowledged transactions.
    /// Removes lost transactions from the model.
    pub(crate) fn accept(&mut self, state: &State) {
        let kept = self.history.partition_point(|txn| txn.zxid <= state.zxid);
        assert!(kept >= self.acked, "{kept} of {} acknowledged transactions were restored", self.acked);
        assert_eq!(visible_state(state), visible_state(&self.state(kept)), "after {kept} transactions");
        self.history.truncate(kept);
        self.acked = kept;
    }
}

pub(crate) struct Server {
    pub(crate) log: Log,
    pub(crate) state: State,
    snapshot: Option<(SnapshotWriter, Vec<Vec<NodeRecord>>)>,
}

impl Server {
    /// Starts a server from the disk. The recovered state must fit the model.
    pub(crate) fn start(disk: &SimDisk, options: &Options, model: &mut Model) -> Result<Self, LogError> {
        let (log, recovered) = Log::open(disk.dyn_disk(), options.clone())?;
        let Recovered { mut state, fresh, unused_snapshot_errors, .. } = recovered;
        assert!(unused_snapshot_errors.is_empty(), "a crash damages no snapshot: {unused_snapshot_errors:?}");
        assert!(!fresh || model.acked == 0);
        model.accept(&state);
        model.epoch += 1;
        state.zxid = Zxid::start_of(model.epoch);
        Ok(Server { log, state, snapshot: None })
    }

    /// Decides one random write and appends it to the log.
    pub(crate) fn decide(&mut self, model: &mut Model, random: &mut Random) -> Result<(), LogError> {
        let sessions: Vec<SessionId> = self.state.sessions.keys().copied().collect();
        let ending = self.state.ending.first().copied();
        let (session, change) = if let Some(session) = ending.filter(|_| random.one_in(3)) {
            (session, self.end_part(session, random))
        } else if sessions.is_empty() || sessions.len() < 4 && random.one_in(6) {
            return self.begin_session(model, random);
        } else {
            let session = sessions[random.below(sessions.len())];
            if random.one_in(12) {
                let change = self.end_part(session, random);
                return self.execute(model, session, change);
            }
            let client = Client::new(vec![acl::digest_identity(b"me:pw")]);
            let asker = Requester { session, client: &client, extended_types: true };
            (session, prepare(request(random), &self.state, asker))
        };
        self.execute(model, session, change)
    }

    pub(crate) fn begin_session(&mut self, model: &mut Model, random: &mut Random) -> Result<(), LogError> {
        let password = Password([random.number() as u8; 16]);
        let session = SessionId::from_random(random.number());
        self.execute(model, session, Change::CreateSession { timeout_ms: 4000, password })
    }

    /// Ends a session, or deletes some of its ephemerals.
    fn end_part(&self, session: SessionId, random: &mut Random) -> Change {
        let mut ephemerals = self.state.tree.ephemerals(session);
        if random.one_in(2) {
            return Change::CloseSession { ephemerals };
        }
        ephemerals.truncate(random.below(3));
        Change::ClosePart { ephemerals }
    }

    pub(crate) fn execute(
        &mut self,
        model: &mut Model,
        session: SessionId,
        change: Change,
    ) -> Result<(), LogError> {
        let zxid = self.state.zxid.next().expect("zxids are left");
        let txn = Txn { zxid, session, time: zxid.0 ^ 77, change };
        commit(&txn, &mut self.state);
        self.log.append(&txn)?;
        if !matches!(txn.change, Change::Refused(_)) {
            model.history.push(txn);
        }
        Ok(())
    }

    pub(crate) fn sync(&mut self, model: &mut Model) -> Result<(), LogError> {
        self.log.write()?;
        self.log.sync()?;
        model.acked = model.history.len();
        Ok(())
    }

    pub(crate) fn seal(&mut self, model: &mut Model) -> Result<(), LogError> {
        self.log.seal_when_idle()?;
        model.acked = model.history.len();
        Ok(())
    }

    /// Takes a whole snapshot, without changes in between.
    pub(crate) fn snapshot(&mut self, model: &mut Model) -> Result<(), LogError> {
        self.sync(model)?;
        self.begin_snapshot(model)?;
        while self.snapshot.is_some() {
            self.continue_snapshot(model)?.map_or(Ok(()), Err)?;
        }
        self.log.remove_old_files()
    }

    fn begin_snapshot(&mut self, model: &Model) -> Result<(), LogError> {
        let zxid = model.history.last().map_or(Zxid::start_of(0), |txn| txn.zxid);
        self.log.record_snapshot_start();
        let writer = SnapshotWriter::begin(self.log.disk(), zxid, &self.state.sessions, &self.state.ending)?;
        let records: Vec<NodeRecord> = self.state.tree.records().collect();
        self.snapshot = Some((writer, records.chunks(7).map(<[_]>::to_vec).collect()));
        Ok(())
    }

    /// Continues the snapshot. An `Err` means that the log has failed. An error in `Ok` ends only
    /// the snapshot.
    fn continue_snapshot(&mut self, model: &mut Model) -> Result<Option<LogError>, LogError> {
        let Some((mut writer, mut chunks)) = self.snapshot.take() else { return Ok(None) };
        let done = match chunks.pop() {
            Some(chunk) => {
                let added = writer.add(chunk);
                if added.is_ok() {
                    self.snapshot = Some((writer, chunks));
                    return Ok(None);
                }
                added.map(|()| None)
            }
            None => {
                self.sync(model)?;
                writer.finish(self.log.synced()).map(Some)
            }
        };
        match done {
            Ok(snapshot) => {
                self.log.record_snapshot_end(snapshot);
                Ok(None)
            }
            Err(error) => {
                self.log.record_snapshot_end(None);
                Ok(Some(error))
            }
        }
    }

    /// Does one random action of a server.
    pub(crate) fn random_action(&mut self, model: &mut Model, random: &mut Random) -> Result<(), LogError> {
        match random.below(22) {
            0..12 => self.decide(model, random),
            12..15 => self.sync(model),
            15 => self.log.write(),
            16 => self.seal(model),
            17 if self.snapshot.is_none() => {
                // A failed snapshot does not stop the server.
                if self.begin_snapshot(model).is_err() {
                    self.log.record_snapshot_end(None);
                }
                Ok(())
            }
            17..21 => self.continue_snapshot(model).map(|_| ()),
            _ => {
                let _ = self.log.remove_old_files();
                Ok(())
            }
        }
    }
}

fn request(random: &mut Random) -> Request {
    match random.below(14) {
        0..5 => create(random),
        5..7 => Request::Delete { path: path(random), version: -1 },
        7..10 => Request::SetData { path: path(random), data: data(random), version: -1 },
        10 => Request::SetAcl { path: path(random), acl: acl(random), version: -1 },
        11..13 => Request::Multi((0..random.below(4) + 1).map(|_| in_multi(random)).collect()),
        _ => Request::CloseSession,
    }
}

fn in_multi(random: &mut Random) -> Request {
    match random.below(6) {
        0..3 => create(random),
        3 => Request::Delete { path: path(random), version: -1 },
        4 => Request::SetData { path: path(random), data: data(random), version: -1 },
        _ => Request::Check { path: "/".to_owned(), version: -1 },
    }
}

fn create(random: &mut Random) -> Request {
    let (op, flags) =
        [(op::CREATE, 0), (op::CREATE, 1), (op::CREATE2, 2), (op::CREATE, 3), (19, 4)][random.below(5)];
    Request::Create(CreateRequest {
        op,
        path: path(random),
        data: data(random),
        acl: acl(random),
        flags,
        ttl: -1,
    })
}

fn path(random: &mut Random) -> String {
    let names = ["a", "b", "c", "d"];
    (0..=random.below(2)).map(|_| format!("/{}", names[random.below(4)])).collect()
}

fn data(random: &mut Random) -> Option<Bytes> {
    let len = [0, 3, 20, 100, 700][random.below(5)];
    let byte = random.number() as u8;
    (!random.one_in(8)).then(|| vec![byte; len].into())
}

fn acl(random: &mut Random) -> Vec<Acl> {
    let who = |scheme, id: &str| Acl { perms: perms::ALL, identity: Identity::new(scheme, id) };
    match random.below(6) {
        0 => vec![who("auth", "")],
        1 => vec![who("ip", "127.0.0.1"), Acl::anyone(perms::ALL)],
        _ => vec![Acl::anyone(perms::ALL)],
    }
}
