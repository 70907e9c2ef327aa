use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Buf as _, BytesMut};
use tokio::sync::Notify;

use super::connection::give_back;
use super::journal::Journal;
use crate::ids::Zxid;

/// What waits to be written to a peer, and how much of it may be by now.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: BytesMut,
    /// How many of the first bytes may be written.
    free: usize,
    /// Those that follow: so many bytes, when so much is kept.
    held: VecDeque<(usize, Zxid)>,
    /// What the journal has been asked to wake us for.
    asked: Option<Zxid>,
}

impl Outbox {
    /// Lets `take` add bytes, which may show the effect of `last_change`.
    pub(super) fn fill<T>(&mut self, last_change: Zxid, take: impl FnOnce(&mut BytesMut) -> T) -> T {
        let before = self.bytes.len();
        let result = take(&mut self.bytes);
        let added = self.bytes.len() - before;
        match self.held.back_mut() {
            _ if added == 0 => {}
            Some((bytes, zxid)) if *zxid == last_change => *bytes += added,
            _ => self.held.push_back((added, last_change)),
        }
        result
    }

    /// Frees what rests on what is kept, and asks to be woken when there is more.
    pub(super) fn release(&mut self, journal: Option<&Journal>, waker: &Arc<Notify>) {
        while let Some(&(bytes, zxid)) = self.held.front() {
            // `wake_at` says no when it was kept in this moment.
            if let Some(journal) = journal
                && !journal.has_kept(zxid)
                && (self.asked == Some(zxid) || journal.wake_at(zxid, waker))
            {
                self.asked = Some(zxid);
                return;
            }
            self.free += bytes;
            self.held.pop_front();
        }
        self.asked = None;
    }

    /// How many bytes wait, free or not.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether none wait.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether there is something to write now.
    pub(super) fn is_writable(&self) -> bool {
        self.free > 0
    }

    /// What may be written.
    pub(super) fn writable(&self) -> &[u8] {
        &self.bytes[..self.free]
    }

    /// Forgets what has been written.
    pub(super) fn advance(&mut self, written: usize) {
        self.bytes.advance(written);
        self.free -= written;
    }

    /// Keeps no more than this in mind when there is nothing.
    pub(super) fn give_back(&mut self, keep: usize) {
        give_back(&mut self.bytes, keep);
    }
}
