//! The common part of every guard.

use std::sync::{Arc, OnceLock};

use futures_util::future::{join_all, select_all};
use tokio::sync::watch;
use tracing::Instrument as _;
use zoolock_core::acquisition::{Grant, Loss, Node, Previous, Refusal, ReleaseOutcome, RequestFailure};
use zoolock_core::names::Prefix;
use zoolock_core::record::HolderState;
use zoolock_core::shared_hold::ReleaseKind;
use zoolock_core::{Event, FencingToken};

use crate::base::check::Check;
use crate::base::clock::Deadline;
use crate::base::error::{Error, LossReason};
use crate::base::options::Options;
use crate::base::process::Process;
use crate::base::tasks::Task;
use crate::base::ticket::Ticket;
use crate::engine::{Acquisition, release_state_of_this_thread};
use crate::lock::context::Context;
use crate::lock::shared_hold::{TaskHold, TaskHoldEnd};
use crate::session::Connection;

/// A lock that is held. Dropping it releases the lock in the background.
pub(crate) struct Held {
    context: Context,
    acquisition: Arc<Acquisition>,
    grant: Grant,
    /// The write acquisition of an upgraded reader.
    upgrade: Option<Arc<Acquisition>>,
    /// Set if another guard releases this acquisition.
    released_elsewhere: bool,
    /// The hold of this task, if the tasks of the client share the hold of the lock.
    task_hold: Option<TaskHold>,
    /// Options of the handle that acquired the lock.
    options: Options,
}

impl Held {
    pub(crate) fn new(
        context: Context,
        acquisition: Arc<Acquisition>,
        grant: Grant,
        options: Options,
    ) -> Held {
        Held {
            context,
            acquisition,
            grant,
            upgrade: None,
            released_elsewhere: false,
            task_hold: None,
            options,
        }
    }

    /// Returns the held lock for the next task that shares it. `worked`: set if a task of this
    /// client has already worked under this hold. That task is then the previous holder, and has
    /// left cleanly.
    pub(crate) fn share_with(&self, task_hold: TaskHold, worked: bool) -> Held {
        let grant = match worked {
            false => self.grant,
            true => Grant { previous: Previous::Clean, ..self.grant },
        };
        let mut held = Held::new(self.context.clone(), self.acquisition.clone(), grant, self.options.clone());
        held.task_hold = Some(task_hold);
        held
    }

    /// Returns whether this process is a fork of the process that holds the lock.
    fn is_forked(&self) -> bool {
        self.context.process().is_forked()
    }

    /// Returns the znode that holds the lock.
    fn holding_node(&self) -> Node {
        self.node_of(&self.acquisition)
    }

    fn node_of(&self, acquisition: &Acquisition) -> Node {
        let known = if self.is_forked() { None } else { acquisition.node() };
        known.unwrap_or(self.grant.node)
    }

