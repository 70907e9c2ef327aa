//! Acquires a lock of any kind: from the name to the grant.
//!
//! [`Lock::acquire`] reserves watch capacity on a session, sends the first requests, and waits for the outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;
use tracing::{Instrument as _, Level};
use zoolock_core::acquisition::{Kind, Mode, Previous, Reason, SessionEnd};
use zoolock_core::layout::Layout;
use zoolock_core::names::Names;
use zoolock_core::{Config, Rules, Sequence};

use crate::base::clock;
use crate::base::error::{Error, LossReason};
use crate::base::metrics::{AcquireMetrics, kind_name};
use crate::base::naming;
use crate::base::naming::Naming;
use crate::base::options::Options;
use crate::base::path::LockPath;
use crate::base::process::Process;
use crate::base::tasks::Task;
use crate::base::telemetry::log_event;
use crate::engine::data::{NodeData, short_note};
use crate::engine::gather::LockDirectory;
use crate::engine::reader::QueueReader;
use crate::engine::{Acquisition, Progress};
use crate::lock::context::Context;
use crate::lock::held::Held;
use crate::lock::history;
use crate::session::{LockSession, WATCHED_BYTES, WatchReservation};
use crate::zk::session::ZkSession;

/// The common part of all lock handles: the names and the options.
#[derive(Clone)]
pub(crate) struct Lock {
    pub(crate) context: Context,
    /// One name, or the names of a multi-lock.
    pub(crate) names: Vec<String>,
    /// The lock directories of these names, or the reason why they cannot be acquired.
    pub(crate) directories: Result<Arc<[LockPath]>, Error>,
    pub(crate) options: Options,
    /// For a semaphore: set once its directory is known to have no semaphore of another client library. `None` for
    /// other kinds.
    pub(crate) layout_checked: Option<Arc<AtomicBool>>,
}

/// The limit on the time that a caller waits for a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WaitLimit {
    /// Makes one attempt and does not wait.
    Try,
    Until(Instant),
    ForEver,
}

impl WaitLimit {
    pub(crate) fn timeout(timeout: Duration) -> WaitLimit {
        WaitLimit::Until(crate::base::clock::deadline_after(timeout))
    }

    /// Returns this limit, or [`WaitLimit::Try`] if it is a deadline that has passed.
    pub(crate) fn or_try_if_passed(self) -> WaitLimit {
        match self {
            WaitLimit::Until(deadline) if deadline <= clock::monotonic() => WaitLimit::Try,
            limit => limit,
        }
    }

    /// Returns the limit of the wait for an answer of the server: `answer_by`, or this limit if it is later.
    pub(crate) fn at_least(self, answer_by: Instant) -> WaitLimit {
        match self {
            WaitLimit::Try => WaitLimit::Until(answer_by),
            WaitLimit::Until(deadline) => WaitLimit::Until(deadline.max(answer_by)),
            WaitLimit::ForEver => WaitLimit::ForEver,
        }
    }
}

/// The session on which an acquisition begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstSession {
    /// Any session. If no server is reached within the connect timeout, the acquisition fails.
    New,
    /// A session in place of another one, on which the caller has held the lock or waited for it. The acquisition waits
    /// until a server is reached.
    Replacement,
}

impl Lock {
    pub(crate) fn new(context: Context, names: Vec<String>) -> Lock {
        let directories = directories(&context, &names);
        Lock { options: context.options(), context, names, directories, layout_checked: None }
    }

