//! The common part of every guard.

use std::sync::Arc;

use tracing::Instrument as _;
use zoolock_core::acquisition::{Grant, Loss, Node, Previous, Refusal, ReleaseOutcome, RequestFailure};
use zoolock_core::names::{Prefix, Role};
use zoolock_core::record::HolderState;
use zoolock_core::shared_hold::ReleaseKind;
use zoolock_core::{Event, FencingToken};

use crate::base::check::Check;
use crate::base::clock::Deadline;
use crate::base::error::{Error, LossReason};
use crate::base::options::Options;
use crate::base::ticket::Ticket;
use crate::engine::{Acquisition, release_state_of_this_thread};
use crate::lock::context::Context;
use crate::lock::lease::{HoldView, Lease};
use crate::lock::shared_hold::TaskHold;

/// A lock that is held, with the methods that guards of all kinds have.
///
/// Every guard dereferences to it. So a function that only reads the state of a guard can take `&Held`, and then accepts
/// a guard of any kind. [`AnyGuard`](crate::AnyGuard) owns a guard of any kind.
///
/// ```no_run
/// use zoolock::{Held, Zoolock};
///
/// fn describe(held: &Held) -> String {
///     format!("{:?} is held for {:?}", held.paths(), held.valid_until().remaining())
/// }
///
/// # async fn example(zl: Zoolock) -> Result<(), zoolock::Error> {
/// let job = zl.mutex("job").lock().await?;
/// let config = zl.rwlock("config").read().await?;
/// println!("{}, {}", describe(&job), describe(&config));
/// # Ok(()) }
/// ```
pub struct Held {
    context: Context,
    hold: Arc<HoldView>,
    grant: Grant,
    /// The role in which the lock is held now. A downgrade and an upgrade change it.
    role: Role,
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
        let hold = HoldView::new(context.process(), acquisition);
        Held::of(context, hold, grant, options)
    }

    fn of(context: Context, hold: HoldView, grant: Grant, options: Options) -> Held {
        Held {
            context,
            hold: Arc::new(hold),
            grant,
            role: grant.node.prefix.role(),
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
        let hold = self.hold.of_task(task_hold.end());
        let mut held = Held::of(self.context.clone(), hold, grant, self.options.clone());
        held.task_hold = Some(task_hold);
        held
    }

    /// Returns whether this process is a fork of the process that holds the lock.
    pub(crate) fn is_forked(&self) -> bool {
        self.context.process().is_forked()
    }

    /// Returns the znode that holds the lock.
    pub(crate) fn holding_node(&self) -> Node {
        self.node_of(&self.hold.acquisition)
    }

    fn node_of(&self, acquisition: &Acquisition) -> Node {
        let known = if self.is_forked() { None } else { acquisition.node() };
        known.unwrap_or(self.grant.node)
    }

    /// Takes the grant for the acquiring task. Returns `None` if the task shares a hold, and may not have the lock any
    /// more. Then it must ask again.
    pub(crate) fn claim(mut self) -> Option<Held> {
        let is_taken = self.task_hold.as_mut().is_none_or(TaskHold::claim);
        is_taken.then_some(self)
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn acquisition(&self) -> &Arc<Acquisition> {
        &self.hold.acquisition
    }

    /// Returns the token. It stays the same when a writer downgrades or a reader upgrades, because no other writer can
    /// get the lock in between.
    pub(crate) fn token(&self) -> FencingToken {
        let pass = self.task_hold.as_ref().map_or(0, TaskHold::pass);
        FencingToken::new(self.context.epoch(), self.grant.node.czxid, pass)
    }

    /// Returns the token, or `None` if other contenders can hold the lock at the same time.
    pub(crate) fn exclusive_token(&self) -> Option<FencingToken> {
        (self.role == Role::Exclusive).then(|| self.token())
    }

    /// Returns the ticket that identifies this holder in [`revoke`](crate::Admin::revoke) and
    /// [`break_lock`](crate::Admin::break_lock). It is no fencing token.
    pub fn ticket(&self) -> Ticket {
        Ticket::new(self.context.epoch(), self.holding_node().czxid)
    }

    /// Returns the lease of this guard, a value that may outlive the guard.
    pub fn lease(&self) -> Lease {
        Lease::new(self.hold.clone(), self.exclusive_token(), self.paths().join(", "))
    }

    /// Returns the lease deadline, until which the holder may rely on the lock. Each renewal extends it. Reads no clock
    /// and sends nothing. After a loss, returns a deadline that has passed.
    pub fn valid_until(&self) -> Deadline {
        self.hold.valid_until()
    }

    /// Returns whether the holder may rely on the lock now. Reads the clock and sends nothing. Once it has
    /// returned false, it always returns false.
    pub fn is_valid(&self) -> bool {
        self.hold.is_valid()
    }

    /// Waits until the lock is lost, and returns the reason. After the loss, resolves at once, and always to the same
    /// reason.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn lost(&self) -> LossReason {
        self.hold.clone().lost().await
    }

    /// Returns the reason of the loss, if the loss is already known. Does not wait.
    pub fn loss(&self) -> Option<LossReason> {
        self.hold.loss()
    }

    /// Waits until this holder is asked to release the lock: by `zoolock revoke`, by Curator, or by
    /// another client that follows ZooKeeper's recipe for revocable locks. The holder keeps the
    /// lock until it releases the lock.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn revoked(&self) {
        self.hold.clone().revoked().await;
    }

    /// Returns whether this holder has been asked to release the lock, as far as this client knows.
    /// Sends nothing.
    pub fn is_revoked(&self) -> bool {
        self.hold.is_revoked()
    }

    /// Waits until the holder's znode was read once, or the lock is lost.
    pub(crate) async fn wait_for_own_node_read(&self) {
        self.hold.wait_for_own_node_read().await;
    }

    /// Returns how the last exclusive holder left, as far as this is known now. With
    /// [`crash_detection`](crate::Mutex::crash_detection) or
    /// [`tell_previous`](crate::Mutex::tell_previous), this is read before the grant. Without them,
    /// a holder that had to wait for a [`Mutex`](crate::Mutex) may get
    /// [`Unknown`](Previous::Unknown) in its first milliseconds. A result other than `Unknown` is
    /// final. For permits, the result is always `Unknown`, because no holder of permits is exclusive.
    pub fn previous(&self) -> Previous {
        match self.grant.previous {
            Previous::Unknown if !self.is_forked() => {
                self.hold.acquisition.previous().unwrap_or(self.grant.previous)
            }
            known => known,
        }
    }

    pub(crate) fn path(&self) -> &str {
        self.context.without_chroot(self.hold.acquisition.directories()[0].as_str())
    }

    /// Returns the paths of the lock directories, each once. A multi-lock has several directories, every other lock has
    /// one.
    pub fn paths(&self) -> Vec<&str> {
        let directories = self.hold.acquisition.directories().iter();
        directories.map(|directory| self.context.without_chroot(directory.as_str())).collect()
    }

    /// Returns the number of permits of a semaphore; 1 for other locks.
    pub(crate) fn permits(&self) -> u32 {
        match self.grant.node.prefix {
            Prefix::Permit(permits) => permits,
            _ => 1,
        }
    }

    /// Returns a check that makes the caller's own ZooKeeper transaction fail if the lock is lost. It checks the
    /// holder's znode. For an upgraded reader, this is the znode of the writer.
    pub fn check(&self) -> Check {
        // The path includes the chroot, because the caller's own ZooKeeper client may not use this
        // client's chroot.
        Check::of(self.holding_path())
    }

    /// Returns the path of the znode that shows whether the lock is held, with the chroot. For an upgraded reader, this is the
    /// znode of the writer.
    pub(crate) fn holding_path(&self) -> String {
        let acquisition = self.hold.upgrade.as_ref().unwrap_or(&self.hold.acquisition);
        acquisition.directories()[0].child(&self.node_of(acquisition).name())
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
        if self.task_hold.is_none() && self.hold.upgrade.is_none() {
            self.release_as(release_state_of_this_thread());
        }
        drop(self);
        pending_release.wait().instrument(span)
    }

    pub(crate) fn pending_release(&self) -> PendingRelease {
        PendingRelease { hold: self.hold.clone(), path: self.paths().join(", ") }
    }

    // ---- for read/write locks ----

    /// Turns a writer into a reader, with the same queue position.
    pub(crate) async fn downgrade(&mut self) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Lost { path: self.path().to_owned(), reason: LossReason::Forked });
        }
        // Ends the writer's leases first, because other readers may be granted from now on.
        let reader = Arc::new(self.hold.downgraded());
        let writer = std::mem::replace(&mut self.hold, reader);
        if let Some(upgrade) = &writer.upgrade {
            // The reader still holds its own znode, so only the writer is released.
            self.release_upgrade(upgrade);
            self.role = Role::Shared;
            return match self.loss() {
                None => Ok(()),
                Some(reason) => Err(Error::Lost { path: self.path().to_owned(), reason }),
            };
        }
        let outcome = self.hold.acquisition.downgrade().await;
        let path = self.path().to_owned();
        outcome.map_err(|loss: Loss| Error::Lost { path, reason: LossReason::of(loss) })?;
        self.role = Role::Shared;
        Ok(())
    }

    /// Returns the znode in the first directory. A reader that upgrades passes it to the write acquisition.
    pub(crate) fn node(&self) -> Option<Node> {
        self.hold.acquisition.node()
    }

    /// Adds the write acquisition `other` to this guard, which then releases both.
    pub(crate) fn upgrade_with(&mut self, mut other: Held) {
        other.released_elsewhere = true;
        self.hold = Arc::new(self.hold.upgraded(other.acquisition().clone()));
        self.role = Role::Exclusive;
    }

    /// Releases the writer of an upgraded reader. If the reader's lock is lost, the release marker records that the
    /// holder did not leave cleanly.
    fn release_upgrade(&self, upgrade: &Arc<Acquisition>) {
        match self.hold.acquisition.loss() {
            None => upgrade.release(),
            Some(_) => upgrade.handle_event(Event::Release(HolderState::Broken)),
        }
    }

    fn acquisitions(&self) -> impl Iterator<Item = &Arc<Acquisition>> {
        self.hold.acquisitions()
    }
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
        if let Some(upgrade) = &self.hold.upgrade {
            self.release_upgrade(upgrade);
        }
        self.hold.acquisition.release();
    }
}

