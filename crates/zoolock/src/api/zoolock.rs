//! The client handle.

use std::time::Duration;

use crate::api::admin::Admin;
use crate::api::builder::Builder;
use crate::api::mutex::{Guard, Mutex};
use crate::base::error::Error;
use crate::lock::acquire::Lock;
use crate::lock::context::Context;
use crate::session::Connection;

/// A client of one ensemble. Cheap to clone; all clones share their sessions.
///
/// After the last clone, guard and pending `lock()` are dropped, a background task finishes the releases in progress
/// and closes the sessions. The last drop waits for these releases, for a quarter of a second at most. A program that is
/// about to exit calls [`Zoolock::close`] and awaits it. Otherwise the server may keep the locks of the program until the
/// session timeout has passed.
///
/// A forked child process cannot use the client of its parent: calls fail at once with [`Error::Forked`], and the
/// child's copies of the guards are lost ([`LossReason::Forked`](crate::LossReason::Forked)). The parent keeps its
/// locks, even if the child drops its copies.
#[derive(Clone)]
pub struct Zoolock {
    admin: Admin,
}

impl Zoolock {
    /// Connects with the default settings.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub async fn connect(address: impl AsRef<str>) -> Result<Zoolock, Error> {
        Zoolock::builder().connect(address).await
    }

    /// Returns a builder for other settings than the defaults.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) fn new(context: Context) -> Zoolock {
        Zoolock { admin: Admin::new(context) }
    }

    pub(crate) fn context(&self) -> &Context {
        self.admin.context()
    }

    /// Returns the methods for operators and observers.
    pub fn admin(&self) -> &Admin {
        &self.admin
    }

    /// Returns a mutex by name. The name is relative to the [root](Builder::root), or absolute if it starts with `/`.
    /// Sends nothing. If the name is bad, the first request, such as `lock()`, fails.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(Lock::new(self.context().clone(), vec![name.as_ref().to_owned()]))
    }

    /// Acquires the lock `name`, works, and releases it; see [`Mutex::with_lock`].
    ///
    /// # Errors
    /// As [`Mutex::with_lock`].
    ///
    /// # Cancel safety
    /// As [`Mutex::with_lock`].
    pub async fn with_lock<T>(
        &self,
        name: impl AsRef<str>,
        timeout: Duration,
        work: impl AsyncFnOnce(&Guard) -> T,
    ) -> Result<T, Error> {
        self.mutex(name).with_lock(timeout, work).await
    }

    /// Returns the state of the client's sessions. Sends nothing.
    pub fn connection(&self) -> Connection {
        let sessions = self.context().sessions();
        if self.context().is_closed() || self.context().process().is_forked() {
            return Connection::Ended;
        }
        let mut states = sessions.iter().map(|session| *session.connection().borrow());
        match states.clone().next() {
            None => Connection::Idle,
            Some(_) if states.all(|state| state == Connection::Connected) => Connection::Connected,
            Some(_) => Connection::Suspect,
        }
    }

    /// Returns the session timeout that the server granted, or the shortest one of several
    /// sessions. It may be shorter or longer than the requested timeout. The server frees the locks
    /// of a crashed client after this time. Returns `None` while there is no session, and in a
    /// forked process.
    pub fn session_timeout(&self) -> Option<Duration> {
        self.context().process().check_not_forked().ok()?;
        self.context().sessions().iter().map(|session| session.timeout()).min()
    }

    /// Closes this client and all its clones: later calls fail with [`Error::Closed`]. Waits until
    /// the releases in progress have finished. Then closes the sessions and waits for the server's
    /// answers. Each wait has a time limit. Guards that still exist lose their lock
    /// ([`LossReason::Closed`](crate::LossReason::Closed)).
    pub async fn close(&self) {
        self.context().close().await;
    }

    /// Returns the number of background tasks, for tests that look for leaks.
    #[doc(hidden)]
    pub fn background_tasks(&self) -> usize {
        self.context().tasks().alive()
    }
}

impl std::fmt::Debug for Zoolock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zoolock").field("root", &self.context().root()).finish_non_exhaustive()
    }
}
