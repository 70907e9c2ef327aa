//! A holder: a process that acquires one lock, checks again and again whether its guard is valid,
//! and reports the results.
//!
//! The process ends on the order `end`, or when its input ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use zoolock::{Guard, Zoolock};

use super::holder_report::HolderReport;
use super::settings::LossBug;
use crate::Outcome;
use crate::clock::now;
use crate::ensemble::TICK;
use crate::orders::{Orders, send_report};

/// Pause between two checks of the guard.
const LOOK: Duration = Duration::from_millis(5);

/// The settings of a holder.
#[derive(Args, Debug)]
pub(crate) struct HolderArgs {
    #[arg(long)]
    connect: String,
    #[arg(long)]
    lock: String,
    /// The session timeout in seconds.
    #[arg(long)]
    session: u64,
    #[arg(long = "break")]
    broken: Option<LossBug>,
}

/// Connects with the settings of all holders and rivals.
pub(crate) async fn connect(addresses: &str, session: Duration) -> Outcome<Zoolock> {
    let builder = Zoolock::builder().tick_time(TICK);
    Ok(builder.session_timeout(session).connect(addresses).await?)
}

/// Holds the lock until the order to end.
pub(crate) async fn hold(settings: HolderArgs) -> Outcome<()> {
    let zoolock = connect(&settings.connect, Duration::from_secs(settings.session)).await?;
    let guard = Arc::new(zoolock.mutex(&settings.lock).lock().await?);
    send_report(&HolderReport::Granted { at: now() })?;
    let done = Arc::new(AtomicBool::new(false));
    // The checks run on a thread of their own, because a busy executor must not delay them.
    let looking = std::thread::spawn({
        let (guard, done) = (guard.clone(), done.clone());
        move || report_checks(&guard, settings.broken, &done)
    });
    let watching = tokio::spawn({
        let guard = guard.clone();
        async move {
            let why = guard.lost().await.to_string();
            // The report fails only if the drill has ended.
            let _ = send_report(&HolderReport::Lost { at: now(), why });
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

/// Checks the guard again and again, and reports each answer. The clock is read before each check: even if the process
/// is stopped in between, a valid guard was valid at the reported time.
fn report_checks(guard: &Guard, broken: Option<LossBug>, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        let at = now();
        let valid = guard.is_valid() || broken == Some(LossBug::NeverLost);
        if send_report(&HolderReport::Checked { at, valid }).is_err() {
            return;
        }
        std::thread::sleep(LOOK);
    }
}
