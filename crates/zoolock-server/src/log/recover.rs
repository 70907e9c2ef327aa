//! Recovery: reads the newest sound snapshot, and replays the log after it.
//!
//! Only unacknowledged data may be dropped: the end of the last segment, if nothing proves that
//! this end was synced. The record of the end of the log is such a proof. Other damage of the log
//! is an error. A damaged snapshot is an error only if the state cannot be restored without it.
//!
//! [`recover`] only reads. [`Recovery::repair`] writes what the log needs before it continues.

use std::io;
use std::ops::Range;

use super::codec;
use super::disk::{Disk, DiskFile};
use super::end_record::{EndRecord, LogEnd};
use super::error::LogError;
use super::names::{END_RECORD, segment_name, snapshot_name, sorted_zxids};
use super::replay::replay;
use super::segment::{BatchHeader, ScannedPart, Scanner, SegmentHeader};
use super::snapshot::{self, SnapshotFile, SyncedPosition};
use crate::ids::Zxid;
use crate::state::State;

/// The dropped end of the log: a write that a crash interrupted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedEnd {
    /// The file.
    pub file: String,
    /// The offset of the first dropped byte.
    pub offset: u64,
    /// The number of dropped bytes.
    pub bytes: u64,
}

pub(super) struct Recovery {
    pub(super) state: State,
    pub(super) snapshot: Option<SnapshotFile>,
    /// Snapshots that could not be read, newest first, with the errors.
    pub(super) unreadable: Vec<(Zxid, LogError)>,
    pub(super) replayed: usize,
    pub(super) replayed_bytes: u64,
    /// The record of the end of the log, if there is one. The log may continue after the recorded end.
    pub(super) end_record: Option<EndRecord>,
    pub(super) last_segment: OpenSegment,
    /// Complete segments without a sound note of their successor. A crash can destroy the note.
    pub(super) without_note: Vec<OpenSegment>,
    pub(super) dropped_end: Option<DroppedEnd>,
    /// The last segment, if it is empty and must be removed.
    pub(super) empty: Option<Zxid>,
}

impl Recovery {
    /// Repairs the segments: writes a missing note of a successor again, and cuts off a damaged end.
    pub(super) fn repair(&mut self, disk: &dyn Disk) -> Result<(), LogError> {
        let failed = |what, segment: &OpenSegment| {
            LogError::io(what, disk.describe(&segment_name(segment.header.after)))
        };
        for segment in &mut self.without_note {
            let failed = failed("note the successor in", segment);
            let OpenSegment { file, header, end, chain, .. } = segment;
            BatchHeader::note_successor(&mut **file, &header.nonce, *end, *chain).map_err(failed)?;
        }
        // Bytes that are read from the system's cache may be missing on the disk: the previous server may have
        // ended before its sync, or because its sync failed. After a failed sync, another sync writes nothing. So
        // all bytes that are not proven to be synced are written again.
        let last = &mut self.last_segment;
        let failed = failed("repair", last);
        repair(&mut *last.file, last.unsound.map(|_| last.end), last.proven..last.end).map_err(failed)
    }
}

/// An open segment that was read to its end. New transactions are appended to the last segment.
#[derive(Debug)]
pub(super) struct OpenSegment {
    pub(super) file: Box<dyn DiskFile>,
    pub(super) header: SegmentHeader,
    pub(super) chain: u64,
    pub(super) end: u64,
    pub(super) size: u64,
    pub(super) sealed: bool,
    /// The offset up to which batches prove that the file was synced.
    proven: u64,
    /// The last transaction in this segment or before it.
    pub(super) last: Zxid,
    /// The kind of damage at the end of the segment, if the end is damaged.
    unsound: Option<&'static str>,
    /// Set if the segment contains a note that another segment follows.
    has_successor: bool,
}

impl OpenSegment {
    /// Returns a segment without transactions.
    pub(super) fn empty(file: Box<dyn DiskFile>, header: SegmentHeader, size: u64) -> Self {
        OpenSegment {
            file,
            chain: header.initial_chain(),
            end: SegmentHeader::LEN as u64,
            size,
            sealed: true,
            proven: SegmentHeader::LEN as u64,
            last: header.after,
            header,
            unsound: None,
            has_successor: false,
        }
    }

    /// Returns the end of this segment as the end of the log. `zxid` is the last transaction.
    pub(super) fn log_end(&self, zxid: Zxid) -> LogEnd {
        let SegmentHeader { nonce, after, .. } = self.header;
        LogEnd { segment: after, nonce, offset: self.end, zxid, chain: self.chain }
    }
}

