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

/// Maximum time between two reads for which the end of a hold is the time of the second read. While no page is open, the
/// locks are not read.
const MAX_GAP_MS: u64 = 5_000;

/// A hold of a lock, as far as the reads show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PastHold {
    pub(super) node: String,
    /// Sequence number of the znode.
    number: Option<u32>,
    pub(super) token: Option<String>,
    /// Description of the holder, safe to print.
    pub(super) who: String,
    /// Time of the grant, or time of the first read that showed the hold.
    pub(super) from_ms: u64,
    /// True if the time of the grant is not known. The hold began at `from_ms` or before.
    pub(super) began_before: bool,
    /// Time of the last read that showed the hold.
    pub(super) seen_ms: u64,
    /// End of the hold; `None` while it lasts.
    pub(super) until_ms: Option<u64>,
    /// True if there was a long time without reads. The hold ended at `until_ms` or later.
    pub(super) ended_later: bool,
    /// Kind of end, as in [`Snapshot::previous`], or `gone` if nothing records it.
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
    /// The parts that the newest read could not read.
    unread: Vec<String>,
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
        let last_read_ms = std::mem::replace(&mut history.last_read_ms, now_ms);
        let has_new_unread = lock.unread.iter().any(|part| !history.unread.contains(part));
        history.unread.clone_from(&lock.unread);
        let hand_overs = history.count_hand_overs(lock.holder.as_ref());
        if hand_overs > 0 && !first {
            history.hand_overs.push_back((now_ms, hand_overs));
        }
        history.forget_old_hand_overs(now_ms);
        let now: Vec<&Entry> = lock.holders().collect();
        // A missing holder may be in a part that has become unreadable. It stays there in later reads.
        let may_be_hidden =
            |hold: &PastHold| !lock.unread.is_empty() && (has_new_unread || hold.seen_ms < last_read_ms);
        let gone =
            |hold: &PastHold| !may_be_hidden(hold) && !now.iter().any(|entry| is_holder_of(entry, hold));
        if hand_overs == 0
            && let Some(last) = history.ended.back_mut()
            && (last.ending, history.holders.iter().any(gone)) == ("gone", false)
        {
            // A read takes the release marker first, and then the queue. During the last read, the
            // holder left between these two steps. So this read is the first with the release
            // marker of that holder.
            last.ending = ending_of(last, lock);
        }
        let (ended, remaining): (Vec<_>, Vec<_>) = history.holders.drain(..).partition(gone);
        history.holders = remaining;
        for entry in now {
            match history.holders.iter_mut().find(|hold| is_holder_of(entry, hold)) {
                Some(hold) => hold.seen_ms = now_ms,
                None => history.holders.push(PastHold {
                    node: entry.node.clone(),
                    number: entry.number(),
                    token: entry.token.clone(),
                    who: describe_contender(entry),
                    from_ms: entry.held_since_ms.unwrap_or(now_ms),
                    began_before: entry.held_since_ms.is_none(),
                    seen_ms: now_ms,
                    until_ms: None,
                    ended_later: false,
                    ending: "gone",
                }),
            }
        }
        let ended =
            ended.into_iter().map(|hold| PastHold { ending: ending_of(&hold, lock), ..hold }).collect();
        self.end_holds(&lock.path, ended, now_ms);
    }

    /// Ends the holds of locks that are missing in `present`, the set of all locks at `begun_ms`. Locks below
    /// a path in `unread` cannot be listed, so their holds may go on.
    pub(super) fn end_missing(
        &mut self,
        present: &HashSet<&str>,
        unread: &HashSet<&str>,
        begun_ms: u64,
        now_ms: u64,
    ) {
        let is_hidden = |path: &str| path.match_indices('/').any(|(at, _)| unread.contains(&path[..at]));
        let is_gone = |(path, history): &(&String, &LockHistory)| {
            history.last_read_ms + KEEP_MISSING_MS < begun_ms
                && !present.contains(path.as_str())
                && !is_hidden(path.as_str())
        };
        let gone: Vec<String> = self.locks.iter().filter(is_gone).map(|(path, _)| path.clone()).collect();
        for path in gone {
            let history = self.locks.get_mut(&path).expect("the path is a key");
            history.forget_old_hand_overs(now_ms);
            let ended: Vec<_> = history.holders.drain(..).collect();
            if ended.is_empty() && history.ended.is_empty() {
                self.locks.remove(&path);
            } else {
                self.end_holds(&path, ended, now_ms);
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

    fn end_holds(&mut self, path: &str, ended: Vec<PastHold>, now_ms: u64) {
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
            let ended_later = now_ms.saturating_sub(hold.seen_ms) > MAX_GAP_MS;
            let until_ms = Some(if ended_later { hold.seen_ms } else { now_ms });
            history.ended.push_back(PastHold { until_ms, ended_later, ..hold });
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

/// Returns how a hold ended, if the lock records the ending of this hold.
fn ending_of(hold: &PastHold, lock: &Snapshot) -> &'static str {
    let is_recorded = lock.previous_number.is_some() && lock.previous_number == hold.number;
    if is_recorded { lock.previous } else { "gone" }
}

/// Returns whether a hold is of this contender. The token distinguishes a later znode of the same name.
/// Without a token it is not known that the hold has ended, so the name decides.
fn is_holder_of(entry: &Entry, hold: &PastHold) -> bool {
    let is_unread = entry.token.is_none() || hold.token.is_none();
    entry.node == hold.node && (entry.token == hold.token || is_unread)
}

impl PastHold {
    /// Returns the end of the hold as far as it is known: `now` if it lasts, or the last read that showed it
    /// if the read that began at `read_ms` did not show it.
    pub(super) fn known_until(&self, read_ms: u64, now: u64) -> u64 {
        let last_seen = if self.seen_ms < read_ms { self.seen_ms } else { now };
        self.until_ms.unwrap_or(last_seen)
    }
}

#[cfg(test)]
impl PastHold {
    /// Returns a hold that began at `from_ms`, by a holder that crashed.
    pub(super) fn crashed(who: &str, from_ms: u64, until_ms: Option<u64>) -> Self {
        Self {
            node: "lock-0000000001".to_owned(),
            number: Some(1),
            token: None,
            who: who.to_owned(),
            from_ms,
            began_before: false,
            seen_ms: from_ms,
            until_ms,
            ended_later: false,
            ending: "crashed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_snapshots::{entry, lock};

    fn held(number: u32) -> Snapshot {
        lock("/locks/x", Some(entry(&format!("lock-{number:010}"), &format!("0.{number}.0"))), vec![])
    }

    /// Returns a lock with a holder, and with the recorded ending of the hold before.
    fn after(previous: &'static str, number: u32) -> Snapshot {
        let mut lock = held(number);
        lock.previous = previous;
        lock.previous_number = (previous != "unknown").then(|| number - 1);
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
        assert_eq!((holds[0].from_ms, holds[0].until_ms, holds[0].began_before), (3_000, None, true));
        assert_eq!((holds[1].from_ms, holds[1].until_ms, holds[1].began_before), (1_000, Some(3_000), true));
        assert_eq!(holds[1].ending, "clean");
    }

    #[test]
    fn hold_begins_at_grant_if_known() {
        let mut history = HoldHistory::default();
        let mut granted = held(1);
        granted.holder.as_mut().expect("the lock is held").held_since_ms = Some(400);
        history.record(&granted, 1_000, 1_000);
        let hold = &history.holds("/locks/x")[0];
        assert_eq!((hold.from_ms, hold.began_before), (400, false));
    }

    #[test]
    fn ending_of_another_holder_is_not_shown() {
        let mut history = HoldHistory::default();
        history.record(&held(1), 1_000, 1_000);
        // Holder 2 has crashed, too, and the lock is free again. Nothing records how holder 1 ended.
        let mut free = lock("/locks/x", None, vec![]);
        (free.previous, free.previous_number) = ("crashed", Some(2));
        history.record(&free, 2_000, 2_000);
        assert_eq!(history.holds("/locks/x")[0].ending, "gone");
        history.record(&after("crashed", 5), 3_000, 3_000);
        assert_eq!(history.holds("/locks/x")[1].ending, "gone");
    }

    #[test]
    fn end_without_reads_is_later() {
        let mut history = HoldHistory::default();
        history.record(&held(1), 1_000, 1_000);
        history.record(&held(1), 2_000, 2_000);
        history.record(&after("clean", 2), 90_000, 90_000);
        let hold = &history.holds("/locks/x")[1];
        assert_eq!((hold.until_ms, hold.ended_later, hold.ending), (Some(2_000), true, "clean"));
    }

    #[test]
    fn late_marker_completes_the_ending() {
        let mut history = HoldHistory::default();
        history.record(&held(1), 1_000, 1_000);
        history.record(&after("unknown", 2), 2_000, 2_000);
        history.record(&after("broken", 2), 3_000, 3_000);
        assert_eq!(history.holds("/locks/x")[1].ending, "broken");
        // Other holders have held the lock in between, so the release marker describes none of the seen holds.
        history.record(&after("clean", 7), 4_000, 4_000);
        history.record(&after("clean", 7), 5_000, 5_000);
        assert_eq!(history.holds("/locks/x")[1].ending, "gone");
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
    fn unreadable_lock_ends_no_hold() {
        let mut history = HoldHistory::default();
        history.record(&held(1), 1_000, 1_000);
        let mut hidden = lock("/locks/x", None, vec![]);
        hidden.unread.push("/locks/x".to_owned());
        history.record(&hidden, 2_000, 2_000);
        history.record(&hidden, 3_000, 3_000);
        history.end_missing(&HashSet::new(), &HashSet::from(["/locks"]), 9_000, 9_500);
        let hold = &history.holds("/locks/x")[0];
        assert_eq!((hold.until_ms, hold.known_until(2_000, 9_500)), (None, 1_000));
        let mut unread = held(1);
        unread.holder.as_mut().expect("the lock is held").token = None;
        history.record(&unread, 10_000, 10_000);
        history.record(&after("clean", 2), 11_000, 11_000);
        let holds = history.holds("/locks/x");
        assert_eq!((holds.len(), holds[1].until_ms, holds[1].ending), (2, Some(11_000), "clean"));
        // Holder 3 was seen while that part was already unreadable, so its znode was in another part.
        for number in [3, 4] {
            let mut partly_read = held(number);
            partly_read.unread.push("leases".to_owned());
            let now_ms = 9_000 + u64::from(number) * 1_000;
            history.record(&partly_read, now_ms, now_ms);
        }
        let holds = history.holds("/locks/x").into_iter().filter(|hold| hold.until_ms.is_none());
        assert_eq!(holds.map(|hold| hold.number).collect::<Vec<_>>(), [Some(4), Some(2)]);
    }

    #[test]
    fn missing_lock_ends_its_hold() {
        let mut history = HoldHistory::default();
        history.record(&held(1), 1_000, 1_000);
        history.end_missing(&HashSet::new(), &HashSet::new(), 9_000, 9_500);
        let hold = &history.holds("/locks/x")[0];
        assert_eq!((hold.until_ms, hold.ended_later, hold.ending), (Some(1_000), true, "gone"));
        history.record(&lock("/locks/y", None, vec![]), 1_000, 1_000);
        history.end_missing(&HashSet::new(), &HashSet::new(), 2_000, 2_500);
        assert!(history.locks.contains_key("/locks/y"));
        history.end_missing(&HashSet::new(), &HashSet::new(), 9_000, 9_500);
        assert!(!history.locks.contains_key("/locks/y"));
    }
}
