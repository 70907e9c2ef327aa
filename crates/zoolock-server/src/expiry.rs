//! The expiry of sessions. Deadlines are rounded up to ticks, as in ZooKeeper. Sessions with the
//! same deadline share a bucket, and a request rarely moves its session to another bucket.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::ids::SessionId;

/// The deadlines of all sessions, in milliseconds of a monotonic clock.
#[derive(Debug)]
pub(crate) struct ExpiryQueue {
    tick_ms: u64,
    deadlines: HashMap<SessionId, u64>,
    buckets: BTreeMap<u64, BTreeSet<SessionId>>,
}

impl ExpiryQueue {
    /// Creates a queue without sessions.
    pub(crate) fn new(tick_ms: u64) -> Self {
        ExpiryQueue { tick_ms: tick_ms.max(1), deadlines: HashMap::new(), buckets: BTreeMap::new() }
    }

    /// Sets a session's deadline to `timeout_ms` from now, rounded up to the next tick.
    pub(crate) fn extend_session(&mut self, session: SessionId, timeout_ms: u32, now_ms: u64) {
        let deadline = (now_ms.saturating_add(u64::from(timeout_ms)) / self.tick_ms + 1) * self.tick_ms;
        match self.deadlines.insert(session, deadline) {
            Some(old) if old == deadline => return,
            Some(old) => self.remove_from_bucket(session, old),
            None => {}
        }
        self.buckets.entry(deadline).or_default().insert(session);
    }

    /// Removes a session.
    pub(crate) fn remove(&mut self, session: SessionId) {
        if let Some(deadline) = self.deadlines.remove(&session) {
            self.remove_from_bucket(session, deadline);
        }
    }

    /// Removes and returns a session whose deadline has passed, the one with the earliest deadline.
    pub(crate) fn pop_expired(&mut self, now_ms: u64) -> Option<SessionId> {
        let (_, bucket) = self.buckets.first_key_value().filter(|(deadline, _)| **deadline <= now_ms)?;
        let session = *bucket.first()?;
        self.remove(session);
        Some(session)
    }

    /// Returns the nearest deadline.
    pub(crate) fn next(&self) -> Option<u64> {
        self.buckets.keys().next().copied()
    }

    fn remove_from_bucket(&mut self, session: SessionId, deadline: u64) {
        if let Some(bucket) = self.buckets.get_mut(&deadline) {
            bucket.remove(&session);
            if bucket.is_empty() {
                self.buckets.remove(&deadline);
            }
        }
    }
}

/// A filter that skips an expiry round after a pause of the process.
#[derive(Debug, Default)]
pub(crate) struct ExpiryRounds {
    last_ms: u64,
    skipped_last: bool,
    read_nothing: bool,
}

impl ExpiryRounds {
    /// Records a round, and returns whether sessions may expire in it. After a pause of the
    /// process, requests that came in time may be unread. So the first round after a pause is
    /// skipped, to read these requests first. Two rounds in a row are never skipped for this reason.
    ///
    /// `reads_nothing` is set if the server reads no requests at present, because the disk is slow. This counts as a
    /// pause, too.
    pub(crate) fn begin_round(&mut self, now_ms: u64, tick_ms: u64, reads_nothing: bool) -> bool {
        let was_paused = std::mem::replace(&mut self.read_nothing, reads_nothing);
        if reads_nothing {
            self.last_ms = now_ms;
            return false;
        }
        let late = was_paused || now_ms.saturating_sub(self.last_ms) > tick_ms.saturating_mul(2);
        self.last_ms = now_ms;
        self.skipped_last = late && !self.skipped_last;
        !self.skipped_last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_is_skipped_after_pause() {
        let mut rounds = ExpiryRounds::default();
        let due: Vec<bool> = [2000, 4100, 9000, 10_000, 12_000, 30_000, 60_000, 90_000]
            .map(|now| rounds.begin_round(now, 2000, false))
            .into();
        assert_eq!(due, [true, true, false, true, true, false, true, false]);
        let mut rounds = ExpiryRounds::default();
        let due: Vec<bool> = [(2000, false), (4000, true), (6000, true), (8000, false), (10_000, false)]
            .map(|(now, reads_nothing)| rounds.begin_round(now, 2000, reads_nothing))
            .into();
        assert_eq!(due, [true, false, false, false, true]);
    }

    #[test]
    fn session_expires_within_one_tick_of_timeout() {
        let (a, b) = (SessionId::from_random(1), SessionId::from_random(2));
        let mut queue = ExpiryQueue::new(2000);
        queue.extend_session(a, 4000, 100);
        queue.extend_session(b, 4000, 100);
        assert_eq!(queue.next(), Some(6000));
        queue.extend_session(b, 4000, 2100);
        assert_eq!(queue.pop_expired(5999), None);
        assert_eq!((queue.pop_expired(6000), queue.pop_expired(6000)), (Some(a), None));
        assert_eq!(queue.next(), Some(8000));
        queue.remove(b);
        assert_eq!(queue.next(), None);
        assert_eq!(queue.pop_expired(u64::MAX), None);
    }
}
