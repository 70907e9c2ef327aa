//! The holders of each lock over time, derived from the differences between consecutive reads.
//!
//! ZooKeeper keeps no history, so this history begins and ends with this process. It is bounded for each lock and in total.

use std::collections::{HashMap, HashSet, VecDeque};

use zoolock::{Entry, Snapshot};

use crate::render::status::who;

/// Maximum number of ended holds of one lock.
const OF_ONE: usize = 64;
/// Maximum number of ended holds of all locks. The oldest are removed first.
const OF_ALL: usize = 50_000;
/// Maximum number of locks in the history. A read of all locks removes deleted locks without ended holds.
const MOST_LOCKS: usize = 200_000;
/// Time over which the rate is computed.
const WINDOW_MS: u64 = 60_000;
/// Minimum time for which a lock must be observed to have a rate.
const SHORTEST_MS: u64 = 2_000;
/// Time after its last read for which a missing lock is kept: its page may be open.
const LATELY_MS: u64 = 5_000;
/// Difference of sequence numbers that is no count: the directory was deleted and created again.
const MOST_TURNS: u32 = 10_000_000;

/// A hold of a lock, as far as reads show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tenure {
    pub(super) node: String,
    pub(super) token: Option<String>,
    /// Description of the holder, safe to print.
    pub(super) who: String,
    pub(super) from_ms: u64,
    /// True if the hold began before the first read of the lock.
    pub(super) or_before: bool,
    /// End of the hold; `None` while it lasts.
    pub(super) until_ms: Option<u64>,
    /// Kind of end, as in [`Snapshot::previous`], or `unseen` if the reads do not show it.
    pub(super) left: &'static str,
}

/// The holds of all locks.
#[derive(Debug, Default)]
pub(super) struct History {
    locks: HashMap<String, Past>,
    /// The lock of each ended hold, oldest first.
    ended: VecDeque<String>,
}

#[derive(Debug, Default)]
struct Past {
    holders: Vec<Tenure>,
    ended: VecDeque<Tenure>,
    /// Times at which new holders were seen, with the number of hand-overs.
    turns: VecDeque<(u64, u32)>,
    /// Sequence number of the last first holder.
    number: Option<u32>,
    first_look_ms: u64,
    /// End of the newest read.
    looked_ms: u64,
}

impl History {
    /// Records a read of a lock, from `begun_ms` to `now_ms`.
    pub(super) fn note(&mut self, lock: &Snapshot, begun_ms: u64, now_ms: u64) {
        if self.locks.len() >= MOST_LOCKS && !self.locks.contains_key(&lock.path) {
            // Any viewer can request the pages of locks that do not exist.
            return;
        }
        let past = self.locks.entry(lock.path.clone()).or_default();
        let first = past.first_look_ms == 0;
        if first {
            past.first_look_ms = now_ms;
        } else if begun_ms < past.looked_ms {
            // Another read of this lock has ended since this one began, as can happen while all locks are read.
            return;
        }
        past.looked_ms = now_ms;
        let turns = past.turns_until(lock.holder.as_ref());
        if turns > 0 && !first {
            past.turns.push_back((now_ms, turns));
        }
        past.forget_turns(now_ms);
        let now: Vec<&Entry> = lock.holder.iter().chain(&lock.beside).collect();
        let gone = |tenure: &Tenure| !now.iter().any(|entry| is(entry, tenure));
        let alone = past.holders.len() == 1 && now.len() <= 1;
        let left = if alone && turns <= 1 { lock.previous } else { "unseen" };
        if turns == 0
            && let Some(last) = past.ended.back_mut()
            && (last.left, past.holders.iter().any(gone)) == ("unknown", false)
        {
            // The release marker is read before the queue. The holder left in between, and now the marker tells how.
            last.left = lock.previous;
        }
        let (went, stay): (Vec<_>, Vec<_>) = past.holders.drain(..).partition(gone);
        past.holders = stay;
        for entry in now {
            if !past.holders.iter().any(|tenure| is(entry, tenure)) {
                past.holders.push(Tenure {
                    node: entry.node.clone(),
                    token: entry.token.clone(),
                    who: who(entry),
                    from_ms: now_ms,
                    or_before: first,
                    until_ms: None,
                    left: "unseen",
                });
            }
        }
        self.end(&lock.path, went, left, now_ms);
    }

