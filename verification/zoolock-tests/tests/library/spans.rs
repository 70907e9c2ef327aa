//! Spans and events that the library emits through `tracing`.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use zoolock::Zoolock;
use zoolock_tests::locks::{lock_and_release, until_queued};
use zoolock_tests::wait::finish_in_time;
use zoolock_tests::{AnyServer, ServerKind, ServerOptions, tree};

/// The captured log output.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("mutex is not poisoned").clone()).expect("log is UTF-8")
    }
}

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("mutex is not poisoned").write(text)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns a subscriber to be set for the current thread. A test makes all its calls on this thread.
fn subscriber(level: LevelFilter, log: &Log) -> impl SubscriberInitExt {
    let writer = log.clone();
    let lines = tracing_subscriber::fmt::layer()
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone());
    tracing_subscriber::registry().with(lines).with(Targets::new().with_target("zoolock", level))
}

#[tokio::test]
async fn acquire_and_release_emit_spans_with_the_path() {
    let server =
        AnyServer::start(ServerKind::Embedded, ServerOptions::default()).await.expect("server starts");
    let zl = Zoolock::connect(&server.addr()).await.expect("session starts");
    for (level, expected) in [(LevelFilter::DEBUG, 1), (LevelFilter::INFO, 0)] {
        let log = Log::default();
        let listening = subscriber(level, &log).set_default();
        lock_and_release(&zl.mutex("spanned")).await;
        drop(listening);
        let text = log.text();
        for span in ["lock{path=\"/locks/spanned\" kind=\"mutex\"}: ", "release{path=\"/locks/spanned\"}: "] {
            assert_eq!(text.matches(span).count(), expected, "{level}: {span}\n{text}");
        }
    }
    zl.close().await;
}

#[tokio::test]
async fn wait_for_a_guard_of_this_client_is_logged() {
    let server =
        AnyServer::start(ServerKind::Embedded, ServerOptions::default()).await.expect("server starts");
    let zl = Zoolock::connect(&server.addr()).await.expect("session starts");
    let other = Zoolock::connect(&server.addr()).await.expect("session starts");
    for (holder, expected) in [(&zl, 1), (&other, 0)] {
        let log = Log::default();
        let listening = subscriber(LevelFilter::DEBUG, &log).set_default();
        let guard = holder.mutex("logged").lock().await.expect("lock acquired");
        let mutex = zl.mutex("logged");
        // Before its grant, the waiter either logs that it waits for a guard of this client, or
        // decides that it does not.
        let (granted, ()) = tokio::join!(mutex.lock(), async {
            until_queued(&zl, "logged", 2).await;
            let logged = async {
                // The waiter learns some time after the creation of its znode that it has to wait.
                while expected > 0 && !log.text().contains("waits for a guard of this client") {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            finish_in_time(logged).await;
            guard.release().await.expect("release succeeds");
        });
        drop(granted.expect("lock acquired"));
        drop(listening);
        let text = log.text();
        assert_eq!(text.matches("waits for a guard of this client").count(), expected, "{text}");
    }
    zl.close().await;
    other.close().await;
}

/// Waits until the log has a line with all these texts, and returns the number of such lines.
async fn count_lines(log: &Log, texts: &[&str]) -> usize {
    let count = || log.text().lines().filter(|line| texts.iter().all(|text| line.contains(text))).count();
    let found = async {
        while count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    finish_in_time(found).await;
    count()
}

#[tokio::test]
async fn loss_and_revocation_are_logged_once() {
    let server =
        AnyServer::start(ServerKind::Embedded, ServerOptions::default()).await.expect("server starts");
    let log = Log::default();
    // Events of background tasks reach only the subscriber of the process. Under nextest, each test has its own process.
    subscriber(LevelFilter::INFO, &log).try_init().expect("no other subscriber");
    let zl = Zoolock::connect(&server.addr()).await.expect("session starts");
    let mutex = zl.mutex("watched");
    let guard = mutex.lock().await.expect("lock granted");
    zl.admin().revoke("watched", guard.token()).await.expect("the holder is asked");
    guard.revoked().await;
    let path = "lock=\"/locks/watched\"";
    assert_eq!(count_lines(&log, &["INFO", "asked to release the lock", path]).await, 1);
    zl.admin().break_lock("watched", guard.token()).await.expect("the lock is broken");
    guard.lost().await;
    assert_eq!(count_lines(&log, &["WARN", "the lock is lost", path, "reason="]).await, 1);
    zl.close().await;
}

#[tokio::test]
async fn outage_is_logged_once_with_the_address() {
    let server =
        AnyServer::start(ServerKind::Embedded, ServerOptions::default()).await.expect("server starts");
    let log = Log::default();
    subscriber(LevelFilter::DEBUG, &log).try_init().expect("no other subscriber");
    let zl = Zoolock::connect(&server.addr()).await.expect("session starts");
    let guard = zl.mutex("kept").lock().await.expect("lock granted");
    let client = tree::connect(&server.addr()).await.expect("session starts");
    let stat = client.check_stat(&guard.node_path()).await.expect("stat read").expect("the znode exists");
    let session = stat.ephemeral_owner;
    drop(client);
    server.kill().await;
    let host = format!(" server={} ", server.addr());
    assert_eq!(
        count_lines(&log, &["WARN", "disconnected from the server", &host, "reason=the connection"]).await,
        1
    );
    // The outage goes on until several dials have failed.
    let dial = ["DEBUG", "no server was reached", &server.addr(), "reason="];
    assert_eq!(count_lines(&log, &[&dial[..], &["attempt=4 "]].concat()).await, 1);
    server.restart().await.expect("server starts");
    assert_eq!(
        count_lines(&log, &["INFO", "connected to a server again", &host, "disconnected_for="]).await,
        1
    );
    guard.release().await.expect("release succeeds");
    zl.close().await;
    let text = log.text();
    // The embedded server logs to the same subscriber.
    let count = |level: &str| {
        let line = format!(" {level} zoolock::");
        text.lines().filter(|text| text.contains(&line) && !text.contains("close time.busy")).count()
    };
    assert_eq!((count("WARN"), count("INFO"), count("ERROR")), (1, 1, 0), "{text}");
    assert!(!text.contains("attempt=3 "), "failed dials are logged less and less: {text}");
    let ids = [format!("{session:x}"), session.to_string()];
    let mut lines = text.lines().filter(|line| line.contains(" zoolock::"));
    assert!(lines.all(|line| ids.iter().all(|id| !line.contains(id.as_str()))), "{ids:?} in {text}");
}

#[tokio::test]
async fn shorter_session_timeout_is_logged_with_the_address() {
    let server =
        AnyServer::start(ServerKind::Embedded, ServerOptions::default()).await.expect("server starts");
    let log = Log::default();
    subscriber(LevelFilter::INFO, &log).try_init().expect("no other subscriber");
    let zl = Zoolock::connect(&server.addr()).await.expect("session starts");
    let guard = zl.mutex("kept").lock().await.expect("lock granted");
    server.restart_with_limit(Duration::from_secs(16)).await.expect("server starts");
    let host = format!(" server={} ", server.addr());
    let texts = ["WARN", "the server granted a shorter session timeout", &host, "timeout=16s"];
    assert_eq!(count_lines(&log, &texts).await, 1);
    guard.release().await.expect("release succeeds");
    zl.close().await;
}
