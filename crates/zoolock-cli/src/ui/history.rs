//! The holders of each lock over time, derived from the differences between consecutive reads.
//!
//! ZooKeeper keeps no history, so this history begins and ends with this process. The number of
//! holds is bounded for each lock and in total.

use std::collections::{HashMap, HashSet, VecDeque};

use zoolock::{Entry, Snapshot};

use crate::base::rates::hand_overs_between;
use crate::render::status::describe_contender;

/// Maximum number of ended holds of one lock.
const MAX_PER_LOCK: usize = 64;
/// Maximum number of ended holds of all locks. The oldest are removed first.
const MAX_TOTAL: usize = 50_000;
/// Maximum number of locks in the history. After a read of all locks, deleted locks without ended
/// holds are removed.
const MAX_LOCKS: usize = 200_000;
/// Maximum time over which the hand-over rate is computed.
const WINDOW_MS: u64 = 60_000;
/// A lock that was observed for less than this time has no hand-over rate yet.
const MIN_OBSERVED_MS: u64 = 2_000;
/// Time for which a deleted lock is kept after its last read, because its page may be open.
const KEEP_MISSING_MS: u64 = 5_000;

/// A hold of a lock, as far as the reads show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PastHold {
    pub(super) node: String,
    pub(super) token: Option<String>,
    /// Description of the holder, safe to print.
    pub(super) who: String,
    pub(super) from_ms: u64,
    /// True if the hold began before the first read of the lock.
    pub(super) began_before: bool,
    /// End of the hold; `None` while it lasts.
    pub(super) until_ms: Option<u64>,
    /// Kind of end, as in [`Snapshot::previous`], or `unseen` if the reads do not show it.
    pub(super) ending: &'static str,
}

/// The holds of all locks.
#[derive(Debug, Default)]
pub(super) struct HoldHistory {
    locks: HashMap<String, LockHistory>,
    /// The path of the lock of each ended hold, oldest first.
    ended: VecDeque<String>,
}

#[derive(Debug, Default)]
struct LockHistory {
    holders: Vec<PastHold>,
    ended: VecDeque<PastHold>,
    /// Times at which new holders were seen, with the number of hand-overs.
    hand_overs: VecDeque<(u64, u32)>,
    /// Sequence number of the last seen holder, or of the first holder if there were several.
    number: Option<u32>,
    first_read_ms: u64,
    /// Time at which the newest read ended.
    last_read_ms: u64,
}

impl HoldHistory {
    /// Records a read of a lock. The read began at `begun_ms` and ended at `now_ms`.
    pub(super) fn record(&mut self, lock: &Snapshot, begun_ms: u64, now_ms: u64) {
        if self.locks.len() >= MAX_LOCKS && !self.locks.contains_key(&lock.path) {
            // The number of locks is bounded, because any viewer can request the pages of locks that do not exist.
            return;
        }
        let history = self.locks.entry(lock.path.clone()).or_default();
        let first = history.first_read_ms == 0;
        if first {
            history.first_read_ms = now_ms;
        } else if begun_ms < history.last_read_ms {
            // Another read of this lock has ended after this read began. That can happen while all
            // locks are read. This read is older, so it is ignored.
            return;
        }
        history.last_read_ms = now_ms;
        let hand_overs = history.count_hand_overs(lock.holder.as_ref());
        if hand_overs > 0 && !first {
            history.hand_overs.push_back((now_ms, hand_overs));
        }
        history.forget_old_hand_overs(now_ms);
        let now: Vec<&Entry> = lock.holders().collect();
        let gone = |hold: &PastHold| !now.iter().any(|entry| is_holder_of(entry, hold));
        let alone = history.holders.len() == 1 && now.len() <= 1;
        let ending = if alone && hand_overs <= 1 { lock.previous } else { "unseen" };
        if hand_overs == 0
            && let Some(last) = history.ended.back_mut()
            && (last.ending, history.holders.iter().any(gone)) == ("unknown", false)
        {
            // A read takes the release marker first, and then the queue. During the last read, the
            // holder left between these two steps. So this read is the first with the release
            // marker of that holder.
            last.ending = lock.previous;
        }
        let (ended, remaining): (Vec<_>, Vec<_>) = history.holders.drain(..).partition(gone);
        history.holders = remaining;
        for entry in now {
            if !history.holders.iter().any(|hold| is_holder_of(entry, hold)) {
                history.holders.push(PastHold {
                    node: entry.node.clone(),
                    token: entry.token.clone(),
                    who: describe_contender(entry),
                    from_ms: now_ms,
                    began_before: first,
                    until_ms: None,
                    ending: "unseen",
                });
            }
        }
        self.end_holds(&lock.path, ended, ending, now_ms);
    }

