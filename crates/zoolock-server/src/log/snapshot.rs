//! A snapshot: all znodes and sessions as they were after one transaction.
//!
//! ```text
//! file:  "zoolksnp" version:4 0:4 nonce:16 zxid:8 sum:8, blocks
//! block: kind:4 len:4 chain:8 payload:len
//! ```
//! `name:n` is a field of `n` bytes, and `0:4` is four zero bytes. Numbers are big-endian. The
//! payload has as many bytes as the field `len` says. `sum` is the checksum of the header.
//!
//! The first blocks contain the sessions, and the ids of sessions that are ending. The next blocks contain access lists and the znodes that
//! use them. Each list occurs once per file. The last block contains the counts of sessions and
//! znodes, and the position up to which the log was synced. As in a log segment, the `chain` of a
//! block covers the block and everything before the block.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use zoolock_wire::{Reader, WireError, Writer};

use super::codec;
use super::disk::{Disk, DiskFile, Nonce};
use super::error::LogError;
use super::names::{SNAPSHOT_TMP, snapshot_name};
use super::replay::{is_session_id, owner_fits};
use super::segment::{Chunks, HeaderFields, VERSION, checksum};
use crate::acl::AclList;
use crate::ids::{SessionId, Zxid};
use crate::state::{State, StoredSession};
use crate::tree::{NodeRecord, Tree};

const MAGIC: [u8; 8] = *b"zoolksnp";
const HEADER: usize = 48;
const BLOCK_HEADER: usize = 16;
const SESSIONS: u32 = 1;
const NODES: u32 = 2;
const LAST: u32 = 3;
const ENDING: u32 = 4;

/// A block is written when its payload has at least this many bytes.
const BLOCK_BYTES: usize = 1 << 20;
/// Number of bytes between two syncs. A sync of the whole file at once would delay the syncs of the log.
const SYNC_EVERY: u64 = 16 << 20;

/// The position up to which the log is synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncedPosition {
    /// The last synced transaction.
    pub zxid: Zxid,
    /// The newest segment, named by the last transaction before it.
    pub(super) segment: Zxid,
    /// The offset in that segment up to which it is synced.
    pub(super) offset: u64,
}

/// A complete snapshot on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotFile {
    /// The last transaction in the snapshot.
    pub zxid: Zxid,
    /// The size in bytes.
    pub bytes: u64,
}

/// A writer that writes a snapshot in parts while the log continues. Only one writer may exist at a time.
///
/// Recovery ignores the snapshot until [`SnapshotWriter::finish`] gives it its name. An abandoned
/// snapshot is overwritten by the next snapshot, or removed at the next start.
pub struct SnapshotWriter {
    disk: Arc<dyn Disk>,
    file: Box<dyn DiskFile>,
    zxid: Zxid,
    nonce: Nonce,
    chain: u64,
    end: u64,
    synced: u64,
    lists: HashMap<AclList, u32>,
    new_lists: BytesMut,
    new_list_count: usize,
    nodes: BytesMut,
    node_count: usize,
    all_nodes: u64,
    all_sessions: u64,
}

impl fmt::Debug for SnapshotWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotWriter").field("zxid", &self.zxid).finish_non_exhaustive()
    }
}

