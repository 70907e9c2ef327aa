//! Compares the metrics of the library with docs/METRICS.md.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::LazyLock;
use std::time::Duration;

use metrics_util::MetricKind;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::sync::{Mutex, MutexGuard};
use zoolock::{Builder, Error, LossReason, Zoolock};
use zoolock_tests::locks::{await_guard, lock_in_background};
use zoolock_tests::{AnyServer, Proxy, ServerKind, ServerOptions, opcode};

const DOCS: &str = include_str!("../../../../docs/METRICS.md");

/// Type, unit, and labels of a metric.
type Sort = (String, String, BTreeSet<String>);

/// Returns the metrics in the table of a section of the document.
fn documented(heading: &str) -> BTreeMap<String, Sort> {
    let section =
        DOCS.split("\n## ").find(|section| section.starts_with(heading)).expect("document has the section");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let code = |cell: &str| cell.trim().trim_matches('`').to_owned();
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let labels = cells[3].split(',').map(code).filter(|label| !label.is_empty()).collect();
        (code(cells[0]), (code(cells[1]), code(cells[2]), labels))
    })
    .collect()
}

/// The metrics seen so far and their current values.
///
/// A snapshot resets the values in the recorder, so the values of all snapshots are added up here.
#[derive(Default)]
pub(crate) struct Seen {
    sorts: BTreeMap<String, Sort>,
    /// For each counter and gauge, the sum of its values. For each histogram, the number of its
    /// values.
    totals: BTreeMap<(String, Vec<(String, String)>), f64>,
}

impl Seen {
    pub(crate) fn look(&mut self, snapshotter: &Snapshotter) {
        for (key, unit, description, value) in snapshotter.snapshot().into_vec() {
            let (kind, key) = key.into_parts();
            let name = key.name().to_owned();
            assert!(description.is_some_and(|text| !text.is_empty()), "{name} is not described");
            let kind = match kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            let unit = unit.expect("metric has a unit").as_str().to_owned();
            let labels: Vec<(String, String)> =
                key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
            let names = labels.iter().map(|(name, _)| name.clone()).collect();
            let sort = (kind.to_owned(), unit, names);
            let before = self.sorts.insert(name.clone(), sort.clone());
            assert!(before.is_none_or(|before| before == sort), "{name} changes its type, unit or labels");
            *self.totals.entry((name, labels)).or_default() += match value {
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(change) => change.into_inner(),
                DebugValue::Histogram(values) => values.len() as f64,
            };
        }
    }

