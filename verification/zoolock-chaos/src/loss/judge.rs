//! The judge: checks that a holder learned of the loss in time.

use std::time::Duration;

use super::holder_process::HolderRecord;
use super::settings::LossFault;
use crate::clock::seconds;

/// The time after the deadline in which a command may still end.
const SLACK: Duration = Duration::from_millis(200);
/// The last time at which the guard was valid must be at most this long before the fault. A holder checks its guard
/// every few milliseconds.
const FRESH: Duration = Duration::from_secs(1);
/// The exit code of `zoolock run` after a loss.
const LOST: i32 = 70;

/// One holder in one round. Times are those of [`now`](crate::clock::now).
pub(crate) struct HolderCase {
    pub(crate) fault: LossFault,
    pub(crate) round: usize,
    pub(crate) lock: String,
    /// Set for `zoolock run` with a command.
    pub(crate) runs: bool,
    /// Set if the lock was lost while the fault was prepared.
    pub(crate) has_lost_before: bool,
    /// The time of the fault.
    pub(crate) struck: i64,
    /// The time of SIGCONT, if the holder was stopped.
    pub(crate) continued: Option<i64>,
    /// The time of the rival's grant.
    pub(crate) rival: Option<i64>,
    pub(crate) exit: Option<i32>,
    pub(crate) record: HolderRecord,
}

impl HolderCase {
    /// Returns the last time at which the guard was valid.
    pub(crate) fn last_valid(&self) -> Option<i64> {
        self.record.looks.iter().filter(|(_, valid)| *valid).map(|(at, _)| *at).max()
    }

    /// Returns the time from the fault to the notice of the loss. For a stopped process, the time counts from SIGCONT
    /// on.
    pub(crate) fn time_to_notice(&self) -> Option<i64> {
        let (at, _) = self.record.lost.as_ref()?;
        Some(at - self.continued.unwrap_or(self.struck))
    }

    /// Returns the time from the fault to the rival's grant.
    pub(crate) fn time_to_rival_grant(&self) -> Option<i64> {
        Some(self.rival? - self.struck)
    }

    /// Returns the time from the end of the hold to the rival's grant. The time is negative if both
    /// held the lock at once. The hold ends with the last check that found the guard valid, or with
    /// the end of the command.
    pub(crate) fn gap_before_rival_grant(&self) -> Option<i64> {
        let end = if self.runs { self.record.dead } else { self.last_valid() };
        Some(self.rival? - end?)
    }

    /// Returns the time from the fault to the end of the command.
    pub(crate) fn time_to_command_end(&self) -> Option<i64> {
        Some(self.record.dead? - self.struck)
    }