    /// Ends the holds of locks that are not in `present`, the set of all locks at `begun_ms`.
    pub(super) fn only(&mut self, present: &HashSet<&str>, begun_ms: u64, now_ms: u64) {
        let is_gone = |(path, past): &(&String, &Past)| {
            past.looked_ms + LATELY_MS < begun_ms && !present.contains(path.as_str())
        };
        let gone: Vec<String> = self.locks.iter().filter(is_gone).map(|(path, _)| path.clone()).collect();
        for path in gone {
            let past = self.locks.get_mut(&path).expect("it was there just now");
            past.forget_turns(now_ms);
            let went: Vec<_> = past.holders.drain(..).collect();
            if went.is_empty() && past.ended.is_empty() {
                self.locks.remove(&path);
            } else {
                self.end(&path, went, "unseen", now_ms);
            }
        }
    }

    /// Returns the holds of one lock, newest first.
    pub(super) fn tenures(&self, path: &str) -> Vec<Tenure> {
        let Some(past) = self.locks.get(path) else { return Vec::new() };
        past.holders.iter().rev().chain(past.ended.iter().rev()).cloned().collect()
    }

    /// Returns the hand-overs per second, over the last minute at most. They are counted by sequence numbers. This includes
    /// contenders that came and went between two reads, even if they gave up.
    pub(super) fn rate(&self, path: &str, now_ms: u64) -> Option<f64> {
        let past = self.locks.get(path)?;
        let since = past.first_look_ms.max(now_ms.saturating_sub(WINDOW_MS));
        let time = now_ms.saturating_sub(since);
        if time < SHORTEST_MS {
            return None;
        }
        let turns: u64 =
            past.turns.iter().filter(|(at, _)| *at > since).map(|(_, turns)| u64::from(*turns)).sum();
        Some(turns as f64 * 1000.0 / time as f64)
    }

    fn end(&mut self, path: &str, went: Vec<Tenure>, left: &'static str, now_ms: u64) {
        let Some(past) = self.locks.get_mut(path) else { return };
        for tenure in went {
            if past.ended.len() >= OF_ONE {
                // The entry in `self.ended` stays. Later it removes another hold of this lock.
                past.ended.pop_front();
            } else {
                self.ended.push_back(path.to_owned());
            }
            past.ended.push_back(Tenure { until_ms: Some(now_ms), left, ..tenure });
        }
        while self.ended.len() > OF_ALL {
            let Some(oldest) = self.ended.pop_front() else { break };
            if let Some(past) = self.locks.get_mut(&oldest) {
                past.ended.pop_front();
            }
        }
    }
}

impl Past {
    /// Returns the number of hand-overs since the last read, and records the sequence number of `holder`.
    fn turns_until(&mut self, holder: Option<&Entry>) -> u32 {
        let Some(holder) = holder else { return 0 };
        if self.holders.first().is_some_and(|tenure| is(holder, tenure)) {
            return 0;
        }
        let number = number(&holder.node);
        let before = std::mem::replace(&mut self.number, number);
        match (before, number) {
            (Some(before), Some(now)) if now > before && now - before < MOST_TURNS => now - before,
            _ => 1,
        }
    }

    fn forget_turns(&mut self, now_ms: u64) {
        let begin = now_ms.saturating_sub(WINDOW_MS);
        while self.turns.front().is_some_and(|(at, _)| *at <= begin) {
            self.turns.pop_front();
        }
    }
}

/// Returns whether a hold is of this contender. The token distinguishes a later znode of the same name.
fn is(entry: &Entry, tenure: &Tenure) -> bool {
    entry.node == tenure.node && entry.token == tenure.token
}

