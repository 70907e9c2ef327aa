//! Measures the latency of requests, and compares the server's clock with this machine's. Creates one
//! ephemeral znode, and deletes it.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use zoolock_client::{RequestError, RequestSession};
use zoolock_wire::{Acl, Code, perms};

use super::finding::{LatencyTimes, Report, RequestLatency};
use super::servers::ServerKind;
use crate::base::duration::{format_duration, format_in_two_units};
use crate::base::server_clock;

const CHECK: &str = "latency";
/// Number of requests of each kind.
const REPEATS: usize = 10;
/// Time after which no more request of the same kind is sent, so that a slow server does not delay the other checks.
const SAMPLING: Duration = Duration::from_secs(2);
/// Maximum time for all requests of one kind. It is longer than the maximum for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Difference of the clocks above which a note is reported.
const CLOCK_NOTICED: Duration = Duration::from_secs(1);
/// Difference of the clocks above which a warning is reported. The times that zoolock shows are then wrong.
const CLOCK_WRONG: Duration = Duration::from_secs(10);
/// Minimum difference of the clocks that is shown in days.
const DAY: Duration = Duration::from_secs(86_400);

/// Measures requests to `place`, an existing znode, and to an ephemeral znode below it.
pub(super) async fn measure_latency(
    client: &RequestSession,
    place: &str,
    granted: Duration,
    kind: ServerKind,
    report: &mut Report,
) {
    let read = time_requests(async || client.exists(place).await.map(drop)).await;
    let sync = time_requests(async || client.sync(place).await).await;
    let probe = match getrandom::u64() {
        Ok(number) => format!("{}/.doctor-{number:016x}", place.trim_end_matches('/')),
        Err(_) => format!("{}/.doctor-{}", place.trim_end_matches('/'), std::process::id()),
    };
    let write = match create_and_check_clock(client, &probe, report).await {
        Ok(()) => {
            let write = time_requests(async || client.write(&probe, b"").await).await;
            // Deletes the znode now. Otherwise the server would delete it at the end of the session.
            let _ = timeout(PATIENCE, client.delete(&probe)).await;
            write
        }
        Err(Some(error)) if error.code() == Some(Code::NoAuth) => {
            report.error(
                "write",
                format!("no permission to create znodes in {place}, so no lock can be acquired there"),
                "give credentials that may create znodes there (--auth), or name another --root",
            );
            None
        }
        Err(Some(error)) if error.code() == Some(Code::QuotaExceeded) => {
            report.error(
                "write",
                format!("the quota of {place} is used up"),
                "raise it, or name another --root",
            );
            None
        }
        Err(error) => {
            let reason = error.map_or_else(|| "no reply in time".to_owned(), |error| error.to_string());
            report.error("write", format!("cannot create a znode in {place}: {reason}"), kind.name_log());
            None
        }
    };
    report_latencies([("reading", read), ("sync", sync), ("writing", write)], granted, kind, report);
    report.latency = Some(RequestLatency { read, sync, write });
}

/// Sends a request up to `REPEATS` times, for the time `SAMPLING`, and measures each reply. Stops at an error or a
/// timeout. Returns `None` if the first reply is an error.
async fn time_requests(mut request: impl AsyncFnMut() -> Result<(), RequestError>) -> Option<LatencyTimes> {
    let mut took = Vec::with_capacity(REPEATS);
    let all = async {
        let first = Instant::now();
        while took.len() < REPEATS && first.elapsed() < SAMPLING {
            let begun = Instant::now();
            if request().await.is_err() {
                return;
            }
            took.push(begun.elapsed());
        }
    };
    // After a timeout, the replies so far count, and the pending request counts as a reply after
    // `PATIENCE`.
    let in_time = timeout(PATIENCE, all).await;
    if in_time.is_err() {
        took.push(PATIENCE);
    }
    summarize_times(took)
}

fn summarize_times(mut took: Vec<Duration>) -> Option<LatencyTimes> {
    took.sort_unstable();
    let us = |time: &Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let median = took.get(took.len() / 2).map(us)?;
    Some(LatencyTimes { turns: took.len(), median_us: median, worst_us: took.last().map(us)? })
}

