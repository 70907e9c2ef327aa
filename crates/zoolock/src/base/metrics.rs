//! Metrics of the library, through the facade of the crate [`metrics`](https://docs.rs/metrics).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};

use metrics::{Key, Label, Level, Metadata, SharedString, Unit, with_recorder};
use zoolock_core::acquisition::{Loss, Reason, RequestFailure, SessionEnd};
use zoolock_core::{Instant, Kind};

use crate::base::clock;
use crate::base::error::Error;
use crate::base::sync::lock;
use crate::base::telemetry;
use Instrument::{Counter, Gauge, Histogram};

/// Histogram: time from the call to the grant or the failure. Labels `kind`, `outcome`.
pub(crate) const ACQUIRE_SECONDS: &str = "zoolock_acquire_seconds";
/// Histogram: time from the grant to the release or the loss. Label `kind`.
pub(crate) const HOLD_SECONDS: &str = "zoolock_hold_seconds";
/// Histogram, for waiters: time from the last watch event before the grant, until the grant. Label
/// `kind`.
pub(crate) const HANDOVER_SECONDS: &str = "zoolock_handover_seconds";
/// Histogram: number of other contenders in the queue when an acquisition queued. Label `kind`.
pub(crate) const QUEUE_AHEAD: &str = "zoolock_queue_ahead";
/// Gauge: number of locks held now. Label `kind`.
pub(crate) const HOLDING: &str = "zoolock_holding";
/// Gauge: number of acquisitions that wait for a lock now. Label `kind`.
pub(crate) const WAITING: &str = "zoolock_waiting";
/// Counter: locks that were lost while they were held. Labels `kind`, `reason`.
pub(crate) const LOSSES: &str = "zoolock_losses_total";
/// Counter: holders that were asked to release their lock. Label `kind`.
pub(crate) const REVOCATIONS: &str = "zoolock_revocations_total";
/// Counter: deletes of this client's znodes that were refused or had no answer, and are retried.
pub(crate) const CLEANUPS_RETRIED: &str = "zoolock_cleanups_retried_total";
/// Counter: sessions that were opened.
pub(crate) const SESSIONS_OPENED: &str = "zoolock_sessions_opened_total";
/// Counter: sessions that ended. Label `reason`.
pub(crate) const SESSIONS_ENDED: &str = "zoolock_sessions_ended_total";
/// Gauge: sessions that are open now.
pub(crate) const SESSIONS_ALIVE: &str = "zoolock_sessions_alive";
/// Counter: reconnects of a session.
pub(crate) const RECONNECTS: &str = "zoolock_reconnects_total";
/// Counter: renewals of a lease that were answered. Label `outcome`.
pub(crate) const RENEWALS: &str = "zoolock_renewals_total";
/// Gauge: terms of [`Election::run`](crate::Election::run) whose work has not ended yet.
pub(crate) const LEADER: &str = "zoolock_leader";
/// Counter: terms of [`Election::run`](crate::Election::run) that ended. Label `end`.
pub(crate) const TERMS: &str = "zoolock_terms_total";

/// The values of the label `kind`: the names of all kinds of locks, and one for several mutexes.
static KINDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let mut kinds = Kind::EACH.map(Kind::name).to_vec();
    kinds.insert(1, SEVERAL_MUTEXES);
    kinds
});
/// The value of `kind` for an acquisition of several mutexes.
pub(crate) const SEVERAL_MUTEXES: &str = "multi";
/// The values of `outcome` of an acquisition, in the order of [`AcquireOutcome`].
const OUTCOMES: [&str; 7] = ["acquired", "busy", "timeout", "cancelled", "lost", "refused", "unavailable"];
/// The values of `reason` of a loss.
const LOSS_REASONS: [&str; 4] = ["expired", "broken", "unreachable", "closed"];
/// The values of `reason` of a session's end.
const END_REASONS: [&str; 3] = ["expired", "closed", "denied"];
/// The values of `outcome` of a renewal.
const RENEWED: [&str; 2] = ["confirmed", "failed"];
/// The values of `end` of a term, in the order of [`TermOutcome`].
const TERM_ENDS: [&str; 5] = ["returned", "resigned", "asked", "lost", "dropped"];