    /// Returns the first name, as it was given.
    pub(crate) fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// Returns the path of the lock directory without the chroot, or the paths of a multi-lock. An invalid name stays as
    /// it was given.
    pub(crate) fn path(&self) -> String {
        let path = |name: &String| match self.context.path(name) {
            Ok(path) => self.context.without_chroot(path.as_str()).to_owned(),
            Err(_) => name.clone(),
        };
        self.names.iter().map(path).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn directory(&self) -> Result<LockPath, Error> {
        self.context.path(self.name())
    }

    /// Acquires the lock. Fails if the lock is busy when the deadline has passed.
    pub(crate) async fn lock_until(&self, kind: Kind, deadline: Instant) -> Result<Held, Error> {
        let began = clock::monotonic();
        let held = self.acquire(kind, WaitLimit::Until(deadline)).await?;
        held.ok_or_else(|| self.timed_out(kind, began))
    }

    /// Returns the timeout error for a busy lock after a wait since `began`.
    pub(crate) fn timed_out(&self, kind: Kind, began: Instant) -> Error {
        let waited = clock::monotonic() - began;
        Error::Timeout { path: self.path(), waited, held_here: self.is_held_here(kind) }
    }

    /// Returns whether guards of this client hold the lock, so that an acquisition of this kind waits for them.
    fn is_held_here(&self, kind: Kind) -> bool {
        let Ok(directories) = self.directories() else { return false };
        let sessions = self.context.sessions();
        let here = sessions.iter().flat_map(|session| session.acquisitions_in(directories));
        let own_reader = if let Kind::Upgrade { from } = kind { Some(from) } else { None };
        let nodes = here.filter_map(|acquisition| acquisition.held_node());
        let mut names =
            nodes.filter(|node| Some(*node) != own_reader).map(|node| node.prefix.to_name(node.sequence));
        match kind {
            Kind::Permits { take, size } => {
                let taken: u64 = names.map(|name| u64::from(name.weight)).sum();
                taken + u64::from(take) > u64::from(size)
            }
            _ => names.any(|name| kind.role().waits_for(name.role)),
        }
    }

    /// Writes to the log if the lock is busy and held by this client. This is no error, because tasks of one client may
    /// wait for each other.
    async fn log_if_held_here(&self, acquisition: &Acquisition, kind: Kind) {
        acquisition.wait_until_busy_or_decided().await;
        if !acquisition.is_decided() && self.is_held_here(kind) {
            let lock = self.path();
            log_event!(
                DEBUG,
                lock,
                "waits for a guard of this client; if the same task holds that guard, this is a deadlock"
            );
        }
    }

    /// Acquires the lock. Returns `None` if the lock is busy at the end of the wait.
    pub(crate) fn acquire(
        &self,
        kind: Kind,
        wait_limit: WaitLimit,
    ) -> impl Future<Output = Result<Option<Held>, Error>> + use<'_> {
        let acquired = async move {
            self.context.process().check_not_forked()?;
            self.acquire_in_span(kind, wait_limit, FirstSession::New).await
        };
        acquired.instrument(self.span(kind))
    }

    /// Returns the span of an acquisition. Its fields are computed only if it is enabled.
    pub(crate) fn span(&self, kind: Kind) -> tracing::Span {
        tracing::debug_span!("lock", path = self.path(), kind = kind_name(kind, self.names.len()))
    }

    /// Acquires the lock as [`Lock::acquire`] does, in the caller's span. Queues again if the session expires, or if the
    /// grant was given back, because the caller did not poll this future in time. From then on, or at once if the first
    /// session replaces one, waits for the end of an outage.
    ///
    /// Fails if the wait ends before the server has shown that the lock is busy, or if the server no longer answers at
    /// the end of the wait. Even if the wait limit is shorter, opening a session, and then all answers together, may take up to
    /// [`Builder::answer_timeout`](crate::Builder::answer_timeout).
    pub(crate) async fn acquire_in_span(
        &self,
        kind: Kind,
        wait_limit: WaitLimit,
        first_session: FirstSession,
    ) -> Result<Option<Held>, Error> {
        self.names_for(kind)?;
        let directories = self.directories()?;
        let answer_by =
            wait_limit.at_least(crate::base::clock::deadline_after(self.context.answer_timeout()));
        let mut queues_again = first_session == FirstSession::Replacement;
        loop {
            // Waiting for a session counts as waiting for the lock.
            let mut metrics = AcquireMetrics::begin(kind_name(kind, directories.len()), self.metrics_label());
            let reservation = match self.reserve(kind, directories, answer_by).await {
                Ok(Some(reservation)) => reservation,
                refused => {
                    let may_retry = queues_again && matches!(refused, Err(Error::Unavailable { .. }));
                    let error = refused.err().unwrap_or_else(|| self.no_answer());
                    metrics.record_refusal(&error);
                    // Tries again for a waiter that queues again, because the outage may end before the wait ends.
                    if !may_retry {
                        return Err(error);
                    }
                    let pause = self.context.alarm(clock::monotonic() + REJOIN_PAUSE);
                    if self.wait_within(answer_by, pause).await.is_none() {
                        return Err(self.no_answer());
                    }
                    continue;
                }
            };
            let pending = self.enqueue(reservation, kind, directories, wait_limit, None, metrics)?;
            match self.wait_for_grant(pending, kind).await? {
                AttemptOutcome::Held(held) => return Ok(Some(held)),
                AttemptOutcome::Busy => return Ok(None),
                AttemptOutcome::SessionExpired | AttemptOutcome::Unclaimed => queues_again = true,
            }
        }
    }

