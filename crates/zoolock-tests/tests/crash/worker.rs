//! A client that writes to a part of the tree that is its own, and keeps account of what was promised to it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::{Bytes, BytesMut};
use zoolock_server::wire::{OpResult, Reply, Request};
use zoolock_tests::{Failure, Random, Result};

use crate::client::{Alive, Client, Dead, Ticket};
use crate::model::{Area, EPHEMERAL, Found, Number, SEQUENTIAL, Write, Zxids};

/// No session of a worker ends because nobody had time for it.
pub(crate) const LONG_MS: i32 = 60_000;
const LARGE: usize = 100_000;

#[derive(Debug)]
pub(crate) struct Worker {
    root: String,
    random: Random,
    client: Option<Client>,
    ticket: Option<Ticket>,
    /// Its sessions that it has closed.
    over: Vec<Ticket>,
    /// After all that was acknowledged, and after all that was sent.
    acked: Area,
    sent: Area,
    unanswered: VecDeque<(Number, Write)>,
    last: Number,
    zxids: Zxids,
    pub(crate) tally: Tally,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) acked: u64,
    /// Sent and not answered, and of these what was done all the same.
    pub(crate) unanswered: u64,
    pub(crate) done: u64,
    pub(crate) multis: u64,
    pub(crate) closed: u64,
}

/// What a batch of writes came to.
enum Step {
    Went,
    Died,
}

impl Worker {
    pub(crate) fn new(index: u64, seed: u64) -> Self {
        Worker {
            root: format!("/w{index}"),
            random: Random::new(seed ^ (index + 1) << 48),
            client: None,
            ticket: None,
            over: Vec::new(),
            acked: Area::default(),
            sent: Area::default(),
            unanswered: VecDeque::new(),
            last: 0,
            zxids: Zxids::default(),
            tally: Tally::default(),
        }
    }

    /// Writes until the server is gone. `seen` becomes the highest zxid that anybody was told.
    pub(crate) async fn work(&mut self, addr: SocketAddr, large: bool, seen: &AtomicI64) -> Result<()> {
        while let Step::Went = self.step(addr, large, seen).await? {}
        self.client = None;
        Ok(())
    }

    async fn step(&mut self, addr: SocketAddr, large: bool, seen: &AtomicI64) -> Result<Step> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => match Client::begin(addr, LONG_MS, 0).await {
                Ok(client) => client,
                Err(Dead) => return Ok(Step::Died),
            },
        };
        self.ticket = Some(client.ticket.clone());
        (self.acked.open, self.sent.open) = (true, true);
        let count = if self.random.chance(40) { 1 } else { 1 + self.random.below(60) };
        let mut out = BytesMut::new();
        for _ in 0..count {
            let write = invent(&mut self.random, &self.sent, &self.root, large);
            self.last += 1;
            self.sent.apply(self.last, &write);
            client.encode(&write.request(), &mut out);
            self.unanswered.push_back((self.last, write));
            if !self.sent.open {
                break;
            }
        }
        if client.write(&out).await.is_err() {
            return Ok(Step::Died);
        }
        while let Some((number, write)) = self.unanswered.front() {
            let Ok((header, reply)) = client.reply(write.request().op()).await else { return Ok(Step::Died) };
            let failed = matches!(&reply, Reply::Multi(results) if results.iter().any(|result| matches!(result, OpResult::Error(_))));
            if write.succeeds() == (failed || header.err != 0) {
                return Err(Failure::new(format!("{write:?} was answered with {header:?} {reply:?}")));
            }
            if write.succeeds() {
                self.zxids.learn(*number, header.zxid).map_err(Failure::new)?;
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
            self.over.extend(self.ticket.take());
        }
        Ok(Step::Went)
    }

    /// Compares what there is after a restart with what was promised, and goes on from there. Returns the sessions
    /// that were closed meanwhile.
    pub(crate) async fn check(&mut self, addr: SocketAddr, reader: &mut Client) -> Result<Vec<Ticket>> {
        let dead = |Dead| Failure::new("the server is gone while nobody kills it");
        let found = read(reader, &self.root).await.map_err(dead)?;
        let client = match &self.ticket {
            None => None,
            Some(ticket) => Client::resume(addr, LONG_MS, 0, ticket).await.map_err(dead)?,
        };
        let owner = self.ticket.as_ref().map_or(0, |ticket| ticket.session);
        let unanswered = std::mem::take(&mut self.unanswered);
        self.tally.unanswered += unanswered.len() as u64;
        // The writes of one connection are done in order: what is there is the work of the first so many of them.
        let mut area = self.acked.clone();
        let mut differences = Vec::new();
        let mut best = None;
        for done in 0..=unanswered.len() {
            if let Some((number, write)) = done.checked_sub(1).map(|last| &unanswered[last]) {
                area.apply(*number, write);
            }
            match area.compare(&found, owner, &self.zxids) {
                Err(difference) => differences.push(difference),
                Ok(_) if area.open != client.is_some() => {
                    differences.push(format!(
                        "its session {owner:#x} should be {}",
                        if area.open { "there" } else { "gone" }
                    ));
                }
                Ok(zxids) => best = Some((done, area.clone(), zxids)),
            }
        }
        let Some((done, area, mut zxids)) = best else {
            let (first, last) = (differences.first(), differences.last());
            return Err(Failure::new(format!(
                "{} is not as it was promised after any of the {} writes without an answer; after none {first:?}, after \
                 all {last:?}; they are {unanswered:?}",
                self.root,
                unanswered.len(),
            )));
        };
        self.tally.done += done as u64;
        zxids.prune(&area);
        (self.zxids, self.client) = (zxids, client);
        (self.acked, self.sent) = (area.clone(), area);
        if !self.acked.open {
            self.over.extend(self.ticket.take());
        }
        Ok(std::mem::take(&mut self.over))
    }
}

