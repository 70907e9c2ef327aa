//! The log of decided transactions, the snapshots, and recovery from both.
//!
//! All functions block while they use the [`Disk`]. There is neither a clock nor a task here. The
//! caller appends decided transactions, writes, syncs, and only then answers clients.
//!
//! # Guarantees
//! 1. Synced transactions survive a crash. Only unsynced transactions at the end of the log may be dropped. Recovery
//!    removes dropped transactions from the disk before the server continues.
//! 2. Any other damage is an error that names the file and the byte. So is the lack of a file, or of the log's end.
//!    After such an error, [`Salvage`] starts a new log from what is left.
//! 3. A transaction is restored completely or not at all. A restored state is a state that the server had before.
//!
//! # Implementation
//! Each write consists of batches (`segment.rs`). A batch records the offset up to which the file
//! was synced when the batch was written. A damaged batch at the end of the log is dropped, unless
//! something proves that it had been synced: the offset in a later batch, a later segment, or a
//! snapshot. [`Log::seal_when_idle`] writes an empty batch as this proof for the last batch.
//!
//! A file gets its final name after its contents are synced, so a file with that name is complete.
//! A segment gets a successor after it is synced, so only the last segment can end with a damaged
//! batch. `end_record.rs` records the end of the log in another file, after each sync. This record
//! shows that the end of the log, or the whole log, is missing. The first failed write or sync ends
//! the log: after a failure the contents of the disk are unknown (on Linux a second sync succeeds
//! without having any effect).

pub mod codec;
mod disk;
mod end_record;
mod error;
#[cfg(feature = "fuzzing")]
pub mod forge;
mod names;
mod recover;
mod replay;
mod salvage;
mod segment;
mod snapshot;

use std::io;
use std::sync::Arc;

use bytes::{BufMut as _, BytesMut};
use rustix::io::Errno;

pub use self::disk::{Disk, DiskFile, Nonce, RealDisk};
use self::end_record::EndRecord;
pub use self::error::LogError;
pub(crate) use self::names::END_RECORD;
use self::names::{
    END_RECORD_TMP, SEGMENT_TMP, SNAPSHOT_TMP, damaged_name, segment_name, snapshot_name, sorted_zxids,
};
pub use self::recover::DroppedEnd;
use self::recover::{OpenSegment, Recovery, recover};
pub use self::replay::replay;
pub use self::salvage::Salvage;
pub(crate) use self::segment::VERSION;
use self::segment::{BatchHeader, SegmentHeader};
pub use self::snapshot::{SnapshotFile, SnapshotWriter, SyncedPosition};
use crate::ids::Zxid;
use crate::state::State;
use crate::txn::{Change, Txn};

/// Size in bytes at which a batch is full and the next one begins.
const BATCH_BYTES: usize = 1 << 20;
/// Number of snapshots kept: the older one is used if the newer one is damaged.
const KEPT_SNAPSHOTS: usize = 2;

/// Options of a log.
#[derive(Debug, Clone)]
pub struct Options {
    /// Size in bytes at which the next segment begins.
    pub segment_size: u64,
    /// Step in bytes in which the space of a segment is allocated in advance; 0: no allocation.
    pub allocate: u64,
    /// Minimum number of logged bytes between snapshots. The size of the last snapshot is another minimum.
    pub snapshot_after: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { segment_size: 64 << 20, allocate: 8 << 20, snapshot_after: 64 << 20 }
    }
}

/// Result of recovery.
#[derive(Debug)]
pub struct Recovered {
    /// The restored state. Its zxid is that of the last transaction in the log.
    pub state: State,
    /// Set if there was neither a log nor a snapshot.
    pub fresh: bool,
    /// The snapshot that was used.
    pub snapshot: Option<SnapshotFile>,
    /// Number of transactions replayed after the snapshot.
    pub replayed: usize,
    /// The dropped end of the log, if recovery dropped one.
    pub dropped_end: Option<DroppedEnd>,
    /// The path of the last segment, if recovery found its file empty and removed the file. The
    /// file never contained an acknowledged transaction.
    pub removed_segment: Option<String>,
    /// Errors of snapshots that were unreadable and not needed.
    pub unused_snapshot_errors: Vec<LogError>,
}