impl SnapshotWriter {
    /// Begins a snapshot of a state whose last transaction in the log is `zxid`.
    ///
    /// # Errors
    /// If the disk fails. The log still works.
    pub fn begin<'s>(
        disk: Arc<dyn Disk>,
        zxid: Zxid,
        sessions: impl IntoIterator<Item = (&'s SessionId, &'s StoredSession)>,
        ending: &BTreeSet<SessionId>,
    ) -> Result<Self, LogError> {
        super::check_in_place(&*disk)?;
        let failed = |what| LogError::io(what, disk.describe(SNAPSHOT_TMP));
        let nonce = disk.nonce().map_err(failed("get a random number for"))?;
        let file = disk.create(SNAPSHOT_TMP).map_err(failed("create"))?;
        let (header, chain) = encode_header(&nonce, zxid);
        let mut writer = SnapshotWriter {
            disk,
            file,
            zxid,
            nonce,
            chain,
            end: 0,
            synced: 0,
            lists: HashMap::new(),
            new_lists: BytesMut::new(),
            new_list_count: 0,
            nodes: BytesMut::new(),
            node_count: 0,
            all_nodes: 0,
            all_sessions: 0,
        };
        writer.write(&header)?;
        let mut block = BytesMut::new();
        for (&id, session) in sessions {
            codec::encode_session(id, session, &mut block);
            writer.all_sessions += 1;
            if block.len() >= BLOCK_BYTES {
                writer.write_block(SESSIONS, &[&block])?;
                block.clear();
            }
        }
        writer.write_block(SESSIONS, &[&block])?;
        let ids: Vec<[u8; 8]> = ending.iter().map(|id| id.0.to_be_bytes()).collect();
        ids.chunks(BLOCK_BYTES / 8).try_for_each(|ids| writer.write_block(ENDING, &[ids.as_flattened()]))?;
        Ok(writer)
    }

    /// Adds znodes, in any order. Each znode must be added once.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn add(&mut self, records: impl IntoIterator<Item = NodeRecord>) -> Result<(), LogError> {
        for record in records {
            let next = self.lists.len() as u32;
            let list = *self.lists.entry(record.acl.clone()).or_insert(next);
            if list == next {
                codec::encode_acl(&record.acl, &mut Writer::new(&mut self.new_lists));
                self.new_list_count += 1;
            }
            codec::encode_node(&record, list, &mut self.nodes);
            self.node_count += 1;
            if self.nodes.len() + self.new_lists.len() >= BLOCK_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Completes the snapshot and gives it its name. `position` is the position up to which the log
    /// is synced now. `position` must not be before the last transaction in the snapshot. Otherwise
    /// the snapshot could restore transactions that a crash has undone.
    ///
    /// # Errors
    /// If the disk fails, or `position` is before the snapshot.
    pub fn finish(mut self, position: SyncedPosition) -> Result<SnapshotFile, LogError> {
        if position.zxid < self.zxid {
            return Err(LogError::NotDurable { snapshot: self.zxid, synced: position.zxid });
        }
        self.flush()?;
        let mut last = BytesMut::new();
        let mut writer = Writer::new(&mut last);
        writer.long(self.all_sessions as i64);
        writer.long(self.all_nodes as i64);
        writer.long(position.zxid.0);
        writer.long(position.segment.0);
        writer.long(position.offset as i64);
        self.write_block(LAST, &[&last])?;
        let name = snapshot_name(self.zxid);
        let failed = |what| LogError::io(what, self.disk.describe(&name));
        self.file.sync_all().map_err(failed("sync"))?;
        self.disk.rename(SNAPSHOT_TMP, &name).map_err(failed("rename to"))?;
        self.disk.sync_dir().map_err(failed("sync the directory of"))?;
        Ok(SnapshotFile { zxid: self.zxid, bytes: self.end })
    }

    fn flush(&mut self) -> Result<(), LogError> {
        let counts =
            [(self.new_list_count as u32).to_be_bytes(), (self.node_count as u32).to_be_bytes()].concat();
        let (lists, nodes) = (std::mem::take(&mut self.new_lists), std::mem::take(&mut self.nodes));
        self.all_nodes += self.node_count as u64;
        (self.new_list_count, self.node_count) = (0, 0);
        self.write_block(NODES, &[&counts, &lists, &nodes])?;
        (self.new_lists, self.nodes) = (lists, nodes);
        self.new_lists.clear();
        self.nodes.clear();
        Ok(())
    }

    fn write_block(&mut self, kind: u32, payload: &[&[u8]]) -> Result<(), LogError> {
        let len: usize = payload.iter().map(|part| part.len()).sum();
        let len =
            u32::try_from(len).expect("a block is written at 1 MiB, and a znode is far smaller than 4 GiB");
        let mut block = Vec::with_capacity(BLOCK_HEADER + len as usize);
        block.extend(kind.to_be_bytes());
        block.extend(len.to_be_bytes());
        block.extend([0; 8]);
        payload.iter().for_each(|part| block.extend_from_slice(part));
        self.chain = checksum(&self.nonce, &[&self.chain.to_be_bytes(), &block[..8], &block[BLOCK_HEADER..]]);
        block[8..BLOCK_HEADER].copy_from_slice(&self.chain.to_be_bytes());
        self.write(&block)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), LogError> {
        let failed = |what| LogError::io(what, self.disk.describe(SNAPSHOT_TMP));
        self.file.write_at(bytes, self.end).map_err(failed("write"))?;
        self.end += bytes.len() as u64;
        if self.end - self.synced >= SYNC_EVERY {
            self.file.sync_data().map_err(failed("sync"))?;
            self.synced = self.end;
        }
        Ok(())
    }
}