    /// Returns the error of an acquisition whose wait ended in an outage. It is then unknown
    /// whether the lock is busy.
    pub(crate) fn no_answer(&self) -> Error {
        let message = format!(
            "the server did not answer in time while waiting for lock {}; check that it runs",
            self.path()
        );
        Error::unavailable(self.context.endpoints(), message)
    }

    /// Reserves watch capacity on a session. Returns `None` if the wait ends first. Before the first acquisition of a
    /// semaphore's handle, also checks that the directory has no semaphore of another client library.
    async fn reserve(
        &self,
        kind: Kind,
        directories: &[LockPath],
        wait_limit: WaitLimit,
    ) -> Result<Option<WatchReservation>, Error> {
        let bytes = watched_bytes(kind, self.options.naming, directories);
        let session = match self.context.session_now(bytes) {
            Some(session) => session,
            None => match Box::pin(self.wait_within(wait_limit, self.context.session(bytes))).await {
                Some(session) => session?,
                None => return Ok(None),
            },
        };
        let reservation = WatchReservation::of(session, bytes);
        if let Some(checked) = self.layout_checked.as_deref().filter(|it| !it.load(Ordering::Relaxed)) {
            let check =
                Box::pin(self.wait_within(wait_limit, self.check_layout(reservation.session(), checked)));
            if check.await.transpose()?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(reservation))
    }

    /// Refuses a semaphore of another client library before this handle creates its first znode in
    /// the directory. Otherwise the znode would take a permit away, because kazoo counts every
    /// child of the directory as a permit that is held.
    ///
    /// If the directory cannot be read, the acquisition continues, and checks again after it has created its znode.
    async fn check_layout(&self, session: &LockSession, checked: &AtomicBool) -> Result<(), Error> {
        let Some(zk) = session.zk() else { return Ok(()) };
        match self.find_foreign_semaphore(&zk).await {
            Ok(Some(layout)) => return Err(self.other_layout(layout)),
            Ok(None) => checked.store(true, Ordering::Relaxed),
            Err(_) => {}
        }
        Ok(())
    }

    /// Returns the layout of the semaphore of another client library at this path, if there is one.
    pub(crate) async fn find_foreign_semaphore(&self, zk: &ZkSession) -> Result<Option<Layout>, Error> {
        let here = LockDirectory::read(&QueueReader::new(zk), self.directory()?).await;
        let here = here.map_err(|error| self.request_error(error))?;
        Ok(here.and_then(|here| here.layout()))
    }

    /// Returns the label of this lock's metrics; `None` if metrics are not labelled by lock.
    pub(crate) fn metrics_label(&self) -> Option<Arc<str>> {
        self.context.labels_metrics_by_lock().then(|| self.path().into())
    }

    /// Awaits `what`. Returns `None` if the limit is a deadline that passes first.
    pub(crate) async fn wait_within<T>(
        &self,
        wait_limit: WaitLimit,
        what: impl Future<Output = T>,
    ) -> Option<T> {
        match wait_limit {
            WaitLimit::ForEver | WaitLimit::Try => Some(what.await),
            WaitLimit::Until(deadline) => {
                // Uses the timer of the client's own runtime, because the caller's runtime may have
                // none.
                let alarm = self.context.alarm(deadline);
                tokio::select! {
                    biased;
                    ready = what => Some(ready),
                    () = alarm => None,
                }
            }
        }
    }

    /// Acquires the lock on the session of a reader that upgrades, and on no other session.
    pub(crate) async fn acquire_for_upgrade(
        &self,
        reader: &Acquisition,
        kind: Kind,
        wait_limit: WaitLimit,
    ) -> Result<Option<Held>, Error> {
        self.context.process().check_not_forked()?;
        let directories = self.directories()?;
        let reserved = watched_bytes(kind, self.options.naming, directories);
        loop {
            let session = reader.session().clone();
            session.reserve_anyway(reserved);
            let reservation = WatchReservation::of(session, reserved);
            let metrics = AcquireMetrics::begin(kind_name(kind, 1), self.metrics_label());
            let pending = self.enqueue(reservation, kind, directories, wait_limit, Some(reader), metrics)?;
            match self.wait_for_grant(pending, kind).await? {
                AttemptOutcome::Held(held) => return Ok(Some(held)),
                AttemptOutcome::Busy => return Ok(None),
                AttemptOutcome::Unclaimed => {}
                AttemptOutcome::SessionExpired => {
                    return Err(Error::Lost { path: self.path(), reason: LossReason::SessionExpired });
                }
            }
        }
    }

