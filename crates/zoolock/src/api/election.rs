//! An election: one leader among candidates.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex as StdMutex};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use futures_util::stream::{self, Stream, StreamExt};
use tokio::sync::watch;
use zoolock_core::FencingToken;

use crate::admin::snapshot::{Entry, LockPoller};
use crate::api::mutex::{Guard, Mutex};
use crate::api::zoolock::Zoolock;
use crate::base::clock::{self, Deadline, deadline_after};
use crate::base::error::{Error, LossReason};
use crate::base::metrics::{TermCount, TermOutcome};
use crate::base::sync::lock;
use crate::base::ticket::Ticket;
use crate::lock::lease::Lease;
use crate::observe::{Queue, ReadOutcome};

/// The pause before a candidate stands again after an error, and the longest one. It doubles with each error in a row.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Longest time between two looks at the lease of a term.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// An election. Of all candidates with one name, at most one has a valid term.
///
/// The leader learns that its term ends before another one can begin, unless an operator breaks the lock. Each term has a
/// fencing token, higher than all earlier ones. A short outage costs no term, because a term ends with its lease, and not
/// with a connection. Candidates become leaders in the order in which they stood.
///
/// The election is the [`Mutex`] of its name, with [`crash_detection`](Mutex::crash_detection). So `zoolock run`,
/// `zoolock show` and the other commands work with it, and `zoolock revoke` moves the term on. [`Election::from_mutex`]
/// gives a mutex with other options.
///
/// Clones are handles of one candidate, which stands once at a time.
///
/// ```no_run
/// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
/// use std::time::Duration;
/// let election = zl.election("reports").candidate("web1:8080").grace(Duration::from_secs(5));
/// let health = election.clone(); // `health.term()` has the token, and sends no request
/// election
///     .run(|term| async move {
///         tokio::select! {
///             () = serve(term.token()) => {}
///             () = term.stopping() => save().await, // within the grace
///         }
///     })
///     .await?;
/// # drop(health); Ok(()) }
/// # async fn serve(_: zoolock::FencingToken) {}
/// # async fn save() {}
/// ```
#[derive(Clone)]
pub struct Election {
    mutex: Mutex,
    grace: Duration,
    shared: Arc<Shared>,
}

/// The part of an election that its clones share.
struct Shared {
    state: StdMutex<Candidacy>,
    /// Number of calls of `resign`.
    resigned: watch::Sender<u64>,
}

#[derive(Default)]
struct Candidacy {
    /// Set while `run` or `campaign` is under way.
    stands: bool,
    stage: ElectionState,
    /// The last term.
    term: Option<Term>,
}

impl Candidacy {
    fn leads(&self) -> bool {
        self.term.as_ref().is_some_and(Term::is_valid)
    }
}

/// The state of a candidate.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum ElectionState {
    /// The candidate does not stand.
    #[default]
    Stopped,
    /// The candidate stands, and waits for a term.
    Waiting,
    /// The candidate leads.
    Leading,
    /// The candidate could not stand, and tries again soon.
    Retrying(Error),
}

/// The end of [`Election::run`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended<T> {
    /// The work has returned this value.
    Returned(T),
    /// [`Election::resign`] was called.
    Resigned,
}

impl Election {
    /// Returns the election of a mutex, with the options of the mutex.
    pub fn from_mutex(mutex: Mutex) -> Election {
        let shared = Shared { state: StdMutex::default(), resigned: watch::Sender::new(0) };
        Election { mutex, grace: Duration::ZERO, shared: Arc::new(shared) }
    }

    /// Sets a text that [`leader`](Election::leader) shows, such as an address; at most 512 characters.
    #[must_use = "the option applies to the returned handle"]
    pub fn candidate(mut self, text: impl AsRef<str>) -> Self {
        self.mutex = self.mutex.note(text);
        self
    }