/// What is at and below a path, two levels deep.
async fn read(client: &mut Client, root: &str) -> Alive<Found> {
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
    for (path, (_, reply)) in paths.into_iter().zip(client.all(&reads).await?) {
        if let Reply::Data { data, stat } = reply {
            found.insert(path, (data.unwrap_or_default(), stat));
        }
    }
    Ok(found)
}

/// The next write to an area that looks like this.
fn invent(random: &mut Random, area: &Area, root: &str, large: bool) -> Write {
    if random.below(100) < 80 || !area.nodes.contains_key(root) {
        return invent_single(random, area, root, large);
    }
    if random.chance(6) {
        return Write::Close;
    }
    let mut writes = Vec::new();
    let mut scratch = area.clone();
    for _ in 0..2 + random.below(5) {
        let write = invent_single(random, &scratch, root, large);
        scratch.apply(0, &write);
        writes.push(write);
    }
    if random.chance(20) {
        writes.insert(random.index(writes.len() + 1), Write::Fail);
    }
    Write::Multi(writes)
}

fn invent_single(random: &mut Random, area: &Area, root: &str, large: bool) -> Write {
    let mark = random.number();
    let data = |len: usize| {
        let mut data = format!("{mark:016x}").into_bytes();
        data.resize(len.max(16), b'.');
        Bytes::from(data)
    };
    let small = random.below(200) as usize;
    let create = |path: String, flags| Write::Create { path, data: data(small), flags };
    let toggle = |path: String, flags| match area.nodes.contains_key(&path) {
        true => Write::Delete { path },
        false => create(path, flags),
    };
    // A queue as those of locks: what comes goes behind, and the first leaves.
    let queue = |prefix: String, most: usize, flags| {
        let mut all = area.nodes.range(prefix.clone()..).take_while(|(path, _)| path.starts_with(&prefix));
        match all.clone().nth(most).and(all.next()) {
            Some((first, _)) => Write::Delete { path: first.clone() },
            None => create(prefix, flags | SEQUENTIAL),
        }
    };
    let (parent, choice) = (format!("{root}/s"), random.below(100));
    let which = |random: &mut Random, end| random.below(end);
    match choice {
        _ if !area.nodes.contains_key(root) => create(root.to_owned(), 0),
        _ if !area.nodes.contains_key(&parent) => create(parent, 0),
        0..40 => {
            let path = format!("{root}/c{}", which(random, 8));
            let data = data(if large && random.chance(50) { LARGE } else { small });
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