    /// Sends the first requests of an acquisition.
    fn enqueue(
        &self,
        reservation: WatchReservation,
        kind: Kind,
        directories: &Arc<[LockPath]>,
        wait_limit: WaitLimit,
        reader: Option<&Acquisition>,
        metrics: AcquireMetrics,
    ) -> Result<PendingAcquire, Error> {
        let session = reservation.session().clone();
        let id = self.context.new_contender();
        let owner = match reader {
            // Keeps the owner of the reader, because its guard may have moved to another task.
            Some(reader) => reader.owner_id(),
            None => self.context.owner_ids().owner_id(&self.options.owner_mode),
        };
        let mut data =
            NodeData::new(id, kind_name(kind, directories.len()), self.context.client_info(), owner);
        data.reader_id = reader.map(|reader| reader.id().to_string());
        if let Some(note) = &self.options.note {
            data.note = Some(short_note(note));
        }
        data.tracks = self.options.crash_detection;
        let config = Config {
            session: session.id(),
            id,
            names: self.names_for(kind)?,
            kind,
            mode: if matches!(wait_limit, WaitLimit::Try) { Mode::Try } else { Mode::Wait },
            tracks_crashes: self.options.crash_detection,
            delay: self.delay_ms(kind),
            watch_own_after: WATCH_OWN_AFTER,
            // At least one, because zero would be no limit.
            claim_timeout: millis(self.context.claim_timeout()).max(1),
            looks_ahead: !self.options.tells_previous,
            retire_from: Sequence::RETIRE_FROM,
            rules: Rules::all(),
        };
        let listeners = self.options.listeners.clone();
        let epoch = self.context.epoch();
        let reserved = reservation.hand_over();
        let reporting = (listeners, epoch, metrics);
        let acquisition =
            Acquisition::start(session, directories.clone(), id, config, data, reserved, reporting);
        let mut pending =
            PendingAcquire { acquisition, gives_up: true, alarm: None, process: self.context.process() };
        let answer_time = self.context.answer_timeout();
        let max_wait = match wait_limit {
            WaitLimit::ForEver => None,
            WaitLimit::Try => Some(Duration::ZERO),
            WaitLimit::Until(deadline) => Some(deadline.saturating_duration_since(clock::monotonic())),
        };
        pending.alarm = max_wait.map(|max_wait| pending.acquisition.give_up_after(max_wait, answer_time));
        Ok(pending)
    }

    /// Waits for the outcome of the acquisition.
    async fn wait_for_grant(&self, mut pending: PendingAcquire, kind: Kind) -> Result<AttemptOutcome, Error> {
        if LevelFilter::current() >= Level::DEBUG {
            // Boxed, because this future would enlarge the caller's future.
            Box::pin(self.log_if_held_here(&pending.acquisition, kind)).await;
        }
        let outcome = pending.acquisition.wait_for_outcome().await;
        self.context.process().check_not_forked()?;
        let acquisition = &pending.acquisition;
        match outcome {
            Progress::Granted(grant) => {
                let acquisition = acquisition.clone();
                pending.gives_up = false;
                if grant.previous == Previous::Crashed {
                    let crashes = acquisition.crashes.take();
                    let path = |index: usize| {
                        self.context.without_chroot(acquisition.directories()[index].as_str()).to_owned()
                    };
                    history::add_crashes(&self.context, path, crashes);
                }
                Ok(AttemptOutcome::Held(Held::new(
                    self.context.clone(),
                    acquisition,
                    grant,
                    self.options.clone(),
                )))
            }
            Progress::Unclaimed => Ok(AttemptOutcome::Unclaimed),
            Progress::Failed(Reason::SessionOver(SessionEnd::Expired)) => Ok(AttemptOutcome::SessionExpired),
            // Does not call the lock busy, because the wait has ended before the server has shown that.
            Progress::Failed(Reason::TimedOut) if !acquisition.was_busy() => Err(self.no_answer()),
            Progress::Failed(reason) => {
                self.failure_error(reason, kind, acquisition).map(|()| AttemptOutcome::Busy)
            }
            Progress::Pending => unreachable!("wait_for_outcome() waits until the acquisition is decided"),
        }
    }