    /// Sets the time that the work has between [`Term::stopping`] and its end; zero unless set. With zero, the work is dropped
    /// at once. With the defaults at most 5 s, otherwise a sixth of the session timeout or more.
    #[must_use = "the option applies to the returned handle"]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Stands until elected, and then works. When the term ends, drops the work, releases the lock, and stands again.
    ///
    /// The work ends early if the term is about to be lost, if an operator asks for the release, and after
    /// [`Election::resign`]. Then [`Term::stopping`] resolves, and the work has the [grace](Election::grace) to return, but
    /// never longer than the lease. A value that it returns then is dropped. The lock is released only after the work was
    /// dropped. Tasks that the work has spawned are not dropped: end them when `stopping` resolves, or fence them with the
    /// token.
    ///
    /// Returns only if the work returned while its term was valid and without being asked to stop, after
    /// [`Election::resign`], or with an error that another attempt would not change. After an outage it stands again.
    ///
    /// # Without async
    /// Block in the closure: `election.run(|term| async move { work(term) }).wait()`. Such work
    /// cannot be dropped, and hears neither `resign` nor a request of an operator before it returns. It looks at
    /// [`Term::is_valid`].
    ///
    /// # Errors
    /// [`Error::Lost`] if the work returned, and the server says that the term was lost before; [`Error::Invalid`] for a
    /// grace that is too long, and if this handle, or a clone, stands already; [`Error::Denied`] and the other errors of
    /// [`Mutex::lock`] and [`Guard::release`] that are not [retryable](Error::is_retryable).
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, and then releases the lock in the background.
    pub async fn run<T, Fut>(&self, mut work: impl FnMut(Term) -> Fut) -> Result<Ended<T>, Error>
    where
        Fut: Future<Output = T>,
    {
        self.check_grace()?;
        let mut resigned = self.shared.resigned.subscribe();
        let _standing = self.begin()?;
        loop {
            let guard = tokio::select! {
                biased;
                _ = resigned.changed() => return Ok(Ended::Resigned),
                guard = self.stand() => guard?,
            };
            let term = self.term_of(&guard);
            let mut count = TermCount::begin();
            let outcome = {
                let mut end = pin!(self.until_end(&guard, &term, &mut resigned));
                let mut work = pin!(work(term.clone()));
                tokio::select! {
                    biased;
                    end = &mut end => Err(end),
                    // If the work was asked to stop, or may have seen the loss first, that decides what follows.
                    value = &mut work => match *term.stopping.borrow() {
                        Some(end) => Err(end),
                        None if !term.is_valid() => Err(TermOutcome::Lost),
                        None => Ok(value),
                    },
                }
            };
            // The work is dropped now, so another leader may work.
            count.end(outcome.as_ref().err().copied().unwrap_or(TermOutcome::Returned));
            self.shared.set(ElectionState::Waiting);
            // Waits only for a prompt answer. In an outage the release ends in the background.
            let alarm = self.mutex.context().alarm(deadline_after(self.mutex.context().answer_timeout()));
            let released = tokio::select! {
                released = guard.release() => released,
                () = alarm => Ok(()),
            };
            if let (Ok(_), Err(Error::Lost { .. })) = (&outcome, &released) {
                count.end(TermOutcome::Lost);
            }
            match (outcome, released) {
                (Ok(value), Ok(())) => return Ok(Ended::Returned(value)),
                (Err(end), Ok(()) | Err(Error::Lost { .. })) => {
                    if end == TermOutcome::Resigned {
                        return Ok(Ended::Resigned);
                    }
                }
                (_, Err(error)) => return Err(error),
            }
        }
    }

    /// Stands until elected, and returns the guard, for programs with a loop of their own. Returns `None` after
    /// [`Election::resign`]. A guard that exists already is not affected by `resign`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this handle, or a clone, stands already; the errors of [`Mutex::lock`] that are not
    /// [retryable](Error::is_retryable).
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub async fn campaign(&self) -> Result<Option<Guard>, Error> {
        let mut resigned = self.shared.resigned.subscribe();
        let _standing = self.begin()?;
        tokio::select! {
            biased;
            _ = resigned.changed() => Ok(None),
            guard = self.stand() => guard.map(Some),
        }
    }

    /// Ends the candidacy of this handle: a [`run`](Election::run) or [`campaign`](Election::campaign) that has begun
    /// returns, after the [grace](Election::grace) if it leads. Then the next candidate leads after one round trip. A call
    /// before `run` was polled has no effect, so a program that may be asked to stop at any time looks at its own flag, too.
    pub fn resign(&self) {
        self.shared.resigned.send_modify(|calls| *calls += 1);
    }

    /// Returns the term of this candidate, if it leads now. Reads the clock and sends nothing. The work may have been asked
    /// to stop already.
    pub fn term(&self) -> Option<Term> {
        lock(&self.shared.state).term.clone().filter(Term::is_valid)
    }

    /// Returns whether this candidate leads now. Reads the clock and sends nothing. A leader that was asked to stop leads
    /// until it has released the lock.
    pub fn is_leader(&self) -> bool {
        lock(&self.shared.state).leads()
    }

    /// Returns the state of this candidate. Sends nothing.
    pub fn state(&self) -> ElectionState {
        let state = lock(&self.shared.state);
        match &state.stage {
            _ if state.leads() => ElectionState::Leading,
            _ if !state.stands => ElectionState::Stopped,
            // The term has ended, and the work is about to be dropped.
            ElectionState::Leading => ElectionState::Waiting,
            stage => stage.clone(),
        }
    }

