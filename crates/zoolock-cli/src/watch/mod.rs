//! `zoolock watch`: prints a line for each change of a lock.
//!
//! A watch event tells that the lock changed, not how. The change is the difference of two snapshots ([`snapshot_diff`]).
//! The events of the library ([`zoolock::LockEvents`]) describe only the acquisitions of this client.

mod line;
mod snapshot_diff;
mod watch_stream;

use std::pin::pin;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tokio::time::{sleep, sleep_until, timeout};
use zoolock::{Error, Glance, LockPath, Snapshot, Zoolock};
use zoolock_client::on_thread;

use self::snapshot_diff::{Event, Moment, SnapshotDiff};
use self::watch_stream::WatchStream;
use crate::args::ColorWhen;
use crate::base::exit::{Exit, Failure, refused};
use crate::base::reporter::{Reporter, printable};
use crate::base::signals::Signals;
use crate::plan::Service;
use crate::render::text::{TextStyle, print};
use crate::run::acquire::interrupted;
use crate::service::connect::{abandon, connect, found_again};

/// Minimum pause after a read, as a multiple of its duration: reading takes at most a fifth of the time.
const PAUSE_FACTOR: u32 = 4;
/// Minimum pause after a read, since a hand-over consists of several changes.
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// Interval between reads without a watch.
const POLL_INTERVAL: Duration = Duration::from_millis(400);
/// Interval between reads with a watch, in case an event was lost.
const WATCHED_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum duration of a read. After it the server counts as lost.
const READ_TIMEOUT: Duration = Duration::from_secs(4);
/// Minimum pause after a failed read.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Duration of printing after which the watch is dropped. Changes until the output is written show only in the next
/// read.
const SLOW_OUTPUT: Duration = Duration::from_secs(1);
/// Interval of checks whether standard output was closed.
const OUTPUT_CHECK: Duration = Duration::from_millis(250);
/// Maximum time to close the session with the watch.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Prints changes until a signal ends it or standard output is closed.
pub(crate) async fn watch(
    service: &Service,
    name: &str,
    json: bool,
    color: ColorWhen,
    reporter: &Reporter,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen().map_err(|error| Failure::unavailable(error.to_string()))?;
    let zoolock = tokio::select! {
        biased;
        signal = signals.end() => return Err(interrupted(signal, "connecting")),
        connected = connect(service, reporter) => connected?,
    };
    let path = LockPath::parse(name, &service.root)?.to_string();
    let mut watching = Watching {
        service,
        reporter,
        stream: WatchStream::new(service, &path),
        diff: SnapshotDiff::new(&path),
        path,
        zoolock,
        warnings: Vec::new(),
        format: OutputFormat { json, color },
    };
    let outcome = tokio::select! {
        biased;
        _ = signals.end() => Ok(Exit::OK),
        () = output_closed() => Ok(Exit::OK),
        failure = watching.run() => Err(failure),
    };
    let Watching { stream, zoolock, .. } = watching;
    let _ = timeout(CLOSE_TIMEOUT, stream.shut_down()).await;
    abandon(zoolock).await;
    outcome
}

/// Format of the output.
#[derive(Clone, Copy)]
struct OutputFormat {
    json: bool,
    color: ColorWhen,
}

struct Watching<'a> {
    service: &'a Service,
    reporter: &'a Reporter,
    stream: WatchStream,
    path: String,
    zoolock: Zoolock,
    diff: SnapshotDiff,
    /// Warnings about the last snapshot.
    warnings: Vec<String>,
    format: OutputFormat,
}

