//! Checks whether the granted session timeout is long enough for a lease.

use std::time::Duration;

use zoolock_core::lease;
use zoolock_core::pace::Pace;

use super::finding::{GrantedSession, Report};
use super::servers::{ServerFacts, ServerKind, name_words};
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
            remedy_for_other_timeout(facts.kind(), granted < asked),
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
            if asked < shortest {
                format!("request {} or more with --session-timeout", format_duration(shortest))
            } else {
                let setting = name_longest_timeout(facts.kind());
                format!("let the server grant {} or more: raise {setting}", format_duration(shortest))
            },
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

/// Returns the remedy if the server grants another timeout than the requested one.
fn remedy_for_other_timeout(kind: ServerKind, is_shorter: bool) -> String {
    let (setting, other) = if is_shorter {
        (format!("raise {} (20 ticks by default)", name_longest_timeout(kind)), "less")
    } else {
        let setting = kind.name_setting("minSessionTimeout", "--min-session-timeout");
        (format!("lower {setting} (2 ticks by default)"), "more")
    };
    match kind {
        // This server has no such setting.
        ServerKind::Local => format!("request {other} with --session-timeout"),
        _ => format!("{setting}; or request {other} with --session-timeout"),
    }
}

/// Names the setting of the longest session timeout that the server grants.
fn name_longest_timeout(kind: ServerKind) -> String {
    kind.name_setting("maxSessionTimeout", "--max-session-timeout")
}

/// Checks that the minimum session timeout is at least two ticks, because a lease assumes that.
///
/// The assumption matters only in an ensemble: a lease allows for the time in which a server reports its sessions to
/// the leader. `zoolock serve` is always standalone.
fn check_tick(facts: &ServerFacts, report: &mut Report) {
    if matches!(facts.kind(), ServerKind::Local | ServerKind::Serve) {
        let what = match facts.tick {
            Some(tick) => {
                format!("tickTime is {}, for which the lease is short enough", format_duration(tick))
            }
            None => "the server is standalone, so the lease does not depend on its tick".to_owned(),
        };
        return report.ok("ticks", what);
    }
    let Some(tick) = facts.tick else {
        return report.note(
            "ticks",
            "tickTime is unknown; a lease assumes that minSessionTimeout is two ticks or more",
            format!("add `conf` to {}; or compare the two settings there", name_words(facts.kind())),
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
            format!(
                "raise minSessionTimeout in zoo.cfg to {}, or use the library with Builder::tick_time",
                format_duration(tick * 2)
            ),
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
    fn remedy_for_timeout_names_the_setting_of_the_server() {
        let remedy = |zoolock, is_socket| {
            let facts = ServerFacts { zoolock, is_socket, ..ServerFacts::default() };
            let mut report = Report::new("h", "/locks");
            check_session(Duration::from_secs(60), Duration::from_secs(40), &facts, &mut report);
            report.findings[0].remedy.clone().expect("a warning has a remedy")
        };
        let (apache, serve) = (remedy(Some(false), false), remedy(Some(true), false));
        assert!(
            apache.contains("maxSessionTimeout in zoo.cfg") && !apache.contains("zoolock serve"),
            "{apache}"
        );
        assert!(
            serve.contains("`zoolock serve --max-session-timeout`") && !serve.contains("zoo.cfg"),
            "{serve}"
        );
        assert_eq!(remedy(Some(true), true), "request less with --session-timeout");
    }

    #[test]
    fn timeout_below_the_minimum_is_the_clients_to_raise() {
        let mut report = Report::new("h", "/locks");
        let (asked, facts) = (Duration::from_secs(5), ServerFacts::default());
        check_session(asked, asked, &facts, &mut report);
        let remedy = report.findings[0].remedy.as_deref();
        assert_eq!(remedy, Some("request 6s or more with --session-timeout"));
    }

    #[test]
    fn short_minimum_is_a_warning_and_unknown_tick_a_note() {
        assert_eq!(worst(&judged(30, 30, &ticks(2000, 3000)), "ticks"), Some(Level::Warning));
        assert_eq!(worst(&judged(30, 30, &ticks(3000, 6000)), "ticks"), Some(Level::Ok));
        assert_eq!(worst(&judged(30, 30, &ticks(500, 1000)), "ticks"), Some(Level::Ok));
        assert_eq!(worst(&judged(30, 30, &ServerFacts::default()), "ticks"), Some(Level::Note));
    }
}
