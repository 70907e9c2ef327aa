//! The format of a log segment: a header, then batches. A batch is written as a whole.
//!
//! ```text
//! segment: "zoolklog" version:4 0:4 nonce:16 after:8 chain:8 sum:8
//! batch:   "zlbatch\x01" at:8 synced_to:8 len:4 records:4 chain:8 sum:8 payload:len
//! payload: records times (len:4 transaction:len)
//! ```
//! `name:n` is a field of `n` bytes, and `0:4` is four zero bytes. Numbers are big-endian.
//! `payload:len` has as many bytes as the field `len` says, and contains as many transactions as
//! the field `records` says.
//!
//! All checksums are SipHash-1-3, keyed with the nonce of the file. The nonce is never sent to a
//! client, so no client can write data that looks like a batch. The `sum` of a batch covers its
//! header alone, so that a batch after a damaged one is still recognized. The `chain` of a batch
//! covers its payload and everything before the batch. So a batch that is missing, repeated or from
//! another log is detected.

use std::hash::Hasher as _;
use std::io;

use siphasher::sip::SipHasher13;

use super::disk::{DiskFile, Nonce};
use crate::ids::Zxid;

const SEGMENT_MAGIC: [u8; 8] = *b"zoolklog";
const BATCH_MAGIC: [u8; 8] = *b"zlbatch\x01";
/// The number of the format of segments, snapshots and the record of the end. A change of a format, also of a transaction,
/// raises it.
pub(crate) const VERSION: u32 = 1;

/// Minimum number of bytes to read at once.
const CHUNK: usize = 1 << 20;

/// Returns the keyed checksum of the concatenated parts.
pub(super) fn checksum(nonce: &Nonce, parts: &[&[u8]]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(nonce);
    for part in parts {
        hasher.write(part);
    }
    hasher.finish()
}

/// The unread rest of a header. The header must be long enough for all fields.
pub(super) struct HeaderFields<'a>(pub(super) &'a [u8]);

impl HeaderFields<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_first_chunk().expect("headers have a fixed length");
        self.0 = rest;
        *head
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }

    pub(super) fn zxid(&mut self) -> Zxid {
        Zxid(i64::from_be_bytes(self.take()))
    }
}

/// The header of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// The nonce of this file.
    pub(super) nonce: Nonce,
    /// The last transaction before this segment.
    pub(super) after: Zxid,
    /// The `chain` checksum at the end of the previous segment.
    pub(super) chain: u64,
}

impl SegmentHeader {
    pub(super) const LEN: usize = 56;

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::LEN);
        bytes.extend(SEGMENT_MAGIC);
        bytes.extend(VERSION.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(self.nonce);
        bytes.extend(self.after.0.to_be_bytes());
        bytes.extend(self.chain.to_be_bytes());
        bytes.extend(checksum(&self.nonce, &[&bytes]).to_be_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, String> {
        let mut fields = HeaderFields(bytes);
        if fields.take() != SEGMENT_MAGIC {
            return Err("not a log segment of zoolock".to_owned());
        }
        let (version, _) = (fields.u32(), fields.u32());
        let header = SegmentHeader { nonce: fields.take(), after: fields.zxid(), chain: fields.u64() };
        if fields.u64() != checksum(&header.nonce, &[&bytes[..Self::LEN - 8]]) {
            return Err("the header does not match its checksum".to_owned());
        }
        if version != VERSION {
            return Err(format!("unknown format version {version}; use the zoolock version that wrote it"));
        }
        Ok(header)
    }

    /// Returns the `chain` checksum from which the first batch continues.
    pub(super) fn initial_chain(&self) -> u64 {
        checksum(&self.nonce, &[&self.encode()])
    }
}

/// The header of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BatchHeader {
    /// The offset of this batch in the file.
    pub(super) at: u64,
    /// The offset up to which the file was synced when this batch was written. If bytes before this offset are missing,
    /// they were lost after a sync.
    pub(super) synced_to: u64,
    /// The number of payload bytes.
    pub(super) len: u32,
    /// The number of transactions in the payload, or [`HAS_SUCCESSOR`].
    pub(super) records: u32,
}

/// The value of `records` in the note which says that another segment follows.
pub(super) const HAS_SUCCESSOR: u32 = u32::MAX;

impl BatchHeader {
    pub(super) const LEN: usize = 48;