impl Watching<'_> {
    /// Reads and prints until an error that does not pass by itself, and returns it.
    async fn run(&mut self) -> Failure {
        let mut glances = self.zoolock.mutex(&self.path).glances(usize::MAX);
        let mut announced = false;
        loop {
            let started = Instant::now();
            let result = timeout(READ_TIMEOUT, glances.look()).await;
            let done = Instant::now();
            let trouble = match result {
                Ok(Ok(Glance { lock, made, .. })) => {
                    let events = self.diff.update(&lock, made, Moment::now());
                    if let Err(failure) = self.print_events(events).await {
                        return failure;
                    }
                    self.warn(&lock);
                    if !std::mem::replace(&mut announced, true) {
                        // Changes from now on are printed.
                        self.reporter.note(format_args!("watching {}; ^C ends it", self.path));
                    }
                    None
                }
                Ok(Err(error @ Error::Unavailable { .. })) => Some(error.to_string()),
                Ok(Err(error)) => return error.into(),
                Err(_) => Some("no answer".to_owned()),
            };
            if let Some(trouble) = trouble {
                if let Err(failure) = self.lose_contact(&trouble).await {
                    return failure;
                }
                // Pauses before the next read, since the server may be overloaded. `glances` keeps what it has read.
                sleep((done - started).max(RETRY_AFTER)).await;
                // The local server of this user may have restarted at another address.
                if let Some(zoolock) = found_again(self.service, self.reporter).await {
                    glances = zoolock.mutex(&self.path).glances(usize::MAX);
                    abandon(std::mem::replace(&mut self.zoolock, zoolock)).await;
                }
                continue;
            }
            let interval = if self.stream.is_set() { WATCHED_INTERVAL } else { POLL_INTERVAL };
            let pause = ((done - started) * PAUSE_FACTOR).max(MIN_PAUSE);
            tokio::select! {
                () = sleep(interval.max(pause)) => {}
                () = self.stream.changed() => {}
            }
            sleep_until((done + pause).into()).await;
        }
    }

    async fn lose_contact(&mut self, why: &str) -> Result<(), Failure> {
        let event = self.diff.lose_contact(why, Moment::now());
        self.print_events(event.into_iter().collect()).await
    }

    /// Prints each new reason why the shown holders may be wrong or incomplete. It is no event because it has no
    /// contender.
    fn warn(&mut self, lock: &Snapshot) {
        let hidden = lock.unread.iter().map(|part| {
            format!(
                "no permission to read {part}: its holders and waiters are not shown; give credentials that may read it"
            )
        });
        let foreign = lock.foreign_semaphore.iter().map(|foreign| {
            format!("is a semaphore of {}: its holders and waiters are not shown", foreign.library)
        });
        let warnings: Vec<String> = lock.clash.iter().cloned().chain(hidden).chain(foreign).collect();
        for warning in warnings.iter().filter(|warning| !self.warnings.contains(warning)) {
            self.reporter.note(format_args!("{}: {}", self.path, printable(warning)));
        }
        self.warnings = warnings;
    }

    async fn print_events(&mut self, events: Vec<Event>) -> Result<(), Failure> {
        if events.is_empty() {
            return Ok(());
        }
        let OutputFormat { json, color } = self.format;
        // On another thread, so that a reader that does not read does not delay the end by a signal.
        let mut printing = pin!(on_thread("zoolock-print", move || {
            let style = TextStyle::of_stdout(color);
            let line = |event: &Event| if json { line::json(event) } else { line::text(event, &style) };
            print(&events.iter().map(line).collect::<String>())
        }));
        let printed = match timeout(SLOW_OUTPUT, &mut printing).await {
            Ok(printed) => printed,
            Err(_) => {
                // Events that come meanwhile would only fill memory.
                self.stream.close();
                printing.await
            }
        };
        printed.map_err(|error| refused("a thread", error))?.map(drop)
    }
}

/// Resolves when the reader has closed standard output. Without it `watch` would not notice until the next change.
async fn output_closed() {
    let stdout = std::io::stdout();
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        let mut ready = [PollFd::new(&stdout, PollFlags::empty())];
        let asked = poll(&mut ready, Some(&now));
        if asked.is_ok() && ready[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            return;
        }
        sleep(OUTPUT_CHECK).await;
    }
}