    /// Reads the recorder until the sum of these series has this value. Metrics reach the recorder some time after their
    /// cause.
    ///
    /// # Panics
    /// The sum does not reach the value.
    pub(crate) async fn wait_for(
        &mut self,
        snapshotter: &Snapshotter,
        name: &str,
        labels: &[(&str, &str)],
        value: f64,
    ) {
        let reached = async {
            loop {
                self.look(snapshotter);
                if self.of(name, labels) == value {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(30), reached).await.is_err() {
            panic!("{name} {labels:?} is {} and not {value}", self.of(name, labels));
        }
    }

    /// Returns the sum of all series with at least these labels.
    pub(crate) fn of(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |all: &[(String, String)], (key, value): &(&str, &str)| {
            all.iter().any(|(of, is)| of == key && is == value)
        };
        let series = self
            .totals
            .iter()
            .filter(|((of, all), _)| of == name && labels.iter().all(|label| has(all, label)));
        series.map(|(_, value)| value).sum()
    }
}

/// Returns the snapshotter of this process's only recorder of metrics, and a guard. Other tests
/// wait for the recorder until the guard is dropped.
pub(crate) async fn recorder() -> (&'static Snapshotter, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::const_new(());
    static RECORDER: LazyLock<Snapshotter> = LazyLock::new(|| {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        recorder.install().expect("no other recorder is installed");
        snapshotter
    });
    let turn = TURN.lock().await;
    // Discard the values of the previous test.
    RECORDER.snapshot();
    (&*RECORDER, turn)
}

fn settings() -> Builder {
    Zoolock::builder().tick_time(ServerOptions::default().tick).session_timeout(Duration::from_secs(6))
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire_time_includes_connecting() {
    let (snapshotter, _turn) = recorder().await;
    let mut seen = Seen::default();
    let server =
        AnyServer::start(ServerKind::Embedded, ServerOptions::default()).await.expect("server starts");
    let proxy = Proxy::start(&server.addr()).await.expect("proxy starts");
    let patience = Duration::from_secs(2);
    let zl = settings().connect_timeout(patience).connect(&proxy.addr()).await.expect("session starts");
    proxy.refuse(true).await;
    proxy.close_connections().await;
    while zl.session_timeout().is_some() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let late = zl.mutex("x").lock_timeout(Duration::from_millis(100)).await;
    assert!(matches!(late, Err(Error::Unavailable { .. })), "{late:?}");
    let none = zl.mutex("x").lock().await;
    assert!(matches!(none, Err(Error::Unavailable { .. })), "{none:?}");
    seen.wait_for(snapshotter, "zoolock_acquire_seconds", &[("outcome", "unavailable")], 2.0).await;
    proxy.refuse(false).await;
    let guard = zl.mutex("x").lock().await.expect("session is reopened");
    guard.release().await.expect("release succeeds");
    zl.close().await;
    seen.look(snapshotter);
    assert_eq!((seen.of("zoolock_waiting", &[]), seen.of("zoolock_holding", &[])), (0.0, 0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_report_the_kind_of_lock() {
    let (snapshotter, _turn) = recorder().await;
    let mut seen = Seen::default();
    let server =
        AnyServer::start(ServerKind::Embedded, ServerOptions::default()).await.expect("server starts");
    let zl = settings().connect(&server.addr()).await.expect("session starts");

    let reader =
        zl.rwlock("rw").write().await.expect("lock acquired").downgrade().await.expect("downgrade succeeds");
    seen.wait_for(snapshotter, "zoolock_holding", &[("kind", "reader")], 1.0).await;
    seen.wait_for(snapshotter, "zoolock_hold_seconds", &[("kind", "writer")], 1.0).await;
    seen.wait_for(snapshotter, "zoolock_holding", &[("kind", "writer")], 0.0).await;
    reader.release().await.expect("release succeeds");
    zl.close().await;
    seen.look(snapshotter);
    assert_eq!(seen.of("zoolock_hold_seconds", &[("kind", "reader")]), 1.0);
    assert_eq!(seen.of("zoolock_holding", &[]), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_match_the_documentation() {
    let (snapshotter, _turn) = recorder().await;
    let mut seen = Seen::default();

    let server =
        AnyServer::start(ServerKind::Embedded, ServerOptions::default()).await.expect("server starts");
    let proxy = Proxy::start(&server.addr()).await.expect("proxy starts");
    let zl = settings().connect(&server.addr()).await.expect("session starts");
    let shaky = settings().connect(&proxy.addr()).await.expect("session starts");

    // Four acquisitions: one succeeds, one finds the lock busy, one times out and one is cancelled.
    let guard = zl.mutex("x").lock().await.expect("lock acquired");
    assert!(zl.mutex("x").try_lock().await.expect("attempt succeeds").is_none());
    let late = zl.mutex("x").lock_timeout(Duration::from_millis(50)).await;
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    let dropped = tokio::time::timeout(Duration::from_millis(50), zl.mutex("x").lock()).await;
    assert!(dropped.is_err());
    for outcome in ["acquired", "busy", "timeout", "cancelled"] {
        let labels = [("outcome", outcome), ("kind", "mutex")];
        seen.wait_for(snapshotter, "zoolock_acquire_seconds", &labels, 1.0).await;
    }
    seen.wait_for(snapshotter, "zoolock_holding", &[("kind", "mutex")], 1.0).await;
    assert_eq!(seen.of("zoolock_hold_seconds", &[]), 0.0);

    // A waiter queues, the holder is asked to release, and the lock is handed over.
    let waiting = lock_in_background(&zl.mutex("x"));
    while zl.admin().snapshot("x").await.expect("read succeeds").waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    seen.wait_for(snapshotter, "zoolock_waiting", &[], 1.0).await;
    zl.admin().revoke("x", guard.ticket()).await.expect("contender exists");
    guard.revoked().await;
    guard.release().await.expect("release succeeds");
    let guard = await_guard(waiting).await;
    for (name, value) in [
        ("zoolock_handover_seconds", 1.0),
        ("zoolock_hold_seconds", 1.0),
        ("zoolock_revocations_total", 1.0),
        ("zoolock_waiting", 0.0),
    ] {
        seen.wait_for(snapshotter, name, &[], value).await;
    }

    // The lock is broken.
    zl.admin().break_lock("x", guard.ticket()).await.expect("znode exists");
    assert_eq!(guard.lost().await, LossReason::Broken);
    drop(guard);

    // Another kind of lock. The reply to the release is lost, so the client checks the znode over a new connection.
    let writer = shaky.rwlock("y").write().await.expect("lock acquired");
    proxy.drop_next_reply(opcode::MULTI);
    writer.release().await.expect("release succeeds");

    // The client renews the lease while it holds the lock.
    let guard = zl.mutex("z").lock().await.expect("lock acquired");
    let renewed = async {
        while seen.of("zoolock_renewals_total", &[("outcome", "confirmed")]) == 0.0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            seen.look(snapshotter);
        }
    };
    tokio::time::timeout(Duration::from_secs(10), renewed).await.expect("lease is renewed in time");
    guard.release().await.expect("release succeeds");

    // Terms of an election end in each way.
    let election = zl.election("e");
    election.run(|_| async {}).await.expect("the work returns");
    let stand = || {
        let stands = election.clone();
        tokio::spawn(async move { stands.run(|_| pending::<()>()).await })
    };
    let dropped = stand();
    seen.wait_for(snapshotter, "zoolock_leader", &[], 1.0).await;
    dropped.abort();
    seen.wait_for(snapshotter, "zoolock_terms_total", &[("end", "dropped")], 1.0).await;
    let leading = stand();
    for end in ["lost", "asked"] {
        seen.wait_for(snapshotter, "zoolock_leader", &[], 1.0).await;
        let token = election.leader().await.expect("read succeeds").and_then(|leader| leader.token);
        let token = token.expect("a leader with a token");
        match end {
            "lost" => drop(zl.admin().break_lock("e", token).await.expect("znode exists")),
            _ => zl.admin().revoke("e", token).await.expect("contender exists"),
        }
        seen.wait_for(snapshotter, "zoolock_terms_total", &[("end", end)], 1.0).await;
    }
    seen.wait_for(snapshotter, "zoolock_leader", &[], 1.0).await;
    election.resign();
    leading.await.expect("the task ends").expect("resigned");
    for end in ["returned", "resigned"] {
        seen.wait_for(snapshotter, "zoolock_terms_total", &[("end", end)], 1.0).await;
    }
    shaky.close().await;
    zl.close().await;

    seen.look(snapshotter);
    // The lock, and a term of the election.
    assert_eq!(seen.of("zoolock_losses_total", &[("kind", "mutex"), ("reason", "broken")]), 2.0);
    assert!(seen.of("zoolock_cleanups_retried_total", &[]) >= 1.0);
    assert!(seen.of("zoolock_reconnects_total", &[]) >= 1.0);
    assert_eq!(
        (seen.of("zoolock_sessions_opened_total", &[]), seen.of("zoolock_sessions_alive", &[])),
        (2.0, 0.0)
    );
    assert_eq!(seen.of("zoolock_sessions_ended_total", &[("reason", "closed")]), 2.0);
    // The metrics count no holder or waiter any more, however each hold and each wait ended.
    for gauge in ["zoolock_holding", "zoolock_waiting", "zoolock_leader"] {
        assert!(
            seen.totals.iter().filter(|((name, _), _)| name == gauge).all(|(_, value)| *value == 0.0),
            "{gauge}"
        );
    }
    assert_eq!(seen.sorts, documented("The library"));
}