    /// Records that the acquiring task has received the grant.
    pub(crate) fn mark_seen(mut self) -> Held {
        if let Some(task_hold) = &mut self.task_hold {
            task_hold.record_seen();
        }
        self
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn acquisition(&self) -> &Arc<Acquisition> {
        &self.acquisition
    }

    /// Returns the token. It stays the same when a writer downgrades or a reader upgrades, because no other writer can
    /// get the lock in between.
    pub(crate) fn token(&self) -> FencingToken {
        let pass = self.task_hold.as_ref().map_or(0, TaskHold::pass);
        FencingToken::new(self.context.epoch(), self.grant.node.czxid, pass)
    }

    pub(crate) fn ticket(&self) -> Ticket {
        Ticket::new(self.context.epoch(), self.holding_node().czxid)
    }

    pub(crate) fn acquisition_id(&self) -> String {
        self.acquisition.id().to_string()
    }

    pub(crate) fn valid_until(&self) -> Deadline {
        match self.loss() {
            None => Deadline(self.acquisition.session().valid_until()),
            Some(_) => Deadline::PASSED,
        }
    }

    pub(crate) fn is_valid(&self) -> bool {
        if self.loss().is_some() {
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

    pub(crate) async fn lost(&self) -> LossReason {
        if self.is_forked() {
            return LossReason::Forked;
        }
        wait_for_loss(self.acquisitions()).await
    }

    pub(crate) fn loss(&self) -> Option<LossReason> {
        if self.is_forked() {
            return Some(LossReason::Forked);
        }
        self.acquisitions().find_map(|acquisition| acquisition.loss()).map(LossReason::from)
    }

    pub(crate) async fn revoked(&self) {
        if self.is_forked() {
            return std::future::pending().await;
        }
        select_all(self.acquisitions().map(|acquisition| Box::pin(acquisition.revoked()))).await;
    }

    pub(crate) fn is_revoked(&self) -> bool {
        !self.is_forked() && self.acquisitions().any(|acquisition| acquisition.is_revoked())
    }

    pub(crate) async fn revoked_by_now(&self) -> bool {
        if self.is_forked() {
            return false;
        }
        join_all(self.acquisitions().map(|acquisition| acquisition.wait_for_own_node_read())).await;
        self.is_revoked()
    }

    pub(crate) fn previous(&self) -> Previous {
        match self.grant.previous {
            Previous::Unknown if !self.is_forked() => {
                self.acquisition.previous().unwrap_or(self.grant.previous)
            }
            known => known,
        }
    }

    pub(crate) fn path(&self) -> &str {
        self.context.without_chroot(self.acquisition.directories()[0].as_str())
    }

    pub(crate) fn paths(&self) -> Vec<&str> {
        let directories = self.acquisition.directories().iter();
        directories.map(|directory| self.context.without_chroot(directory.as_str())).collect()
    }

    /// Returns the number of permits of a semaphore; 1 for other locks.
    pub(crate) fn permits(&self) -> u32 {
        match self.grant.node.prefix {
            Prefix::Permit(permits) => permits,
            _ => 1,
        }
    }

    pub(crate) fn node_path(&self) -> String {
        let path = self.acquisition.directories()[0].child(&self.holding_node().name());
        self.context.without_chroot(&path).to_owned()
    }

    /// Returns a check of the holder's znode. For an upgraded reader, this is the znode of the writer.
    pub(crate) fn check(&self) -> Check {
        let acquisition = self.upgrade.as_ref().unwrap_or(&self.acquisition);
        let node = self.node_of(acquisition);
        // The path includes the chroot, because the caller's own ZooKeeper client may not use this
        // client's chroot.
        Check::of(acquisition.directories()[0].child(&node.name()))
    }

    pub(crate) fn session_id(&self) -> i64 {
        self.acquisition.session().id().0
    }

    pub(crate) fn connection(&self) -> watch::Receiver<Connection> {
        if self.is_forked() {
            return watch::channel(Connection::Ended).1;
        }
        self.acquisition.session().connection()
    }

    /// Calls `tell` on the session thread when the lock is lost, unless the returned task is aborted first. In a forked
    /// process, calls it at once on this thread.
    pub(crate) fn when_lost(&self, tell: impl FnOnce(LossReason) + Send + 'static) -> Task {
        if self.is_forked() {
            tell(LossReason::Forked);
            return Task::Ended;
        }
        let all: Vec<_> = self.acquisitions().cloned().collect();
        let task = async move { tell(wait_for_loss(all.iter()).await) };
        self.acquisition.session().tasks().spawn(task)
    }

    /// Releases the lock as a holder that panics does. The caller then drops the guard.
    pub(crate) fn release_as_panicked(&self) {
        match &self.task_hold {
            Some(_) if self.is_forked() => {}
            Some(task_hold) => task_hold.release(ReleaseKind::Panicked),
            None => self.release_as(HolderState::Panicked),
        }
    }

    /// Releases the lock with the release marker `state`, even while this thread panics. The caller then drops the
    /// guard.
    pub(crate) fn release_as(&self, state: HolderState) {
        if self.is_forked() {
            return;
        }
        for acquisition in self.acquisitions() {
            acquisition.handle_event(Event::Release(state));
        }
    }

    /// Releases a lock under which no task has worked. The caller then drops the guard.
    pub(crate) fn release_untouched(&self) {
        if self.is_forked() {
            return;
        }
        if let Some(task_hold) = &self.task_hold {
            return task_hold.release(ReleaseKind::Untouched);
        }
        for acquisition in self.acquisitions() {
            acquisition.handle_event(Event::Cancel);
        }
    }

    /// Releases the lock at once. The returned future waits for the server's confirmation. It is small, because it does
    /// not contain the guard.
    pub(crate) fn release(self) -> impl Future<Output = Result<(), Error>> + use<> {
        let pending_release = self.pending_release();
        let span = tracing::debug_span!("release", path = pending_release.path());
        // Sends the release now, because the caller waits for it. The release of a dropped guard
        // may be sent later. After this, the `drop` below sends nothing.
        if self.task_hold.is_none() && self.upgrade.is_none() {
            self.release_as(release_state_of_this_thread());
        }
        drop(self);
        pending_release.wait().instrument(span)
    }

    pub(crate) fn pending_release(&self) -> PendingRelease {
        PendingRelease {
            acquisition: self.acquisition.clone(),
            upgrade: self.upgrade.clone(),
            task_hold_end: self.task_hold.as_ref().map(TaskHold::end),
            path: self.paths().join(", "),
            process: self.context.process(),
        }
    }

    // ---- for read/write locks ----

    /// Turns a writer into a reader, with the same queue position.
    pub(crate) async fn downgrade(&mut self) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Lost { path: self.path().to_owned(), reason: LossReason::Forked });
        }
        if let Some(upgrade) = self.upgrade.take() {
            // The reader still holds its own znode, so only the writer is released.
            self.release_upgrade(&upgrade);
            return match self.loss() {
                None => Ok(()),
                Some(reason) => Err(Error::Lost { path: self.path().to_owned(), reason }),
            };
        }
        let outcome = self.acquisition.downgrade().await;
        let path = self.path().to_owned();
        outcome.map(|_| ()).map_err(|loss: Loss| Error::Lost { path, reason: loss.into() })
    }

