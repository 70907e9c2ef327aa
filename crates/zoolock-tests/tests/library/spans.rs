//! Spans that the library emits through `tracing`.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use zoolock::Zoolock;
use zoolock_tests::locks::lock_and_release;
use zoolock_tests::{Arm, Server, ServerOptions};

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

/// The subscriber is set for this thread only, which makes all the calls.
#[tokio::test]
async fn acquire_and_release_emit_spans_with_the_path() {
    let server = Server::start(Arm::Embedded, ServerOptions::default()).await.expect("server starts");
    let zl = Zoolock::connect(&server.addr()).await.expect("session starts");
    for (level, expected) in [("debug", 1), ("info", 0)] {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(format!("zoolock={level}")))
            .with_span_events(FmtSpan::CLOSE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let listening = subscriber.set_default();
        lock_and_release(&zl.mutex("spanned")).await;
        drop(listening);
        let text = log.text();
        for span in ["lock{path=\"/locks/spanned\" kind=\"mutex\"}: ", "release{path=\"/locks/spanned\"}: "] {
            assert_eq!(text.matches(span).count(), expected, "{level}: {span}\n{text}");
        }
    }
    zl.close().await;
}
