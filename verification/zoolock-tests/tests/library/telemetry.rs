//! A log subscriber or a metrics recorder that blocks or panics costs no lock, and delays no report of a loss.
//!
//! The subscriber and the recorder misbehave in all of their methods, but only on the threads of the library. Each test
//! installs them for its process, so each test needs a process of its own, as under nextest.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_util::debugging::{DebuggingRecorder, Snapshotter};
use tokio::time::{sleep, timeout};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use zoolock::{Builder, Guard};
use zoolock_tests::locks::{await_guard, lock_and_release, lock_in_background, settings, until_queued};
use zoolock_tests::wait::{finish_in_time, wait_until};
use zoolock_tests::{AnyServer, Proxy, ServerKind, ServerOptions, on_both_servers};

use crate::metrics::Seen;

/// The session timeout of these tests.
const T: Duration = Duration::from_secs(3);

/// Time limit of each step, much longer than a step takes.
const BOUND: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
enum Fault {
    NeverReturns,
    TakesTenSeconds,
    Panics,
}

/// Set once a thread of the library has called the subscriber or the recorder.
static WAS_CALLED: AtomicBool = AtomicBool::new(false);

impl Fault {
    /// Misbehaves, if the calling thread belongs to the library.
    fn strike(self) {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        if !name.starts_with("zoolock-") && name != "async-io" {
            return;
        }
        WAS_CALLED.store(true, Ordering::Release);
        match self {
            Fault::NeverReturns => loop {
                std::thread::park();
            },
            Fault::TakesTenSeconds => std::thread::sleep(Duration::from_secs(10)),
            Fault::Panics => panic!("the subscriber or the recorder panics"),
        }
    }
}

impl Subscriber for Fault {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        self.strike();
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        self.strike();
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {
        self.strike();
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {
        self.strike();
    }

    fn event(&self, _: &Event<'_>) {
        self.strike();
    }

    fn enter(&self, _: &Id) {
        self.strike();
    }

    fn exit(&self, _: &Id) {
        self.strike();
    }
}

impl Recorder for Fault {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        self.strike();
    }

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        self.strike();
    }

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        self.strike();
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        self.strike();
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        self.strike();
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        self.strike();
        Histogram::noop()
    }
}

fn set_subscriber(fault: Fault) {
    tracing::subscriber::set_global_default(fault).expect("no other subscriber is installed");
}

fn set_recorder(fault: Fault) {
    metrics::set_global_recorder(fault).expect("no other recorder is installed");
}

fn holder_settings() -> Builder {
    settings().session_timeout(T)
}

/// Checks for `time` that the lock is held.
async fn stay_held(guard: &Guard, time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        assert!(guard.is_valid(), "lost after {:?}: {:?}", began.elapsed(), guard.loss());
        sleep(Duration::from_millis(50)).await;
    }
}

/// Cuts the connection of a holder once. The holder keeps its lock. Then cuts it for good. The holder learns of the loss
/// before the next client gets the lock.
async fn holder_keeps_its_lock_and_learns_of_a_loss(server: &str, through: &str, proxy: &Proxy) {
    let holder = finish_in_time(holder_settings().connect(through)).await.expect("session starts");
    let rival = holder_settings().connect(server).await.expect("session starts");
    let guard = holder.mutex("held").lock().await.expect("lock granted");
    let waiting = lock_in_background(&rival.mutex("held"));
    until_queued(&rival, "held", 2).await;
    proxy.close_connections().await;
    wait_until("the library calls the program", BOUND, || WAS_CALLED.load(Ordering::Acquire))
        .await
        .expect("in time");
    stay_held(&guard, T * 2).await;
    proxy.refuse(true).await;
    proxy.close_connections().await;
    timeout(BOUND, guard.lost()).await.expect("the loss is reported");
    assert!(!waiting.is_finished(), "the next client got the lock before the holder learned of the loss");
    let next = timeout(BOUND, await_guard(waiting)).await.expect("lock granted in time");
    next.release().await.expect("release succeeds");
    drop(guard);
    finish_in_time(async { tokio::join!(holder.close(), rival.close()) }).await;
}

macro_rules! faults {
    ($($name:ident: $install:ident($fault:ident);)+) => {
        $(on_both_servers!($name, |place| async move {
            $install(Fault::$fault);
            let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
            let through = place.connect_string_through(&proxy.addr());
            holder_keeps_its_lock_and_learns_of_a_loss(&place.connect_string(), &through, &proxy).await;
        });)+
    };
}