    /// Returns the znode in the first directory. A reader that upgrades passes it to the write acquisition.
    pub(crate) fn node(&self) -> Option<Node> {
        self.acquisition.node()
    }

    /// Adds the write acquisition `other` to this guard, which then releases both.
    pub(crate) fn upgrade_with(&mut self, mut other: Held) {
        other.released_elsewhere = true;
        self.upgrade = Some(other.acquisition.clone());
    }

    /// Releases the writer of an upgraded reader. If the reader's lock is lost, the release marker records that the
    /// holder did not leave cleanly.
    fn release_upgrade(&self, upgrade: &Arc<Acquisition>) {
        match self.acquisition.loss() {
            None => upgrade.release(),
            Some(_) => upgrade.handle_event(Event::Release(HolderState::Broken)),
        }
    }

    fn acquisitions(&self) -> impl Iterator<Item = &Arc<Acquisition>> {
        std::iter::once(&self.acquisition).chain(&self.upgrade)
    }
}

/// Waits until one of these acquisitions has lost its lock, and returns the reason.
async fn wait_for_loss(all: impl Iterator<Item = &Arc<Acquisition>>) -> LossReason {
    select_all(all.map(|acquisition| Box::pin(acquisition.lost()))).await.0.into()
}

impl Drop for Held {
    fn drop(&mut self) {
        // The locks of a forked process belong to its parent.
        if self.released_elsewhere || self.is_forked() {
            return;
        }
        if let Some(task_hold) = &self.task_hold {
            let how = if std::thread::panicking() { ReleaseKind::Panicked } else { ReleaseKind::Released };
            return task_hold.release(how);
        }
        if let Some(upgrade) = &self.upgrade {
            self.release_upgrade(upgrade);
        }
        self.acquisition.release();
    }
}

/// A release that a caller can wait for. The release begins when the guard is dropped, which may be
/// after this value was made.
pub(crate) struct PendingRelease {
    acquisition: Arc<Acquisition>,
    /// The write acquisition of an upgraded reader.
    upgrade: Option<Arc<Acquisition>>,
    /// The end of the task's hold, if tasks share the hold of the lock. Empty until that end.
    task_hold_end: Option<Arc<OnceLock<TaskHoldEnd>>>,
    path: String,
    process: Process,
}

impl PendingRelease {
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns whether the guard was dropped or the lock was lost.
    pub(crate) fn has_begun(&self) -> bool {
        if self.process.is_forked() {
            return true;
        }
        if let Some(end) = &self.task_hold_end {
            return end.get().is_some() || self.acquisition.loss().is_some();
        }
        self.acquisition.is_released() || self.acquisition.is_leaving()
    }

    /// Waits until the server has confirmed the deletion of the znode. Returns at once if the
    /// client keeps the lock for its other tasks.
    pub(crate) async fn wait(self) -> Result<(), Error> {
        if self.process.is_forked() {
            return Err(Error::Lost { path: self.path, reason: LossReason::Forked });
        }
        if let Some(TaskHoldEnd::PassedOn) = self.task_hold_end.as_ref().and_then(|end| end.get()) {
            return Ok(());
        }
        let mut worst = ReleaseOutcome::Clean;
        for acquisition in self.upgrade.iter().chain([&self.acquisition]) {
            let departed = acquisition.wait_for_release().await;
            if worst == ReleaseOutcome::Clean {
                worst = departed;
            }
        }
        match worst {
            ReleaseOutcome::Clean => Ok(()),
            ReleaseOutcome::Lost(loss) => Err(Error::Lost { path: self.path, reason: loss.into() }),
            ReleaseOutcome::Refused(RequestFailure::Refused(Refusal::Denied)) => Err(Error::Denied {
                subject: format!("lock {}", self.path),
                message:
                    "the ACL forbids deleting the lock znode; the lock stays held until the session ends, \
                     unless an operator breaks it"
                        .to_owned(),
            }),
            ReleaseOutcome::Refused(failure) => Err(Error::Protocol {
                subject: format!("lock {}", self.path),
                message: format!(
                    "the server refused the release ({failure:?}); the lock stays held until the session \
                     ends, unless an operator breaks it"
                ),
            }),
        }
    }
}