/// A release that a caller can wait for. The release begins when the guard is dropped, which may be
/// after this value was made.
pub(crate) struct PendingRelease {
    hold: Arc<HoldView>,
    path: String,
}

impl PendingRelease {
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns whether the guard was dropped or the lock was lost.
    pub(crate) fn has_begun(&self) -> bool {
        if self.hold.process.is_forked() {
            return true;
        }
        if let Some(end) = &self.hold.task_end {
            return end.has_ended() || self.hold.acquisition.loss().is_some();
        }
        self.hold.acquisition.is_released() || self.hold.acquisition.is_leaving()
    }

    /// Waits until the server has confirmed the deletion of the znode. Returns at once if the
    /// client keeps the lock for its other tasks.
    pub(crate) async fn wait(self) -> Result<(), Error> {
        if self.hold.process.is_forked() {
            return Err(Error::Lost { path: self.path, reason: LossReason::Forked });
        }
        if self.hold.task_end.as_ref().is_some_and(|end| end.is_passed_on()) {
            return Ok(());
        }
        let mut worst = ReleaseOutcome::Clean;
        for acquisition in self.hold.upgrade.iter().chain([&self.hold.acquisition]) {
            let departed = acquisition.wait_for_release().await;
            if worst == ReleaseOutcome::Clean {
                worst = departed;
            }
        }
        match worst {
            ReleaseOutcome::Clean => Ok(()),
            ReleaseOutcome::Lost(loss) => Err(Error::Lost { path: self.path, reason: LossReason::of(loss) }),
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