/// Returns the header of a snapshot file, and the `chain` checksum from which the first block
/// continues.
pub(super) fn encode_header(nonce: &Nonce, zxid: Zxid) -> (Vec<u8>, u64) {
    let mut header = Vec::with_capacity(HEADER);
    header.extend(MAGIC);
    header.extend(VERSION.to_be_bytes());
    header.extend([0; 4]);
    header.extend(nonce);
    header.extend(zxid.0.to_be_bytes());
    let chain = checksum(nonce, &[&header]);
    header.extend(chain.to_be_bytes());
    (header, chain)
}

/// Reads a snapshot, and checks that it is a consistent state.
pub(super) fn read(disk: &dyn Disk, zxid: Zxid) -> Result<(State, SyncedPosition), LogError> {
    let name = snapshot_name(zxid);
    let failed = |what| LogError::io(what, disk.describe(&name));
    let file = disk.open(&name).map_err(failed("open"))?;
    let chunks = Chunks::new(&*file).map_err(failed("read"))?;
    let mut blocks = SnapshotBlocks { chunks, nonce: Nonce::default(), chain: 0, at: 0 };
    let state = read_state(&mut blocks, zxid);
    state.map_err(|problem| match problem {
        SnapshotProblem::Io(source) => failed("read")(source),
        SnapshotProblem::Damage(what) => {
            LogError::Damaged { file: disk.describe(&name), offset: blocks.at, what }
        }
    })
}

enum SnapshotProblem {
    Io(std::io::Error),
    Damage(String),
}

impl From<std::io::Error> for SnapshotProblem {
    fn from(error: std::io::Error) -> Self {
        SnapshotProblem::Io(error)
    }
}

impl From<WireError> for SnapshotProblem {
    fn from(error: WireError) -> Self {
        SnapshotProblem::Damage(format!("{error} of a block"))
    }
}

impl From<&str> for SnapshotProblem {
    fn from(what: &str) -> Self {
        SnapshotProblem::Damage(what.to_owned())
    }
}

fn read_state(
    blocks: &mut SnapshotBlocks<'_>,
    zxid: Zxid,
) -> Result<(State, SyncedPosition), SnapshotProblem> {
    blocks.read_header(zxid)?;
    let mut state = State::new(0);
    state.zxid = zxid;
    let (mut lists, mut count) = (Vec::new(), 0);
    let mut last = None;
    let mut problem = None;
    // The sessions come before the znodes in the file, so that the owner of each ephemeral znode
    // can be checked against them.
    let mut nodes_begun = false;
    let mut batch = Vec::new().into_iter();
    let State { sessions, ending, .. } = &mut state;
    let records = std::iter::from_fn(|| {
        loop {
            if let Some(record) = batch.next() {
                return Some(record);
            }
            let mut advance = || -> Result<Option<Vec<NodeRecord>>, SnapshotProblem> {
                match blocks.read_block()? {
                    (SESSIONS, payload) if !nodes_begun => {
                        let mut reader = Reader::new(payload);
                        while !reader.is_empty() {
                            let (id, session) = codec::decode_session(&mut reader)?;
                            if !is_session_id(id.0) || sessions.insert(id, session).is_some() {
                                return Err("a session id is duplicate or invalid".into());
                            }
                        }
                        Ok(Some(Vec::new()))
                    }
                    (ENDING, payload) if !nodes_begun => {
                        let mut reader = Reader::new(payload);
                        while !reader.is_empty() {
                            let id = SessionId(reader.long("session")?);
                            if !is_session_id(id.0) || sessions.contains_key(&id) || !ending.insert(id) {
                                return Err("the id of an ending session is duplicate or invalid".into());
                            }
                        }
                        Ok(Some(Vec::new()))
                    }
                    (NODES, payload) => {
                        nodes_begun = true;
                        let records = decode_nodes(payload, &mut lists)?;
                        let is_known = |id| sessions.contains_key(&id) || ending.contains(&id);
                        records.iter().try_for_each(|record| check_record(record, zxid, is_known))?;
                        count += records.len() as u64;
                        Ok(Some(records))
                    }
                    (LAST, payload) => {
                        last = Some(decode_last(payload)?);
                        Ok(None)
                    }
                    _ => Err("unexpected kind of block".into()),
                }
            };
            match advance() {
                Ok(Some(records)) => batch = records.into_iter(),
                Ok(None) => return None,
                Err(error) => {
                    problem = Some(error);
                    return None;
                }
            }
        }
    });
    let tree = Tree::from_records(records);
    if let Some(problem) = problem {
        return Err(problem);
    }
    state.tree = tree.map_err(SnapshotProblem::Damage)?;
    let (last_sessions, last_nodes, position) = last.ok_or("there is no last block")?;
    if (last_sessions, last_nodes) != (state.sessions.len() as u64, count) {
        return Err("the numbers of sessions and znodes differ from the last block".into());
    }
    if blocks.chunks.bytes_left(blocks.at) > 0 {
        return Err("bytes follow the last block".into());
    }
    if position.zxid < zxid {
        return Err("it is newer than the log that it was made from".into());
    }
    Ok((state, position))
}