/// Recovers the state, and changes nothing on the disk. Returns `None` if there is neither a log nor a snapshot. That
/// is an error if `must_exist` is set.
pub(super) fn recover(disk: &dyn Disk, must_exist: bool) -> Result<Option<Recovery>, LogError> {
    let names = disk.list().map_err(LogError::io("list the directory of", disk.describe("log.*")))?;
    let segments = sorted_zxids(&names, segment_name);
    let snapshots = sorted_zxids(&names, snapshot_name);
    let (end_record, recorded) = EndRecord::open(disk)?.unzip();
    if segments.is_empty() && snapshots.is_empty() {
        return match recorded {
            Some(recorded) => Err(missing_segment(disk, &recorded, None)),
            None if must_exist => Err(missing_record(disk, None)),
            None => Ok(None),
        };
    }
    let mut unreadable = Vec::new();
    let mut base = None;
    for &zxid in snapshots.iter().rev() {
        match snapshot::read(disk, zxid) {
            Ok((state, position)) => {
                base = Some((state, position));
                break;
            }
            Err(error) => unreadable.push((zxid, error)),
        }
    }
    let snapshot = match &base {
        Some((state, _)) => Some(SnapshotFile { zxid: state.zxid, bytes: snapshot_size(disk, state.zxid)? }),
        None => None,
    };
    let (state, position) = match base {
        Some((state, position)) => (state, Some(position)),
        None => (State::new(0), None),
    };
    let Some(first) = segments.iter().rposition(|&after| after <= state.zxid) else {
        return Err(match unreadable.into_iter().next() {
            Some((_, error)) => error,
            None => LogError::Missing {
                file: disk.describe(&segment_name(state.zxid)),
                what: format!("no segment of the log begins at {} or before", state.zxid),
            },
        });
    };
    let segments = &segments[first..];
    // A segment that ends at the snapshot or before it is not needed, so it is no error if such a
    // segment is missing.
    let is_missing =
        |position: &SyncedPosition| position.segment > segments[0] && !segments.contains(&position.segment);
    if let Some(position) = position.filter(is_missing) {
        return Err(LogError::Missing {
            file: disk.describe(&segment_name(position.segment)),
            what: format!("{} was written after it", snapshot_name(state.zxid)),
        });
    }
    // A snapshot gets its name after the log is synced up to it. So even the name of a damaged snapshot proves how far
    // the log was synced.
    let synced_at_least =
        unreadable.iter().map(|(zxid, _)| *zxid).chain(position.map(|position| position.zxid)).max();
    let empty = find_empty_last_segment(disk, segments)?;
    let segments = &segments[..segments.len() - usize::from(empty.is_some())];
    let mut replayer = Replayer::new(disk, state);
    (replayer.position, replayer.recorded, replayer.must_exist) = (position, recorded, must_exist);
    let mut before = None;
    for (i, &after) in segments.iter().enumerate() {
        before = Some(replayer.replay_segment(after, before, i + 1 == segments.len())?);
    }
    let last_segment = before.expect("there is a first segment");
    if let Some(next) = empty.filter(|&next| last_segment.last != next) {
        return Err(LogError::Damaged {
            file: disk.describe(&segment_name(next)),
            offset: 0,
            what: format!("it is empty, and the segment before it ends with {}", last_segment.last),
        });
    }
    if let Some(synced) = synced_at_least.filter(|&synced| last_segment.last < synced) {
        let what = format!("the log ends with {}, but {synced} had been synced", last_segment.last);
        return Err(LogError::Damaged {
            file: disk.describe(&segment_name(last_segment.header.after)),
            offset: last_segment.end,
            what,
        });
    }
    let Replayer { state, replayed, replayed_bytes, dropped_end, without_note, .. } = replayer;
    Ok(Some(Recovery {
        state,
        snapshot,
        unreadable,
        replayed,
        replayed_bytes,
        end_record,
        last_segment,
        without_note,
        dropped_end,
        empty,
    }))
}

/// Returns the error for a log without the segment that the record names. `found` is the last
/// transaction in the log.
fn missing_segment(disk: &dyn Disk, recorded: &LogEnd, found: Option<Zxid>) -> LogError {
    let found = found.map_or("there is no log".to_owned(), |found| format!("the log ends with {found}"));
    let what = format!("{END_RECORD} records transaction {} in it, and {found}", recorded.zxid);
    LogError::Missing { file: disk.describe(&segment_name(recorded.segment)), what }
}

