//! Compares the granted session with what locks need.

use std::time::Duration;

use serde::Serialize;
use zoolock_core::lease;
use zoolock_core::pace::Pace;

use super::finding::Report;
use super::servers::Known;
use crate::base::duration::humane;

const CHECK: &str = "session";

/// The default tick of Apache ZooKeeper.
const USUAL_TICK: Duration = Duration::from_secs(2);

/// The session that the server grants, and its lease.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Granted {
    asked_ms: u64,
    granted_ms: u64,
    /// The time for which a holder may rely on its lock after a renewal, before it has learned the tick.
    lease_ms: u64,
    renewed_each_ms: u64,
    /// The longest `--grace` that is accepted.
    longest_grace_ms: u64,
}

/// Compares the granted timeout with the requested one, and with what the lease needs.
pub(super) fn judge(asked: Duration, granted: Duration, known: &Known, report: &mut Report) {
    if granted != asked {
        let limits = match known.limits {
            (Some(least), Some(most)) => {
                format!(" (it grants {} to {})", humane(least), humane(most))
            }
            _ => String::new(),
        };
        report.warn(
            CHECK,
            format!("{} were asked for, {} are granted{limits}", humane(asked), humane(granted)),
            if granted < asked {
                "raise maxSessionTimeout, which is 20 ticks by default, or ask for less with --session-timeout"
            } else {
                "lower minSessionTimeout, which is 2 ticks by default, or ask for more with --session-timeout"
            },
        );
    }
    let shortest = known.tick.unwrap_or(USUAL_TICK).max(USUAL_TICK) * 3;
    if granted < shortest {
        report.error(
            CHECK,
            format!(
                "{} are less than three ticks ({}): no lock can be kept on it",
                humane(granted),
                humane(shortest)
            ),
            format!("let the service grant {} or more (maxSessionTimeout)", humane(shortest)),
        );
        return;
    }
    let (length, spare) = (lease::steady_length(granted, None), lease::spare(granted, None));
    let interval = Pace::beat(granted) * 2;
    report.session = Some(Granted {
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
            humane(granted),
            humane(length),
            humane(interval),
            humane(spare)
        ),
    );
    judge_tick(known, report);
}

/// Checks that a client can derive the tick from the shortest session timeout.
fn judge_tick(known: &Known, report: &mut Report) {
    let Some(tick) = known.tick else {
        return report.note(
            "ticks",
            "tickTime cannot be seen: minSessionTimeout is taken to be two ticks or more",
            "have a server answer `conf`, or look into its zoo.cfg",
        );
    };
    match known.limits.0 {
        Some(least) if least < tick * 2 => report.warn(
            "ticks",
            format!(
                "minSessionTimeout is {}, less than two ticks of {}: a holder may rely on its lock for too long",
                humane(least),
                humane(tick)
            ),
            format!("raise minSessionTimeout to {}, or use the library with Builder::tick_time", humane(tick * 2)),
        ),
        _ => report.ok("ticks", format!("tickTime is {}, which the lease has room for", humane(tick))),
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn judged(asked: u64, granted: u64, known: &Known) -> Vec<(&'static str, Level, String)> {
        let mut report = Report::new("h", "/locks");
        judge(Duration::from_secs(asked), Duration::from_secs(granted), known, &mut report);
        report.findings.into_iter().map(|finding| (finding.check, finding.level, finding.what)).collect()
    }

    fn ticks(tick_ms: u64, shortest_ms: u64) -> Known {
        let (tick, shortest) = (Duration::from_millis(tick_ms), Duration::from_millis(shortest_ms));
        let limits = (Some(shortest), Some(tick * 20));
        Known { tick: Some(tick), limits, ..Known::default() }
    }

    fn worst(found: &[(&'static str, Level, String)], check: &str) -> Option<Level> {
        found.iter().filter(|finding| finding.0 == check).map(|finding| finding.1).max()
    }

    #[test]
    fn defaults_are_fine() {
        let found = judged(30, 30, &ticks(2000, 4000));
        assert!(found.iter().all(|finding| finding.1 == Level::Ok), "{found:?}");
        assert!(found[0].2.contains("15s") && found[0].2.contains("every 5s"), "{found:?}");
    }

    #[test]
    fn other_timeout_is_a_warning_and_too_short_one_an_error() {
        assert_eq!(worst(&judged(30, 40, &ticks(2000, 4000)), "session"), Some(Level::Warning));
        assert_eq!(worst(&judged(30, 4, &ticks(2000, 4000)), "session"), Some(Level::Error));
        assert_eq!(worst(&judged(30, 8, &ticks(3000, 6000)), "session"), Some(Level::Error));
    }

    #[test]
    fn short_minimum_is_a_warning_and_unknown_tick_a_note() {
        assert_eq!(worst(&judged(30, 30, &ticks(2000, 3000)), "ticks"), Some(Level::Warning));
        assert_eq!(worst(&judged(30, 30, &ticks(3000, 6000)), "ticks"), Some(Level::Ok));
        assert_eq!(worst(&judged(30, 30, &ticks(500, 1000)), "ticks"), Some(Level::Ok));
        assert_eq!(worst(&judged(30, 30, &Known::default()), "ticks"), Some(Level::Note));
    }
}
