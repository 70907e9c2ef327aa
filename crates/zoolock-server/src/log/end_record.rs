//! A record of the end of the log, in a file of its own.
//!
//! ```text
//! file: slot, 0 up to byte 4096, slot, 0 up to byte 8192
//! slot: "zoolkend" version:4 0:4 sequence:8 segment:8 nonce:16 offset:8 zxid:8 chain:8 sum:8
//! ```
//! Without this record, a log that lost its last bytes or its last segment would look like a log
//! that ends there. The record is written after each sync of the log, and not synced itself. So it
//! survives a crash of the process. After a crash of the machine it may name an earlier end. It
//! never names an end that is not synced.
//!
//! The two slots are written in turn, and the slot with the higher `sequence` counts. So a write
//! that a crash interrupts leaves the other slot.

use std::io;

use super::disk::{Disk, DiskFile, Nonce};
use super::error::LogError;
use super::names::{END_RECORD, END_RECORD_TMP};
use super::segment::{HeaderFields, VERSION, checksum};
use crate::ids::Zxid;

const MAGIC: [u8; 8] = *b"zoolkend";
/// Number of bytes of a slot that are used.
const LEN: usize = 80;
/// Distance of the slots in bytes. Each slot has a page of its own, so that a torn page damages only one slot.
const SLOT: u64 = 4096;

/// A position up to which the log was synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogEnd {
    /// The last segment, named by the last transaction before it.
    pub(super) segment: Zxid,
    /// The nonce of that segment.
    pub(super) nonce: Nonce,
    /// The offset in that segment.
    pub(super) offset: u64,
    /// The last transaction.
    pub(super) zxid: Zxid,
    /// The `chain` checksum at this offset.
    pub(super) chain: u64,
}

/// The open record of the end of the log.
#[derive(Debug)]
pub(super) struct EndRecord {
    file: Box<dyn DiskFile>,
    sequence: u64,
}

impl EndRecord {
    /// Opens the record, and returns it with the recorded end. Returns `None` if there is no record.
    pub(super) fn open(disk: &dyn Disk) -> Result<Option<(Self, LogEnd)>, LogError> {
        let failed = |what| LogError::io(what, disk.describe(END_RECORD));
        let file = match disk.open(END_RECORD) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed("open"))?,
        };
        let mut newest = None;
        for at in [0, SLOT] {
            newest = newest.max(read_slot(&*file, at).map_err(failed("read"))?);
        }
        let (sequence, end) = newest.ok_or_else(|| LogError::Damaged {
            file: disk.describe(END_RECORD),
            offset: 0,
            what: "neither of its two copies matches its checksum".to_owned(),
        })?;
        Ok(Some((EndRecord { file, sequence }, end)))
    }

    /// Creates the record. It gets its name after it is synced.
    pub(super) fn create(disk: &dyn Disk, end: &LogEnd) -> Result<Self, LogError> {
        let failed = |what| LogError::io(what, disk.describe(END_RECORD));
        let file = disk.create(END_RECORD_TMP).map_err(failed("create"))?;
        let mut record = EndRecord { file, sequence: 0 };
        // Both slots are sound from the beginning, because one must stay sound if a write of the other slot is
        // interrupted. The zeros reserve the space, so that no later write can fail for lack of space.
        record.file.write_at(&[0; 2 * SLOT as usize], 0).map_err(failed("write"))?;
        record.write(end).and_then(|()| record.write(end)).map_err(failed("write"))?;
        record.sync().map_err(failed("sync"))?;
        disk.rename(END_RECORD_TMP, END_RECORD).map_err(failed("rename to"))?;
        disk.sync_dir().map_err(failed("sync the directory of"))?;
        Ok(record)
    }

    /// Records an end up to which the log is synced.
    pub(super) fn write(&mut self, end: &LogEnd) -> io::Result<()> {
        self.sequence += 1;
        self.file.write_at(&encode(self.sequence, end), self.sequence % 2 * SLOT)
    }

    /// Syncs the record, so that it survives a crash of the machine.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Encodes one slot.
pub(super) fn encode(sequence: u64, end: &LogEnd) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LEN);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(sequence.to_be_bytes());
    bytes.extend(end.segment.0.to_be_bytes());
    bytes.extend(end.nonce);
    bytes.extend(end.offset.to_be_bytes());
    bytes.extend(end.zxid.0.to_be_bytes());
    bytes.extend(end.chain.to_be_bytes());
    bytes.extend(checksum(&end.nonce, &[&bytes]).to_be_bytes());
    bytes
}

/// Reads one slot. Returns `None` if it is not sound.
fn read_slot(file: &dyn DiskFile, at: u64) -> io::Result<Option<(u64, LogEnd)>> {
    let mut bytes = [0; LEN];
    if file.size()? < at + LEN as u64 {
        return Ok(None);
    }
    file.read_at(&mut bytes, at)?;
    let mut fields = HeaderFields(&bytes);
    let (magic, version, _): ([u8; 8], _, _) = (fields.take(), fields.u32(), fields.u32());
    let sequence = fields.u64();
    let end = LogEnd {
        segment: fields.zxid(),
        nonce: fields.take(),
        offset: fields.u64(),
        zxid: fields.zxid(),
        chain: fields.u64(),
    };
    let is_sound =
        magic == MAGIC && version == VERSION && fields.u64() == checksum(&end.nonce, &[&bytes[..LEN - 8]]);
    Ok(is_sound.then_some((sequence, end)))
}