faults! {
    subscriber_that_never_returns_costs_no_lock: set_subscriber(NeverReturns);
    slow_subscriber_costs_no_lock: set_subscriber(TakesTenSeconds);
    panicking_subscriber_costs_no_lock: set_subscriber(Panics);
    recorder_that_never_returns_costs_no_lock: set_recorder(NeverReturns);
    slow_recorder_costs_no_lock: set_recorder(TakesTenSeconds);
    panicking_recorder_costs_no_lock: set_recorder(Panics);
}

/// A recorder whose calls wait until the gate is opened.
#[derive(Clone)]
struct GatedRecorder {
    recorder: Arc<DebuggingRecorder>,
    is_open: Arc<(Mutex<bool>, Condvar)>,
}

impl GatedRecorder {
    fn wait(&self) -> &DebuggingRecorder {
        let is_open = self.is_open.0.lock().expect("no thread panics");
        drop(self.is_open.1.wait_while(is_open, |is_open| !*is_open).expect("no thread panics"));
        &self.recorder
    }

    fn open(&self) {
        *self.is_open.0.lock().expect("no thread panics") = true;
        self.is_open.1.notify_all();
    }
}

impl Recorder for GatedRecorder {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.wait().describe_counter(key, unit, text);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.wait().describe_gauge(key, unit, text);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.wait().describe_histogram(key, unit, text);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.wait().register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.wait().register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.wait().register_histogram(key, metadata)
    }
}

async fn embedded_server() -> AnyServer {
    AnyServer::start(ServerKind::Embedded, ServerOptions::default()).await.expect("server starts")
}

/// A gauge that misses a change would stay wrong, so changes are added up while the recorder blocks. Other events above
/// the limit are dropped, and a warning gives their number.
#[tokio::test(flavor = "multi_thread")]
async fn gauges_are_exact_after_a_blocked_recorder() {
    const HOLDS: usize = 5_000;
    let warnings = Events::default();
    tracing::subscriber::set_global_default(warnings.clone()).expect("no other subscriber is installed");
    let recorder = GatedRecorder { recorder: Arc::new(DebuggingRecorder::new()), is_open: Arc::default() };
    let snapshotter: Snapshotter = recorder.recorder.snapshotter();
    metrics::set_global_recorder(recorder.clone()).expect("no other recorder is installed");
    let server = embedded_server().await;
    let zl = finish_in_time(settings().connect(&server.addr())).await.expect("session starts");
    for _ in 0..HOLDS {
        finish_in_time(lock_and_release(&zl.mutex("x"))).await;
    }
    let guard = zl.mutex("x").lock().await.expect("lock granted");
    recorder.open();
    let mut seen = Seen::default();
    seen.wait_for(&snapshotter, "zoolock_holding", &[], 1.0).await;
    guard.release().await.expect("release succeeds");
    zl.close().await;
    seen.look(&snapshotter);
    assert_eq!((seen.of("zoolock_holding", &[]), seen.of("zoolock_waiting", &[])), (0.0, 0.0));
    assert_eq!(seen.of("zoolock_sessions_ended_total", &[]), 1.0);
    let holds = seen.of("zoolock_hold_seconds", &[]);
    assert!((1.0..HOLDS as f64).contains(&holds), "{holds}");
    assert_eq!(warnings.0.load(Ordering::Acquire), 1);
}

/// The events that a subscriber got.
#[derive(Clone, Default)]
struct Events(Arc<AtomicUsize>);

impl Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("zoolock::") && metadata.is_event()
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(tracing::level_filters::LevelFilter::INFO)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A program that ends after a loss must not lose the event that says why.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_written_before_close_returns() {
    let events = Events::default();
    tracing::subscriber::set_global_default(events.clone()).expect("no other subscriber is installed");
    let server = embedded_server().await;
    let zl = settings().connect(&server.addr()).await.expect("session starts");
    let guards = [zl.mutex("a").lock().await, zl.mutex("b").lock().await];
    for guard in &guards {
        let guard = guard.as_ref().expect("lock granted");
        let path = guard.path().rsplit('/').next().expect("a path has a name");
        zl.admin().break_lock(path, guard.ticket()).await.expect("the lock is broken");
        guard.lost().await;
    }
    zl.close().await;
    assert_eq!(events.0.load(Ordering::Acquire), 2);
}