/// The log, open for appending.
#[derive(Debug)]
pub struct Log {
    disk: Arc<dyn Disk>,
    options: Options,
    segment: OpenSegment,
    /// The file of the next segment, which is still empty. It is created before it is needed, because no file
    /// descriptor may be free then. `None` if it could not be created yet.
    next_file: Option<Box<dyn DiskFile>>,
    end_record: EndRecord,
    /// Offset up to which the segment is synced.
    synced: u64,
    synced_zxid: Zxid,
    written_zxid: Zxid,
    appended_zxid: Zxid,
    pending: PendingBatches,
    /// The first failure. It is permanent.
    failed: Option<LogError>,
    /// Number of bytes of transactions appended since the last successful snapshot began. After a
    /// failed snapshot the number is lowered if necessary, to delay the next snapshot.
    since_snapshot: u64,
    /// Value of `since_snapshot` at the start of the snapshot in progress.
    snapshot_at: Option<u64>,
    last_snapshot_bytes: u64,
}

/// Batches to be written, each with space for its header.
#[derive(Default)]
struct PendingBatches {
    bytes: BytesMut,
    /// Offset and number of transactions of each batch.
    batches: Vec<(usize, u32)>,
}

impl Log {
    /// Restores the state from the disk, drops a damaged end of the log, and opens the log for
    /// appending.
    ///
    /// # Errors
    /// If synced data are damaged or missing, or the disk fails.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<(Log, Recovered), LogError> {
        Self::open_again(disk, options, false)
    }

    /// Opens the log like [`Log::open`]. If `must_exist` is set, the log was opened before, so it is
    /// an error if there is none.
    ///
    /// # Errors
    /// If synced data are damaged or missing, or the disk fails.
    pub fn open_again(
        disk: Arc<dyn Disk>,
        options: Options,
        must_exist: bool,
    ) -> Result<(Log, Recovered), LogError> {
        let mut recovery = recover(&*disk, must_exist)?;
        recovery.iter_mut().try_for_each(|recovery| recovery.repair(&*disk))?;
        let fresh = recovery.is_none();
        remove_leftovers(&*disk, recovery.as_ref())?;
        let recovery = match recovery {
            Some(recovery) => recovery,
            None => Recovery {
                state: State::new(0),
                snapshot: None,
                unreadable: Vec::new(),
                replayed: 0,
                replayed_bytes: 0,
                end_record: None,
                last_segment: {
                    let file = create_segment_file(&*disk)?;
                    name_segment(&*disk, file, Zxid::start_of(0), 0, options.allocate)?
                },
                without_note: Vec::new(),
                dropped_end: None,
                empty: None,
            },
        };
        let end = recovery.last_segment.log_end(recovery.last_segment.last);
        let end_record = match recovery.end_record {
            None => EndRecord::create(&*disk, &end)?,
            Some(mut record) => {
                let recorded = record.write(&end).and_then(|()| record.sync());
                recorded.map_err(LogError::io("write", disk.describe(END_RECORD)))?;
                record
            }
        };
        let log = Log {
            next_file: disk.create(SEGMENT_TMP).ok(),
            end_record,
            disk,
            options,
            synced: recovery.last_segment.end,
            synced_zxid: recovery.last_segment.last,
            written_zxid: recovery.last_segment.last,
            appended_zxid: recovery.last_segment.last,
            segment: recovery.last_segment,
            pending: PendingBatches::default(),
            failed: None,
            since_snapshot: recovery.replayed_bytes,
            snapshot_at: None,
            last_snapshot_bytes: recovery.snapshot.map_or(0, |snapshot| snapshot.bytes),
        };
        let recovered = Recovered {
            state: recovery.state,
            fresh,
            snapshot: recovery.snapshot,
            replayed: recovery.replayed,
            dropped_end: recovery.dropped_end,
            removed_segment: recovery.empty.map(|after| log.disk.describe(&segment_name(after))),
            unused_snapshot_errors: recovery.unreadable.into_iter().map(|(_, error)| error).collect(),
        };
        Ok((log, recovered))
    }

    /// Restores the state like [`Log::open_again`], and changes nothing on the disk. Returns `None` if there is no log.
    ///
    /// # Errors
    /// If synced data are damaged or missing, or the disk fails.
    pub fn read(disk: &dyn Disk, must_exist: bool) -> Result<Option<State>, LogError> {
        Ok(recover(disk, must_exist)?.map(|recovery| recovery.state))
    }

    /// Adds a transaction to the next write. Refused writes are not logged.
    ///
    /// # Errors
    /// If the log fails in this call, or has failed before.
    pub fn append(&mut self, txn: &Txn) -> Result<(), LogError> {
        self.check_not_failed()?;
        if matches!(txn.change, Change::Refused(_)) {
            return Ok(());
        }
        let unloggable = |what| LogError::Unloggable { zxid: txn.zxid, what };
        if txn.zxid <= self.appended_zxid {
            return self.fail(unloggable(format!("it comes after {}", self.appended_zxid)));
        }
        let PendingBatches { bytes, batches } = &mut self.pending;
        if batches.last().is_none_or(|&(start, _)| bytes.len() - start >= BATCH_BYTES) {
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

    /// Writes appended transactions. The transactions then survive a crash of this process, but not
    /// of the machine.
    ///
    /// # Errors
    /// If the log fails in this call, or has failed before.
    pub fn write(&mut self) -> Result<(), LogError> {
        self.check_not_failed()?;
        if self.pending.batches.is_empty() {
            return Ok(());
        }
        if self.segment.end >= self.options.segment_size && self.written_zxid > self.segment.header.after {
            self.start_segment_if_possible()?;
        }
        self.write_pending()?;
        self.segment.sealed = false;
        self.written_zxid = self.appended_zxid;
        Ok(())
    }

    /// Syncs written transactions. After success, clients may get the answers that depend on these
    /// transactions.
    ///
    /// # Errors
    /// If the log fails in this call, or has failed before.
    pub fn sync(&mut self) -> Result<(), LogError> {
        self.check_not_failed()?;
        if self.synced < self.segment.end {
            let result = self.segment.file.sync_data();
            self.fail_on_error("sync", result)?;
            self.synced = self.segment.end;
            self.synced_zxid = self.written_zxid;
            self.record_end()?;
        }
        Ok(())
    }

    /// Writes and syncs all transactions, and adds an empty batch that proves the sync. With this
    /// batch, recovery does not mistake later damage for a write that a crash interrupted. Call
    /// this method when the server is idle.
    ///
    /// # Errors
    /// If the log fails in this call, or has failed before.
    pub fn seal_when_idle(&mut self) -> Result<(), LogError> {
        self.write()?;
        self.sync()?;
        if !self.segment.sealed {
            self.pending.batches.push((0, 0));
            self.pending.bytes.put_bytes(0, BatchHeader::LEN);
            self.write_pending()?;
            self.segment.sealed = true;
            self.sync()?;
            self.sync_end_record()?;
        }
        Ok(())
    }

    /// Seals and closes the log.
    ///
    /// # Errors
    /// If the log fails in this call, or has failed before.
    pub fn close(mut self) -> Result<(), LogError> {
        self.seal_when_idle()
    }

    /// Returns the position up to which the log is synced.
    pub fn synced(&self) -> SyncedPosition {
        SyncedPosition { zxid: self.synced_zxid, segment: self.segment.header.after, offset: self.synced }
    }

    /// Returns the disk, for a [`SnapshotWriter`] on another thread.
    pub fn disk(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.disk)
    }

    /// Returns whether a snapshot is due and none is in progress.
    pub fn is_snapshot_due(&self) -> bool {
        self.snapshot_at.is_none()
            && self.since_snapshot >= self.options.snapshot_after.max(self.last_snapshot_bytes)
    }

    /// Records the start of a snapshot, which will contain all transactions appended so far.
    pub fn record_snapshot_start(&mut self) {
        self.snapshot_at = Some(self.since_snapshot);
    }

    /// Records the end of the snapshot, or its failure. After a failure the next snapshot is due
    /// when another quarter of the usual number of bytes has been logged.
    pub fn record_snapshot_end(&mut self, snapshot: Option<SnapshotFile>) {
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

    /// Keeps the last two snapshots, and removes all older snapshots. Then removes the segments
    /// that the older one of the two does not need.
    ///
    /// # Errors
    /// If the disk fails. The log still works.
    pub fn remove_old_files(&self) -> Result<(), LogError> {
        let failed = |what, name: &str| LogError::io(what, self.disk.describe(name));
        let names = self.disk.list().map_err(failed("list the directory of", "log.*"))?;
        let snapshots = sorted_zxids(&names, snapshot_name);
        let Some(oldest) = snapshots.len().checked_sub(KEPT_SNAPSHOTS) else { return Ok(()) };
        let remove = |name: String| self.disk.remove(&name).map_err(failed("remove", &name));
        snapshots[..oldest].iter().try_for_each(|&zxid| remove(snapshot_name(zxid)))?;
        let segments = sorted_zxids(&names, segment_name);
        let needed = segments.iter().rposition(|&after| after <= snapshots[oldest]).unwrap_or(0);
        // Snapshots are removed first: a snapshot without its segments is useless, but an extra segment is harmless.
        self.disk.sync_dir().map_err(failed("sync the directory of", "log.*"))?;
        segments[..needed].iter().try_for_each(|&after| remove(segment_name(after)))?;
        self.disk.sync_dir().map_err(failed("sync the directory of", "log.*"))
    }

    /// Completes this segment and begins the next one, whose existence proves that this segment is
    /// complete. If no file descriptor is free, does nothing: this segment continues to grow.
    fn start_segment_if_possible(&mut self) -> Result<(), LogError> {
        let file = match self.next_file.take().map_or_else(|| self.disk.create(SEGMENT_TMP), Ok) {
            Ok(file) => file,
            Err(error) if is_lack_of_descriptors(&error) => return Ok(()),
            Err(error) => return self.fail(LogError::io("create", self.disk.describe(SEGMENT_TMP))(error)),
        };
        if let Err(error) = check_in_place(&*self.disk) {
            return self.fail(error);
        }
        let trimmed = self.segment.file.set_len(self.segment.end).and_then(|()| self.segment.file.sync_all());
        self.fail_on_error("complete", trimmed)?;
        self.synced = self.segment.end;
        self.synced_zxid = self.written_zxid;
        let next =
            name_segment(&*self.disk, file, self.written_zxid, self.segment.chain, self.options.allocate);
        let next = match next {
            Ok(next) => next,
            Err(error) => return self.fail(error),
        };
        let OpenSegment { file, header, end, chain, .. } = &mut self.segment;
        let recorded = BatchHeader::note_successor(&mut **file, &header.nonce, *end, *chain);
        self.fail_on_error("note the successor in", recorded)?;
        self.segment = next;
        self.synced = self.segment.end;
        self.record_end()?;
        self.sync_end_record()?;
        // An error is ignored here, because the file is not needed yet.
        self.next_file = self.disk.create(SEGMENT_TMP).ok();
        Ok(())
    }

    /// Records the end of the log, which must be synced.
    fn record_end(&mut self) -> Result<(), LogError> {
        let written = self.end_record.write(&self.segment.log_end(self.synced_zxid));
        written.or_else(|error| self.fail(LogError::io("write", self.disk.describe(END_RECORD))(error)))
    }

    fn sync_end_record(&mut self) -> Result<(), LogError> {
        let synced = self.end_record.sync();
        synced.or_else(|error| self.fail(LogError::io("sync", self.disk.describe(END_RECORD))(error)))
    }

    fn write_pending(&mut self) -> Result<(), LogError> {
        let PendingBatches { mut bytes, mut batches } = std::mem::take(&mut self.pending);
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
        let allocated = self.make_room(end);
        self.fail_on_error("make room in", allocated)?;
        let written = self.segment.file.write_at(&bytes, self.segment.end);
        self.fail_on_error("write", written)?;
        self.segment.end = end;
        self.segment.size = self.segment.size.max(end);
        self.segment.chain = chain;
        bytes.clear();
        batches.clear();
        // The buffer of a large batch is not kept.
        if bytes.capacity() <= 2 * BATCH_BYTES {
            self.pending = PendingBatches { bytes, batches };
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

    fn check_not_failed(&self) -> Result<(), LogError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn fail<T>(&mut self, error: LogError) -> Result<T, LogError> {
        self.failed = Some(error.clone());
        Err(error)
    }

    fn fail_on_error(&mut self, what: &'static str, result: io::Result<()>) -> Result<(), LogError> {
        let name = segment_name(self.segment.header.after);
        result.or_else(|error| self.fail(LogError::io(what, self.disk.describe(&name))(error)))
    }
}

impl std::fmt::Debug for PendingBatches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The bytes are not shown, because they contain session passwords.
        write!(f, "PendingBatches({} bytes)", self.bytes.len())
    }
}

/// Allocates space in advance. Returns false if the disk does not support allocation, or is too
/// full. Each write then allocates its own space.
fn allocate(file: &mut dyn DiskFile, offset: u64, len: u64) -> io::Result<bool> {
    match file.allocate(offset, len) {
        Ok(()) => Ok(true),
        // A disk without space for the allocation may still have space for the next writes.
        Err(error) if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::StorageFull) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Creates an empty file for a segment.
fn create_segment_file(disk: &dyn Disk) -> Result<Box<dyn DiskFile>, LogError> {
    disk.create(SEGMENT_TMP).map_err(LogError::io("create", disk.describe(SEGMENT_TMP)))
}

/// Makes the file with the temporary name a segment. Syncs the contents before the segment gets its
/// final name, and then syncs the name.
fn name_segment(
    disk: &dyn Disk,
    mut file: Box<dyn DiskFile>,
    after: Zxid,
    chain: u64,
    room: u64,
) -> Result<OpenSegment, LogError> {
    let name = segment_name(after);
    let failed = |what| LogError::io(what, disk.describe(&name));
    let header =
        SegmentHeader { nonce: disk.nonce().map_err(failed("get a random number for"))?, after, chain };
    let end = SegmentHeader::LEN as u64;
    file.write_at(&header.encode(), 0).map_err(failed("write"))?;
    let mut size = end;
    if room > 0 && allocate(&mut *file, end, room).map_err(failed("make room in"))? {
        size = end + room;
    }
    file.sync_all().map_err(failed("sync"))?;
    disk.rename(SEGMENT_TMP, &name).map_err(failed("rename to"))?;
    disk.sync_dir().map_err(failed("sync the directory of"))?;
    Ok(OpenSegment::empty(file, header, size))
}

/// Returns whether the process, or the system, has too many open files.
fn is_lack_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Checks that the path of the directory still names this directory.
fn check_in_place(disk: &dyn Disk) -> Result<(), LogError> {
    if disk.is_in_place() {
        return Ok(());
    }
    Err(LogError::Replaced { directory: disk.describe("") })
}

fn remove_leftovers(disk: &dyn Disk, recovery: Option<&Recovery>) -> Result<(), LogError> {
    let failed = |what, name: &str| LogError::io(what, disk.describe(name));
    let names = disk.list().map_err(failed("list the directory of", "log.*"))?;
    for name in
        names.iter().filter(|name| [SEGMENT_TMP, SNAPSHOT_TMP, END_RECORD_TMP].contains(&name.as_str()))
    {
        disk.remove(name).map_err(failed("remove", name))?;
    }
    if let Some(after) = recovery.and_then(|recovery| recovery.empty) {
        let name = segment_name(after);
        disk.remove(&name).map_err(failed("remove", &name))?;
    }
    for (zxid, error) in recovery.iter().flat_map(|recovery| &recovery.unreadable) {
        // A damaged snapshot is kept for inspection, but under another name, so that recovery does not use it.
        if matches!(error, LogError::Damaged { .. }) {
            let name = snapshot_name(*zxid);
            disk.rename(&name, &damaged_name(&name, &names)).map_err(failed("rename", &name))?;
        }
    }
    // A killed server may have left file names that are not synced yet.
    disk.sync_dir().map_err(failed("sync the directory of", "log.*"))
}
