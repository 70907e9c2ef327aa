//! A client that writes to its own part of the tree, and records which writes were acknowledged.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::{Bytes, BytesMut};
use fastrand::Rng;
use zoolock_tests::raw_client::{RawClient, ServerGone, ServerResult, SessionTicket};
use zoolock_tests::{Result, TestFailure};
use zoolock_wire::{OpResult, Reply, Request};

use crate::crash::model::{Area, EPHEMERAL, Found, Number, SEQUENTIAL, Write, Zxids};

/// A session timeout so long that no session of a worker expires in these tests.
pub(crate) const LONG_MS: i32 = 60_000;
/// Length of large data.
const LARGE: usize = 100_000;

/// A client with its own part of the tree.
#[derive(Debug)]
pub(crate) struct Worker {
    root: String,
    random: Rng,
    client: Option<RawClient>,
    ticket: Option<SessionTicket>,
    /// Sessions that the worker has closed since the last check.
    closed: Vec<SessionTicket>,
    /// The state after all acknowledged writes.
    acked: Area,
    /// The state after all sent writes.
    sent: Area,
    unanswered: VecDeque<(Number, Write)>,
    last: Number,
    zxids: Zxids,
    pub(crate) tally: Tally,
}

/// Counts of writes and of closed sessions.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) acked: u64,
    pub(crate) unanswered: u64,
    /// Unanswered writes that the server executed.
    pub(crate) executed: u64,
    pub(crate) multis: u64,
    pub(crate) closed: u64,
}

/// The result of a batch of writes.
enum Step {
    Done,
    ServerEnded,
}

impl Worker {
    pub(crate) fn new(index: u64, seed: u64) -> Self {
        Worker {
            root: format!("/w{index}"),
            random: Rng::with_seed(seed ^ (index + 1) << 48),
            client: None,
            ticket: None,
            closed: Vec::new(),
            acked: Area::default(),
            sent: Area::default(),
            unanswered: VecDeque::new(),
            last: 0,
            zxids: Zxids::default(),
            tally: Tally::default(),
        }
    }

    /// Writes until the server ends. Raises `seen` to the highest zxid in the replies.
    pub(crate) async fn work(&mut self, addr: SocketAddr, large: bool, seen: &AtomicI64) -> Result<()> {
        while let Step::Done = self.step(addr, large, seen).await? {}
        self.client = None;
        Ok(())
    }

    /// Sends a batch of writes and reads the replies.
    async fn step(&mut self, addr: SocketAddr, large: bool, seen: &AtomicI64) -> Result<Step> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => match RawClient::open_session(addr, LONG_MS, 0).await {
                Ok(client) => client,
                Err(ServerGone) => return Ok(Step::ServerEnded),
            },
        };
        self.ticket = Some(client.ticket.clone());
        (self.acked.open, self.sent.open) = (true, true);
        let count = if self.random.u8(..100) < 40 { 1 } else { 1 + self.random.u64(..60) };
        let mut out = BytesMut::new();
        for _ in 0..count {
            let write = random_write(&mut self.random, &self.sent, &self.root, large);
            self.last += 1;
            self.sent.apply(self.last, &write);
            client.encode(&write.request(), &mut out);
            self.unanswered.push_back((self.last, write));
            if !self.sent.open {
                break;
            }
        }
        if client.write(&out).await.is_err() {
            return Ok(Step::ServerEnded);
        }
        while let Some((number, write)) = self.unanswered.front() {
            let Ok((header, reply)) = client.read_reply(write.request().op()).await else {
                return Ok(Step::ServerEnded);
            };
            let is_error = |result: &OpResult| matches!(result, OpResult::Error(_));
            let failed = matches!(&reply, Reply::Multi(results) if results.iter().any(is_error));
            if write.succeeds() == (failed || header.err != 0) {
                return Err(TestFailure::new(format!("the reply to {write:?} is {header:?} {reply:?}")));
            }
            if write.succeeds() {
                self.zxids.record(*number, header.zxid).map_err(TestFailure::new)?;
            }
            seen.fetch_max(header.zxid, Ordering::Relaxed);
            self.acked.apply(*number, write);
            self.tally.acked += 1;
            self.tally.multis += u64::from(matches!(write, Write::Multi(_)));
            self.unanswered.pop_front();
        }
        if self.sent.open {
            self.client = Some(client);
        } else {
            self.tally.closed += 1;
            self.closed.extend(self.ticket.take());
        }
        Ok(Step::Done)
    }

    /// Compares the tree after a restart with the model. The server must have executed all
    /// acknowledged writes, and may have executed the first few of the unanswered writes. Sets the
    /// model to the state of the tree. Returns the sessions that were closed since the last check.
    pub(crate) async fn check(
        &mut self,
        addr: SocketAddr,
        reader: &mut RawClient,
    ) -> Result<Vec<SessionTicket>> {
        let found = read(reader, &self.root).await?;
        let client = match &self.ticket {
            None => None,
            Some(ticket) => RawClient::attach_session(addr, LONG_MS, 0, ticket).await?,
        };
        let owner = self.ticket.as_ref().map_or(0, |ticket| ticket.session);
        let unanswered = std::mem::take(&mut self.unanswered);
        self.tally.unanswered += unanswered.len() as u64;
        // The server executes the writes of a connection in order. So it has executed the
        // unanswered writes up to some index, and none after that index.
        let mut area = self.acked.clone();
        let mut differences = Vec::new();
        let mut best = None;
        for executed in 0..=unanswered.len() {
            if let Some((number, write)) = executed.checked_sub(1).map(|last| &unanswered[last]) {
                area.apply(*number, write);
            }
            match area.compare(&found, owner, &self.zxids) {
                Err(difference) => differences.push(difference),
                Ok(_) if area.open != client.is_some() => {
                    differences.push(format!(
                        "its session {owner:#x} should be {}",
                        if area.open { "open" } else { "closed" }
                    ));
                }
                Ok(zxids) => best = Some((executed, area.clone(), zxids)),
            }
        }
        let Some((executed, area, mut zxids)) = best else {
            let (first, last) = (differences.first(), differences.last());
            return Err(TestFailure::new(format!(
                "{} matches no state after any of the {} unanswered writes; after none of them: {first:?}; after all \
                 of them: {last:?}; the writes: {unanswered:?}",
                self.root,
                unanswered.len(),
            )));
        };
        self.tally.executed += executed as u64;
        zxids.prune(&area);
        (self.zxids, self.client) = (zxids, client);
        (self.acked, self.sent) = (area.clone(), area);
        if !self.acked.open {
            self.closed.extend(self.ticket.take());
        }
        Ok(std::mem::take(&mut self.closed))
    }
}

