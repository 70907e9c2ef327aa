//! `zoolock watch`: prints a line for each change of a lock.
//!
//! A watch event does not tell what has changed. So `watch` computes the difference of two
//! snapshots ([`Diff`]). The library's events ([`zoolock::LockEvents`]) describe only the
//! acquisitions of this client.

mod line;

use std::time::Duration;

use line::WatchEvent;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::time::sleep;
use zoolock::Zoolock;
use zoolock::admin::{HistoryEvent, HistoryKind};
use zoolock::internals::LockPath;
use zoolock::observe::Change;
use zoolock::observe::{Diff, Queue, ReadOutcome};
use zoolock_client::run_on_thread;

use crate::args::{ColorWhen, WatchArgs};
use crate::base::exit::{Exit, Failure, cannot_start};
use crate::base::reporter::{Reporter, escape_unprintable};
use crate::base::signals::Signals;
use crate::plan::Context;
use crate::render::text::{TextStyle, format_json_line, print};
use crate::run::acquire::interruption_failure;
use crate::service::connect::{close_quickly, connect};

/// Number of events in which the break of a contender is searched.
const SEARCHED_EVENTS: usize = 20;

/// Interval between two checks whether standard output was closed.
const OUTPUT_CHECK: Duration = Duration::from_millis(250);

impl WatchArgs {
    /// Prints changes until a signal ends `watch`, or until standard output is closed.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let service = context.connection_for(&self.name)?;
        let Context { global, reporter } = context;
        let mut signals = Signals::listen()?;
        let zoolock = tokio::select! {
            biased;
            signal = signals.next_end_signal() => return Err(interruption_failure(signal, "connecting")),
            connected = connect(&service, reporter) => connected?,
        };
        let path = LockPath::parse(&self.name, &service.root)?.to_string();
        let mut watching = QueueWatch {
            reporter,
            zoolock: zoolock.clone(),
            queue: Queue::watched(zoolock.admin().poller(&path, usize::MAX).with_holder_rereads()),
            path,
            warnings: Vec::new(),
            json: global.json,
            color: global.color,
        };
        let outcome = tokio::select! {
            biased;
            signal = signals.next_end_signal() => Ok(Exit::after_signal(signal)),
            () = wait_for_closed_output() => Ok(Exit::OK),
            outcome = watching.run() => outcome,
        };
        close_quickly(zoolock).await;
        outcome
    }
}

struct QueueWatch<'a> {
    reporter: &'a Reporter,
    zoolock: Zoolock,
    queue: Queue,
    path: String,
    /// Warnings about the last snapshot. They are not printed again.
    warnings: Vec<String>,
    json: bool,
    color: ColorWhen,
}

impl QueueWatch<'_> {
    /// Reads the lock and prints its changes until a permanent error.
    async fn run(&mut self) -> Result<Exit, Failure> {
        let mut announced = false;
        loop {
            let contact = self.queue.next().await?;
            let diffs = self.queue.take_diffs();
            self.print(diffs).await?;
            if contact != ReadOutcome::Read {
                continue;
            }
            self.print_warnings();
            if !std::mem::replace(&mut announced, true) {
                // The note comes after the first read, because only later changes are seen.
                let exists = if self.queue.lock().exists { "" } else { ", which does not exist yet" };
                self.reporter.note(format_args!("watching {}{exists}; ^C ends it", self.path));
            }
        }
    }

    /// Prints a note for each new reason why the shown holders may be wrong or incomplete. The reasons are not events,
    /// because they have no contender.
    fn print_warnings(&mut self) {
        let lock = self.queue.lock();
        let hidden = lock.unread.iter().map(|part| {
            format!(
                "no permission to read {part}: its holders and waiters are not shown; give credentials that may read it"
            )
        });
        let foreign = lock.foreign_semaphore.iter().map(|foreign| {
            format!("is a semaphore of {}: its holders and waiters are not shown", foreign.library)
        });
        let warnings: Vec<String> =
            lock.clash.iter().chain(&lock.unusable).cloned().chain(hidden).chain(foreign).collect();
        for warning in warnings.iter().filter(|warning| !self.warnings.contains(warning)) {
            self.reporter.note(format_args!("{}: {}", self.path, escape_unprintable(warning)));
        }
        self.warnings = warnings;
    }

    /// Returns the break of the contender in the history. Returns `None` if it is not recorded, or cannot be read.
    async fn find_break(&self, diff: &Diff) -> Option<HistoryEvent> {
        let token = diff.contender.as_ref()?.token?;
        let events = self.zoolock.admin().history(Some(&self.path), SEARCHED_EVENTS).await.ok()?;
        events.into_iter().rfind(|event| event.event == HistoryKind::Broken && event.token == Some(token))
    }

    async fn print(&self, diffs: Vec<Diff>) -> Result<(), Failure> {
        if diffs.is_empty() {
            return Ok(());
        }
        let mut events = Vec::with_capacity(diffs.len());
        for diff in diffs {
            let by = if diff.event == Change::Broken { self.find_break(&diff).await } else { None };
            events.push(WatchEvent { diff, by });
        }
        let (json, color) = (self.json, self.color);
        // Prints on another thread, so that a full pipe does not delay the end by a signal.
        let printed = run_on_thread("zoolock-print", move || {
            let style = TextStyle::of_stdout(color);
            let line = |event: &WatchEvent| {
                if json { format_json_line(event) } else { line::format_text(event, &style) }
            };
            print(&events.iter().map(line).collect::<String>())
        });
        printed.await.map_err(|error| cannot_start("a thread", error))?.map(drop)
    }
}

/// Resolves when the reader has closed standard output. Without this check, `watch` would notice
/// the close only at the next change.
async fn wait_for_closed_output() {
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
