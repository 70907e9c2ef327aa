//! Spans that the library emits through `tracing`.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::util::SubscriberInitExt;
use zoolock::Zoolock;
use zoolock_tests::locks::{lock_and_release, until_queued};
use zoolock_tests::wait::finish_in_time;
use zoolock_tests::{AnyServer, ServerKind, ServerOptions};

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
fn subscriber(level: &str, log: &Log) -> impl SubscriberInitExt {
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(format!("zoolock={level}")))
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish()
}

#[tokio::test]
async fn acquire_and_release_emit_spans_with_the_path() {
    let server =
        AnyServer::start(ServerKind::Embedded, ServerOptions::default()).await.expect("server starts");
    let zl = Zoolock::connect(&server.addr()).await.expect("session starts");
    for (level, expected) in [("debug", 1), ("info", 0)] {
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
        let listening = subscriber("debug", &log).set_default();
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
