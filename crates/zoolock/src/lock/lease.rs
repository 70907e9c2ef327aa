//! The lease of a guard, as a value apart from the guard.

use std::sync::{Arc, Mutex, OnceLock};

use futures_util::future::{join_all, select_all};
use tokio::sync::Notify;
use zoolock_core::{Event, FencingToken};

use crate::base::clock::Deadline;
use crate::base::error::LossReason;
use crate::base::process::Process;
use crate::base::sync::lock;
use crate::base::telemetry::log_event;
use crate::engine::{Acquisition, HoldEnd};
use crate::lock::shared_hold::TaskEnd;

/// The lease of a guard: shows until when the holder may rely on the lock, and how the hold ended.
///
/// A guard of any kind returns it ([`Guard::lease`](crate::Held::lease)), and all kinds have this type. It is cheap to
/// clone, and it may outlive the guard and the client. It keeps neither of them alive, and does not hold the lock. So
/// give it to a health page, to the tasks of the work, or to a request to the protected resource. Only the event streams of
/// the handle ([`Mutex::events`](crate::Mutex::events)) do not end before its leases are dropped.
///
/// A downgrade ends the lease, and gives the guard a new one. An upgrade gives the guard a new one with a token, and the
/// lease of the reader lasts as long as before.
///
/// # Examples
/// ```no_run
/// use zoolock::{End, Lease, Zoolock};
///
/// /// Answers whether this process leads, for as long as the program runs.
/// fn health(lease: &Lease) -> &'static str {
///     if lease.is_valid() { "leader" } else { "follower" }
/// }
///
/// # async fn example(zl: Zoolock) -> Result<(), zoolock::Error> {
/// let guard = zl.mutex("reports").lock().await?;
/// let lease = guard.lease();
/// println!("{}", health(&lease));
/// tokio::spawn(async move {
///     if let End::Lost(reason) = lease.ended().await {
///         eprintln!("stop: {reason}");
///     }
/// });
/// guard.release().await
/// # }
/// ```
#[derive(Clone)]
pub struct Lease {
    hold: Arc<HoldView>,
    token: Option<FencingToken>,
    path: Arc<str>,
}

/// The end of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End {
    /// The holder began to release the lock, dropped the guard, or downgraded it. Only
    /// [`Guard::release`](crate::Guard::release) tells whether the server still had the lock then.
    Released,
    /// The lock was lost for this reason.
    Lost(LossReason),
}

impl Lease {
    pub(super) fn new(hold: Arc<HoldView>, token: Option<FencingToken>, path: String) -> Lease {
        Lease { hold, token, path: path.into() }
    }

    /// Returns the fencing token, or `None` if others could hold the lock at the same time: for readers and permits.
    pub fn token(&self) -> Option<FencingToken> {
        self.token
    }

    /// Returns the path of the lock directory. The paths of a multi-lock are separated by `, `.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns whether the holder may rely on the lock now. Reads the clock and sends nothing. Once it has returned
    /// false, it always returns false.
    pub fn is_valid(&self) -> bool {
        self.hold.is_valid()
    }

    /// Returns the deadline until which the holder may rely on the lock. Each renewal extends it. Reads no clock and sends
    /// nothing. After the end of the hold, returns a deadline that has passed.
    pub fn valid_until(&self) -> Deadline {
        self.hold.valid_until()
    }

    /// Returns how the hold ended, or `None` while it lasts. Sends nothing.
    pub fn end(&self) -> Option<End> {
        self.hold.end()
    }

