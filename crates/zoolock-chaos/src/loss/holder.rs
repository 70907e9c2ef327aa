//! A holder: a process that takes one lock, asks its guard over and over whether it is valid, and says what it hears.
//!
//! It ends when it is told to, or when its input ends.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use zoolock::{Guard, Zoolock};

use super::words::Word;
use super::{Break, SESSION};
use crate::Outcome;
use crate::clock::now;
use crate::ensemble::TICK;
use crate::orders::Orders;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// The settings of a holder.
#[derive(Args, Debug)]
pub(crate) struct Settings {
    #[arg(long)]
    connect: String,
    #[arg(long)]
    lock: String,
    #[arg(long = "break")]
    broken: Option<Break>,
}

/// How all in this drill connect, whoever waits for a lock as well.
pub(crate) async fn connect(addresses: &str) -> Outcome<Zoolock> {
    let builder = Zoolock::builder().tick_time(TICK);
    Ok(builder.session_timeout(SESSION).connect(addresses).await?)
}

/// Holds until it is told to end.
pub(crate) async fn hold(settings: Settings) -> Outcome<()> {
    let zoolock = connect(&settings.connect).await?;
    let guard = Arc::new(zoolock.mutex(&settings.lock).lock().await?);
    say(&Word::Held { at: now() })?;
    let done = Arc::new(AtomicBool::new(false));
    // A thread of its own: what it says of the guard does not wait for anybody's executor.
    let looking = std::thread::spawn({
        let (guard, done) = (guard.clone(), done.clone());
        move || look(&guard, settings.broken, &done)
    });
    let watching = tokio::spawn({
        let guard = guard.clone();
        async move {
            let why = guard.lost().await.to_string();
            // Without whoever listens there is nobody to tell.
            let _ = say(&Word::Lost { at: now(), why });
        }
    });
    let told = Orders::listen().expect("end").await;
    done.store(true, Ordering::Relaxed);
    let _ = looking.join();
    watching.abort();
    drop(guard);
    zoolock.close().await;
    told
}

/// Looks at the clock first: however long we are stopped in between, at that time the lock was ours.
fn look(guard: &Guard, broken: Option<Break>, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        let at = now();
        let valid = guard.is_valid() || broken == Some(Break::NeverLost);
        if say(&Word::Looked { at, valid }).is_err() {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

fn say(word: &Word) -> Outcome<()> {
    let line = serde_json::to_string(word)?;
    // One write a line, as it is locked and ends with one.
    Ok(writeln!(std::io::stdout().lock(), "{line}")?)
}
