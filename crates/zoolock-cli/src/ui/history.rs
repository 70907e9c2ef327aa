//! Who held what, as far as somebody looked: what two looks one after the other differ in.
//!
//! The service keeps no history, and so neither do we beyond our own life. It is bounded for each lock and in total.

use std::collections::{HashMap, HashSet, VecDeque};

use zoolock::{Entry, Snapshot};

use crate::status::who;

/// How many are kept for one lock.
const OF_ONE: usize = 64;
/// And for all of them; the oldest go.
const OF_ALL: usize = 50_000;
/// Of how many locks anything is known; a list of all takes those out that are gone.
const MOST_LOCKS: usize = 200_000;
/// What is counted for the rate.
const WINDOW_MS: u64 = 60_000;
/// In less time nothing can be said about it.
const SHORTEST_MS: u64 = 2_000;
/// A lock that is not there and looked at all the same, by somebody who has its page open, is kept.
const LATELY_MS: u64 = 5_000;
/// More between two looks is no count, but another directory of the same name.
const MOST_TURNS: u32 = 10_000_000;

/// The time in which somebody was seen to hold a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tenure {
    pub(super) node: String,
    pub(super) token: Option<String>,
    /// Made safe to show.
    pub(super) who: String,
    pub(super) from_ms: u64,
    /// He had it already when we looked for the first time.
    pub(super) or_before: bool,
    /// He has it still, if not.
    pub(super) until_ms: Option<u64>,
    /// How he left: as in a snapshot, or `unseen` where others were in between.
    pub(super) left: &'static str,
}

/// What is known of all locks.
#[derive(Debug, Default)]
pub(super) struct History {
    locks: HashMap<String, Past>,
    /// The locks of all ended tenures, the oldest first.
    ended: VecDeque<String>,
}

#[derive(Debug, Default)]
struct Past {
    holders: Vec<Tenure>,
    ended: VecDeque<Tenure>,
    /// When so many began to hold.
    turns: VecDeque<(u64, u32)>,
    /// The number of the last first holder's node.
    number: Option<u32>,
    first_look_ms: u64,
    /// When the newest look had its answer.
    looked_ms: u64,
}

impl History {
    /// Takes what was seen between `begun_ms` and `now_ms`.
    pub(super) fn note(&mut self, lock: &Snapshot, begun_ms: u64, now_ms: u64) {
        if self.locks.len() >= MOST_LOCKS && !self.locks.contains_key(&lock.path) {
            // Anybody may ask for the page of a lock that is not there.
            return;
        }
        let past = self.locks.entry(lock.path.clone()).or_default();
        let first = past.first_look_ms == 0;
        if first {
            past.first_look_ms = now_ms;
        } else if begun_ms < past.looked_ms {
            // A long list has come, and somebody looked at this one meanwhile.
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
            // The record is read before the list: somebody had gone meanwhile, and now it says how.
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

    /// Takes it that these are all the locks there were at `begun_ms`.
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

    /// Those of one lock, the newest first.
    pub(super) fn tenures(&self, path: &str) -> Vec<Tenure> {
        let Some(past) = self.locks.get(path) else { return Vec::new() };
        past.holders.iter().rev().chain(past.ended.iter().rev()).cloned().collect()
    }

    /// How many got the lock in a second, over the last minute at most. Nodes are numbered as they come, and so those
    /// count, too, who came and went between two looks; whoever gave up is among them.
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
                // Its line in the list of all stays, and lets go of another one of this lock in its time.
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
    /// How many have had their turn since the last look, this one included.
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

/// The same node, and not another one that was given its name later.
fn is(entry: &Entry, tenure: &Tenure) -> bool {
    entry.node == tenure.node && entry.token == tenure.token
}

/// What the service appended to the name.
fn number(node: &str) -> Option<u32> {
    let at = node.len().checked_sub(10)?;
    node.get(at..)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{entry, lock};

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
        // And not of whom nobody saw go.
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
        // A minute later nothing is left of it.
        assert_eq!(history.rate("/locks/x", 71_000), Some(0.0));
        // Another directory of the same name, whose numbers begin again.
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