    fn fields(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&BATCH_MAGIC);
        bytes[8..16].copy_from_slice(&self.at.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.synced_to.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_be_bytes());
        bytes[28..].copy_from_slice(&self.records.to_be_bytes());
        bytes
    }

    fn chain_checksum(&self, nonce: &Nonce, chain: u64, payload: &[u8]) -> u64 {
        checksum(nonce, &[&chain.to_be_bytes(), &self.fields(), payload])
    }

    /// Writes the header of a batch in front of its payload. Returns the `chain` checksum of the batch.
    pub(super) fn seal_into(&self, nonce: &Nonce, chain: u64, batch: &mut [u8]) -> u64 {
        let (header, payload) = batch.split_at_mut(Self::LEN);
        let chain = self.chain_checksum(nonce, chain, payload);
        header[..32].copy_from_slice(&self.fields());
        header[32..40].copy_from_slice(&chain.to_be_bytes());
        let sum = checksum(nonce, &[&header[..40]]);
        header[40..].copy_from_slice(&sum.to_be_bytes());
        chain
    }

    /// Writes a note at the end of a complete segment, and syncs the file. The note says that
    /// another segment follows. With the note, recovery detects the loss of that following segment.
    pub(super) fn note_successor(
        file: &mut dyn DiskFile,
        nonce: &Nonce,
        end: u64,
        chain: u64,
    ) -> io::Result<()> {
        let header = BatchHeader { at: end, synced_to: end, len: 0, records: HAS_SUCCESSOR };
        let mut batch = [0; Self::LEN];
        header.seal_into(nonce, chain, &mut batch);
        file.set_len(end)?;
        file.write_at(&batch, end)?;
        file.sync_all()
    }

    /// Decodes the header at offset `at`. Returns the header and the `chain` checksum of the batch, or `None` if the
    /// header is not sound.
    fn decode(bytes: &[u8; Self::LEN], at: u64, nonce: &Nonce) -> Option<(Self, u64)> {
        let mut fields = HeaderFields(bytes);
        let magic: [u8; 8] = fields.take();
        let header = BatchHeader {
            at: fields.u64(),
            synced_to: fields.u64(),
            len: fields.u32(),
            records: fields.u32(),
        };
        let chain = fields.u64();
        let sound = magic == BATCH_MAGIC
            && header.at == at
            && header.synced_to <= at
            && fields.u64() == checksum(nonce, &[&bytes[..40]]);
        sound.then_some((header, chain))
    }
}

/// A reader of a file, from front to back in chunks. The file is not read as a whole, because a log
/// may be larger than the memory.
pub(super) struct Chunks<'f> {
    file: &'f dyn DiskFile,
    pub(super) size: u64,
    buffer: Vec<u8>,
    start: u64,
}

impl<'f> Chunks<'f> {
    pub(super) fn new(file: &'f dyn DiskFile) -> io::Result<Self> {
        Ok(Chunks { file, size: file.size()?, buffer: Vec::new(), start: 0 })
    }

    /// Returns the number of bytes from `at` to the end of the file.
    pub(super) fn bytes_left(&self, at: u64) -> u64 {
        self.size.saturating_sub(at)
    }

    /// Returns at least `len` bytes from `at`. Returns fewer bytes if the file ends earlier.
    pub(super) fn read_at_least(&mut self, at: u64, len: usize) -> io::Result<&[u8]> {
        let len = self.bytes_left(at).min(len as u64) as usize;
        let held = self.start + self.buffer.len() as u64;
        if at < self.start || at + len as u64 > held {
            let wanted = self.bytes_left(at).min(len.max(CHUNK) as u64) as usize;
            // The buffer is replaced, so that a large batch does not leave a large buffer behind.
            self.buffer = vec![0; wanted];
            self.file.read_at(&mut self.buffer, at)?;
            self.start = at;
        }
        Ok(&self.buffer[(at - self.start) as usize..])
    }

    /// Returns exactly `N` bytes from `at`, or `None` if the file has fewer.
    pub(super) fn read_array<const N: usize>(&mut self, at: u64) -> io::Result<Option<[u8; N]>> {
        Ok(self.read_at_least(at, N)?.first_chunk().copied())
    }
}

