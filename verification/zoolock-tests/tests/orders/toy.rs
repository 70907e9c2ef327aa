//! Test doubles for the types of the library that `zoolock/src/lock/shared_hold.rs` uses.
//!
//! In that file, the tasks of a process share a hold. Here, a queue in memory replaces the ZooKeeper server. The other types
//! have only the functions that the file calls.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use shuttle::sync::{Mutex, MutexGuard};
use tokio::sync::watch;
use zoolock_core::acquisition::{Loss, SessionEnd};
use zoolock_core::record::HolderState;
use zoolock_core::shared_hold::ReleaseKind;
use zoolock_core::{Instant, Kind};

use crate::shared_hold::TaskHold;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a constant time.
pub(crate) fn now() -> Instant {
    Instant(0)
}

/// Returns a constant time.
pub(crate) fn deadline_after(_: Duration) -> Instant {
    now()
}

/// A server with the queue of one lock.
pub(crate) struct Server {
    queue: Mutex<Queue>,
    /// Notifies its receivers of each change of the queue.
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct Queue {
    nodes: VecDeque<u64>,
    next: u64,
    /// The acquisitions that hold the lock or held it, by znode.
    granted: HashMap<u64, Arc<Acquisition>>,
}

impl Server {
    pub(crate) fn new() -> Arc<Server> {
        Arc::new(Server { queue: Mutex::default(), changed: watch::Sender::new(()) })
    }

    fn join(&self) -> u64 {
        let queue = &mut *lock(&self.queue);
        queue.next += 1;
        queue.nodes.push_back(queue.next);
        self.changed.send_replace(());
        queue.next
    }

    fn remove(&self, node: u64) {
        lock(&self.queue).nodes.retain(|other| *other != node);
        self.changed.send_replace(());
    }

    fn count(&self) -> usize {
        lock(&self.queue).nodes.len()
    }

    /// Returns the acquisition that holds the lock, if there is one.
    fn holder(&self) -> Option<Arc<Acquisition>> {
        let queue = &*lock(&self.queue);
        queue.nodes.front().and_then(|node| queue.granted.get(node)).cloned()
    }

    /// Deletes the znode of the holder, as an operator does. Returns whether there is a holder.
    pub(crate) fn break_holder(&self) -> bool {
        let holder = self.holder();
        if let Some(holder) = &holder {
            holder.lose(Loss::Broken);
            self.remove(holder.node);
        }
        holder.is_some()
    }

    /// Asks the holder to release the lock. Returns whether there is a holder.
    pub(crate) fn revoke(&self) -> bool {
        let holder = self.holder();
        if let Some(holder) = &holder {
            holder.revoked.send_replace(true);
        }
        holder.is_some()
    }

    pub(crate) fn is_free(&self) -> bool {
        self.count() == 0
    }
}

/// The client of one process.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) server: Arc<Server>,
    session: Session,
}

impl Context {
    pub(crate) fn new(server: &Arc<Server>) -> Context {
        let session = Session { server: server.clone(), end: Arc::default() };
        Context { server: server.clone(), session }
    }

    /// Closes the client, which then holds no lock any more. Returns whether the client was ever
    /// granted a lock.
    pub(crate) fn close(&self) -> bool {
        *lock(&self.session.end) = Some(SessionEnd::Closed);
        let ours: Vec<_> = {
            let queue = lock(&self.server.queue);
            let all = queue.granted.values();
            all.filter(|one| Arc::ptr_eq(&one.session.end, &self.session.end)).cloned().collect()
        };
        for acquisition in &ours {
            acquisition.lose(Loss::SessionOver(SessionEnd::Closed));
            self.server.remove(acquisition.node);
        }
        !ours.is_empty()
    }

    pub(crate) fn process(&self) -> Process {
        Process
    }

    /// Waits for ever, because the time stands still.
    pub(crate) fn alarm(&self, _: Instant) -> std::future::Pending<()> {
        std::future::pending()
    }

    pub(crate) async fn server_answers(&self) -> bool {
        true
    }

    pub(crate) fn owner_ids(&self) -> OwnerIds {
        OwnerIds
    }