/// Describes each metric to the recorder of the crate [`metrics`](https://docs.rs/metrics). `docs/METRICS.md` lists them with
/// their labels. [`connect`](crate::Zoolock::connect) calls this function. Call it again if you install a recorder later.
///
/// Install the recorder before [`connect`](crate::Zoolock::connect). A later recorder does not count earlier events,
/// and a gauge that missed increments falls below zero. The recorder is called on a thread of its own, some milliseconds
/// later, so it may block. With or without a recorder, each metric costs less than a microsecond.
///
/// There is no label with the name of a lock, because the number of names, and so of series, has no limit. A program
/// with few locks can add this label ([`Builder::metrics_by_lock`](crate::Builder::metrics_by_lock)). The metrics of
/// `zoolock ui` name the locks with many waiters. The spans (`lock`, `release`) and events of the crate `tracing`, at
/// the level debug, have the path of the lock.
///
/// A [shared hold](crate::SharedHold) counts as one acquisition, because passing the lock from task to task sends nothing
/// to the server.
pub fn describe() {
    with_recorder(|recorder| {
        let histograms = [
            (ACQUIRE_SECONDS, Unit::Seconds, "time from the call to the grant or the failure"),
            (HOLD_SECONDS, Unit::Seconds, "time from the grant to the release or the loss"),
            (
                HANDOVER_SECONDS,
                Unit::Seconds,
                "time from the watch event that announced a possible grant to the grant",
            ),
            (QUEUE_AHEAD, Unit::Count, "other contenders in the queue when this one queued"),
        ];
        for (name, unit, text) in histograms {
            recorder.describe_histogram(name.into(), Some(unit), text.into());
        }
        let gauges = [
            (HOLDING, "locks that are held now"),
            (WAITING, "acquisitions that wait for a lock now"),
            (SESSIONS_ALIVE, "sessions that are open now"),
            (LEADER, "terms of elections whose work has not ended yet"),
        ];
        for (name, text) in gauges {
            recorder.describe_gauge(name.into(), Some(Unit::Count), text.into());
        }
        let counters = [
            (LOSSES, "locks that were lost while they were held"),
            (REVOCATIONS, "holders that were asked to release their lock"),
            (CLEANUPS_RETRIED, "deletes of this client's znodes that are retried"),
            (SESSIONS_OPENED, "sessions that were opened"),
            (SESSIONS_ENDED, "sessions that ended"),
            (RECONNECTS, "reconnects of a session"),
            (RENEWALS, "renewals of a lease that were answered"),
            (TERMS, "terms of elections that ended"),
        ];
        for (name, text) in counters {
            recorder.describe_counter(name.into(), Some(Unit::Count), text.into());
        }
    });
    // Records what is pending here, because in a forked process the thread that does it is missing.
    record_pending();
}

/// One metric with the keys of all its series. The keys are created once, because each key allocates.
struct Series {
    instrument: Instrument,
    keys: LazyLock<Vec<Key>>,
}

#[derive(PartialEq)]
enum Instrument {
    Counter,
    Gauge,
    Histogram,
}

static METADATA: Metadata<'static> = Metadata::new("zoolock", Level::INFO, Some(module_path!()));

/// The path of the lock, if metrics are labelled by lock.
type LockLabel = Option<Arc<str>>;

