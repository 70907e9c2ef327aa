//! Builds log files with valid checksums and arbitrary contents, for fuzzing.

use bytes::{BufMut as _, BytesMut};

use super::disk::Nonce;
use super::end_record::{self, LogEnd};
use super::names::{END_RECORD, segment_name, snapshot_name};
use super::segment::{BatchHeader, SegmentHeader, checksum};
use super::snapshot;
use crate::ids::Zxid;

const NONCE: Nonce = [7; 16];

/// A batch to build.
#[derive(Debug, Clone)]
pub struct Batch<'a> {
    /// The number of transactions that the header claims.
    pub records: u32,
    /// The synced offset that the header claims. It is limited to the offset of the batch.
    pub synced_to: u64,
    /// The contents.
    pub payload: &'a [u8],
}

/// Builds a segment of the log. Returns its name and its bytes.
pub fn segment(after: Zxid, batches: &[Batch<'_>]) -> (String, Vec<u8>) {
    let header = SegmentHeader { nonce: NONCE, after, chain: 0 };
    let (mut chain, mut file) = (header.initial_chain(), BytesMut::from(&*header.encode()));
    for &Batch { records, synced_to, payload } in batches {
        let at = file.len();
        let header = BatchHeader {
            at: at as u64,
            synced_to: synced_to.min(at as u64),
            len: payload.len() as u32,
            records,
        };
        file.put_bytes(0, BatchHeader::LEN);
        file.put_slice(payload);
        chain = header.seal_into(&NONCE, chain, &mut file[at..]);
    }
    (segment_name(after), file.to_vec())
}

/// Builds a record of the end of a log that begins with a segment of [`segment`]. The record is from
/// the time before the first batch. Returns the name and the bytes.
pub fn end_record(after: Zxid) -> (String, Vec<u8>) {
    let header = SegmentHeader { nonce: NONCE, after, chain: 0 };
    let (chain, offset) = (header.initial_chain(), SegmentHeader::LEN as u64);
    let end = LogEnd { segment: after, nonce: NONCE, offset, zxid: after, chain };
    (END_RECORD.to_owned(), end_record::encode(0, &end))
}

/// Builds a snapshot from blocks, each with its kind. Returns its name and its bytes.
pub fn snapshot(zxid: Zxid, blocks: &[(u32, &[u8])]) -> (String, Vec<u8>) {
    let (mut file, mut chain) = snapshot::encode_header(&NONCE, zxid);
    for (kind, payload) in blocks {
        let mut block = [kind.to_be_bytes(), (payload.len() as u32).to_be_bytes()].concat();
        chain = checksum(&NONCE, &[&chain.to_be_bytes(), &block, payload]);
        block.extend(chain.to_be_bytes());
        file.extend(block);
        file.extend_from_slice(payload);
    }
    (snapshot_name(zxid), file)
}