fn decode_nodes(payload: &[u8], lists: &mut Vec<AclList>) -> Result<Vec<NodeRecord>, SnapshotProblem> {
    let mut reader = Reader::new(payload);
    let (list_count, node_count) = (reader.count("lists", 4)?, reader.count("znodes", 68)?);
    for _ in 0..list_count {
        lists.push(codec::decode_acl(&mut reader)?);
    }
    let mut records = Vec::with_capacity(node_count);
    for _ in 0..node_count {
        records.push(codec::decode_node(lists, &mut reader)?);
    }
    reader.check_end()?;
    Ok(records)
}

fn decode_last(payload: &[u8]) -> Result<(u64, u64, SyncedPosition), SnapshotProblem> {
    let mut reader = Reader::new(payload);
    let mut long = |field| reader.long(field);
    let counts = (long("sessions")? as u64, long("znodes")? as u64);
    let position = SyncedPosition {
        zxid: Zxid(long("zxid")?),
        segment: Zxid(long("segment")?),
        offset: long("offset")? as u64,
    };
    reader.check_end()?;
    Ok((counts.0, counts.1, position))
}

fn check_record(
    record: &NodeRecord,
    zxid: Zxid,
    is_known: impl Fn(SessionId) -> bool,
) -> Result<(), SnapshotProblem> {
    let meta = &record.meta;
    let what = if meta.czxid.max(meta.mzxid).max(meta.pzxid) > zxid {
        "is newer than the snapshot"
    } else if !owner_fits(meta.owner, is_known) {
        "belongs to a session that does not exist"
    } else {
        return Ok(());
    };
    Err(SnapshotProblem::Damage(format!("{:?} {what}", record.path)))
}

struct SnapshotBlocks<'f> {
    chunks: Chunks<'f>,
    nonce: Nonce,
    chain: u64,
    at: u64,
}

impl SnapshotBlocks<'_> {
    fn read_header(&mut self, zxid: Zxid) -> Result<(), SnapshotProblem> {
        let bytes = self.chunks.read_array::<HEADER>(0)?.ok_or("the file ends in its header")?;
        let mut fields = HeaderFields(&bytes);
        if fields.take() != MAGIC {
            return Err("not a snapshot of zoolock".into());
        }
        let (version, _) = (fields.u32(), fields.u32());
        self.nonce = fields.take();
        let recorded = fields.zxid();
        self.chain = fields.u64();
        if self.chain != checksum(&self.nonce, &[&bytes[..HEADER - 8]]) {
            return Err("the header does not match its checksum".into());
        }
        if version != VERSION {
            return Err(SnapshotProblem::Damage(format!(
                "unknown format version {version}; use the zoolock version that wrote it"
            )));
        }
        if recorded != zxid {
            return Err(SnapshotProblem::Damage(format!("its header names transaction {recorded}")));
        }
        self.at = HEADER as u64;
        Ok(())
    }

    fn read_block(&mut self) -> Result<(u32, &[u8]), SnapshotProblem> {
        let header =
            self.chunks.read_array::<BLOCK_HEADER>(self.at)?.ok_or("the file ends between blocks")?;
        let mut fields = HeaderFields(&header);
        let (kind, len, chain) = (fields.u32(), fields.u32() as usize, fields.u64());
        let start = self.at + BLOCK_HEADER as u64;
        if self.chunks.bytes_left(start) < len as u64 {
            return Err("the file ends in a block".into());
        }
        let payload = &self.chunks.read_at_least(start, len)?[..len];
        if chain != checksum(&self.nonce, &[&self.chain.to_be_bytes(), &header[..8], payload]) {
            return Err("a block does not match its checksum".into());
        }
        self.chain = chain;
        self.at = start + len as u64;
        Ok((kind, payload))
    }
}