/// Changes of counters and gauges, by the address of the metric, the index of the series and the lock.
type Changes = BTreeMap<(usize, usize, LockLabel), (&'static Series, f64)>;

/// The changes that the recorder has not got yet. They are added up, so that none is dropped: a gauge that misses a change
/// stays wrong. If there are changes, the thread of `base/telemetry.rs` will pass them on.
static PENDING: Mutex<Changes> = Mutex::new(BTreeMap::new());

/// Passes the pending changes to the recorder.
fn record_pending() {
    let changes = std::mem::take(&mut *lock(&PENDING));
    for ((_, at, of), (series, change)) in changes {
        telemetry::call(|| series.record_now(at, &of, change));
    }
}

impl Series {
    const fn new(instrument: Instrument, keys: fn() -> Vec<Key>) -> Series {
        Series { instrument, keys: LazyLock::new(keys) }
    }

    /// Changes a counter or a gauge, or adds a value to a histogram. Does not call the recorder, which may block.
    fn record(&'static self, at: usize, of: &LockLabel, value: f64) {
        let of = of.clone();
        if self.instrument == Histogram {
            return telemetry::queue_or_drop(move || self.record_now(at, &of, value));
        }
        let pending = &mut *lock(&PENDING);
        if pending.is_empty() {
            telemetry::queue(record_pending);
        }
        pending.entry((std::ptr::from_ref(self).addr(), at, of)).or_insert((self, 0.0)).1 += value;
    }

    fn record_now(&self, at: usize, of: &LockLabel, value: f64) {
        let key = self.key(at, of);
        with_recorder(|recorder| match self.instrument {
            Counter => recorder.register_counter(&key, &METADATA).increment(value as u64),
            Gauge => recorder.register_gauge(&key, &METADATA).increment(value),
            Histogram => recorder.register_histogram(&key, &METADATA).record(value),
        });
    }

    fn key(&self, at: usize, of: &LockLabel) -> Cow<'_, Key> {
        match of {
            None => Cow::Borrowed(&self.keys[at]),
            Some(lock) => {
                let label = Label::new(LOCK, SharedString::from_shared(Arc::clone(lock)));
                Cow::Owned(self.keys[at].with_extra_labels(vec![label]))
            }
        }
    }
}

/// The label that is added to all series with `kind`, if metrics are labelled by lock.
const LOCK: &str = "lock";

/// Returns the keys of one metric: one for each value of a label.
fn keys_by_label(name: &'static str, label: &'static str, values: &[&'static str]) -> Vec<Key> {
    let key = |value: &&'static str| Key::from_parts(name, vec![Label::from_static_parts(label, value)]);
    values.iter().map(key).collect()
}

/// Returns the keys of one metric: one for each pair of label values, grouped by the first label.
fn keys_by_two_labels(
    name: &'static str,
    (first, of_first): (&'static str, &[&'static str]),
    (second, of_second): (&'static str, &[&'static str]),
) -> Vec<Key> {
    let label = Label::from_static_parts;
    let pairs = of_first.iter().flat_map(|one| of_second.iter().map(move |other| (*one, *other)));
    pairs.map(|(one, other)| Key::from_parts(name, vec![label(first, one), label(second, other)])).collect()
}

static ACQUIRE: Series =
    Series::new(Histogram, || keys_by_two_labels(ACQUIRE_SECONDS, ("kind", &KINDS), ("outcome", &OUTCOMES)));
static HOLD: Series = Series::new(Histogram, || keys_by_label(HOLD_SECONDS, "kind", &KINDS));
static HANDOVER: Series = Series::new(Histogram, || keys_by_label(HANDOVER_SECONDS, "kind", &KINDS));
static AHEAD: Series = Series::new(Histogram, || keys_by_label(QUEUE_AHEAD, "kind", &KINDS));
static HELD: Series = Series::new(Gauge, || keys_by_label(HOLDING, "kind", &KINDS));
static WAIT: Series = Series::new(Gauge, || keys_by_label(WAITING, "kind", &KINDS));
static LOST: Series =
    Series::new(Counter, || keys_by_two_labels(LOSSES, ("kind", &KINDS), ("reason", &LOSS_REASONS)));
static REVOKED: Series = Series::new(Counter, || keys_by_label(REVOCATIONS, "kind", &KINDS));
static RETRIED: Series = Series::new(Counter, || vec![Key::from_static_name(CLEANUPS_RETRIED)]);
static OPENED: Series = Series::new(Counter, || vec![Key::from_static_name(SESSIONS_OPENED)]);
static ENDED: Series = Series::new(Counter, || keys_by_label(SESSIONS_ENDED, "reason", &END_REASONS));
static ALIVE: Series = Series::new(Gauge, || vec![Key::from_static_name(SESSIONS_ALIVE)]);
static RECONNECTED: Series = Series::new(Counter, || vec![Key::from_static_name(RECONNECTS)]);
static RENEWAL: Series = Series::new(Counter, || keys_by_label(RENEWALS, "outcome", &RENEWED));

