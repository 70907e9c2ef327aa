//! Whether the session that is granted is one on which locks can be held.

use std::time::Duration;

use serde::Serialize;
use zoolock_core::lease::{Ensemble, Renewal};
use zoolock_core::pace::Pace;

use super::finding::Report;
use super::servers::Known;
use crate::duration::humane;

const CHECK: &str = "session";

/// What a session is good for.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Granted {
    asked_ms: u64,
    granted_ms: u64,
    /// How long a holder believes after a request that was confirmed.
    believed_ms: u64,
    /// `sync` or `write`.
    renewed_by: &'static str,
    renewed_each_ms: u64,
    /// The longest `--grace` that is accepted.
    longest_grace_ms: u64,
}

/// Compares what was granted with what was asked for, and with what the lease needs.
pub(super) fn judge(asked: Duration, granted: Duration, known: &Known, report: &mut Report) {
    // The command counts on these whatever the service has, which it cannot see as a rule.
    let assumed = Ensemble::default();
    let real = Ensemble {
        tick: known.tick.unwrap_or(assumed.tick),
        sync_limit: known.sync_limit.unwrap_or(assumed.sync_limit),
    };
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
    let shortest = assumed.shortest_timeout().max(real.shortest_timeout());
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
    let how = assumed.renewal(granted, false);
    let (span, spare) = (assumed.span(granted, how), assumed.spare(granted, how));
    let interval = Pace::interval(&assumed, granted);
    let by = if how == Renewal::Sync { "sync" } else { "write" };
    report.session = Some(Granted {
        asked_ms: ms(asked),
        granted_ms: ms(granted),
        believed_ms: ms(span),
        renewed_by: by,
        renewed_each_ms: ms(interval),
        longest_grace_ms: ms(spare),
    });
    report.ok(
        CHECK,
        format!(
            "{} granted: a lock is believed in for {} after a confirmation, and renewed by a {by} every {}; --grace \
             up to {}",
            humane(granted),
            humane(span),
            humane(interval),
            humane(spare)
        ),
    );
    judge_ticks(granted, (&assumed, &real), known, report);
}

/// Whether the lease, which counts on the default ticks, is right with those of the service.
fn judge_ticks(
    granted: Duration,
    (assumed, real): (&Ensemble, &Ensemble),
    known: &Known,
    report: &mut Report,
) {
    let Some(tick) = known.tick else {
        return report.note(
            "ticks",
            format!(
                "tickTime and syncLimit cannot be seen: {} and {} are assumed",
                humane(assumed.tick),
                assumed.sync_limit
            ),
            "have a server answer `conf`, or look into its zoo.cfg",
        );
    };
    let how = assumed.renewal(granted, false);
    let (believed, safe) = (assumed.span(granted, how), real.span(granted, how));
    if tick > assumed.tick {
        report.warn(
            "ticks",
            format!(
                "tickTime is {}: the command counts on {}, and may believe in a lock for longer than it is held",
                humane(tick),
                humane(assumed.tick)
            ),
            format!(
                "lower tickTime to {}, or use the library with Builder::tick_time",
                humane(assumed.tick)
            ),
        );
    } else if safe < believed {
        report.warn(
            "ticks",
            format!(
                "syncLimit is {} ticks of {}: a leader that was cut off answers `sync` for so long that a lock may be \
                 believed in for {}, not {}",
                real.sync_limit,
                humane(tick),
                humane(safe),
                humane(believed)
            ),
            "give `run` and `hold` --strict-renewal, or lower syncLimit",
        );
    } else {
        report.ok("ticks", format!("tickTime is {}, which the lease has room for", humane(tick)));
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

    fn ticks(tick_ms: u64, sync_limit: u32) -> Known {
        let tick = Some(Duration::from_millis(tick_ms));
        Known { tick, sync_limit: Some(sync_limit), ..Known::default() }
    }

    fn worst(found: &[(&'static str, Level, String)], check: &str) -> Option<Level> {
        found.iter().filter(|finding| finding.0 == check).map(|finding| finding.1).max()
    }

    #[test]
    fn the_defaults_are_fine() {
        let found = judged(30, 30, &ticks(2000, 5));
        assert!(found.iter().all(|finding| finding.1 == Level::Ok), "{found:?}");
        assert!(found[0].2.contains("16s") && found[0].2.contains("sync every 5s"), "{found:?}");
    }

    #[test]
    fn what_is_not_granted_is_told_and_what_no_lock_can_be_kept_on_is_an_error() {
        assert_eq!(worst(&judged(30, 40, &ticks(2000, 5)), "session"), Some(Level::Warning));
        assert_eq!(worst(&judged(30, 4, &ticks(2000, 5)), "session"), Some(Level::Error));
        assert_eq!(worst(&judged(30, 8, &ticks(3000, 5)), "session"), Some(Level::Error));
    }

    #[test]
    fn ticks_for_which_the_lease_has_no_room_are_a_warning_and_unknown_ones_a_note() {
        assert_eq!(worst(&judged(30, 30, &ticks(2000, 8)), "ticks"), Some(Level::Warning));
        assert_eq!(worst(&judged(30, 30, &ticks(3000, 5)), "ticks"), Some(Level::Warning));
        assert_eq!(worst(&judged(30, 30, &ticks(500, 5)), "ticks"), Some(Level::Ok));
        assert_eq!(worst(&judged(30, 30, &Known::default()), "ticks"), Some(Level::Note));
    }
}
