//! The judge: whether one holder knew in time.

use std::time::Duration;

use super::post::Record;
use super::{Fault, SESSION};
use crate::clock::seconds;

/// How much later than its deadline a command may be dead.
const SLACK: Duration = Duration::from_millis(200);
/// Who looks every few milliseconds believed this long before it was struck, or the round says nothing of it.
const FRESH: Duration = Duration::from_secs(1);
/// What `zoolock run` says when the lock was lost.
const LOST: i32 = 70;

/// One holder in one round. Times are those of [`now`](crate::clock::now).
pub(crate) struct Case {
    pub(crate) fault: Fault,
    pub(crate) round: usize,
    pub(crate) lock: String,
    /// It is `zoolock run` with a command.
    pub(crate) runs: bool,
    /// When it was cut off or stopped.
    pub(crate) struck: i64,
    /// When it was let go on.
    pub(crate) continued: Option<i64>,
    /// When its rival had the lock.
    pub(crate) rival: Option<i64>,
    pub(crate) exit: Option<i32>,
    pub(crate) record: Record,
}

impl Case {
    /// The last moment at which the guard was valid.
    pub(crate) fn last_belief(&self) -> Option<i64> {
        self.record.looks.iter().filter(|(_, valid)| *valid).map(|(at, _)| *at).max()
    }

    /// How long it took to hear of the loss, from when it could: somebody who is stopped cannot.
    pub(crate) fn noticed(&self) -> Option<i64> {
        let (at, _) = self.record.lost.as_ref()?;
        Some(at - self.continued.unwrap_or(self.struck))
    }

    /// From the fault to the rival's grant.
    pub(crate) fn moved_on(&self) -> Option<i64> {
        Some(self.rival? - self.struck)
    }

    /// From the last belief to the rival's grant, below zero where they overlap.
    pub(crate) fn margin(&self) -> Option<i64> {
        let end = if self.runs { self.record.dead } else { self.last_belief() };
        Some(self.rival? - end?)
    }

    /// From the fault to the end of the command.
    pub(crate) fn dead(&self) -> Option<i64> {
        Some(self.record.dead? - self.struck)
    }