static LEADS: Series = Series::new(Gauge, || vec![Key::from_static_name(LEADER)]);
static TERM: Series = Series::new(Counter, || keys_by_label(TERMS, "end", &TERM_ENDS));

/// How a term ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TermOutcome {
    Returned,
    Resigned,
    Asked,
    Lost,
    /// The future of `run` was dropped, or the work has panicked.
    Dropped,
}

/// Counts a term, also if its future is dropped.
pub(crate) struct TermCount {
    outcome: TermOutcome,
    /// Set while the work exists.
    leads: bool,
}

impl TermCount {
    pub(crate) fn begin() -> TermCount {
        LEADS.record(0, &None, 1.0);
        TermCount { outcome: TermOutcome::Dropped, leads: true }
    }

    /// Records that the work has ended, and how. The last call counts.
    pub(crate) fn end(&mut self, outcome: TermOutcome) {
        self.outcome = outcome;
        if std::mem::take(&mut self.leads) {
            LEADS.record(0, &None, -1.0);
        }
    }
}

impl Drop for TermCount {
    fn drop(&mut self) {
        self.end(self.outcome);
        TERM.record(self.outcome as usize, &None, 1.0);
    }
}

/// Counts a new session.
pub(crate) fn count_opened_session() {
    OPENED.record(0, &None, 1.0);
    ALIVE.record(0, &None, 1.0);
}

/// Counts the end of a session.
pub(crate) fn count_ended_session(end: SessionEnd) {
    let reason = match end {
        SessionEnd::Expired => 0,
        SessionEnd::Closed => 1,
        SessionEnd::AuthFailed => 2,
    };
    ENDED.record(reason, &None, 1.0);
    ALIVE.record(0, &None, -1.0);
}

/// Counts a reconnect.
pub(crate) fn count_reconnect() {
    RECONNECTED.record(0, &None, 1.0);
}

/// Counts an answered renewal. `confirmed`: set if the renewal has succeeded.
pub(crate) fn count_renewal(confirmed: bool) {
    RENEWAL.record(usize::from(!confirmed), &None, 1.0);
}

/// Counts a failed delete after which the znode exists or may exist.
pub(crate) fn count_failed_cleanup(failure: RequestFailure) {
    // Does not count the other failures, because they mean that the znode is deleted, or that only the
    // lock directory's record has another version than expected.
    if matches!(failure, RequestFailure::Unknown | RequestFailure::Throttled | RequestFailure::Refused(_)) {
        RETRIED.record(0, &None, 1.0);
    }
}

/// The outcome of an acquisition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AcquireOutcome {
    Acquired,
    Busy,
    TimedOut,
    Cancelled,
    Lost,
    Refused,
    Unavailable,
}

impl From<Reason> for AcquireOutcome {
    fn from(reason: Reason) -> AcquireOutcome {
        match reason {
            Reason::Busy => AcquireOutcome::Busy,
            Reason::TimedOut => AcquireOutcome::TimedOut,
            Reason::Broken | Reason::SessionOver(_) | Reason::Refused(RequestFailure::Unknown) => {
                AcquireOutcome::Lost
            }
            Reason::OtherKind
            | Reason::OtherLayout(_)
            | Reason::Clash(_)
            | Reason::OtherSize(_)
            | Reason::ForeignRecord
            | Reason::Outranked
            | Reason::Exhausted
            | Reason::Occupied(..)
            | Reason::Refused(_) => AcquireOutcome::Refused,
        }
    }
}

impl From<&Error> for AcquireOutcome {
    fn from(error: &Error) -> AcquireOutcome {
        match error {
            Error::Timeout { .. } => AcquireOutcome::TimedOut,
            Error::Lost { .. } | Error::Removed { .. } => AcquireOutcome::Lost,
            Error::Unavailable { .. } => AcquireOutcome::Unavailable,
            _ => AcquireOutcome::Refused,
        }
    }
}