    fn names_for(&self, kind: Kind) -> Result<Names, Error> {
        naming::names_of(self.options.naming, kind, self.options.kazoo_pattern)
    }

    fn delay_ms(&self, kind: Kind) -> u32 {
        match kind {
            Kind::Permits { .. } | Kind::Upgrade { .. } => 0,
            _ => millis(self.options.lock_delay),
        }
    }

    fn directories(&self) -> Result<&Arc<[LockPath]>, Error> {
        let directories = self.directories.as_ref().map_err(Error::clone)?;
        let bytes = watched_bytes(Kind::Write, self.options.naming, directories);
        if directories.len() > 1 && bytes > WATCHED_BYTES {
            let message =
                "the names are together too long to watch on one session; use fewer locks or shorter names";
            return Err(Error::invalid(format!("{} locks", directories.len()), message));
        }
        Ok(directories)
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// Returns the lock directories of these names, each once: a lock that is named twice is one lock.
fn directories(context: &Context, names: &[String]) -> Result<Arc<[LockPath]>, Error> {
    let mut directories = Vec::with_capacity(names.len());
    for name in names {
        let directory = context.path_to_acquire(name)?;
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    let most = zoolock_core::acquisition::MAX_LOCKS;
    if directories.is_empty() || directories.len() > most {
        let message = format!("a multi-lock has between one lock and {most}");
        return Err(Error::invalid(format!("{} locks", directories.len()), message));
    }
    Ok(directories.into())
}

#[expect(clippy::large_enum_variant, reason = "most attempts end with the lock")]
enum AttemptOutcome {
    Held(Held),
    /// The lock is busy, and the wait has ended.
    Busy,
    /// The session has expired. The acquisition may succeed with another session.
    SessionExpired,
    /// The grant was given back, because the caller did not take it in time, or because of a loss.
    Unclaimed,
}

/// The pause between two requests for a new session, after the session of a waiter has expired.
const REJOIN_PAUSE: Duration = Duration::from_millis(500);

/// Milliseconds that a lock is held before the holder watches its own znode.
const WATCH_OWN_AFTER: u32 = 5;

/// Bytes reserved for each znode name whose length is not known in advance.
const LONG_NAME: usize = 64;

/// Returns the number of bytes to reserve for the paths that an acquisition watches: its own znode,
/// and the predecessor or the directory.
pub(crate) fn watched_bytes(kind: Kind, naming: Naming, directories: &[LockPath]) -> usize {
    let short = kind == Kind::Mutex && naming == Naming::Native;
    let name = if short { "/lock-0000000000".len() } else { LONG_NAME };
    directories.iter().map(|directory| 2 * (directory.as_str().len() + name)).sum()
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lock").field("names", &self.names).finish_non_exhaustive()
    }
}

/// A pending acquisition. Dropping it gives up the queue position.
struct PendingAcquire {
    acquisition: Arc<Acquisition>,
    /// Set until the caller takes the grant. While this is set, dropping the pending acquisition
    /// cancels it.
    gives_up: bool,
    alarm: Option<Task>,
    process: Process,
}

impl Drop for PendingAcquire {
    fn drop(&mut self) {
        if self.process.is_forked() {
            return;
        }
        if let Some(alarm) = self.alarm.take() {
            alarm.abort();
        }
        if self.gives_up {
            self.acquisition.handle_event(zoolock_core::Event::Cancel);
        }
    }
}

#[cfg(test)]
mod tests {
    use zoolock_core::names::Prefix;
    use zoolock_core::{ContenderId, Sequence, SessionId};

    use super::*;

    #[test]
    fn watched_bytes_cover_every_naming() {
        let directory = LockPath::from_server("/locks/x".to_owned());
        for naming in [Naming::Native, Naming::Curator, Naming::Kazoo, Naming::WriteLock] {
            let longest = Kind::Permits { take: u32::MAX, size: u32::MAX };
            for kind in Kind::EACH.into_iter().chain([longest]) {
                let prefix = Prefix::of(naming, kind, ContenderId(u128::MAX), SessionId(i64::MIN));
                let Some(prefix) = prefix else { continue };
                let path = directory.child(&prefix.name(Sequence(i32::MAX)));
                let bytes = watched_bytes(kind, naming, std::slice::from_ref(&directory));
                assert!(bytes >= 2 * path.len(), "{bytes} for {path}");
            }
        }
    }
}