    /// Returns the leader, as one server knows it; `None` if there is none. Its term may have ended already: a resource that
    /// must be safe compares tokens.
    ///
    /// # Errors
    /// As [`Admin::snapshot`](crate::Admin::snapshot).
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let seen = LockPoller::new(self.mutex.lock.clone(), 0).snapshot().await?;
        Ok(seen.lock.holder.as_ref().map(Leader::of))
    }

    /// Returns the changes of the leader, beginning with the present one. A slow reader gets only the newest state.
    pub fn changes(&self) -> LeaderChanges {
        let queue = Queue::watched(LockPoller::new(self.mutex.lock.clone(), 0));
        let changes = stream::unfold((queue, None), |(mut queue, mut told)| async move {
            if let Some(Err(_)) = told {
                return None;
            }
            loop {
                let now = match queue.next().await {
                    Ok(ReadOutcome::Read) => match queue.lock().holder.as_ref().map(Leader::of) {
                        Some(leader) => LeaderChange::Leader(leader),
                        None => LeaderChange::NoLeader,
                    },
                    Ok(ReadOutcome::Slow) => continue,
                    Ok(ReadOutcome::Silent(_) | ReadOutcome::Unreachable(_)) => match &told {
                        Some(Ok(LeaderChange::Unknown { .. })) => continue,
                        Some(Ok(LeaderChange::Leader(last))) => {
                            LeaderChange::Unknown { last: Some(last.clone()) }
                        }
                        _ => LeaderChange::Unknown { last: None },
                    },
                    Err(error) => return Some((Err(error.clone()), (queue, Some(Err(error))))),
                };
                if !matches!(&told, Some(Ok(last)) if *last == now) {
                    told = Some(Ok(now.clone()));
                    return Some((Ok(now), (queue, told)));
                }
            }
        });
        LeaderChanges { stream: Box::pin(changes.fuse()) }
    }

    /// Begins a candidacy, which ends when the returned value is dropped.
    fn begin(&self) -> Result<EndsOnDrop<'_>, Error> {
        if std::mem::replace(&mut lock(&self.shared.state).stands, true) {
            let message = "already stands; make another candidate with `Zoolock::election`";
            return Err(Error::invalid(format!("election {}", self.mutex.path()), message));
        }
        Ok(EndsOnDrop(&self.shared))
    }

    /// Returns the term of a guard that [`stand`](Self::stand) has returned.
    fn term_of(&self, guard: &Guard) -> Term {
        lock(&self.shared.state).term.clone().unwrap_or_else(|| Term::new(guard))
    }

    /// Acquires the lock. Tries again after an error that may pass.
    async fn stand(&self) -> Result<Guard, Error> {
        let mut pause = PAUSES.0;
        loop {
            self.shared.set(ElectionState::Waiting);
            let began = clock::monotonic();
            match self.mutex.lock().await {
                Ok(guard) => {
                    let mut state = lock(&self.shared.state);
                    (state.stage, state.term) = (ElectionState::Leading, Some(Term::new(&guard)));
                    return Ok(guard);
                }
                Err(error) if error.is_retryable() => self.shared.set(ElectionState::Retrying(error)),
                Err(error) => return Err(error),
            }
            // A long wait was no failure in a row.
            if clock::monotonic() - began > PAUSES.1 {
                pause = PAUSES.0;
            }
            self.mutex.context().alarm(deadline_after(pause)).await;
            pause = (2 * pause).min(PAUSES.1);
        }
    }

    fn check_grace(&self) -> Result<(), Error> {
        let most = self.mutex.context().longest_grace(None);
        if self.grace <= most {
            return Ok(());
        }
        let message =
            format!("is too long for this session timeout, at most {most:?}; use a longer session timeout");
        Err(Error::invalid(format!("grace {:?}", self.grace), message))
    }

    /// Waits until the work must be dropped. Tells the work one grace before.
    async fn until_end(
        &self,
        guard: &Guard,
        term: &Term,
        resigned: &mut watch::Receiver<u64>,
    ) -> TermOutcome {
        let lease = &term.lease;
        // The server may have granted a shorter session timeout.
        let granted = guard.acquisition().session().timeout();
        let grace = self.grace.min(self.mutex.context().longest_grace(Some(granted)));
        // The lease of a term that begins after an outage is short at first. That must not end the term.
        let least_left = grace.min(lease.valid_until().remaining() / 2);
        let end = tokio::select! {
            biased;
            _ = lease.ended() => return TermOutcome::Lost,
            _ = resigned.changed() => TermOutcome::Resigned,
            () = lease.revoked() => TermOutcome::Asked,
            () = self.until_little_is_left(lease, least_left) => TermOutcome::Lost,
        };
        term.stopping.send_replace(Some(end));
        tokio::select! {
            biased;
            _ = lease.ended() => {}
            () = self.mutex.context().alarm(deadline_after(grace)) => {}
        }
        end
    }

    /// Waits until only this time is left of the lease.
    async fn until_little_is_left(&self, lease: &Lease, least_left: Duration) {
        if least_left.is_zero() {
            return std::future::pending().await;
        }
        loop {
            let left = lease.valid_until().remaining();
            if left <= least_left {
                return;
            }
            // Looks often, because the clock of the alarm stops while the machine sleeps, and that of the lease does not.
            self.mutex.context().alarm(deadline_after((left - least_left).min(LONGEST_SLEEP))).await;
        }
    }
}

