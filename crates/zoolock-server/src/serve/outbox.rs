use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Buf as _, BytesMut};
use tokio::sync::Notify;

use super::journal::Journal;
use crate::ids::Zxid;

/// Output that waits to be written to a peer. A part at the front may be written now. The rest
/// waits for the log.
#[derive(Debug, Default)]
pub(super) struct OutputBuffer {
    bytes: BytesMut,
    /// Number of bytes at the front that may be written.
    writable_len: usize,
    /// The remaining bytes in parts: the length of each part, and the transaction that must be on
    /// disk before the part is written.
    unsynced: VecDeque<(usize, Zxid)>,
    /// The transaction for which the journal will wake this task.
    registered_zxid: Option<Zxid>,
}

impl OutputBuffer {
    /// Lets `take` append bytes, which may show the effects of transactions up to `shown`.
    pub(super) fn fill<T>(&mut self, shown: Zxid, take: impl FnOnce(&mut BytesMut) -> T) -> T {
        let before = self.bytes.len();
        let result = take(&mut self.bytes);
        let added = self.bytes.len() - before;
        match self.unsynced.back_mut() {
            _ if added == 0 => {}
            Some((bytes, zxid)) if *zxid >= shown => *bytes += added,
            _ => self.unsynced.push_back((added, shown)),
        }
        result
    }

    /// Marks bytes as writable if their transactions are on disk. Registers `waker` for the first
    /// transaction that is not on disk. After the log has failed, marks no bytes.
    pub(super) fn release_synced(&mut self, journal: Option<&Journal>, waker: &Arc<Notify>) {
        if journal.is_some_and(|journal| journal.failure().is_some()) {
            return;
        }
        while let Some(&(bytes, zxid)) = self.unsynced.front() {
            // `register_waker` returns false if the transaction is on disk by now.
            if let Some(journal) = journal
                && !journal.is_synced(zxid)
                && (self.registered_zxid == Some(zxid) || journal.register_waker(zxid, waker))
            {
                self.registered_zxid = Some(zxid);
                return;
            }
            self.writable_len += bytes;
            self.unsynced.pop_front();
        }
        self.registered_zxid = None;
    }

    /// Returns the number of bytes, writable or not.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether there are no bytes.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns whether bytes may be written now.
    pub(super) fn is_writable(&self) -> bool {
        self.writable_len > 0
    }

    /// Returns the bytes that may be written.
    pub(super) fn writable(&self) -> &[u8] {
        &self.bytes[..self.writable_len]
    }

    /// Removes written bytes.
    pub(super) fn advance(&mut self, written: usize) {
        self.bytes.advance(written);
        self.writable_len -= written;
    }

    /// Frees the buffer if it is empty and its capacity is above `keep`.
    pub(super) fn shrink_if_empty(&mut self, keep: usize) {
        shrink_if_empty(&mut self.bytes, keep);
    }
}

/// Frees an empty buffer whose capacity is above `keep`. Otherwise a connection would keep the memory of one large
/// request until its end.
pub(super) fn shrink_if_empty(buffer: &mut BytesMut, keep: usize) {
    // `capacity` excludes the space of consumed bytes. `try_reclaim` includes it.
    if buffer.is_empty() && buffer.try_reclaim(keep + 1) {
        *buffer = BytesMut::new();
    }
}
