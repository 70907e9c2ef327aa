//! `zoolock watch`: one lock, a line for everything that happens to it.
//!
//! The service tells that something happened, not what; what it was is the difference of two looks ([`story`]). Events of
//! the library ([`zoolock::LockEvents`]) tell of one's own acquisitions, and these are everybody's.

mod story;
mod told;

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tokio::time::{sleep, sleep_until, timeout};
use zoolock::{Error, Glance, LockPath, Zoolock};

use self::story::{Event, Moment, Story};
use crate::acquire::interrupted;
use crate::args::ColorWhen;
use crate::connect::{abandon, connect, found_again};
use crate::exit::{Exit, Failure};
use crate::list::{Look, print};
use crate::plan::Service;
use crate::pokes::{Poked, Pokes};
use crate::signals::Signals;
use crate::talk::Talk;

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
        pokes: Pokes::new(service.clone()),
        story: Story::new(&path),
        path,
        zoolock,
        poked: None,
        told: Told { json, color },
    };
    let outcome = tokio::select! {
        biased;
        _ = signals.end() => Ok(Exit::OK),
        () = nobody_reads() => Ok(Exit::OK),
        failure = watching.go_on() => Err(failure),
    };
    let Watching { pokes, poked, zoolock, .. } = watching;
    drop(poked);
    let _ = timeout(FAREWELL, pokes.close()).await;
    abandon(zoolock).await;
    outcome
}

/// How it is told.
#[derive(Clone, Copy)]
struct Told {
    json: bool,
    color: ColorWhen,
}

struct Watching<'a> {
    service: &'a Service,
    talk: &'a Talk,
    pokes: Pokes,
    path: String,
    zoolock: Zoolock,
    poked: Option<Poked>,
    story: Story,
    told: Told,
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
                Ok(Ok(Glance { lock, .. })) => {
                    let events = self.story.see(&lock, Moment::now());
                    if let Err(failure) = self.tell(events).await {
                        return failure;
                    }
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
                sleep(AGAIN).await;
                // This user's server may have come back elsewhere.
                if let Some(zoolock) = found_again(self.service, self.talk).await {
                    glances = zoolock.mutex(&self.path).glances(usize::MAX);
                    abandon(std::mem::replace(&mut self.zoolock, zoolock)).await;
                }
                continue;
            }
            if !self.poked.as_ref().is_some_and(Poked::works) {
                self.poked = self.pokes.at(&self.path).await;
                if self.poked.is_some() {
                    // What happened before that was not told.
                    continue;
                }
            }
            let untold = if self.poked.is_some() { MISSED } else { UNTOLD };
            let rest = ((done - begun) * PAUSES).max(SHORTEST);
            let was_told = self.poked.is_some();
            tokio::select! {
                () = sleep(untold.max(rest)) => {}
                () = Poked::told(&mut self.poked) => {}
            }
            if was_told && self.poked.is_none() {
                let ended = "the session ended, and with it what told us";
                if let Err(failure) = self.lose_sight(ended).await {
                    return failure;
                }
            }
            sleep_until((done + rest).into()).await;
        }
    }

    async fn lose_sight(&mut self, why: &str) -> Result<(), Failure> {
        let event = self.story.lose_sight(why, Moment::now());
        self.tell(event.into_iter().collect()).await
    }

    async fn tell(&self, events: Vec<Event>) -> Result<(), Failure> {
        if events.is_empty() {
            return Ok(());
        }
        let Told { json, color } = self.told;
        // Not here: a reader that does not read must not keep us from hearing that we are to end.
        let telling = tokio::task::spawn_blocking(move || {
            let look = Look::of_stdout(color);
            let line = |event: &Event| if json { told::json(event) } else { told::line(event, &look) };
            print(&events.iter().map(line).collect::<String>())
        });
        telling.await.map_err(|error| Failure::unavailable(error.to_string()))?.map(drop)
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