    /// Ends the holds of locks that are missing in `present`, the set of all locks at `begun_ms`.
    pub(super) fn end_missing(&mut self, present: &HashSet<&str>, begun_ms: u64, now_ms: u64) {
        let is_gone = |(path, history): &(&String, &LockHistory)| {
            history.last_read_ms + KEEP_MISSING_MS < begun_ms && !present.contains(path.as_str())
        };
        let gone: Vec<String> = self.locks.iter().filter(is_gone).map(|(path, _)| path.clone()).collect();
        for path in gone {
            let history = self.locks.get_mut(&path).expect("the path is a key");
            history.forget_old_hand_overs(now_ms);
            let ended: Vec<_> = history.holders.drain(..).collect();
            if ended.is_empty() && history.ended.is_empty() {
                self.locks.remove(&path);
            } else {
                self.end_holds(&path, ended, "unseen", now_ms);
            }
        }
    }

    /// Returns the holds of one lock, newest first.
    pub(super) fn holds(&self, path: &str) -> Vec<PastHold> {
        let Some(history) = self.locks.get(path) else { return Vec::new() };
        history.holders.iter().rev().chain(history.ended.iter().rev()).cloned().collect()
    }

    /// Returns the hand-overs per second, over the last minute at most. The count comes from
    /// sequence numbers. So contenders that joined and left the queue between two reads count, too,
    /// even if they gave up.
    pub(super) fn rate(&self, path: &str, now_ms: u64) -> Option<f64> {
        let history = self.locks.get(path)?;
        let since = history.first_read_ms.max(now_ms.saturating_sub(WINDOW_MS));
        let time = now_ms.saturating_sub(since);
        if time < MIN_OBSERVED_MS {
            return None;
        }
        let hand_overs: u64 = history
            .hand_overs
            .iter()
            .filter(|(at, _)| *at > since)
            .map(|(_, hand_overs)| u64::from(*hand_overs))
            .sum();
        Some(hand_overs as f64 * 1000.0 / time as f64)
    }

    fn end_holds(&mut self, path: &str, ended: Vec<PastHold>, ending: &'static str, now_ms: u64) {
        let Some(history) = self.locks.get_mut(path) else { return };
        for hold in ended {
            if history.ended.len() >= MAX_PER_LOCK {
                // Remove the oldest hold of this lock. `self.ended` has one entry for each ended
                // hold. The entry of the removed hold stays there, and is the entry of the new hold
                // from now on.
                history.ended.pop_front();
            } else {
                self.ended.push_back(path.to_owned());
            }
            history.ended.push_back(PastHold { until_ms: Some(now_ms), ending, ..hold });
        }
        while self.ended.len() > MAX_TOTAL {
            let Some(oldest) = self.ended.pop_front() else { break };
            if let Some(history) = self.locks.get_mut(&oldest) {
                history.ended.pop_front();
            }
        }
    }
}

impl LockHistory {
    /// Returns the number of hand-overs since the last read, and records the sequence number of `holder`.
    fn count_hand_overs(&mut self, holder: Option<&Entry>) -> u32 {
        let Some(holder) = holder else { return 0 };
        if self.holders.first().is_some_and(|hold| is_holder_of(holder, hold)) {
            return 0;
        }
        let number = holder.number();
        hand_overs_between(std::mem::replace(&mut self.number, number), number)
    }

    fn forget_old_hand_overs(&mut self, now_ms: u64) {
        let begin = now_ms.saturating_sub(WINDOW_MS);
        while self.hand_overs.front().is_some_and(|(at, _)| *at <= begin) {
            self.hand_overs.pop_front();
        }
    }
}

