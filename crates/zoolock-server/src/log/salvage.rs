//! A new log from what is left of a damaged or incomplete log.
//!
//! The state is that of the newest readable snapshot and the longest sound part of the log after
//! it. It may be older than the state that clients have seen.

use std::io;
use std::sync::Arc;

use super::disk::Disk;
use super::end_record::EndRecord;
use super::error::LogError;
use super::names::{END_RECORD, damaged_name, segment_name, snapshot_name, sorted_zxids};
use super::recover::Replayer;
use super::segment::{ScannedPart, Scanner, SegmentHeader};
use super::snapshot::{self, SnapshotWriter, SyncedPosition};
use super::{create_segment_file, name_segment};
use crate::ids::Zxid;
use crate::state::State;

/// The state that a damaged or incomplete log still contains.
#[derive(Debug)]
pub struct Salvage {
    /// The state. Its zxid is that of the last transaction that can be restored.
    pub state: State,
    /// The last transaction that the files record.
    pub recorded: Zxid,
    /// The names of the old files of the log.
    pub files: Vec<String>,
}

/// A batch that does not fit the state before it, by its segment and its offset.
type UnfitBatch = (Zxid, u64);

impl Salvage {
    /// Reads what can be restored. Changes nothing on the disk.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn read(disk: &dyn Disk) -> Result<Self, LogError> {
        let names = disk.list().map_err(LogError::io("list the directory of", disk.describe("log.*")))?;
        let (segments, snapshots) = (sorted_zxids(&names, segment_name), sorted_zxids(&names, snapshot_name));
        let recorded = match EndRecord::open(disk) {
            Ok(record) => record.map(|(_, end)| end.zxid),
            Err(error) if error.is_loss() => None,
            Err(error) => return Err(error),
        };
        let (state, unfit) = restore(disk, &segments, &snapshots, None)?;
        // A part of a batch that does not fit is possibly applied. So the state is restored again, up to that batch.
        let state = match unfit {
            None => state,
            Some(_) => restore(disk, &segments, &snapshots, unfit)?.0,
        };
        let recorded = [recorded, segments.last().copied(), snapshots.last().copied(), Some(state.zxid)];
        let mut files: Vec<String> = segments.iter().map(|&after| segment_name(after)).collect();
        files.extend(snapshots.iter().map(|&zxid| snapshot_name(zxid)));
        files.extend(names.into_iter().filter(|name| name.as_str() == END_RECORD));
        let recorded = recorded.into_iter().flatten().max().unwrap_or(Zxid::start_of(0));
        Ok(Salvage { state, recorded, files })
    }

    /// Starts a new log with the state, and renames the old files. The new log begins with a
    /// snapshot. After a crash in between, [`Salvage::read`] finds the same state again.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn write(&self, disk: &Arc<dyn Disk>) -> Result<(), LogError> {
        let failed = |what, name: &str| LogError::io(what, disk.describe(name));
        let (zxid, own) = (self.state.zxid, snapshot_name(self.state.zxid));
        let mut names = disk.list().map_err(failed("list the directory of", "log.*"))?;
        let mut rename = |name: &str| {
            let new = damaged_name(name, &names);
            names.push(new.clone());
            disk.rename(name, &new).map_err(failed("rename", name))
        };
        if self.files.contains(&own) && snapshot::read(&**disk, zxid).is_err() {
            rename(&own)?;
        }
        let mut writer =
            SnapshotWriter::begin(Arc::clone(disk), zxid, &self.state.sessions, &self.state.ending)?;
        writer.add(self.state.tree.records())?;
        writer.finish(SyncedPosition { zxid, segment: zxid, offset: SegmentHeader::LEN as u64 })?;
        self.files.iter().filter(|name| **name != own).try_for_each(|name| rename(name))?;
        disk.sync_dir().map_err(failed("sync the directory of", "log.*"))?;
        let segment = name_segment(&**disk, create_segment_file(&**disk)?, zxid, 0, 0)?;
        EndRecord::create(&**disk, &segment.log_end(zxid)).map(|_| ())
    }
}

/// Restores the newest readable snapshot and the sound transactions after it, up to the batch
/// `stop_before`. Returns a batch that does not fit. The state is then invalid.
fn restore(
    disk: &dyn Disk,
    segments: &[Zxid],
    snapshots: &[Zxid],
    stop_before: Option<UnfitBatch>,
) -> Result<(State, Option<UnfitBatch>), LogError> {
    let mut base = State::new(0);
    for &zxid in snapshots.iter().rev() {
        match snapshot::read(disk, zxid) {
            Ok((state, _)) => {
                base = state;
                break;
            }
            Err(error) if error.is_loss() => {}
            Err(error) => return Err(error),
        }
    }
    let first = segments.iter().rposition(|&after| after <= base.zxid).unwrap_or(segments.len());
    let mut replayer = Replayer::new(disk, base);
    let mut before = None;
    for &after in &segments[first..] {
        let name = segment_name(after);
        let failed = |error: io::Error| LogError::io("read", disk.describe(&name))(error);
        let file = disk.open(&name).map_err(failed)?;
        let Ok((header, mut scanner)) = Scanner::new(&*file).map_err(failed)? else { break };
        let continues = before.is_none_or(|before| before == (header.after, header.chain));
        if header.after != after || !continues {
            break;
        }
        let mut last = after;
        while let ScannedPart::Batch { at, records, payload } = scanner.read_next().map_err(failed)? {
            if stop_before == Some((after, at)) {
                return Ok((replayer.state, None));
            }
            match replayer.replay_batch(last, records, payload) {
                Ok(zxid) => last = zxid,
                Err(_) => return Ok((replayer.state, Some((after, at)))),
            }
        }
        before = Some((last, scanner.chain));
    }
    Ok((replayer.state, None))
}
