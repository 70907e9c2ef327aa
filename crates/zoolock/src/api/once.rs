//! Work that is done once for each key.

use std::pin::pin;
use std::time::Duration;

use crate::admin::once::{self, OncePlan, OnceStart};
use crate::api::mutex::{Guard, Mutex};
use crate::base::error::Error;

/// The attempts for a key unless [`Once::attempts`] sets another number.
const ATTEMPTS: u32 = 3;
/// Longest time to record that the work is done.
const MAX_FINISH_TIME: Duration = Duration::from_secs(600);

/// Work under a [`Mutex`] that is done once for a key, such as a release or a date. [`Mutex::once`] returns it.
///
/// One program does the work at a time, and the others wait. If the work fails, or its host dies, the next one does it.
/// Once the work has returned `Ok` and this is recorded, no program does the work of this key again. The work can be done twice
/// in one case: its host dies, or loses the servers, after the work and before the record.
///
/// The record is a znode beside the lock, and keeps the last 256 keys and 32 attempts.
/// [`Admin::runs`](crate::Admin::runs) shows them.
///
/// ```no_run
/// # async fn example(zl: zoolock::Zoolock) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use zoolock::OnceOutcome;
/// let once = zl.mutex("migrate").once("release-42");
/// match once.run(Duration::from_secs(3600), async |guard| migrate(guard.token()).await).await? {
///     OnceOutcome::Ran(result) => result?, // the work of this program
///     OnceOutcome::AlreadyDone => {}
///     OnceOutcome::GaveUp => return Err("the migration has failed three times".into()),
/// }
/// # Ok(()) }
/// # async fn migrate(_: zoolock::FencingToken) -> std::io::Result<()> { Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Once {
    mutex: Mutex,
    key: Box<str>,
    attempts: u32,
}

/// The outcome of [`Once::run`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnceOutcome<T> {
    /// The work was done by this call, with this result. A result `Err` is recorded as a failed attempt.
    Ran(T),
    /// The work was done before.
    AlreadyDone,
    /// The work was tried as often as [`Once::attempts`] allows, and not done.
    GaveUp,
}

impl Mutex {
    /// Returns work under this lock that is done once for `key`, 1 to 64 visible ASCII characters. See [`Once`].
    ///
    /// Any program may name the key, so all programs must name it alike. For work that repeats, use the time for which the
    /// work was scheduled, and not the present time, because clocks differ.
    pub fn once(&self, key: impl AsRef<str>) -> Once {
        Once { mutex: self.clone(), key: key.as_ref().into(), attempts: ATTEMPTS }
    }
}

impl Once {
    /// Sets how often the work of the key may be tried, by all programs together; 3 unless set. So work that kills its host
    /// does not kill them all.
    #[must_use = "the option applies to the returned value"]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Waits for the lock for `timeout` at most, and does the work unless it is done.
    ///
    /// If the lock is lost, the work is dropped. That attempt counts, and the next one has a higher number.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad key; [`Error::Lost`] if the lock was lost before the end of the work;
    /// [`Error::Conflict`] if another program has used this key of this lock, or if the work has succeeded and another
    /// attempt has begun meanwhile; [`Error::Protocol`] for a record of a newer version; [`Error::Unavailable`] if no server
    /// has confirmed the record within ten minutes, so that the work may be done again; else as [`Mutex::lock_timeout`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, and releases the lock in the background. The attempt counts.
    pub async fn run<T, E>(
        &self,
        timeout: Duration,
        work: impl AsyncFnOnce(&Guard) -> Result<T, E>,
    ) -> Result<OnceOutcome<Result<T, E>>, Error> {
        let plan = OncePlan::new(&self.key, self.attempts)?;
        let directory = self.mutex.lock.directory()?;
        if let Some(answer) = once::look(self.mutex.context(), directory.as_str(), &plan).await? {
            return self.outcome(answer);
        }
        let guard = self.mutex.lock_timeout(timeout).await?;
        let attempt = match once::begin(&guard, &plan).await? {
            OnceStart::Begun(attempt) => attempt,
            answer => {
                once::leave(guard.held).await?;
                return self.outcome(answer);
            }
        };
        let result = {
            let mut lost = pin!(guard.lost());
            // Ends with this block, before the release.
            let mut work = pin!(work(&guard));
            tokio::select! {
                biased;
                reason = &mut lost => return Err(Error::Lost { path: self.mutex.path(), reason }),
                result = &mut work => result,
            }
        };
        // The record needs no lock, so a loss from now on does no harm.
        match &result {
            Ok(_) => attempt.finish_done(MAX_FINISH_TIME).await?,
            // Without the record, the attempt counts, too.
            Err(_) => {
                let _ = attempt.finish_failed("failed", self.mutex.context().answer_timeout()).await;
            }
        }
        let _ = guard.release().await;
        Ok(OnceOutcome::Ran(result))
    }

    /// Returns the outcome if no attempt begins.
    fn outcome<T>(&self, answer: OnceStart) -> Result<OnceOutcome<T>, Error> {
        let path = self.mutex.path();
        match answer {
            OnceStart::GaveUp => Ok(OnceOutcome::GaveUp),
            OnceStart::OtherProgram(program) => {
                let message =
                    format!("the key {} was used by {program}; use another lock for each work", self.key);
                Err(Error::Conflict { path, message })
            }
            OnceStart::Unreadable => Err(Error::Protocol {
                subject: format!("lock {path}: the record of work that is done once"),
                message: once::UNREADABLE.to_owned(),
            }),
            OnceStart::Done | OnceStart::Begun(_) => Ok(OnceOutcome::AlreadyDone),
        }
    }
}
