//! `zoolock watch`: one lock, a line for all that is seen to happen to it.
//!
//! The service tells that something happened, not what; what it was is the difference of two looks ([`story`]). Events of
//! the library ([`zoolock::LockEvents`]) tell of one's own acquisitions, and these are everybody's.

mod ear;
mod line;
mod story;

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tokio::time::{sleep, sleep_until, timeout};
use zoolock::{Error, Glance, LockPath, Snapshot, Zoolock};

use self::ear::Ear;
use self::story::{Event, Moment, Story};
use crate::acquire::interrupted;
use crate::args::ColorWhen;
use crate::connect::{abandon, connect, found_again};
use crate::exit::{Exit, Failure};
use crate::list::{Look, print};
use crate::plan::Service;
use crate::signals::Signals;
use crate::talk::{Talk, printable};

/// Reading takes one part of the time, and pauses four.
const PAUSES: u32 = 4;
/// Several things happen at a hand-over.
const SHORTEST: Duration = Duration::from_millis(20);
/// Where nothing tells that something happened, and in case that something was missed.
const UNTOLD: Duration = Duration::from_millis(400);
const MISSED: Duration = Duration::from_secs(2);
/// Who has not answered by then may not be there.
const PATIENCE: Duration = Duration::from_secs(4);
/// Between two tries to get an answer.
const AGAIN: Duration = Duration::from_secs(1);
/// Whoever takes the lines slower than that hears of what happens meanwhile only by the look after it.
const SLOW: Duration = Duration::from_secs(1);
/// How soon it is noticed that nobody reads any more.
const READ: Duration = Duration::from_millis(250);
/// A goodbye to the service.
const FAREWELL: Duration = Duration::from_secs(1);

/// Tells what happens until somebody wants its end, or nobody reads any more.
pub(crate) async fn watch(
    service: &Service,
    name: &str,
    json: bool,
    color: ColorWhen,
    talk: &Talk,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen().map_err(|error| Failure::unavailable(error.to_string()))?;
    let zoolock = tokio::select! {
        biased;
        signal = signals.end() => return Err(interrupted(signal, "connecting")),
        connected = connect(service, talk) => connected?,
    };
    let path = LockPath::parse(name, &service.root)?.to_string();
    let mut watching = Watching {
        service,
        talk,
        ear: Ear::new(service, &path),
        story: Story::new(&path),
        path,
        zoolock,
        doubts: Vec::new(),
        style: Style { json, color },
    };
    let outcome = tokio::select! {
        biased;
        _ = signals.end() => Ok(Exit::OK),
        () = nobody_reads() => Ok(Exit::OK),
        failure = watching.go_on() => Err(failure),
    };
    let Watching { ear, zoolock, .. } = watching;
    let _ = timeout(FAREWELL, ear.leave()).await;
    abandon(zoolock).await;
    outcome
}

/// How it is told.
#[derive(Clone, Copy)]
struct Style {
    json: bool,
    color: ColorWhen,
}

struct Watching<'a> {
    service: &'a Service,
    talk: &'a Talk,
    ear: Ear,
    path: String,
    zoolock: Zoolock,
    story: Story,
    /// What is known to be wrong with what is seen.
    doubts: Vec<String>,
    style: Style,
}

impl Watching<'_> {
    /// Never returns while it can look.
    async fn go_on(&mut self) -> Failure {
        let mut glances = self.zoolock.mutex(&self.path).glances(usize::MAX);
        let mut looks = false;
        loop {
            let begun = Instant::now();
            let looked = timeout(PATIENCE, glances.look()).await;
            let done = Instant::now();
            let trouble = match looked {
                Ok(Ok(Glance { lock, made, .. })) => {
                    let events = self.story.see(&lock, made, Moment::now());
                    if let Err(failure) = self.tell(events).await {
                        return failure;
                    }
                    self.doubt(&lock);
                    if !std::mem::replace(&mut looks, true) {
                        // What happens from now on is told.
                        self.talk.note(format_args!("watching {}; ^C ends it", self.path));
                    }
                    None
                }
                Ok(Err(error @ Error::Unavailable { .. })) => Some(error.to_string()),
                Ok(Err(error)) => return error.into(),
                Err(_) => Some("no answer".to_owned()),
            };
            if let Some(trouble) = trouble {
                if let Err(failure) = self.lose_sight(&trouble).await {
                    return failure;
                }
                // Not at once: the service may have more to do than it can. What was read is kept for the next look.
                sleep((done - begun).max(AGAIN)).await;
                // This user's server may have come back elsewhere.
                if let Some(zoolock) = found_again(self.service, self.talk).await {
                    glances = zoolock.mutex(&self.path).glances(usize::MAX);
                    abandon(std::mem::replace(&mut self.zoolock, zoolock)).await;
                }
                continue;
            }
            let untold = if self.ear.hears() { MISSED } else { UNTOLD };
            let rest = ((done - begun) * PAUSES).max(SHORTEST);
            tokio::select! {
                () = sleep(untold.max(rest)) => {}
                () = self.ear.heard() => {}
            }
            sleep_until((done + rest).into()).await;
        }
    }

    async fn lose_sight(&mut self, why: &str) -> Result<(), Failure> {
        let event = self.story.lose_sight(why, Moment::now());
        self.tell(event.into_iter().collect()).await
    }

    /// Says once what makes it doubtful who holds: no event, since it happens to nobody.
    fn doubt(&mut self, lock: &Snapshot) {
        let hidden = lock.unread.iter().map(|part| {
            format!(
                "{part} may not be read: whoever holds or waits there is not shown; give credentials that may"
            )
        });
        let foreign = lock.foreign_semaphore.iter().map(|foreign| {
            format!("is a semaphore of {}: its holders and waiters are not shown", foreign.library)
        });
        let doubts: Vec<String> = lock.clash.iter().cloned().chain(hidden).chain(foreign).collect();
        for doubt in doubts.iter().filter(|doubt| !self.doubts.contains(doubt)) {
            self.talk.note(format_args!("{}: {}", self.path, printable(doubt)));
        }
        self.doubts = doubts;
    }

    async fn tell(&mut self, events: Vec<Event>) -> Result<(), Failure> {
        if events.is_empty() {
            return Ok(());
        }
        let Style { json, color } = self.style;
        // Not here: a reader that does not read must not keep us from hearing that we are to end.
        let mut telling = tokio::task::spawn_blocking(move || {
            let look = Look::of_stdout(color);
            let line = |event: &Event| if json { line::json(event) } else { line::text(event, &look) };
            print(&events.iter().map(line).collect::<String>())
        });
        let told = match timeout(SLOW, &mut telling).await {
            Ok(told) => told,
            Err(_) => {
                // What is told meanwhile would only be kept.
                self.ear.close();
                telling.await
            }
        };
        told.map_err(|error| Failure::unavailable(error.to_string()))?.map(drop)
    }
}

/// Resolves when whoever read our output is gone, which a lock to which nothing happens would not show.
async fn nobody_reads() {
    let stdout = std::io::stdout();
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        let mut ready = [PollFd::new(&stdout, PollFlags::empty())];
        let asked = poll(&mut ready, Some(&now));
        if asked.is_ok() && ready[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            return;
        }
        sleep(READ).await;
    }
}