/// Reads the root of a worker, its children, and the children of its child `s`.
async fn read(client: &mut RawClient, root: &str) -> ServerResult<Found> {
    let mut paths = vec![root.to_owned()];
    let mut at = 0;
    while let Some(path) = paths.get(at).cloned() {
        at += 1;
        if path.matches('/').count() > 2 || path != root && !path.ends_with("/s") {
            continue;
        }
        let (_, reply) = client.call(Request::GetChildren2 { path: path.clone(), watch: false }).await?;
        let Reply::ChildrenStat { children, .. } = reply else { continue };
        paths.extend(children.iter().map(|child| format!("{path}/{child}")));
    }
    let reads: Vec<_> =
        paths.iter().map(|path| Request::GetData { path: path.clone(), watch: false }).collect();
    let mut found = Found::new();
    for (path, (_, reply)) in paths.into_iter().zip(client.call_all(&reads).await?) {
        if let Reply::Data { data, stat } = reply {
            found.insert(path, (data.unwrap_or_default(), stat));
        }
    }
    Ok(found)
}

/// Returns a random next write to an area.
fn random_write(random: &mut Rng, area: &Area, root: &str, large: bool) -> Write {
    if random.u64(..100) < 80 || !area.nodes.contains_key(root) {
        return random_single_write(random, area, root, large);
    }
    if random.u8(..100) < 6 {
        return Write::Close;
    }
    let mut writes = Vec::new();
    let mut scratch = area.clone();
    for _ in 0..2 + random.u64(..5) {
        let write = random_single_write(random, &scratch, root, large);
        scratch.apply(0, &write);
        writes.push(write);
    }
    if random.u8(..100) < 20 {
        writes.insert(random.u64(..writes.len() as u64 + 1) as usize, Write::Fail);
    }
    Write::Multi(writes)
}

/// Returns a random next write to an area, neither a multi nor a close.
fn random_single_write(random: &mut Rng, area: &Area, root: &str, large: bool) -> Write {
    let mark = random.u64(..);
    let data = |len: usize| {
        let mut data = format!("{mark:016x}").into_bytes();
        data.resize(len.max(16), b'.');
        Bytes::from(data)
    };
    let small = random.u64(..200) as usize;
    let create = |path: String, flags| Write::Create { path, data: data(small), flags };
    let toggle = |path: String, flags| match area.nodes.contains_key(&path) {
        true => Write::Delete { path },
        false => create(path, flags),
    };
    // A queue like that of a lock. If it has more than `length` znodes, the first one is deleted.
    // Otherwise a znode is appended.
    let queue = |prefix: String, length: usize, flags| {
        let mut all = area.nodes.range(prefix.clone()..).take_while(|(path, _)| path.starts_with(&prefix));
        match all.clone().nth(length).and(all.next()) {
            Some((first, _)) => Write::Delete { path: first.clone() },
            None => create(prefix, flags | SEQUENTIAL),
        }
    };
    let (parent, choice) = (format!("{root}/s"), random.u64(..100));
    let which = |random: &mut Rng, end| random.u64(..end);
    match choice {
        _ if !area.nodes.contains_key(root) => create(root.to_owned(), 0),
        _ if !area.nodes.contains_key(&parent) => create(parent, 0),
        0..40 => {
            let path = format!("{root}/c{}", which(random, 8));
            let data = data(if large && random.u8(..100) < 50 { LARGE } else { small });
            match area.nodes.contains_key(&path) {
                true => Write::Set { path, data },
                false => Write::Create { path, data, flags: 0 },
            }
        }
        40..60 => toggle(format!("{root}/t{}", which(random, 16)), 0),
        60..75 => queue(format!("{parent}/n-"), 20, 0),
        75..90 => toggle(format!("{root}/e{}", which(random, 6)), EPHEMERAL),
        _ => queue(format!("{root}/es-"), 5, EPHEMERAL),
    }
}