/// Returns whether a hold is of this contender. The token distinguishes a later znode of the same name.
fn is_holder_of(entry: &Entry, hold: &PastHold) -> bool {
    entry.node == hold.node && entry.token == hold.token
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_snapshots::{entry, lock};

    fn held(number: u32) -> Snapshot {
        lock("/locks/x", Some(entry(&format!("lock-{number:010}"), &format!("0.{number}.0"))), vec![])
    }

    fn after(previous: &'static str, number: u32) -> Snapshot {
        let mut lock = held(number);
        lock.previous = previous;
        lock
    }

    #[test]
    fn differences_of_reads_become_history() {
        let mut history = HoldHistory::default();
        history.record(&held(1), 1_000, 1_000);
        history.record(&held(1), 2_000, 2_000);
        history.record(&after("clean", 2), 3_000, 3_000);
        let holds = history.holds("/locks/x");
        assert_eq!(holds.len(), 2);
        assert_eq!((holds[0].from_ms, holds[0].until_ms, holds[0].began_before), (3_000, None, false));
        assert_eq!((holds[1].from_ms, holds[1].until_ms, holds[1].began_before), (1_000, Some(3_000), true));
        assert_eq!(holds[1].ending, "clean");
    }

    #[test]
    fn ending_is_unseen_after_other_holders() {
        let mut history = HoldHistory::default();
        history.record(&held(1), 1_000, 1_000);
        history.record(&after("crashed", 5), 2_000, 2_000);
        assert_eq!(history.holds("/locks/x")[1].ending, "unseen");
    }

    #[test]
    fn late_marker_completes_the_ending() {
        let mut history = HoldHistory::default();
        history.record(&held(1), 1_000, 1_000);
        history.record(&after("unknown", 2), 2_000, 2_000);
        history.record(&after("broken", 2), 3_000, 3_000);
        assert_eq!(history.holds("/locks/x")[1].ending, "broken");
        // Other holders have held the lock in between, so the release marker describes none of the
        // seen holds.
        history.record(&after("clean", 7), 4_000, 4_000);
        history.record(&after("clean", 7), 5_000, 5_000);
        assert_eq!(history.holds("/locks/x")[1].ending, "unseen");
    }

    #[test]
    fn hand_overs_between_reads_count() {
        let mut history = HoldHistory::default();
        history.record(&held(1), 1_000, 1_000);
        assert_eq!(history.rate("/locks/x", 1_500), None);
        history.record(&held(41), 11_000, 11_000);
        assert_eq!(history.rate("/locks/x", 11_000), Some(4.0));
        // After a minute no hand-over is in the window.
        assert_eq!(history.rate("/locks/x", 71_000), Some(0.0));
        // The lock directory was deleted and created again, so its sequence numbers begin again.
        history.record(&held(0), 71_000, 71_000);
        assert_eq!(history.rate("/locks/x", 71_000), Some(1.0 / 60.0));
    }

    #[test]
    fn older_read_is_ignored() {
        let mut history = HoldHistory::default();
        history.record(&held(1), 1_000, 1_000);
        history.record(&held(2), 2_000, 2_000);
        history.record(&held(1), 1_500, 3_000);
        assert_eq!(history.holds("/locks/x").len(), 2);
        assert_eq!(history.holds("/locks/x")[0].token.as_deref(), Some("0.2.0"));
    }

    #[test]
    fn history_per_lock_is_bounded() {
        let mut history = HoldHistory::default();
        for number in 1..200 {
            history.record(&held(number), u64::from(number), u64::from(number));
        }
        assert_eq!(history.holds("/locks/x").len(), MAX_PER_LOCK + 1);
        assert!(history.ended.len() <= MAX_PER_LOCK);
    }

    #[test]
    fn missing_lock_ends_its_hold() {
        let mut history = HoldHistory::default();
        history.record(&held(1), 1_000, 1_000);
        history.end_missing(&HashSet::new(), 9_000, 9_500);
        assert_eq!(history.holds("/locks/x")[0].until_ms, Some(9_500));
        history.record(&lock("/locks/y", None, vec![]), 1_000, 1_000);
        history.end_missing(&HashSet::new(), 2_000, 2_500);
        assert!(history.locks.contains_key("/locks/y"));
        history.end_missing(&HashSet::new(), 9_000, 9_500);
        assert!(!history.locks.contains_key("/locks/y"));
    }
}