/// Compares the latencies with the maximum that the lease allows, an eighth of the session timeout
/// (`docs/design/limits.md`).
fn report_latencies(
    all: [(&str, Option<LatencyTimes>); 3],
    granted: Duration,
    kind: ServerKind,
    report: &mut Report,
) {
    let longest = granted / 8;
    let causes = if kind == ServerKind::Local { "disk, load" } else { "disk, network, load" };
    let mut fine = Vec::new();
    for (name, times) in all {
        let Some(times) = times else { continue };
        let (median, worst) = (Duration::from_micros(times.median_us), Duration::from_micros(times.worst_us));
        if median > longest {
            report.error(
                CHECK,
                format!(
                    "{name} takes {} (median): locks can be lost although the session lives",
                    format_latency(median)
                ),
                format!(
                    "find out what is slow ({causes}); the maximum for this session timeout is {}",
                    format_duration(longest)
                ),
            );
        } else if worst > longest {
            report.warn(
                CHECK,
                format!("{name} took up to {} (median {})", format_latency(worst), format_latency(median)),
                format!("a lock may be lost if an answer takes more than {}", format_duration(longest)),
            );
        } else {
            fine.push(format!("{name} {} ({})", format_latency(median), format_latency(worst)));
        }
    }
    if !fine.is_empty() {
        report.ok(CHECK, format!("median (worst) of up to {REPEATS}: {}", fine.join(", ")));
    }
}

/// Creates the znode, and compares its creation time with this machine's clock. The error `None` means no reply in time.
async fn create_and_check_clock(
    client: &RequestSession,
    probe: &str,
    report: &mut Report,
) -> Result<(), Option<RequestError>> {
    let before = server_clock::now_ms() as i64;
    let made = timeout(PATIENCE, client.create_ephemeral(probe, b"", &[Acl::anyone(perms::ALL)])).await;
    let after = server_clock::now_ms() as i64;
    made.map_err(|_| None::<RequestError>)?.map_err(Some)?;
    // Read with `exists`, because some releases leave the time out of the reply to the create (ZOOKEEPER-4026).
    if let Ok(Ok(Some(stat))) = timeout(PATIENCE, client.exists(probe)).await {
        // The difference is 0 if the time lies between the local times.
        check_clock(stat.ctime - stat.ctime.clamp(before, after.max(before)), report);
    }
    Ok(())
}

/// Reports the difference of the clocks. `ahead_ms`: milliseconds by which the server's clock is ahead.
fn check_clock(ahead_ms: i64, report: &mut Report) {
    report.clock_ms = Some(ahead_ms);
    let off = Duration::from_millis(ahead_ms.unsigned_abs());
    let which = if ahead_ms > 0 { "ahead of" } else { "behind" };
    let shown = if off < DAY { format_latency(off) } else { format_in_two_units(off) };
    let what = format!("the server's clock is {shown} {which} this machine's");
    let remedy =
        "synchronize both with NTP; locks do not depend on it, but times in output and logs are wrong";
    if off > CLOCK_WRONG {
        report.warn("clock", what, remedy);
    } else if off > CLOCK_NOTICED {
        report.note("clock", what, remedy);
    } else {
        report.ok("clock", "the server's clock differs from this machine's by at most a second");
    }
}

/// Formats a latency. Short latencies keep more digits.
fn format_latency(time: Duration) -> String {
    let us = time.as_micros();
    if us < 1000 {
        format!("{us} µs")
    } else if us < 100_000 {
        format!("{}.{} ms", us / 1000, us % 1000 / 100)
    } else {
        format_duration(time)
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn levels(write: &[u64]) -> Vec<Level> {
        let mut report = Report::new("h", "/locks");
        let times = summarize_times(write.iter().copied().map(Duration::from_millis).collect());
        report_latencies(
            [("reading", None), ("sync", None), ("writing", times)],
            Duration::from_secs(8),
            ServerKind::Unknown,
            &mut report,
        );
        report.findings.iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn slow_answers_are_reported() {
        assert_eq!(levels(&[1, 2, 3]), [Level::Ok]);
        assert_eq!(levels(&[1, 2, 1001]), [Level::Warning]);
        assert_eq!(levels(&[1, 1002, 1003]), [Level::Error]);
        assert!(levels(&[]).is_empty());
    }

    /// Returns the finding for a server clock that is ahead of this machine's by this many milliseconds.
    fn clock_finding(ahead_ms: i64) -> (Level, String) {
        let mut report = Report::new("h", "/locks");
        check_clock(ahead_ms, &mut report);
        let finding = report.findings.pop().expect("one finding");
        (finding.level, finding.what)
    }

    #[test]
    fn difference_of_clocks_names_days_and_direction() {
        let ahead = "the server's clock is 20783d ahead of this machine's";
        assert_eq!(clock_finding(1_795_676_961_000), (Level::Warning, ahead.to_owned()));
        let behind = "the server's clock is 2s behind this machine's";
        assert_eq!(clock_finding(-2_000), (Level::Note, behind.to_owned()));
        assert_eq!(clock_finding(0).0, Level::Ok);
    }

    #[test]
    fn short_times_keep_more_digits() {
        assert_eq!(format_latency(Duration::from_micros(250)), "250 µs");
        assert_eq!(format_latency(Duration::from_micros(2345)), "2.3 ms");
        assert_eq!(format_latency(Duration::from_millis(1500)), "1.5s");
    }
}