/// The measurements of one acquisition.
#[derive(Debug)]
pub(crate) struct AcquireMetrics {
    kind: usize,
    of: LockLabel,
    began: Instant,
    /// The time at which the last watch event arrived.
    woken: Option<Instant>,
    is_counted: bool,
    stage: AcquireStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AcquireStage {
    Waiting,
    Holding(Instant),
    Ended,
}

impl AcquireMetrics {
    /// Begins to measure when the caller asks for the lock, before there is a session. `kind`: one of [`KINDS`].
    pub(crate) fn begin(kind: &str, of: LockLabel) -> AcquireMetrics {
        let kind = kind_index(kind);
        WAIT.record(kind, &of, 1.0);
        AcquireMetrics {
            kind,
            of,
            began: clock::now(),
            woken: None,
            is_counted: false,
            stage: AcquireStage::Waiting,
        }
    }

    /// Records the number of other contenders in the queue. Only the first call counts.
    pub(crate) fn record_queue(&mut self, others: u32) {
        if self.stage == AcquireStage::Waiting && !std::mem::replace(&mut self.is_counted, true) {
            AHEAD.record(self.kind, &self.of, f64::from(others));
        }
    }

    /// Records a watch event.
    pub(crate) fn count_wakeup(&mut self) {
        if self.stage == AcquireStage::Waiting {
            self.woken = Some(clock::now());
        }
    }

    pub(crate) fn record_grant(&mut self) {
        let now = clock::now();
        self.end_waiting(AcquireOutcome::Acquired, now);
        if let Some(woken) = self.woken {
            HANDOVER.record(self.kind, &self.of, woken.until(now).as_secs_f64());
        }
        HELD.record(self.kind, &self.of, 1.0);
        self.stage = AcquireStage::Holding(now);
    }

    /// Records a failure. `was_busy`: set if the server has shown that the lock is busy.
    pub(crate) fn record_failure(&mut self, reason: Reason, was_busy: bool) {
        let outcome = match reason {
            Reason::TimedOut if !was_busy => AcquireOutcome::Unavailable,
            reason => reason.into(),
        };
        self.end_waiting(outcome, clock::now());
    }

    /// Records a failure before any request was sent.
    pub(crate) fn record_refusal(&mut self, error: &Error) {
        self.end_waiting(error.into(), clock::now());
    }

    /// Records that the caller dropped the acquisition.
    pub(crate) fn record_cancellation(&mut self) {
        self.end_waiting(AcquireOutcome::Cancelled, clock::now());
    }

    pub(crate) fn count_revocation(&self) {
        REVOKED.record(self.kind, &self.of, 1.0);
    }

    /// Changes the kind of a held lock after a downgrade.
    pub(crate) fn change_kind(&mut self, kind: &str) {
        let AcquireStage::Holding(_) = self.stage else { return };
        self.end_holding();
        self.kind = kind_index(kind);
        HELD.record(self.kind, &self.of, 1.0);
        self.stage = AcquireStage::Holding(clock::now());
    }

    pub(crate) fn record_loss(&mut self, loss: Loss) {
        let reason = match loss {
            Loss::SessionOver(SessionEnd::Expired | SessionEnd::AuthFailed) => 0,
            Loss::Broken => 1,
            Loss::Unreachable => 2,
            Loss::SessionOver(SessionEnd::Closed) => 3,
        };
        LOST.record(self.kind * LOSS_REASONS.len() + reason, &self.of, 1.0);
        self.end_holding();
    }

    /// Records the end of the release. The znode is deleted, or stays until the session ends.
    pub(crate) fn record_release(&mut self) {
        self.end_holding();
    }

    fn end_waiting(&mut self, outcome: AcquireOutcome, now: Instant) {
        if self.stage != AcquireStage::Waiting {
            return;
        }
        self.stage = AcquireStage::Ended;
        WAIT.record(self.kind, &self.of, -1.0);
        let series = self.kind * OUTCOMES.len() + outcome as usize;
        ACQUIRE.record(series, &self.of, self.began.until(now).as_secs_f64());
    }