    /// Returns the violations of this holder.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        match self.rival {
            _ if self.has_lost_before => found.push("lost its lock while its node was restarted".to_owned()),
            None => found.push("the rival never had the lock".to_owned()),
            Some(rival) if rival < self.struck => {
                found.push("the rival had the lock before anything happened".to_owned())
            }
            Some(rival) if self.runs => self.judge_command(rival, &mut found),
            Some(rival) => self.judge_holder(rival, &mut found),
        }
        let who = if self.runs { "command" } else { "holder" };
        let (round, fault, lock) = (self.round, self.fault.name(), &self.lock);
        found.into_iter().map(|what| format!("round {round}, {fault}, {who} of {lock}: {what}")).collect()
    }

    fn judge_holder(&self, rival: i64, found: &mut Vec<String>) {
        let after = |at: i64| seconds(at - self.struck);
        match self.last_valid() {
            Some(at) if at > rival => found.push(format!(
                "its guard was valid {:.3} s after the fault, and its rival had the lock at {:.3} s",
                after(at),
                after(rival)
            )),
            Some(at) if at > self.struck - nanos(FRESH) => {}
            _ => found.push("its guard was not valid at the fault".to_owned()),
        }
        if let Some(continued) = self.continued {
            match self.record.looks.iter().find(|(at, _)| *at >= continued) {
                Some((_, false)) => {}
                Some((_, true)) => {
                    found.push("its guard was valid at the first look after SIGCONT".to_owned())
                }
                None => found.push("never looked after SIGCONT".to_owned()),
            }
        }
        match &self.record.lost {
            None => found.push("did not notice the loss".to_owned()),
            Some((at, why)) if *at > rival && self.continued.is_none() => found.push(format!(
                "noticed the loss {:.3} s after the fault ({why}), and its rival had the lock at {:.3} s",
                after(*at),
                after(rival)
            )),
            Some(_) => {}
        }
    }

    fn judge_command(&self, rival: i64, found: &mut Vec<String>) {
        let Some(dead) = self.record.dead else {
            found.push("is still running".to_owned());
            return;
        };
        // The longest lease is eleven twelfths of the session timeout.
        let deadline = self.fault.granted() * 11 / 12 + SLACK;
        let after = |at: i64| seconds(at - self.struck);
        if dead < self.struck {
            found.push("ended before anything happened".to_owned());
        }
        if dead - self.struck > nanos(deadline) {
            found.push(format!("ended after {:.3} s, later than {deadline:?}", after(dead)));
        }
        if dead > rival {
            let (dead, rival) = (after(dead), after(rival));
            found.push(format!("ended after {dead:.3} s, and its rival had the lock at {rival:.3} s"));
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

    /// Returns a case without violations: fault at 100 s, valid until 103.9 s, rival's grant at 106.5 s.
    fn good(fault: LossFault) -> HolderCase {
        let looks = [(990, true), (1000, true), (1039, true), (1041, false)];
        let looks = looks.map(|(tenths, valid)| (tenths * SECOND / 10, valid)).to_vec();
        let lost = Some((104 * SECOND, "why".to_owned()));
        HolderCase {
            fault,
            round: 1,
            lock: "l00".to_owned(),
            runs: false,
            has_lost_before: false,
            struck: 100 * SECOND,
            continued: None,
            rival: Some(1065 * SECOND / 10),
            exit: Some(0),
            record: HolderRecord { held: Some(90 * SECOND), looks, lost, dead: None },
        }
    }

    fn command() -> HolderCase {
        let mut case = good(LossFault::Cut);
        (case.runs, case.exit) = (true, Some(LOST));
        case.record =
            HolderRecord { held: Some(90 * SECOND), dead: Some(104 * SECOND), ..HolderRecord::default() };
        case
    }

    #[track_caller]
    fn finds(case: &HolderCase, what: &str) {
        let found = case.violations();
        assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
    }

    #[test]
    fn loss_before_the_fault_is_found() {
        let mut case = good(LossFault::Shortened);
        case.has_lost_before = true;
        finds(&case, "while its node was restarted");
    }

    #[test]
    fn loss_that_is_noticed_in_time_is_no_violation() {
        assert_eq!(good(LossFault::Cut).violations(), Vec::<String>::new());
        assert_eq!(good(LossFault::Cut).gap_before_rival_grant(), Some(26 * SECOND / 10));
        assert_eq!(command().violations(), Vec::<String>::new());
    }

    #[test]
    fn valid_guard_beside_the_rival_is_found() {
        let mut case = good(LossFault::Isolated);
        case.record.looks.push((1066 * SECOND / 10, true));
        finds(&case, "its guard was valid 6.600 s after the fault, and its rival had the lock at 6.500 s");
    }

    #[test]
    fn late_or_missing_notice_is_found() {
        let mut case = good(LossFault::Cut);
        case.record.lost = Some((107 * SECOND, "why".to_owned()));
        finds(&case, "noticed the loss 7.000 s");
        case.record.lost = None;
        finds(&case, "did not notice the loss");
    }

    #[test]
    fn stopped_holder_must_know_at_its_first_look() {
        let mut case = good(LossFault::Stopped);
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
    fn holder_that_did_not_hold_is_found() {
        let mut case = good(LossFault::Cut);
        case.record.looks.retain(|(at, _)| *at > 104 * SECOND);
        finds(&case, "was not valid at the fault");
        case = good(LossFault::Cut);
        case.rival = Some(99 * SECOND);
        finds(&case, "before anything happened");
        case.rival = None;
        finds(&case, "never had the lock");
    }

    #[test]
    fn command_that_outlives_its_deadline_is_found() {
        let mut case = command();
        (case.record.dead, case.rival) = (Some(1058 * SECOND / 10), Some(107 * SECOND));
        finds(&case, "ended after 5.800 s, later than 5.7s");
        case.fault = LossFault::Shortened;
        (case.record.dead, case.rival) = (Some(1021 * SECOND / 10), Some(103 * SECOND));
        finds(&case, "ended after 2.100 s, later than 2.03");
        case = command();
        case.rival = Some(1039 * SECOND / 10);
        finds(&case, "its rival had the lock at 3.900 s");
        case = command();
        case.record.dead = None;
        finds(&case, "is still running");
        case = command();
        case.exit = Some(0);
        finds(&case, "and not with 70");
    }
}
