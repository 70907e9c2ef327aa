//! A holder: a process that acquires one lock, asks its guard again and again whether it is valid, and reports the answers.
//!
//! It ends when it is told to, or when its input ends.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use zoolock::{Guard, Zoolock};

use super::Break;
use super::holder_report::HolderReport;
use crate::Outcome;
use crate::clock::now;
use crate::ensemble::TICK;
use crate::orders::Orders;

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// The settings of a holder.
#[derive(Args, Debug)]
pub(crate) struct Settings {
    #[arg(long)]
    connect: String,
    #[arg(long)]
    lock: String,
    /// The session timeout in seconds.
    #[arg(long)]
    session: u64,
    #[arg(long = "break")]
    broken: Option<Break>,
}

/// Connects as all holders and rivals of this drill do.
pub(crate) async fn connect(addresses: &str, session: Duration) -> Outcome<Zoolock> {
    let builder = Zoolock::builder().tick_time(TICK);
    Ok(builder.session_timeout(session).connect(addresses).await?)
}

/// Holds the lock until the process is told to end.
pub(crate) async fn hold(settings: Settings) -> Outcome<()> {
    let zoolock = connect(&settings.connect, Duration::from_secs(settings.session)).await?;
    let guard = Arc::new(zoolock.mutex(&settings.lock).lock().await?);
    send(&HolderReport::Granted { at: now() })?;
    let done = Arc::new(AtomicBool::new(false));
    // A thread of its own, because a busy executor must not delay the reports.
    let looking = std::thread::spawn({
        let (guard, done) = (guard.clone(), done.clone());
        move || look(&guard, settings.broken, &done)
    });
    let watching = tokio::spawn({
        let guard = guard.clone();
        async move {
            let why = guard.lost().await.to_string();
            // Fails only if the drill has ended.
            let _ = send(&HolderReport::Lost { at: now(), why });
        }
    });
    let ended = Orders::listen().wait_for("end").await;
    done.store(true, Ordering::Relaxed);
    let _ = looking.join();
    watching.abort();
    drop(guard);
    zoolock.close().await;
    ended
}

/// Asks the guard again and again. The clock is read before: if the process is stopped in between, the lock was held at that
/// time.
fn look(guard: &Guard, broken: Option<Break>, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        let at = now();
        let valid = guard.is_valid() || broken == Some(Break::NeverLost);
        if send(&HolderReport::Checked { at, valid }).is_err() {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

fn send(report: &HolderReport) -> Outcome<()> {
    let line = serde_json::to_string(report)?;
    // One write for each line.
    Ok(writeln!(std::io::stdout().lock(), "{line}")?)
}