    fn end_holding(&mut self) {
        let AcquireStage::Holding(since) = self.stage else { return };
        self.stage = AcquireStage::Ended;
        HELD.record(self.kind, &self.of, -1.0);
        HOLD.record(self.kind, &self.of, since.until(clock::now()).as_secs_f64());
    }
}

/// Returns the index of a kind in [`KINDS`].
fn kind_index(kind: &str) -> usize {
    let known = KINDS.iter().position(|known| *known == kind);
    debug_assert!(known.is_some(), "the kind {kind} is missing in `Kind::EACH`");
    known.unwrap_or(0)
}

impl Drop for AcquireMetrics {
    /// Ends the wait or the hold in the gauges, if no other method has done so.
    fn drop(&mut self) {
        self.record_cancellation();
        self.end_holding();
    }
}

pub(crate) fn kind_name(kind: Kind, lock_count: usize) -> &'static str {
    if kind == Kind::Mutex && lock_count > 1 { SEVERAL_MUTEXES } else { kind.name() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use zoolock_core::acquisition::Refusal;

    use super::*;

    #[test]
    fn each_lock_kind_has_its_own_series() {
        let kinds = Kind::EACH.into_iter().map(|kind| (kind, 1)).chain([(Kind::Mutex, 2)]);
        let mut seen: Vec<usize> = kinds
            .map(|(kind, lock_count)| kind_name(kind, lock_count))
            .map(|name| KINDS.iter().position(|known| *known == name).unwrap_or_else(|| panic!("no {name}")))
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), KINDS.len());
    }

    #[test]
    fn series_index_matches_labels() {
        let labels = |series: &Series, at: usize| -> Vec<(String, String)> {
            series.keys[at].labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect()
        };
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let timeout = OUTCOMES.len() + AcquireOutcome::TimedOut as usize;
        assert_eq!(labels(&ACQUIRE, timeout), [pair("kind", "multi"), pair("outcome", "timeout")]);
        let refused =
            kind_index("permits") * OUTCOMES.len() + AcquireOutcome::from(Reason::OtherKind) as usize;
        assert_eq!(labels(&ACQUIRE, refused), [pair("kind", "permits"), pair("outcome", "refused")]);
        assert_eq!(ACQUIRE.keys.len(), KINDS.len() * OUTCOMES.len());
        assert_eq!(labels(&RENEWAL, 1), [pair("outcome", "failed")]);
    }

    #[test]
    fn reason_maps_to_outcome() {
        let denied = Reason::Refused(RequestFailure::Refused(Refusal::Denied));
        assert_eq!(AcquireOutcome::from(denied), AcquireOutcome::Refused);
        assert_eq!(AcquireOutcome::from(Reason::SessionOver(SessionEnd::Expired)), AcquireOutcome::Lost);
        assert_eq!(AcquireOutcome::from(&Error::unavailable("session", "none")), AcquireOutcome::Unavailable);
        assert_eq!(OUTCOMES[AcquireOutcome::Unavailable as usize], "unavailable");
    }

    /// Measures all metrics of one acquisition without a recorder. A round trip takes a hundred microseconds or more.
    #[test]
    fn metrics_cost_little_without_a_recorder() {
        telemetry::start().expect("a thread is started");
        let turns: u32 = 10_000;
        let best = (0..20)
            .map(|_| {
                let begun = std::time::Instant::now();
                for _ in 0..turns {
                    let mut metrics = AcquireMetrics::begin("mutex", None);
                    metrics.record_queue(1);
                    metrics.count_wakeup();
                    metrics.record_grant();
                    metrics.record_release();
                }
                begun.elapsed() / turns
            })
            .min();
        let best = best.expect("at least one measurement");
        println!("the metrics of one acquisition without a recorder take {best:?}");
        // The limit is for a development build on a busy machine. An optimised build takes a tenth of the time.
        assert!(best < Duration::from_micros(5), "{best:?}");
    }
}