    pub(crate) fn tasks(&self) -> Tasks {
        Tasks
    }
}

pub(crate) struct Process;

impl Process {
    pub(crate) fn is_forked(&self) -> bool {
        false
    }

    pub(crate) fn check_not_forked(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[derive(Clone, Default)]
pub(crate) struct OwnerMode {}

pub(crate) struct OwnerIds;

impl OwnerIds {
    pub(crate) fn new_shared_hold(&self) -> OwnerMode {
        OwnerMode {}
    }
}

pub(crate) struct Tasks;

impl Tasks {
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Task {
        Task(shuttle::future::spawn(task).abort_handle())
    }
}

pub(crate) struct Task(shuttle::future::AbortHandle);

impl Task {
    pub(crate) fn abort(&self) {
        self.0.abort();
    }
}

#[derive(Clone)]
pub(crate) struct Session {
    server: Arc<Server>,
    end: Arc<Mutex<Option<SessionEnd>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connection {
    Ended,
}

impl Session {
    pub(crate) fn end(&self) -> Option<SessionEnd> {
        *lock(&self.end)
    }

    pub(crate) fn connection(&self) -> watch::Receiver<Connection> {
        watch::Sender::new(Connection::Ended).subscribe()
    }

    pub(crate) fn zk(&self) -> Option<ZkSession> {
        Some(ZkSession(self.server.clone()))
    }

    pub(crate) fn reserve_anyway(&self, _: usize) {}
}

pub(crate) struct WatchReservation;

impl WatchReservation {
    pub(crate) fn of(_: Session, _: usize) -> WatchReservation {
        WatchReservation
    }
}

pub(crate) struct Stat {
    pub(crate) children: usize,
}

pub(crate) struct ZkSession(Arc<Server>);

impl ZkSession {
    pub(crate) async fn exists(&self, _: &str) -> Result<Option<Stat>, Error> {
        Ok(Some(Stat { children: self.0.count() }))
    }

    /// Returns a list with one entry for each znode, and a future that completes at the next
    /// change.
    pub(crate) async fn watch_children(
        &self,
        _: &str,
    ) -> Result<(Vec<()>, (), impl Future<Output = ()> + use<>), Error> {
        let mut changed = self.0.changed.subscribe();
        let names = vec![(); self.0.count()];
        let watch = async move {
            let _ = changed.changed().await;
        };
        Ok((names, (), watch))
    }
}

/// A contender that was granted the lock. It may have lost the lock since.
pub(crate) struct Acquisition {
    pub(crate) node: u64,
    session: Session,
    loss: watch::Sender<Option<Loss>>,
    revoked: watch::Sender<bool>,
    directories: [String; 1],
}

impl Acquisition {
    fn new(node: u64, session: Session) -> Arc<Acquisition> {
        let (loss, revoked) = (watch::Sender::new(None), watch::Sender::new(false));
        Arc::new(Acquisition { node, session, loss, revoked, directories: ["/lock".to_owned()] })
    }

    fn lose(&self, loss: Loss) {
        self.loss.send_replace(Some(loss));
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.loss.borrow().is_some()
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn directories(&self) -> &[String; 1] {
        &self.directories
    }

    pub(crate) async fn lost(&self) -> Loss {
        let mut loss = self.loss.subscribe();
        let known = loss.wait_for(Option::is_some).await.expect("the acquisition lives");
        known.expect("a loss")
    }

    pub(crate) async fn revoked(&self) {
        let mut revoked = self.revoked.subscribe();
        let _ = revoked.wait_for(|revoked| *revoked).await;
    }
}

/// The queue position of a waiter. Dropping it removes the waiter from the queue, unless the lock
/// was granted.
struct Place(Option<u64>, Arc<Server>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(node) = self.0 {
            self.1.remove(node);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstSession {
    New,
    Replacement,
}

#[derive(Clone, Copy)]
pub(crate) enum WaitLimit {
    Try,
    ForEver,
}

impl WaitLimit {
    /// Returns this limit, because the waits of this test have no deadline.
    pub(crate) fn or_try_if_passed(self) -> WaitLimit {
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Error {
    Closed,
    /// The lease has ended just after the grant.
    NoAnswer,
}

impl Error {
    /// Panics. The sessions of this test never refuse the credentials.
    pub(crate) fn lock_denied(path: &str) -> Error {
        panic!("{path}: refused");
    }
}

#[expect(dead_code, reason = "the file under test sets it, and only the library reads it")]
#[derive(Clone, Default)]
pub(crate) struct Options {
    pub(crate) listeners: Listeners,
    pub(crate) owner_mode: OwnerMode,
}

#[derive(Clone)]
pub(crate) struct Lock {
    pub(crate) context: Context,
    pub(crate) options: Options,
}

impl Lock {
    pub(crate) fn new(context: Context) -> Lock {
        Lock { context, options: Options::default() }
    }

    pub(crate) fn path(&self) -> String {
        "/lock".to_owned()
    }

    pub(crate) fn no_answer(&self) -> Error {
        Error::NoAnswer
    }

    /// Waits without a time limit.
    pub(crate) async fn wait_within<T>(&self, _: WaitLimit, what: impl Future<Output = T>) -> Option<T> {
        Some(what.await)
    }

    /// Joins the queue, and waits until no contender is ahead. With `Try`, returns `None` if a
    /// contender is ahead. Fails if the client is closed.
    pub(crate) async fn acquire_in_span(
        &self,
        _: Kind,
        wait_limit: WaitLimit,
        _: FirstSession,
    ) -> Result<Option<Held>, Error> {
        let Context { server, session } = &self.context;
        if session.end().is_some() {
            return Err(Error::Closed);
        }
        let mut changed = server.changed.subscribe();
        let node = server.join();
        let mut place = Place(Some(node), server.clone());
        loop {
            changed.borrow_and_update();
            {
                let queue = &mut *lock(&server.queue);
                if queue.nodes.front() == Some(&node) {
                    let acquisition = Acquisition::new(node, session.clone());
                    queue.granted.insert(node, acquisition.clone());
                    place.0 = None;
                    return Ok(Some(Held { acquisition, task_hold: None }));
                }
            }
            if matches!(wait_limit, WaitLimit::Try) {
                return Ok(None);
            }
            let _ = changed.changed().await;
        }
    }
}

/// A guard of the lock.
///
/// Without a `task_hold`, releasing the guard removes the znode from the queue. With a `task_hold`, the guard belongs to one
/// of the tasks that share the znode, and releasing it ends that task's hold.
pub(crate) struct Held {
    acquisition: Arc<Acquisition>,
    task_hold: Option<TaskHold>,
}

impl Held {
    pub(crate) fn acquisition(&self) -> &Arc<Acquisition> {
        &self.acquisition
    }

    pub(crate) fn is_valid(&self) -> bool {
        !self.acquisition.is_lost()
    }

    pub(crate) fn ticket(&self) -> u64 {
        self.acquisition.node
    }

    pub(crate) fn share_with(&self, task_hold: TaskHold, _worked: bool) -> Held {
        Held { acquisition: self.acquisition.clone(), task_hold: Some(task_hold) }
    }

    pub(crate) fn claim(mut self) -> Option<Held> {
        let is_taken = self.task_hold.as_mut().is_none_or(TaskHold::claim);
        is_taken.then_some(self)
    }

    pub(crate) fn release_untouched(&self) {
        self.leave(ReleaseKind::Untouched);
    }

    pub(crate) fn release_as(&self, _: HolderState) {
        self.leave(ReleaseKind::Released);
    }

    fn leave(&self, how: ReleaseKind) {
        match &self.task_hold {
            Some(task_hold) => task_hold.release(how),
            None => self.acquisition.session.server.remove(self.acquisition.node),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.leave(ReleaseKind::Released);
    }
}

#[derive(Clone, Default)]
pub(crate) struct Listeners {}

impl Listeners {
    pub(crate) fn without_outcome(&self) -> Listeners {
        Listeners {}
    }

    pub(crate) fn tell(&self, _: LockEvent) {}
}

#[expect(dead_code, reason = "the file under test sets it, and only the library reads it")]
pub(crate) enum LockEvent {
    Queued { ahead: u32 },
    Acquired(u64),
    Released(u64),
    GaveUp,
}
