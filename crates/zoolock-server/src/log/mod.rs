//! The log of what was decided, the snapshots, and how both become a state again.
//!
//! Blocking code on a [`Disk`], without a clock or a task. Whoever drives it appends what was decided, writes,
//! syncs, and answers clients only then.
//!
//! # What is promised
//! 1. What was synced is there after a crash. Only the end of the log that never was may be dropped, and is dropped
//!    for good before anything else happens.
//! 2. Damage to anything else is refused, by file and byte.
//! 3. A transaction is there as a whole or not at all, and a state that comes back is one that was.
//!
//! # How
//! Everything that is written at once is a batch (`segment.rs`), and says up to where the file was synced by then. At
//! the end of the log a batch that is not sound is dropped, unless anything shows that it had been synced: a later
//! batch, a later segment, or a snapshot. [`Log::idle_seal`] writes an empty batch that shows it of the last one.
//!
//! A file gets its name when its contents are synced, so a name stands for a sound file. A segment is given a
//! successor when it is synced, so only the last may end badly. The first failed write or sync ends the log: what a
//! disk has kept after it said no cannot be known (on Linux a second sync says yes, and means nothing).

pub mod codec;
mod disk;
mod error;
#[cfg(feature = "fuzzing")]
pub mod forge;
mod names;
mod recover;
mod replay;
mod segment;
mod snapshot;

use std::io;
use std::sync::Arc;

use bytes::{BufMut as _, BytesMut};

pub use self::disk::{Disk, DiskFile, Nonce, RealDisk};
pub use self::error::LogError;
use self::names::{SEGMENT_TMP, SNAPSHOT_TMP, damaged_name, numbered, segment_name, snapshot_name};
pub use self::recover::Torn;
use self::recover::{Recovery, Tail, recover};
pub use self::replay::replay;
use self::segment::{BatchHeader, SegmentHeader};
pub use self::snapshot::{Mark, Snapshot, SnapshotWriter};
use crate::ids::Zxid;
use crate::state::State;
use crate::txn::{Change, Txn};

/// A batch gets no more transactions when it has this much.
const BATCH: usize = 1 << 20;
/// How many snapshots are kept: the second is for when the first is damaged.
const SNAPSHOTS: usize = 2;

/// What a log can be told.
#[derive(Debug, Clone)]
pub struct Options {
    /// A segment is followed by another when it has this many bytes.
    pub segment_size: u64,
    /// How much room is made at once; zero for none.
    pub allocate: u64,
    /// A snapshot is wanted after this many bytes, and after no fewer than the last one had.
    pub snapshot_after: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { segment_size: 64 << 20, allocate: 8 << 20, snapshot_after: 64 << 20 }
    }
}

/// What was found when the log was opened.
#[derive(Debug)]
pub struct Recovered {
    /// The state; its zxid is that of the last transaction in the log.
    pub state: State,
    /// Whether there was nothing at all.
    pub fresh: bool,
    /// The snapshot that was used.
    pub snapshot: Option<Snapshot>,
    /// How many transactions the log had beyond it.
    pub replayed: usize,
    /// What was dropped from the end.
    pub dropped: Option<Torn>,
    /// Snapshots that could not be used, and are not needed.
    pub passed_over: Vec<LogError>,
}

/// The log, open at its end.
#[derive(Debug)]
pub struct Log {
    disk: Arc<dyn Disk>,
    options: Options,
    segment: Tail,
    /// Everything before this is on the disk.
    synced: u64,
    synced_zxid: Zxid,
    written_zxid: Zxid,
    appended_zxid: Zxid,
    pending: Pending,
    /// Set for good by the first failure.
    failed: Option<LogError>,
    /// Bytes of transactions since the last snapshot began.
    since_snapshot: u64,
    /// What `since_snapshot` was when the snapshot that is being made began.
    snapshot_at: Option<u64>,
    last_snapshot_bytes: u64,
}

/// Batches that wait to be written, each with room for its header.
#[derive(Default)]
struct Pending {
    bytes: BytesMut,
    /// Where each begins, and how many transactions it has.
    batches: Vec<(usize, u32)>,
}