    /// Waits until the lock is released or lost, or the lease ends with a downgrade. After the end, resolves at once, and
    /// always to the same end. The future borrows nothing.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub fn ended(&self) -> impl Future<Output = End> + Send + use<> {
        self.hold.clone().ended()
    }

    /// Waits until the lock is lost, and returns the reason. Waits for ever if the hold ends in another way.
    pub(crate) fn lost(&self) -> impl Future<Output = LossReason> + Send + use<> {
        self.hold.clone().lost()
    }

    /// Waits until the holder is asked to release the lock; see [`Held::revoked`](crate::Held::revoked). After the end of
    /// the hold, this may wait for ever, or report a request to a later task of a shared hold. The future borrows nothing.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub fn revoked(&self) -> impl Future<Output = ()> + Send + use<> {
        self.hold.clone().revoked()
    }

    /// Returns whether the holder has been asked to release the lock, as far as this client knows. Sends nothing.
    pub fn is_revoked(&self) -> bool {
        self.hold.is_revoked()
    }

    /// Calls `callback` when the lock is lost, at once if it is lost already. Drops `callback` without a call when the lock
    /// is released, or the lease ends with a downgrade.
    ///
    /// The callback runs on a thread of its own, so it may block, and may call this library. In a forked process, it runs on
    /// this thread. If the system refuses a thread, it runs on the thread that reports the loss.
    pub fn on_lost(&self, callback: impl FnOnce(LossReason) + Send + 'static) {
        self.hold.on_lost(callback);
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = self.end();
        f.debug_struct("Lease")
            .field("path", &self.path)
            .field("token", &self.token)
            .field("end", &end)
            .finish()
    }
}

/// The state of a hold. A guard and its leases read it. A downgrade or an upgrade gives the guard a new one.
pub(crate) struct HoldView {
    pub(super) process: Process,
    pub(super) acquisition: Arc<Acquisition>,
    /// The write acquisition of an upgraded reader.
    pub(super) upgrade: Option<Arc<Acquisition>>,
    /// The end of this task's hold, if the tasks of the client share the hold of the lock.
    pub(super) task_end: Option<Arc<TaskEnd>>,
    /// The end that was seen first. It makes the answers final.
    first_end: OnceLock<End>,
    /// Notified when a downgrade ends the leases.
    downgraded: Notify,
}

impl HoldView {
    pub(super) fn new(process: Process, acquisition: Arc<Acquisition>) -> HoldView {
        HoldView {
            process,
            acquisition,
            upgrade: None,
            task_end: None,
            first_end: OnceLock::new(),
            downgraded: Notify::new(),
        }
    }

    /// Returns the hold of one of the tasks that share this hold.
    pub(super) fn of_task(&self, task_end: Arc<TaskEnd>) -> HoldView {
        HoldView { task_end: Some(task_end), ..HoldView::new(self.process, self.acquisition.clone()) }
    }

    /// Returns the hold of an upgraded reader. Its leases also depend on the write acquisition.
    pub(super) fn upgraded(&self, upgrade: Arc<Acquisition>) -> HoldView {
        HoldView { upgrade: Some(upgrade), ..HoldView::new(self.process, self.acquisition.clone()) }
    }

    /// Ends the leases of a writer. Returns the hold of the reader that the writer becomes.
    pub(super) fn downgraded(&self) -> HoldView {
        // A loss that is known already remains the end.
        let end = self.end().unwrap_or(End::Released);
        self.first_end.get_or_init(|| end);
        self.downgraded.notify_waiters();
        HoldView::new(self.process, self.acquisition.clone())
    }

    pub(super) fn acquisitions(&self) -> impl Iterator<Item = &Arc<Acquisition>> {
        std::iter::once(&self.acquisition).chain(&self.upgrade)
    }

    pub(super) fn end(&self) -> Option<End> {
        if let Some(end) = self.first_end.get() {
            return Some(*end);
        }
        let end = if self.process.is_forked() { End::Lost(LossReason::Forked) } else { self.current_end()? };
        Some(*self.first_end.get_or_init(|| end))
    }

    fn current_end(&self) -> Option<End> {
        // Reads the end of each acquisition once, because the end may be recorded between two reads.
        let ends = self.acquisitions().filter_map(|acquisition| acquisition.hold_end());
        let end = ends.reduce(|first, second| if let HoldEnd::Lost(_) = first { first } else { second });
        // Reads this after the ends. If this client still holds the lock for its other tasks, a loss was one of theirs.
        if self.task_end.as_ref().is_some_and(|end| end.is_passed_on()) {
            return Some(End::Released);
        }
        end.map(|end| match end {
            HoldEnd::Lost(loss) => End::Lost(LossReason::of(loss)),
            HoldEnd::Released => End::Released,
        })
    }

