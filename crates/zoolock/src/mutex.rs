//! The mutex.

use std::time::{Duration, Instant};

use zoolock_core::contender::{Failure, Loss, Mode, Reason, Refusal, SessionEnd};

use crate::data::NodeData;
use crate::driver::{Acquisition, Progress};
use crate::error::{Error, LossReason};
use crate::guard::Guard;
use crate::path::LockPath;
use crate::snapshot::{self, Snapshot};
use crate::zoolock::Zoolock;

/// A lock that one holder has at a time, across processes and hosts. Fair: first come, first served.
///
/// Not reentrant: a second `lock()` waits for the first guard like anybody else's.
#[derive(Clone)]
pub struct Mutex {
    zoolock: Zoolock,
    name: String,
}

impl Mutex {
    pub(crate) fn new(zoolock: Zoolock, name: &str) -> Mutex {
        Mutex { zoolock, name: name.to_owned() }
    }

    /// The name it was made with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory of the lock; the name as it was given where that is no good.
    pub fn path(&self) -> String {
        match self.zoolock.path(&self.name) {
            Ok(path) => self.shown(&path),
            Err(_) => self.name.clone(),
        }
    }

    /// Waits until the lock is ours.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue. Its node is deleted in the background, also after a lost
    /// connection, until it is gone or the session is over.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name; [`Error::Lost`] where the session ended or somebody deleted our place in
    /// the queue; [`Error::Unavailable`] where no session can be opened; [`Error::Denied`] where the service refuses.
    pub async fn lock(&self) -> Result<Guard, Error> {
        let guard = self.acquire(Mode::Wait, None).await?;
        Ok(guard.expect("whoever waits without a deadline is neither busy nor late"))
    }

    /// Takes the lock if it is free, and says `None` if it is not.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    ///
    /// # Errors
    /// As [`Mutex::lock`].
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.acquire(Mode::Try, None).await
    }

    /// Waits until the lock is ours, at most for `timeout`.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    ///
    /// # Errors
    /// [`Error::Timeout`], at once when the time is over; else as [`Mutex::lock`].
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<Guard, Error> {
        self.lock_deadline(Zoolock::deadline_after(timeout)).await
    }

    /// Waits until the lock is ours, at most until `deadline`.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    ///
    /// # Errors
    /// [`Error::Timeout`], at once when the time is over; else as [`Mutex::lock`].
    pub async fn lock_deadline(&self, deadline: Instant) -> Result<Guard, Error> {
        let began = Instant::now();
        let guard = self.acquire(Mode::Wait, Some(deadline)).await?;
        guard.ok_or_else(|| Error::Timeout { path: self.path(), waited: began.elapsed() })
    }

    /// Who holds the lock, and who waits for it.
    ///
    /// # Errors
    /// As [`Mutex::lock`].
    pub async fn snapshot(&self) -> Result<Snapshot, Error> {
        let path = self.zoolock.path(&self.name)?;
        let keeper = self.zoolock.keeper().await?;
        snapshot::read(&*keeper, path, self.zoolock.chroot(), self.zoolock.epoch()).await
    }

    pub(crate) fn zoolock(&self) -> &Zoolock {
        &self.zoolock
    }

    /// `None`: busy, or timed out.
    async fn acquire(&self, mode: Mode, deadline: Option<Instant>) -> Result<Option<Guard>, Error> {
        let path = self.zoolock.path(&self.name)?;
        loop {
            // Our own node and the one before us.
            let reserved = 2 * (path.as_str().len() + "/lock-0000000000".len());
            let session = match deadline {
                None => self.zoolock.session(reserved).await?,
                Some(deadline) => {
                    // On our own runtime's clock: the caller's may have none.
                    let alarm = self.zoolock.alarm(deadline);
                    tokio::select! {
                        session = self.zoolock.session(reserved) => session?,
                        () = alarm => return Ok(None),
                    }
                }
            };
            let id = self.zoolock.new_contender();
            let data = NodeData::encode(id, self.zoolock.owner());
            let acquisition = Acquisition::start(session, path.clone(), id, data, reserved, mode);
            let mut waiting = Waiting { acquisition: Some(acquisition.clone()), alarm: None };
            if let Some(deadline) = deadline {
                let patience = deadline.saturating_duration_since(Instant::now());
                waiting.alarm = Some(acquisition.give_up_after(patience));
            }
            match acquisition.outcome().await {
                Progress::Granted(grant) => {
                    waiting.disarm();
                    let guard = Guard::new(self.zoolock.clone(), acquisition, grant);
                    if guard.is_valid() {
                        return Ok(Some(guard));
                    }
                    // The grant waited for us longer than the lease lasts.
                    let reason = guard.loss().unwrap_or(LossReason::Unreachable);
                    return Err(Error::Lost { path: self.shown(&path), reason });
                }
                // It had ended before we stood in its queue; no place is lost by asking on another.
                Progress::Failed(Reason::SessionOver(SessionEnd::Expired)) if !acquisition.has_stood() => {}
                Progress::Failed(reason) => return self.failure(reason, &path, &acquisition).map(|()| None),
                Progress::Pending => unreachable!("outcome waits until it is not"),
            }
        }
    }

    fn shown(&self, path: &LockPath) -> String {
        self.zoolock.shown(path.as_str()).to_owned()
    }

    fn failure(&self, reason: Reason, path: &LockPath, acquisition: &Acquisition) -> Result<(), Error> {
        let path = self.shown(path);
        match reason {
            Reason::TimedOut | Reason::Busy => Ok(()),
            Reason::Broken => Err(Error::Lost { path, reason: Loss::Broken.into() }),
            Reason::SessionOver(SessionEnd::AuthFailed) => Err(denied(&path)),
            Reason::SessionOver(end) => Err(Error::Lost { path, reason: Loss::SessionOver(end).into() }),
            Reason::OtherKind => Err(Error::invalid(
                format!("lock {path}"),
                "is a semaphore; a mutex needs a directory of its own",
            )),
            Reason::Refused(Failure::Refused(Refusal::Other)) => {
                Err(Error::Protocol { subject: format!("lock {path}"), message: acquisition.words() })
            }
            Reason::Refused(Failure::Refused(Refusal::Denied)) => Err(denied(&path)),
            Reason::Refused(Failure::Refused(Refusal::Quota)) => Err(Error::Denied {
                subject: format!("lock {path}"),
                message: "a quota of the service is exceeded; raise it, or use another root".to_owned(),
            }),
            Reason::Refused(failure) => Err(Error::Protocol {
                subject: format!("lock {path}"),
                message: format!("the service answered {failure:?} where that cannot be"),
            }),
        }
    }
}

fn denied(path: &str) -> Error {
    Error::Denied {
        subject: format!("lock {path}"),
        message:
            "the service refuses us; give credentials that it accepts and that may create and read there"
                .to_owned(),
    }
}

impl std::fmt::Debug for Mutex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mutex").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Gives up the place in the queue when the future is dropped.
struct Waiting {
    acquisition: Option<std::sync::Arc<Acquisition>>,
    alarm: Option<tokio::task::AbortHandle>,
}

impl Waiting {
    fn disarm(&mut self) {
        self.acquisition = None;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(alarm) = self.alarm.take() {
            alarm.abort();
        }
        if let Some(acquisition) = self.acquisition.take() {
            acquisition.happen(zoolock_core::Event::Cancel);
        }
    }
}