/// Returns the error for a log without a record of its end. `found` is the last transaction in the
/// log.
fn missing_record(disk: &dyn Disk, found: Option<Zxid>) -> LogError {
    let what = match found {
        Some(found) => format!("the log ends with {found}, and this file would show if that is its end"),
        None => "the epoch file shows that a server had a log here, and there is no log".to_owned(),
    };
    LogError::Missing { file: disk.describe(END_RECORD), what }
}

/// Returns the last segment if its file is empty and no transaction in it was acknowledged. The
/// proof is that the previous segment has no note of its successor. The note is synced before the
/// successor gets its first transaction.
fn find_empty_last_segment(disk: &dyn Disk, segments: &[Zxid]) -> Result<Option<Zxid>, LogError> {
    let [.., before, last] = segments else { return Ok(None) };
    let (before, name) = (segment_name(*before), segment_name(*last));
    if disk.open(&name).and_then(|file| file.size()).map_err(LogError::io("read", disk.describe(&name)))? > 0
    {
        return Ok(None);
    }
    let failed = |error| LogError::io("read", disk.describe(&before))(error);
    let file = disk.open(&before).map_err(failed)?;
    let Ok((_, mut scanner)) = Scanner::new(&*file).map_err(failed)? else { return Ok(None) };
    loop {
        match scanner.read_next().map_err(failed)? {
            ScannedPart::Batch { .. } => {}
            ScannedPart::Clean => return Ok(Some(*last)),
            ScannedPart::HasSuccessor | ScannedPart::Unsound(_) => return Ok(None),
        }
    }
}

fn snapshot_size(disk: &dyn Disk, zxid: Zxid) -> Result<u64, LogError> {
    let name = snapshot_name(zxid);
    let size = disk.open(&name).and_then(|file| file.size());
    size.map_err(LogError::io("read", disk.describe(&name)))
}

/// A reader of batches, which replays their transactions.
pub(super) struct Replayer<'d> {
    disk: &'d dyn Disk,
    pub(super) state: State,
    position: Option<SyncedPosition>,
    /// The recorded end of the log.
    recorded: Option<LogEnd>,
    /// Set if the log was opened before, so that there must be a record of its end.
    must_exist: bool,
    replayed: usize,
    replayed_bytes: u64,
    without_note: Vec<OpenSegment>,
    dropped_end: Option<DroppedEnd>,
}

impl<'d> Replayer<'d> {
    /// Creates a replayer that continues from this state.
    pub(super) fn new(disk: &'d dyn Disk, state: State) -> Self {
        Replayer {
            disk,
            state,
            position: None,
            recorded: None,
            must_exist: false,
            replayed: 0,
            replayed_bytes: 0,
            without_note: Vec::new(),
            dropped_end: None,
        }
    }

    /// Reads and replays one segment, which must begin where the previous segment ended.
    fn replay_segment(
        &mut self,
        after: Zxid,
        before: Option<OpenSegment>,
        is_last: bool,
    ) -> Result<OpenSegment, LogError> {
        let name = self.disk.describe(&segment_name(after));
        let failed = |what| LogError::io(what, name.clone());
        let damaged = |offset, what: String| LogError::Damaged { file: name.clone(), offset, what };
        let file = self.disk.open(&segment_name(after)).map_err(failed("open"))?;
        let opened = Scanner::new(&*file).map_err(failed("read"))?;
        let (header, mut scanner) = opened.map_err(|what| damaged(0, what))?;
        if header.after != after {
            return Err(damaged(0, format!("its header names transaction {} as its start", header.after)));
        }
        if let Some(before) = before {
            self.check_successor(&before, &header)?;
            self.without_note.extend(Some(before).filter(|before| !before.has_successor));
        }
        let recorded = self.recorded.filter(|recorded| recorded.segment == after);
        let is_recorded_end = |at, chain| {
            recorded.is_some_and(|end| (end.nonce, end.offset, end.chain) == (header.nonce, at, chain))
        };
        let mut reached_recorded_end = is_recorded_end(scanner.at, scanner.chain);
        let mut last = after;
        let mut has_successor = false;
        let unsound = loop {
            match scanner.read_next().map_err(failed("read"))? {
                ScannedPart::Batch { at, records, payload } => {
                    last = self.replay_batch(last, records, payload).map_err(|what| damaged(at, what))?;
                    reached_recorded_end |= is_recorded_end(scanner.at, scanner.chain);
                }
                ScannedPart::HasSuccessor => {
                    has_successor = true;
                    break None;
                }
                ScannedPart::Clean => break None,
                ScannedPart::Unsound(what) => break Some(what),
            }
        };
        let end = scanner.at;
        if let Some(position) =
            self.position.filter(|position| position.segment == after && position.offset > end)
        {
            return Err(damaged(
                end,
                format!("a snapshot records that it was synced up to byte {}", position.offset),
            ));
        }
        // A running server, whose files a backup reads, may have begun the successor after the list of the files was read.
        let successor = segment_name(last);
        if is_last && has_successor && self.disk.open(&successor).is_err() {
            let what = format!("{name} records that this segment follows");
            return Err(LogError::Missing { file: self.disk.describe(&successor), what });
        }
        let mut dropped_end = None;
        if let Some(what) = unsound.filter(|_| is_last) {
            if let Some((at, synced_to)) = scanner.find_proof_of_loss().map_err(failed("read"))? {
                let message = format!(
                    "{what}, and the batch at byte {at} records that everything before byte {synced_to} was synced"
                );
                return Err(damaged(end, message));
            }
            dropped_end = Some(DroppedEnd { file: name.clone(), offset: end, bytes: scanner.size() - end });
        }
        // The log may lack the recorded end only if nothing but a seal is missing.
        if let Some(recorded) = recorded.filter(|_| !reached_recorded_end)
            && (end >= recorded.offset || last < recorded.zxid)
        {
            let why = unsound.map(|what| format!(" ({what})")).unwrap_or_default();
            return Err(damaged(
                end,
                format!(
                    "the log ends here with {last}{why}, but {END_RECORD} records {} up to byte {}",
                    recorded.zxid, recorded.offset
                ),
            ));
        }
        if is_last {
            self.check_last(last)?;
            self.dropped_end = dropped_end;
        }
        let (chain, sealed, proven) = (scanner.chain, scanner.sealed, scanner.proven);
        let size = if unsound.is_some() { end } else { scanner.size() };
        Ok(OpenSegment { file, header, chain, end, size, sealed, proven, last, unsound, has_successor })
    }