    pub(super) fn loss(&self) -> Option<LossReason> {
        match self.end() {
            Some(End::Lost(reason)) => Some(reason),
            Some(End::Released) | None => None,
        }
    }

    pub(super) fn valid_until(&self) -> Deadline {
        match self.end() {
            None => Deadline(self.acquisition.session().valid_until()),
            Some(_) => Deadline::PASSED,
        }
    }

    pub(super) fn is_valid(&self) -> bool {
        if self.end().is_some() {
            return false;
        }
        if self.acquisition.session().lease_valid() {
            return true;
        }
        // A process that was stopped may resume here: the lease has ended, but the alarm for its end has not run yet.
        for acquisition in self.acquisitions() {
            acquisition.handle_event(Event::LeaseLost);
        }
        false
    }

    pub(super) async fn ended(self: Arc<Self>) -> End {
        // Gets the notifications from now on, even before it is polled.
        let downgraded = self.downgraded.notified();
        if let Some(end) = self.end() {
            return end;
        }
        let passed_on = async {
            match &self.task_end {
                Some(end) => end.wait_until_passed_on().await,
                None => std::future::pending().await,
            }
        };
        let ended = select_all(self.acquisitions().map(|acquisition| Box::pin(acquisition.hold_ended())));
        tokio::select! {
            biased;
            _ = ended => {}
            () = passed_on => {}
            () = downgraded => {}
        }
        self.end().expect("the hold has ended")
    }

    /// Waits for the loss, and returns its reason. Waits for ever if the lock is released.
    pub(super) async fn lost(self: Arc<Self>) -> LossReason {
        match self.ended().await {
            End::Lost(reason) => reason,
            End::Released => std::future::pending().await,
        }
    }

    pub(super) async fn revoked(self: Arc<Self>) {
        if self.process.is_forked() {
            return std::future::pending().await;
        }
        select_all(self.acquisitions().map(|acquisition| Box::pin(acquisition.revoked()))).await;
    }

    pub(super) fn is_revoked(&self) -> bool {
        !self.process.is_forked() && self.acquisitions().any(|acquisition| acquisition.is_revoked())
    }

    /// Waits until each acquisition has read its own znode, or has ended.
    pub(super) async fn wait_for_own_node_read(&self) {
        join_all(self.acquisitions().map(|acquisition| acquisition.wait_for_own_node_read())).await;
    }

    pub(super) fn on_lost(self: &Arc<Self>, callback: impl FnOnce(LossReason) + Send + 'static) {
        match self.end() {
            // A forked process has only the calling thread.
            Some(End::Lost(LossReason::Forked)) => callback(LossReason::Forked),
            // The client may be gone, and with it the thread that runs its tasks.
            Some(End::Lost(reason)) => call_on_own_thread(callback, reason),
            Some(End::Released) => {}
            None => {
                let ended = self.clone().ended();
                self.acquisition.session().tasks().spawn(async move {
                    if let End::Lost(reason) = ended.await {
                        call_on_own_thread(callback, reason);
                    }
                });
            }
        }
    }
}

/// Calls a callback on a thread of its own. The session thread, which reports the loss, also renews the leases of all
/// other locks, and must not block.
fn call_on_own_thread(callback: impl FnOnce(LossReason) + Send + 'static, reason: LossReason) {
    let callback = Arc::new(Mutex::new(Some(callback)));
    let call = move || {
        // The mutex is unlocked before the callback runs.
        let callback = lock(&callback).take();
        if let Some(callback) = callback {
            callback(reason);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("zoolock-lost".to_owned()).spawn(call.clone()) {
        log_event!(WARN, %error, "cannot start a thread for the callback of a lost lock; it runs here");
        call();
    }
}
