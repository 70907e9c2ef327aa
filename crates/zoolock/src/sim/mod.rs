//! The seams by which a simulation drives the real lock code. Internal: for this workspace's simulation alone.
//!
//! A [`Host`] is one simulated machine. Whatever of ours runs on it runs inside [`enter`], and takes from it what it
//! takes from the operating system elsewhere: the clock that counts suspend, its alarm, random numbers, tasks, and
//! sessions. Timers are tokio's; a simulation pauses its clock. There is no other difference: sessions, leases, drivers,
//! tenures and guards are the ones that everybody runs.
//!
//! A session speaks ZooKeeper's own requests and replies (`zoolock_wire`), by way of a [`Line`].

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use zoolock_core::Instant;
use zoolock_core::contender::SessionEnd;

use crate::builder::Builder;
use crate::error::Error;
pub use crate::keeper::line::{Later, Line, LineAnswer as Answer, LineState, OnGrant};
use crate::keeper::{self, Access, Link, line::LineKeeper};
use crate::tasks::Tasks;
use crate::zoolock::{SessionThread, Zoolock};

/// A simulated machine.
pub trait Host: Send + Sync + 'static {
    /// The clock that counts suspend, in nanoseconds.
    fn now(&self) -> Instant;
    /// Waits on that clock. It may wake up too early.
    fn alarm(&self, at: Instant) -> Later<()>;
    /// A random number.
    fn random(&self) -> u128;
    /// Runs a task, inside [`enter`].
    fn spawn(&self, task: Later<()>) -> Arc<dyn Job>;
    /// How many tasks there are.
    fn jobs(&self) -> usize;
    /// Opens a session with this timeout, if it can.
    fn open(&self, timeout: Duration) -> Later<Option<Opened>>;
}

/// A task of a [`Host`].
pub trait Job: Send + Sync + 'static {
    /// Ends it where it next would wait, but not before this returns.
    fn abort(&self);
    /// Whether it has ended.
    fn is_finished(&self) -> bool;
}

/// One session.
pub struct Opened {
    /// Closes the session when dropped.
    pub line: Arc<dyn Line>,
    /// What its connection is doing.
    pub states: watch::Receiver<LineState>,
}

/// Pause between two rounds over the servers.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(100);

thread_local! {
    static HOST: RefCell<Option<Arc<dyn Host>>> = const { RefCell::new(None) };
}

/// What runs until it is dropped runs on this host.
#[must_use = "it ends when it is dropped"]
pub fn enter(host: &Arc<dyn Host>) -> Inside {
    Inside(HOST.replace(Some(host.clone())))
}

/// See [`enter`].
pub struct Inside(Option<Arc<dyn Host>>);

impl Drop for Inside {
    fn drop(&mut self) {
        let before = self.0.take();
        HOST.set(before);
    }
}

/// Connects from this host.
///
/// # Errors
/// As [`Builder::connect`].
pub async fn connect(builder: Builder, host: Arc<dyn Host>) -> Result<Zoolock, Error> {
    builder.open_on("simulated:2181", None, || Ok(SessionThread::simulated(host))).await
}

pub(crate) fn host() -> Option<Arc<dyn Host>> {
    HOST.with_borrow(Clone::clone)
}

/// `None`: this is no simulation.
pub(crate) fn on_host<T>(what: impl FnOnce(&Arc<dyn Host>) -> T) -> Option<T> {
    HOST.with_borrow(|host| host.as_ref().map(what))
}

/// Opens a session as [`crate::keeper::open`] does.
pub(crate) async fn open(host: &Arc<dyn Host>, timeout: Duration) -> keeper::Opened {
    let (requested, Opened { line, mut states }) = loop {
        let requested = host.now();
        if let Some(opened) = host.open(timeout).await {
            break (requested, opened);
        }
        tokio::time::sleep(BETWEEN_ROUNDS).await;
    };
    let (sender, receiver) = watch::channel(Link::Up);
    Tasks::Simulated(host.clone()).spawn(async move {
        while states.changed().await.is_ok() {
            let link = match *states.borrow_and_update() {
                LineState::Up => Link::Up,
                LineState::Down => Link::Down,
                LineState::Expired => Link::Over(SessionEnd::Expired),
                LineState::Closed => Link::Over(SessionEnd::Closed),
                LineState::Refused => Link::Over(SessionEnd::AuthFailed),
            };
            if sender.send(link).is_err() || matches!(link, Link::Over(_)) {
                return;
            }
        }
    });
    let keeper = Arc::new(LineKeeper::new(line, &Access::Everybody, None));
    keeper::Opened { keeper, link: receiver, requested }
}
