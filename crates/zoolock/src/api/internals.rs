//! Functions that only the `zoolock` command and the tests of this project need. It may change in any release.

use std::time::Duration;

pub use zoolock_client::SessionKey;

pub use crate::admin::once::{OnceAttempt, OncePlan, OnceStart};
pub use crate::admin::slots::Slots;
use crate::admin::snapshot::{Entry, request_error};
use crate::admin::{once, server_clock, slots};
use crate::api::admin::Admin;
use crate::api::builder::Builder;
use crate::base::error::Error;
pub use crate::base::path::{ConnectString, DEFAULT_ROOT, LockPath};
use crate::base::tasks::Tasks;
use crate::lock::held::Held;
use crate::observe::{Change, Diff};
use crate::session::Connection;
pub use crate::session::ConnectionChanges;
use crate::zk::connect::connect_error;
use crate::zk::session::{SessionParameters, ZnodeAccess, end_session, open_requests};

/// Returns a change of a queue, for tests.
pub fn diff(event: Change, contender: Option<Entry>) -> Diff {
    Diff::sample(event, contender)
}

#[doc(hidden)]
impl Builder {
    /// Declares how long before [`Held::valid_until`] the caller stops
    /// its work; zero unless set. The library only checks this value. Connecting fails if the grace
    /// is so long that it could begin before the server has been silent for a third of the session
    /// timeout.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets the command line that the history shows beside requests to release and breaks by this client, see
    /// [`Admin::history`]. Every client of the root can read it, so it must contain no secret.
    pub fn command_line(mut self, command: &str) -> Self {
        self.client_info.command = Some(command.to_owned());
        self
    }

    /// Sets the name of another program that this process runs while it holds its locks, as `zoolock run` does. Operators
    /// see that the process runs this program.
    pub fn runs_program(mut self, program: &str) -> Self {
        self.client_info.program = Some(program.to_owned());
        self.client_info.runs_program = true;
        self
    }

    /// Opens a session for single requests, without locks. The lock settings and the chroot are ignored.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub async fn requests(self, address: &str) -> Result<zoolock_client::RequestSession, Error> {
        let (connect, limit) = (ConnectString::parse(address)?, self.connect_timeout);
        let parameters = self.request_parameters(&connect)?;
        match open_requests(&parameters, tokio::time::Instant::now() + limit).await {
            Ok(requests) => Ok(requests),
            Err(error) => Err(connect_error(&connect, &parameters, limit, true, error).await),
        }
    }

    /// Ends the session of a process that has died, from [`Held::session_key`], and returns the reason of its end. The caller
    /// must limit the time; see [`zoolock_client::end_session`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for an address or settings that are wrong.
    pub async fn end_session(self, address: &str, key: SessionKey) -> Result<zoolock_client::End, Error> {
        Ok(end_session(&self.request_parameters(&ConnectString::parse(address)?)?, key).await)
    }

    fn request_parameters(self, connect: &ConnectString) -> Result<SessionParameters, Error> {
        Ok(SessionParameters {
            hosts: connect.hosts().to_vec(),
            timeout: self.session_timeout,
            transport: self.build_transport(connect)?,
            auth: self.auth,
            access: ZnodeAccess::Anyone,
            tasks: Tasks::Runtime(tokio::runtime::Handle::current()),
        })
    }
}

#[doc(hidden)]
impl Held {
    /// Takes the lowest numbers below `below` that no other holder has; see [`Slots`]. Waits for `patience` at most.
    pub async fn take_slots(&self, below: u32, count: u32, patience: Duration) -> Result<Slots, Error> {
        Slots::take(self, below, count, patience).await
    }

    /// Begins an attempt to do work once. If nothing is to be done, the caller releases the lock.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost; [`Error::Denied`] if the server refuses.
    pub async fn begin_once(&self, plan: &OncePlan) -> Result<OnceStart, Error> {
        once::begin(self, plan).await
    }

    /// Returns the unique identifier of the acquisition, which observers see as `Entry::id`.
    pub fn acquisition_id(&self) -> String {
        self.acquisition().id().to_string()
    }

    /// Returns the path of the znode that holds the lock; for a multi-lock, the path of the first znode.
    pub fn node_path(&self) -> String {
        let path = self.acquisition().directories()[0].child(&self.holding_node().name());
        self.context().without_chroot(&path).to_owned()
    }

    /// Returns the id of the session that created the holder's znode.
    pub fn session_id(&self) -> i64 {
        self.acquisition().session().id().0
    }

    /// Returns what another process needs to end the session of this holder. `None` if the session has ended.
    pub fn session_key(&self) -> Option<SessionKey> {
        if self.is_forked() { None } else { self.acquisition().session().zk()?.key() }
    }

    /// Returns the servers of the session, as a connect string.
    pub fn servers(&self) -> &str {
        self.context().endpoints()
    }

    /// Returns the state of the session's connection: for messages to the user, not for decisions.
    pub fn connection(&self) -> Connection {
        if self.is_forked() { Connection::Ended } else { *self.acquisition().session().connection().borrow() }
    }

    /// Returns the changes of the session's connection.
    pub fn connection_changes(&self) -> ConnectionChanges {
        if self.is_forked() {
            return ConnectionChanges::ended();
        }
        self.acquisition().session().connection_changes()
    }

    /// Returns whether this holder has been asked to release the lock. A request that was made
    /// while this holder was still a waiter counts, too. If this client has not read the holder's
    /// znode yet, waits until it has read the znode or has lost the lock.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn revoked_by_now(&self) -> bool {
        if self.is_forked() {
            return false;
        }
        self.wait_for_own_node_read().await;
        self.is_revoked()
    }
}

#[doc(hidden)]
impl Admin {
    /// Returns the slots of a semaphore that are taken.
    pub async fn slots(&self, name: &str) -> Result<Vec<u32>, Error> {
        let path = self.context().path(name)?;
        let zk = self.context().zk().await?;
        let subject = || format!("slots of {}", self.context().without_chroot(path.as_str()));
        let read = slots::read(&zk, path.as_str()).await;
        read.map_err(|error| request_error(self.context().endpoints(), subject(), error))
    }

    /// Returns how far the server's clock is ahead of this machine's clock, in milliseconds; negative if it is behind, and 0
    /// if the difference is shorter than the request took. Creates an ephemeral znode below the root, and deletes it.
    pub async fn server_clock_ahead_ms(&self) -> Result<i64, Error> {
        server_clock::read_ahead_ms(self.context()).await
    }
}