    /// What must not be.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        match self.rival {
            None => found.push("the rival never had the lock".to_owned()),
            Some(rival) if rival < self.struck => {
                found.push("the rival had the lock before anything happened".to_owned())
            }
            Some(rival) if self.runs => self.judge_command(rival, &mut found),
            Some(rival) => self.judge_belief(rival, &mut found),
        }
        let who = if self.runs { "command" } else { "holder" };
        let (round, fault, lock) = (self.round, self.fault.name(), &self.lock);
        found.into_iter().map(|what| format!("round {round}, {fault}, {who} of {lock}: {what}")).collect()
    }

    fn judge_belief(&self, rival: i64, found: &mut Vec<String>) {
        let after = |at: i64| seconds(at - self.struck);
        match self.last_belief() {
            Some(at) if at > rival => found.push(format!(
                "believed {:.3} s after it was struck, and its rival had the lock at {:.3} s",
                after(at),
                after(rival)
            )),
            Some(at) if at > self.struck - nanos(FRESH) => {}
            _ => found.push("did not believe when it was struck".to_owned()),
        }
        if let Some(continued) = self.continued {
            match self.record.looks.iter().find(|(at, _)| *at >= continued) {
                Some((_, false)) => {}
                Some((_, true)) => found.push("believed at its first look after it was stopped".to_owned()),
                None => found.push("never looked after it was stopped".to_owned()),
            }
        }
        match &self.record.lost {
            None => found.push("was never told that the lock is lost".to_owned()),
            Some((at, why)) if *at > rival && self.continued.is_none() => found.push(format!(
                "was told {:.3} s after it was struck ({why}), and its rival had the lock at {:.3} s",
                after(*at),
                after(rival)
            )),
            Some(_) => {}
        }
    }

    fn judge_command(&self, rival: i64, found: &mut Vec<String>) {
        let Some(dead) = self.record.dead else {
            found.push("lives".to_owned());
            return;
        };
        let deadline = SESSION * 2 / 3 + SLACK;
        let after = |at: i64| seconds(at - self.struck);
        if dead < self.struck {
            found.push("was dead before anything happened".to_owned());
        }
        if dead - self.struck > nanos(deadline) {
            found.push(format!("was dead after {:.3} s, later than {deadline:?}", after(dead)));
        }
        if dead > rival {
            let (dead, rival) = (after(dead), after(rival));
            found.push(format!("was dead after {dead:.3} s, and its rival had the lock at {rival:.3} s"));
        }
        if self.exit != Some(LOST) {
            found.push(format!("zoolock run ended with {:?} and not with {LOST}", self.exit));
        }
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    /// Struck at 100 s, believes until 103.9 s, and its rival has the lock at 106.5 s.
    fn good(fault: Fault) -> Case {
        let looks = [(990, true), (1000, true), (1039, true), (1041, false)];
        let looks = looks.map(|(tenths, valid)| (tenths * SECOND / 10, valid)).to_vec();
        let lost = Some((104 * SECOND, "why".to_owned()));
        Case {
            fault,
            round: 1,
            lock: "l00".to_owned(),
            runs: false,
            struck: 100 * SECOND,
            continued: None,
            rival: Some(1065 * SECOND / 10),
            exit: Some(0),
            record: Record { held: Some(90 * SECOND), looks, lost, dead: None },
        }
    }

    fn command() -> Case {
        let mut case = good(Fault::Cut);
        (case.runs, case.exit) = (true, Some(LOST));
        case.record = Record { held: Some(90 * SECOND), dead: Some(104 * SECOND), ..Record::default() };
        case
    }

    #[track_caller]
    fn finds(case: &Case, what: &str) {
        let found = case.violations();
        assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
    }

    #[test]
    fn who_knows_in_time_is_no_violation() {
        assert_eq!(good(Fault::Cut).violations(), Vec::<String>::new());
        assert_eq!(good(Fault::Cut).margin(), Some(26 * SECOND / 10));
        assert_eq!(command().violations(), Vec::<String>::new());
    }

    #[test]
    fn belief_beside_the_rival_is_found() {
        let mut case = good(Fault::Isolated);
        case.record.looks.push((1066 * SECOND / 10, true));
        finds(&case, "believed 6.600 s after it was struck, and its rival had the lock at 6.500 s");
    }

    #[test]
    fn who_was_told_late_or_never_is_found() {
        let mut case = good(Fault::Cut);
        case.record.lost = Some((107 * SECOND, "why".to_owned()));
        finds(&case, "was told 7.000 s");
        case.record.lost = None;
        finds(&case, "never told");
    }

    #[test]
    fn who_was_stopped_is_to_know_at_its_first_look() {
        let mut case = good(Fault::Stopped);
        case.record.looks.truncate(2);
        (case.continued, case.record.lost) = (Some(107 * SECOND), Some((108 * SECOND, "why".to_owned())));
        finds(&case, "never looked");
        case.record.looks.push((107 * SECOND, false));
        assert_eq!(case.violations(), Vec::<String>::new());
        case.record.looks[2].1 = true;
        let found = case.violations();
        assert!(found.iter().any(|it| it.contains("first look")), "{found:?}");
    }

    #[test]
    fn a_holder_that_did_not_hold_proves_nothing() {
        let mut case = good(Fault::Cut);
        case.record.looks.retain(|(at, _)| *at > 104 * SECOND);
        finds(&case, "did not believe");
        case = good(Fault::Cut);
        case.rival = Some(99 * SECOND);
        finds(&case, "before anything happened");
        case.rival = None;
        finds(&case, "never had the lock");
    }

    #[test]
    fn a_command_that_outlives_its_time_is_found() {
        let mut case = command();
        case.record.dead = Some(1043 * SECOND / 10);
        finds(&case, "was dead after 4.300 s, later than 4.2s");
        case = command();
        case.rival = Some(1039 * SECOND / 10);
        finds(&case, "its rival had the lock at 3.900 s");
        case = command();
        case.record.dead = None;
        finds(&case, "lives");
        case = command();
        case.exit = Some(0);
        finds(&case, "and not with 70");
    }
}