impl Shared {
    fn set(&self, stage: ElectionState) {
        lock(&self.state).stage = stage;
    }
}

/// Ends the candidacy, also if its future is dropped.
struct EndsOnDrop<'a>(&'a Shared);

impl Drop for EndsOnDrop<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).stands = false;
    }
}

impl std::fmt::Debug for Election {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Election")
            .field("path", &self.mutex.path())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// A term of a leader. It is a view: cheap to clone, and no clone keeps the term.
#[derive(Clone)]
pub struct Term {
    token: FencingToken,
    lease: Lease,
    /// The reason why the work was asked to stop.
    stopping: watch::Sender<Option<TermOutcome>>,
}

impl Term {
    fn new(guard: &Guard) -> Term {
        Term { token: guard.token(), lease: guard.lease(), stopping: watch::Sender::new(None) }
    }

    /// Returns the fencing token. It is higher than the tokens of all earlier terms. Send it with every write.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Returns whether the leader may rely on its term now. Reads the clock and sends nothing.
    pub fn is_valid(&self) -> bool {
        self.lease.is_valid()
    }

    /// Returns the deadline until which the leader may rely on its term. Each renewal extends it.
    pub fn valid_until(&self) -> Deadline {
        self.lease.valid_until()
    }

    /// Waits until the work should end; see [`Election::run`]. After the end of the term, resolves at once. The future
    /// borrows nothing, so it can be moved into the tasks of the work.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        let (mut stopping, ended) = (self.stopping.subscribe(), self.lease.ended());
        async move {
            let stops = stopping.wait_for(Option::is_some);
            futures_util::future::select(pin!(stops), pin!(ended)).await;
        }
    }

    /// Waits until the term is lost, and returns the reason. Waits for ever if the term ends with a release.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub fn lost(&self) -> impl Future<Output = LossReason> + Send + use<> {
        self.lease.lost()
    }

    /// Returns the lease of the term.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }
}

impl std::fmt::Debug for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Term")
            .field("token", &self.token)
            .field("is_valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

/// The leader of an election, as its znode describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The host.
    pub host: Option<String>,
    /// The process.
    pub pid: Option<u32>,
    /// The program.
    pub program: Option<String>,
    /// The text of [`Election::candidate`].
    pub candidate: Option<String>,
    /// The token of the term. `None` if this client may not read the leader's znode.
    pub token: Option<FencingToken>,
    /// The begin of the term by the server's clock, if it is known.
    pub since: Option<SystemTime>,
}

impl Leader {
    fn of(holder: &Entry) -> Leader {
        Leader {
            host: holder.host.clone(),
            pid: holder.pid,
            program: holder.program.clone(),
            candidate: holder.note.clone(),
            token: holder.token.map(Ticket::as_fencing_token),
            since: holder.held_since,
        }
    }
}

/// A change of the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaderChange {
    /// There is a leader, or its description has changed.
    Leader(Leader),
    /// There is no leader.
    NoLeader,
    /// No server answers, so the leader is not known. `last` may still lead.
    Unknown {
        /// The last leader that was seen.
        last: Option<Leader>,
    },
}

/// A stream of [`LeaderChange`]s. Ends after an error that is no outage.
pub struct LeaderChanges {
    stream: Pin<Box<dyn Stream<Item = Result<LeaderChange, Error>> + Send>>,
}

impl LeaderChanges {
    /// Returns the next change; `None` at the end.
    ///
    /// # Errors
    /// As [`Admin::snapshot`](crate::Admin::snapshot), except for an outage, which is [`LeaderChange::Unknown`].
    ///
    /// # Cancel safety
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Option<Result<LeaderChange, Error>> {
        self.stream.next().await
    }
}

impl Stream for LeaderChanges {
    type Item = Result<LeaderChange, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.stream.as_mut().poll_next(cx)
    }
}

impl std::fmt::Debug for LeaderChanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LeaderChanges")
    }
}

impl Zoolock {
    /// Returns the election with this name; see [`Election`]. The name is relative to the [root](crate::Builder::root), or
    /// absolute if it starts with `/`. Sends nothing.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::from_mutex(self.mutex(name).crash_detection())
    }
}