    /// Checks the last transaction of the log against the record of the end of the log.
    fn check_last(&self, last: Zxid) -> Result<(), LogError> {
        match &self.recorded {
            Some(recorded) if last < recorded.zxid => Err(missing_segment(self.disk, recorded, Some(last))),
            None if self.must_exist || last > Zxid::start_of(0) => Err(missing_record(self.disk, Some(last))),
            _ => Ok(()),
        }
    }

    /// Checks that a segment continues the previous segment, which is then complete.
    fn check_successor(&self, before: &OpenSegment, header: &SegmentHeader) -> Result<(), LogError> {
        let (file, next) = (segment_name(before.header.after), segment_name(header.after));
        let file = self.disk.describe(&file);
        if (before.last, before.chain) != (header.after, header.chain) {
            let why = before.unsound.unwrap_or("something is missing at its end, or between them");
            let what = format!("it ends with {}, and {next} does not continue it: {why}", before.last);
            return Err(LogError::Damaged { file, offset: before.end, what });
        }
        Ok(())
    }

    /// Replays a batch. Returns its last transaction, or a description of the damage.
    pub(super) fn replay_batch(
        &mut self,
        mut last: Zxid,
        records: u32,
        mut payload: &[u8],
    ) -> Result<Zxid, String> {
        let mut left = records;
        let whole = payload.len() as u64;
        let before = self.replayed;
        while let Some((len, rest)) = payload.split_first_chunk() {
            let (record, rest) =
                rest.split_at_checked(u32::from_be_bytes(*len) as usize).ok_or("a record is truncated")?;
            payload = rest;
            left = left.checked_sub(1).ok_or("a batch has more records than its header says")?;
            let txn =
                codec::decode_txn(record).map_err(|error| format!("a record cannot be read: {error}"))?;
            if txn.zxid <= last {
                return Err(format!("transaction {} comes after {last}", txn.zxid));
            }
            last = txn.zxid;
            if txn.zxid > self.state.zxid {
                replay(txn, &mut self.state)?;
                self.replayed += 1;
            }
        }
        if left > 0 || !payload.is_empty() {
            return Err("a batch has fewer records than its header says".to_owned());
        }
        if self.replayed > before {
            self.replayed_bytes += whole;
        }
        Ok(last)
    }
}

/// Truncates the file at `cut`, writes the range `again` once more, and syncs the file.
fn repair(file: &mut dyn DiskFile, cut: Option<u64>, again: Range<u64>) -> io::Result<()> {
    if let Some(end) = cut {
        file.set_len(end)?;
    }
    let mut buffer = vec![0; 1 << 20];
    let mut at = again.start;
    while at < again.end {
        let len = (again.end - at).min(buffer.len() as u64) as usize;
        file.read_at(&mut buffer[..len], at)?;
        file.write_at(&buffer[..len], at)?;
        at += len as u64;
    }
    file.sync_all()
}