/// The next part of a segment.
pub(super) enum ScannedPart<'s> {
    /// A sound batch.
    Batch { at: u64, records: u32, payload: &'s [u8] },
    /// The note which says that another segment follows.
    HasSuccessor,
    /// The end of the segment. The rest of the file is empty or contains only zeros.
    Clean,
    /// Bytes that are no sound batch, and the reason.
    Unsound(&'static str),
}

/// A reader of the batches of a segment.
pub(super) struct Scanner<'f> {
    chunks: Chunks<'f>,
    nonce: Nonce,
    /// The offset of the next batch.
    pub(super) at: u64,
    /// The `chain` checksum of the last batch read.
    pub(super) chain: u64,
    /// The offset up to which the batches read so far prove that the file was synced.
    pub(super) proven: u64,
    /// Set if the last batch read is a seal: an empty batch that proves a sync. Also set if no
    /// batch was read.
    pub(super) sealed: bool,
}

impl<'f> Scanner<'f> {
    /// Creates a scanner at the first batch. The inner error describes an unsound header.
    pub(super) fn new(file: &'f dyn DiskFile) -> io::Result<Result<(SegmentHeader, Self), String>> {
        let mut chunks = Chunks::new(file)?;
        let Some(bytes) = chunks.read_array::<{ SegmentHeader::LEN }>(0)? else {
            return Ok(Err("the file ends in its header".to_owned()));
        };
        Ok(SegmentHeader::decode(&bytes).map(|header| {
            let at = SegmentHeader::LEN as u64;
            let (nonce, chain) = (header.nonce, header.initial_chain());
            (header, Scanner { chunks, nonce, at, chain, proven: at, sealed: true })
        }))
    }

    /// Reads the next part.
    pub(super) fn read_next(&mut self) -> io::Result<ScannedPart<'_>> {
        let at = self.at;
        let Some(bytes) = self.chunks.read_array::<{ BatchHeader::LEN }>(at)? else {
            return self.classify_end("the file ends in the header of a batch");
        };
        let Some((header, chain)) = BatchHeader::decode(&bytes, at, &self.nonce) else {
            return self.classify_end("there is no sound batch");
        };
        let start = at + BatchHeader::LEN as u64;
        if self.chunks.bytes_left(start) < u64::from(header.len) {
            return Ok(ScannedPart::Unsound("the file ends in a batch"));
        }
        let len = header.len as usize;
        let payload = &self.chunks.read_at_least(start, len)?[..len];
        if header.chain_checksum(&self.nonce, self.chain, payload) != chain {
            return Ok(ScannedPart::Unsound("a batch does not match its checksum"));
        }
        if header.records == HAS_SUCCESSOR {
            return Ok(ScannedPart::HasSuccessor);
        }
        self.at = start + u64::from(header.len);
        self.chain = chain;
        self.proven = self.proven.max(header.synced_to);
        self.sealed = header.records == 0 && header.synced_to == at;
        Ok(ScannedPart::Batch { at, records: header.records, payload })
    }

    fn classify_end(&mut self, otherwise: &'static str) -> io::Result<ScannedPart<'_>> {
        let mut at = self.at;
        while self.chunks.bytes_left(at) > 0 {
            let bytes = self.chunks.read_at_least(at, 1)?;
            if bytes.iter().any(|&byte| byte != 0) {
                return Ok(ScannedPart::Unsound(otherwise));
            }
            at += bytes.len() as u64;
        }
        Ok(ScannedPart::Clean)
    }

    /// Searches the rest of the file for a batch that records a synced offset beyond the batches read so far. Such a
    /// batch proves that synced bytes are lost. Returns its offset, and the synced offset that it records.
    pub(super) fn find_proof_of_loss(&mut self) -> io::Result<Option<(u64, u64)>> {
        let end = self.at;
        let mut at = end + 1;
        while self.chunks.bytes_left(at) >= BatchHeader::LEN as u64 {
            let nonce = self.nonce;
            let bytes = self.chunks.read_at_least(at, BatchHeader::LEN)?;
            for (i, window) in bytes.windows(BatchHeader::LEN).enumerate() {
                if window[0] == BATCH_MAGIC[0]
                    && let Some(bytes) = window.first_chunk()
                    && let Some((header, _)) = BatchHeader::decode(bytes, at + i as u64, &nonce)
                    && header.synced_to > end
                {
                    return Ok(Some((header.at, header.synced_to)));
                }
            }
            at += (bytes.len() - BatchHeader::LEN + 1) as u64;
        }
        Ok(None)
    }

    /// Returns the size of the file in bytes.
    pub(super) fn size(&self) -> u64 {
        self.chunks.size
    }
}
