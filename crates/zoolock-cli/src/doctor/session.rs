//! Checks whether the granted session timeout is long enough for a lease.

use std::time::Duration;

use zoolock_core::lease;
use zoolock_core::pace::Pace;

use super::finding::{GrantedSession, Report};
use super::servers::ServerFacts;
use crate::base::duration::format_duration;

const CHECK: &str = "session";

/// The default tick of Apache ZooKeeper.
const DEFAULT_TICK: Duration = Duration::from_secs(2);

/// Compares the granted timeout with the requested one, and with the minimum that a lease needs.
pub(super) fn check_session(asked: Duration, granted: Duration, facts: &ServerFacts, report: &mut Report) {
    if granted != asked {
        let limits = match facts.limits {
            (Some(least), Some(most)) => {
                format!(" (the server grants {} to {})", format_duration(least), format_duration(most))
            }
            _ => String::new(),
        };
        report.warn(
            CHECK,
            format!("{} requested, {} granted{limits}", format_duration(asked), format_duration(granted)),
            if granted < asked {
                "raise maxSessionTimeout, which is 20 ticks by default, or request less with --session-timeout"
            } else {
                "lower minSessionTimeout, which is 2 ticks by default, or request more with --session-timeout"
            },
        );
    }
    let shortest = facts.tick.unwrap_or(DEFAULT_TICK).max(DEFAULT_TICK) * 3;
    if granted < shortest {
        report.error(
            CHECK,
            format!(
                "{} is less than three ticks ({}), so no lock can be held",
                format_duration(granted),
                format_duration(shortest)
            ),
            format!("let the server grant {} or more (maxSessionTimeout)", format_duration(shortest)),
        );
        return;
    }
    let (length, spare) = (lease::steady_length(granted, None), lease::spare_time(granted, None));
    let interval = Pace::beat(granted) * 2;
    report.session = Some(GrantedSession {
        asked_ms: ms(asked),
        granted_ms: ms(granted),
        lease_ms: ms(length),
        renewed_each_ms: ms(interval),
        longest_grace_ms: ms(spare),
    });
    report.ok(
        CHECK,
        format!(
            "{} granted: a holder may rely on its lock for {} after a renewal, and renews every {}; --grace up to {}",
            format_duration(granted),
            format_duration(length),
            format_duration(interval),
            format_duration(spare)
        ),
    );
    check_tick(facts, report);
}

/// Checks that the minimum session timeout is at least two ticks, because a lease assumes that.
fn check_tick(facts: &ServerFacts, report: &mut Report) {
    let Some(tick) = facts.tick else {
        return report.note(
            "ticks",
            "tickTime is unknown; a lease assumes that minSessionTimeout is two ticks or more",
            "allow a server to answer `conf`, or see its zoo.cfg",
        );
    };
    match facts.limits.0 {
        Some(least) if least < tick * 2 => report.warn(
            "ticks",
            format!(
                "minSessionTimeout is {}, less than two ticks of {}: a holder may rely on its lock for too long",
                format_duration(least),
                format_duration(tick)
            ),
            format!("raise minSessionTimeout to {}, or use the library with Builder::tick_time", format_duration(tick * 2)),
        ),
        _ => report.ok("ticks", format!("tickTime is {}, for which the lease is short enough", format_duration(tick))),
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn judged(asked: u64, granted: u64, facts: &ServerFacts) -> Vec<(&'static str, Level, String)> {
        let mut report = Report::new("h", "/locks");
        check_session(Duration::from_secs(asked), Duration::from_secs(granted), facts, &mut report);
        report.findings.into_iter().map(|finding| (finding.check, finding.level, finding.what)).collect()
    }

    fn ticks(tick_ms: u64, shortest_ms: u64) -> ServerFacts {
        let (tick, shortest) = (Duration::from_millis(tick_ms), Duration::from_millis(shortest_ms));
        let limits = (Some(shortest), Some(tick * 20));
        ServerFacts { tick: Some(tick), limits, ..ServerFacts::default() }
    }

    fn worst(found: &[(&'static str, Level, String)], check: &str) -> Option<Level> {
        found.iter().filter(|finding| finding.0 == check).map(|finding| finding.1).max()
    }

    #[test]
    fn default_settings_are_ok() {
        let found = judged(30, 30, &ticks(2000, 4000));
        assert!(found.iter().all(|finding| finding.1 == Level::Ok), "{found:?}");
        assert!(found[0].2.contains("15s") && found[0].2.contains("every 5s"), "{found:?}");
    }

    #[test]
    fn changed_timeout_warns_and_short_timeout_fails() {
        assert_eq!(worst(&judged(30, 40, &ticks(2000, 4000)), "session"), Some(Level::Warning));
        assert_eq!(worst(&judged(30, 4, &ticks(2000, 4000)), "session"), Some(Level::Error));
        assert_eq!(worst(&judged(30, 8, &ticks(3000, 6000)), "session"), Some(Level::Error));
    }

    #[test]
    fn short_minimum_is_a_warning_and_unknown_tick_a_note() {
        assert_eq!(worst(&judged(30, 30, &ticks(2000, 3000)), "ticks"), Some(Level::Warning));
        assert_eq!(worst(&judged(30, 30, &ticks(3000, 6000)), "ticks"), Some(Level::Ok));
        assert_eq!(worst(&judged(30, 30, &ticks(500, 1000)), "ticks"), Some(Level::Ok));
        assert_eq!(worst(&judged(30, 30, &ServerFacts::default()), "ticks"), Some(Level::Note));
    }
}