impl Log {
    /// Brings back what the disk has, drops what must be, and opens the log at its end.
    ///
    /// # Errors
    /// Something that was kept is damaged or gone, or the disk fails.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<(Log, Recovered), LogError> {
        let recovery = recover(&*disk)?;
        let fresh = recovery.is_none();
        remove_leftovers(&*disk, recovery.as_ref())?;
        let recovery = match recovery {
            Some(recovery) => recovery,
            None => Recovery {
                state: State::new(0),
                snapshot: None,
                damaged: Vec::new(),
                replayed: 0,
                replayed_bytes: 0,
                tail: create_segment(&*disk, Zxid::start_of(0), 0, options.allocate)?,
                torn: None,
            },
        };
        let Recovery { state, snapshot, damaged, replayed, replayed_bytes, tail, torn } = recovery;
        let log = Log {
            disk,
            options,
            synced: tail.end,
            synced_zxid: tail.last,
            written_zxid: tail.last,
            appended_zxid: tail.last,
            segment: tail,
            pending: Pending::default(),
            failed: None,
            since_snapshot: replayed_bytes,
            snapshot_at: None,
            last_snapshot_bytes: snapshot.map_or(0, |snapshot| snapshot.bytes),
        };
        let passed_over = damaged.into_iter().map(|(_, error)| error).collect();
        Ok((log, Recovered { state, fresh, snapshot, replayed, dropped: torn, passed_over }))
    }

    /// Adds a transaction to what is written next. A refused write is not kept.
    ///
    /// # Errors
    /// The log has failed, now or before.
    pub fn append(&mut self, txn: &Txn) -> Result<(), LogError> {
        self.check()?;
        if matches!(txn.change, Change::Refused(_)) {
            return Ok(());
        }
        let unloggable = |what| LogError::Unloggable { zxid: txn.zxid, what };
        if txn.zxid <= self.appended_zxid {
            return self.fail(unloggable(format!("it comes after {}", self.appended_zxid)));
        }
        let Pending { bytes, batches } = &mut self.pending;
        if batches.last().is_none_or(|&(start, _)| bytes.len() - start >= BATCH) {
            batches.push((bytes.len(), 0));
            bytes.put_bytes(0, BatchHeader::LEN);
        }
        let start = bytes.len();
        bytes.put_u32(0);
        if let Err(what) = codec::encode_txn(txn, bytes) {
            return self.fail(unloggable(what));
        }
        let len = (bytes.len() - start - 4) as u32;
        bytes[start..start + 4].copy_from_slice(&len.to_be_bytes());
        if let Some((_, records)) = batches.last_mut() {
            *records += 1;
        }
        self.since_snapshot += 4 + u64::from(len);
        self.appended_zxid = txn.zxid;
        Ok(())
    }

    /// Writes what was appended. It outlives this process then, but not a crash of the machine.
    ///
    /// # Errors
    /// The log has failed, now or before.
    pub fn write(&mut self) -> Result<(), LogError> {
        self.check()?;
        if self.pending.batches.is_empty() {
            return Ok(());
        }
        if self.segment.end >= self.options.segment_size && self.written_zxid > self.segment.header.after {
            self.roll()?;
        }
        self.write_pending()?;
        self.segment.sealed = false;
        self.written_zxid = self.appended_zxid;
        Ok(())
    }

    /// Makes what was written last. Clients may be told of it when this has returned.
    ///
    /// # Errors
    /// The log has failed, now or before.
    pub fn sync(&mut self) -> Result<(), LogError> {
        self.check()?;
        if self.synced < self.segment.end {
            let result = self.segment.file.sync_data();
            self.or_fail("sync", result)?;
            self.synced = self.segment.end;
            self.synced_zxid = self.written_zxid;
        }
        Ok(())
    }

    /// Writes and syncs all there is, and a note that this is so: from then on damage to it cannot be taken for a
    /// write that a crash cut short. For when there is nothing else to do.
    ///
    /// # Errors
    /// The log has failed, now or before.
    pub fn idle_seal(&mut self) -> Result<(), LogError> {
        self.write()?;
        self.sync()?;
        if !self.segment.sealed {
            self.pending.batches.push((0, 0));
            self.pending.bytes.put_bytes(0, BatchHeader::LEN);
            self.write_pending()?;
            self.segment.sealed = true;
            self.sync()?;
        }
        Ok(())
    }

    /// Ends the log in order.
    ///
    /// # Errors
    /// The log has failed, now or before.
    pub fn close(mut self) -> Result<(), LogError> {
        self.idle_seal()
    }

    /// How far the log is synced.
    pub fn synced(&self) -> Mark {
        Mark { zxid: self.synced_zxid, segment: self.segment.header.after, offset: self.synced }
    }

    /// The disk, for a [`SnapshotWriter`] on another thread.
    pub fn disk(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.disk)
    }

    /// Whether it is time for a snapshot, and none is being made.
    pub fn wants_snapshot(&self) -> bool {
        self.snapshot_at.is_none()
            && self.since_snapshot >= self.options.snapshot_after.max(self.last_snapshot_bytes)
    }

    /// Notes that a snapshot begins, of the state after what has been appended by now.
    pub fn snapshot_begins(&mut self) {
        self.snapshot_at = Some(self.since_snapshot);
    }

    /// Notes that the snapshot is kept, or came to nothing; after a failure it is wanted again when a quarter of what
    /// a snapshot takes has been logged.
    pub fn snapshot_done(&mut self, snapshot: Option<Snapshot>) {
        let at = self.snapshot_at.take().unwrap_or_default();
        match snapshot {
            Some(snapshot) => {
                self.since_snapshot -= at;
                self.last_snapshot_bytes = snapshot.bytes;
            }
            None => {
                let wanted = self.options.snapshot_after.max(self.last_snapshot_bytes);
                self.since_snapshot = self.since_snapshot.min(wanted - wanted / 4);
            }
        }
    }

    /// Removes the snapshots before the last two, and the segments that the older of these does not need.
    ///
    /// # Errors
    /// The disk fails. That is no reason for the log to stop.
    pub fn clean(&self) -> Result<(), LogError> {
        let failed = |what, name: &str| LogError::io(what, self.disk.describe(name));
        let names = self.disk.list().map_err(failed("list the directory of", "log.*"))?;
        let snapshots = numbered(&names, snapshot_name);
        let Some(oldest) = snapshots.len().checked_sub(SNAPSHOTS) else { return Ok(()) };
        let remove = |name: String| self.disk.remove(&name).map_err(failed("remove", &name));
        snapshots[..oldest].iter().try_for_each(|&zxid| remove(snapshot_name(zxid)))?;
        let segments = numbered(&names, segment_name);
        let needed = segments.iter().rposition(|&after| after <= snapshots[oldest]).unwrap_or(0);
        // Snapshots first: one whose segments are gone is of no use, a segment too many harms nobody.
        self.disk.sync_dir().map_err(failed("sync the directory of", "log.*"))?;
        segments[..needed].iter().try_for_each(|&after| remove(segment_name(after)))?;
        self.disk.sync_dir().map_err(failed("sync the directory of", "log.*"))
    }

    /// Begins the next segment. That it exists says that this one is complete.
    fn roll(&mut self) -> Result<(), LogError> {
        let trimmed = self.segment.file.set_len(self.segment.end).and_then(|()| self.segment.file.sync_all());
        self.or_fail("complete", trimmed)?;
        self.synced = self.segment.end;
        self.synced_zxid = self.written_zxid;
        let next = create_segment(&*self.disk, self.written_zxid, self.segment.chain, self.options.allocate);
        let next = match next {
            Ok(next) => next,
            Err(error) => return self.fail(error),
        };
        let Tail { file, header, end, chain, .. } = &mut self.segment;
        let noted = BatchHeader::note_successor(&mut **file, &header.nonce, *end, *chain);
        self.or_fail("note the successor in", noted)?;
        self.segment = next;
        self.synced = self.segment.end;
        Ok(())
    }

    fn write_pending(&mut self) -> Result<(), LogError> {
        let Pending { mut bytes, mut batches } = std::mem::take(&mut self.pending);
        let nonce = self.segment.header.nonce;
        let mut chain = self.segment.chain;
        let mut stop = bytes.len();
        let ends: Vec<usize> = batches.iter().skip(1).map(|&(start, _)| start).chain([stop]).collect();
        for (&(start, records), &end) in batches.iter().zip(&ends) {
            let header = BatchHeader {
                at: self.segment.end + start as u64,
                synced_to: self.synced,
                len: (end - start - BatchHeader::LEN) as u32,
                records,
            };
            chain = header.seal_into(&nonce, chain, &mut bytes[start..end]);
            stop = end;
        }
        let end = self.segment.end + stop as u64;
        let made = self.make_room(end);
        self.or_fail("make room in", made)?;
        let written = self.segment.file.write_at(&bytes, self.segment.end);
        self.or_fail("write", written)?;
        self.segment.end = end;
        self.segment.size = self.segment.size.max(end);
        self.segment.chain = chain;
        bytes.clear();
        batches.clear();
        // One large batch must not leave its buffer behind.
        if bytes.capacity() <= 2 * BATCH {
            self.pending = Pending { bytes, batches };
        }
        Ok(())
    }

    fn make_room(&mut self, end: u64) -> io::Result<()> {
        let (size, step) = (self.segment.size, self.options.allocate);
        if end <= size || step == 0 {
            return Ok(());
        }
        let wanted = end.next_multiple_of(step);
        if allocate(&mut *self.segment.file, size, wanted - size)? {
            self.segment.size = wanted;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), LogError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn fail<T>(&mut self, error: LogError) -> Result<T, LogError> {
        self.failed = Some(error.clone());
        Err(error)
    }

    fn or_fail(&mut self, what: &'static str, result: io::Result<()>) -> Result<(), LogError> {
        let name = segment_name(self.segment.header.after);
        result.or_else(|error| self.fail(LogError::io(what, self.disk.describe(&name))(error)))
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The bytes have the passwords of sessions in them.
        write!(f, "Pending({} bytes)", self.bytes.len())
    }
}