/// Returns the sequence number at the end of a znode's name.
fn number(node: &str) -> Option<u32> {
    let at = node.len().checked_sub(10)?;
    node.get(at..)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::sample::{entry, lock};

    fn held(number: u32) -> Snapshot {
        lock("/locks/x", Some(entry(&format!("lock-{number:010}"), &format!("0.{number}.0"))), vec![])
    }

    fn after(previous: &'static str, number: u32) -> Snapshot {
        let mut lock = held(number);
        lock.previous = previous;
        lock
    }

    #[test]
    fn what_two_looks_differ_in_is_history() {
        let mut history = History::default();
        history.note(&held(1), 1_000, 1_000);
        history.note(&held(1), 2_000, 2_000);
        history.note(&after("clean", 2), 3_000, 3_000);
        let tenures = history.tenures("/locks/x");
        assert_eq!(tenures.len(), 2);
        assert_eq!((tenures[0].from_ms, tenures[0].until_ms, tenures[0].or_before), (3_000, None, false));
        assert_eq!(
            (tenures[1].from_ms, tenures[1].until_ms, tenures[1].or_before),
            (1_000, Some(3_000), true)
        );
        assert_eq!(tenures[1].left, "clean");
    }

    #[test]
    fn how_somebody_left_is_not_said_where_others_came_in_between() {
        let mut history = History::default();
        history.note(&held(1), 1_000, 1_000);
        history.note(&after("crashed", 5), 2_000, 2_000);
        assert_eq!(history.tenures("/locks/x")[1].left, "unseen");
    }

    #[test]
    fn what_the_record_says_a_moment_later_counts() {
        let mut history = History::default();
        history.note(&held(1), 1_000, 1_000);
        history.note(&after("unknown", 2), 2_000, 2_000);
        history.note(&after("broken", 2), 3_000, 3_000);
        assert_eq!(history.tenures("/locks/x")[1].left, "broken");
        // Other holders came in between, so the marker describes none of the seen holds.
        history.note(&after("clean", 7), 4_000, 4_000);
        history.note(&after("clean", 7), 5_000, 5_000);
        assert_eq!(history.tenures("/locks/x")[1].left, "unseen");
    }

    #[test]
    fn turns_between_two_looks_count() {
        let mut history = History::default();
        history.note(&held(1), 1_000, 1_000);
        assert_eq!(history.rate("/locks/x", 1_500), None);
        history.note(&held(41), 11_000, 11_000);
        assert_eq!(history.rate("/locks/x", 11_000), Some(4.0));
        // After a minute no hand-over is in the window.
        assert_eq!(history.rate("/locks/x", 71_000), Some(0.0));
        // A new directory of the same name, whose numbers begin again.
        history.note(&held(0), 71_000, 71_000);
        assert_eq!(history.rate("/locks/x", 71_000), Some(1.0 / 60.0));
    }

    #[test]
    fn a_long_list_does_not_take_back_what_was_seen_meanwhile() {
        let mut history = History::default();
        history.note(&held(1), 1_000, 1_000);
        history.note(&held(2), 2_000, 2_000);
        history.note(&held(1), 1_500, 3_000);
        assert_eq!(history.tenures("/locks/x").len(), 2);
        assert_eq!(history.tenures("/locks/x")[0].token.as_deref(), Some("0.2.0"));
    }

    #[test]
    fn it_is_bounded() {
        let mut history = History::default();
        for number in 1..200 {
            history.note(&held(number), u64::from(number), u64::from(number));
        }
        assert_eq!(history.tenures("/locks/x").len(), OF_ONE + 1);
        assert!(history.ended.len() <= OF_ONE);
    }

    #[test]
    fn a_lock_that_is_gone_is_held_by_nobody() {
        let mut history = History::default();
        history.note(&held(1), 1_000, 1_000);
        history.only(&HashSet::new(), 9_000, 9_500);
        assert_eq!(history.tenures("/locks/x")[0].until_ms, Some(9_500));
        history.note(&lock("/locks/y", None, vec![]), 1_000, 1_000);
        history.only(&HashSet::new(), 2_000, 2_500);
        assert!(history.locks.contains_key("/locks/y"));
        history.only(&HashSet::new(), 9_000, 9_500);
        assert!(!history.locks.contains_key("/locks/y"));
    }
}