/// Makes room if the disk can; without it every write makes its own.
fn allocate(file: &mut dyn DiskFile, offset: u64, len: u64) -> io::Result<bool> {
    match file.allocate(offset, len) {
        Ok(()) => Ok(true),
        // A disk that has no room for what we may need can still have some for what we do.
        Err(error) if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::StorageFull) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// The segment is whole on the disk before it takes its name, and its name is, before anything is written to it.
fn create_segment(disk: &dyn Disk, after: Zxid, chain: u64, room: u64) -> Result<Tail, LogError> {
    let name = segment_name(after);
    let failed = |what| LogError::io(what, disk.describe(&name));
    let header =
        SegmentHeader { nonce: disk.nonce().map_err(failed("get a random number for"))?, after, chain };
    let mut file = disk.create(SEGMENT_TMP).map_err(failed("create"))?;
    let end = SegmentHeader::LEN as u64;
    file.write_at(&header.encode(), 0).map_err(failed("write"))?;
    let mut size = end;
    if room > 0 && allocate(&mut *file, end, room).map_err(failed("make room in"))? {
        size = end + room;
    }
    file.sync_all().map_err(failed("sync"))?;
    disk.rename(SEGMENT_TMP, &name).map_err(failed("rename to"))?;
    disk.sync_dir().map_err(failed("sync the directory of"))?;
    Ok(Tail::empty(file, header, size))
}

fn remove_leftovers(disk: &dyn Disk, recovery: Option<&Recovery>) -> Result<(), LogError> {
    let failed = |what, name: &str| LogError::io(what, disk.describe(name));
    let names = disk.list().map_err(failed("list the directory of", "log.*"))?;
    for name in names.iter().filter(|name| [SEGMENT_TMP, SNAPSHOT_TMP].contains(&name.as_str())) {
        disk.remove(name).map_err(failed("remove", name))?;
    }
    for (zxid, error) in recovery.iter().flat_map(|recovery| &recovery.damaged) {
        // Kept to be looked at, but no longer counted as a snapshot to fall back on.
        if matches!(error, LogError::Damaged { .. }) {
            let name = snapshot_name(*zxid);
            disk.rename(&name, &damaged_name(*zxid)).map_err(failed("rename", &name))?;
        }
    }
    // A server that was killed may have left names that are not on the disk yet.
    disk.sync_dir().map_err(failed("sync the directory of", "log.*"))
}
