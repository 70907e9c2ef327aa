//! The sessions of one [`Zoolock`](crate::Zoolock): opened when needed, and again after expiry.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use zookeeper_client as zk;
use zoolock_core::lease::{Ensemble, Lease};

use crate::connect;
use crate::error::Error;
use crate::keeper::{self, Keeper, Opening};
use crate::path::ConnectString;
use crate::session::{LeaseConfig, Session};

pub(crate) struct Sessions {
    connect: ConnectString,
    opening: Opening,
    lease: LeaseConfig,
    grace: Duration,
    patience: Duration,
    runtime: Handle,
    live: tokio::sync::Mutex<Vec<Arc<Session>>>,
}

/// How long between two rounds over the endpoints.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(100);

impl Sessions {
    pub(crate) fn new(
        connect: ConnectString,
        opening: Opening,
        lease: LeaseConfig,
        grace: Duration,
        patience: Duration,
        runtime: Handle,
    ) -> Sessions {
        Sessions { connect, opening, lease, grace, patience, runtime, live: tokio::sync::Mutex::default() }
    }

    /// A live session with room for `bytes` of watched paths, which are reserved.
    ///
    /// Cancel safe: a session that was being opened is closed again.
    pub(crate) async fn checkout(&self, bytes: usize) -> Result<Arc<Session>, Error> {
        let mut live = self.live.lock().await;
        live.retain(|session| session.end().is_none());
        if let Some(session) = live.iter().find(|session| session.reserve(bytes)) {
            return Ok(session.clone());
        }
        let session = self.open(!live.is_empty()).await?;
        live.push(session.clone());
        session.reserve(bytes);
        Ok(session)
    }

    /// Every session that is not over.
    pub(crate) async fn all(&self) -> Vec<Arc<Session>> {
        self.live.lock().await.iter().filter(|session| session.end().is_none()).cloned().collect()
    }

    async fn open(&self, spare: bool) -> Result<Arc<Session>, Error> {
        let opening = self.opening.clone();
        let rounds = async move {
            loop {
                match keeper::open(&opening).await {
                    Err(zk::Error::AuthFailed) => return Err(zk::Error::AuthFailed),
                    Err(error @ zk::Error::BadArguments(_)) => return Err(error),
                    Err(error) => tracing::debug!(%error, "no session yet"),
                    opened => return opened,
                }
                tokio::time::sleep(BETWEEN_ROUNDS).await;
            }
        };
        let patience = self.patience;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        // On our own runtime, where the session's tasks are to live.
        let task = self.runtime.spawn(async move {
            let _ = sender.send(tokio::time::timeout(patience, rounds).await);
        });
        let abort = AbortOnDrop(task.abort_handle());
        let outcome = receiver.await;
        drop(abort);
        match outcome {
            Ok(Ok(Ok((keeper, link)))) => {
                self.check_timeout(keeper.timeout())?;
                let keeper: Arc<dyn Keeper> = Arc::new(keeper);
                let _inside = self.runtime.enter();
                Session::start(keeper, link, self.lease.clone(), spare).map_err(|error| Error::Unavailable {
                    address: self.connect.endpoints(),
                    message: format!("no timer for the lease: {error}"),
                    source: Some(Box::new(error)),
                })
            }
            Ok(Ok(Err(zk::Error::AuthFailed))) => Err(Error::Denied {
                subject: self.connect.endpoints(),
                message: "the service does not accept the credentials; check the auth scheme and secret"
                    .to_owned(),
            }),
            Ok(Ok(Err(error))) => Err(Error::unavailable(self.connect.endpoints(), error.to_string())),
            Ok(Err(_)) | Err(_) => Err(connect::diagnose(&self.connect, self.patience, &self.runtime).await),
        }
    }

    fn check_timeout(&self, granted: Duration) -> Result<(), Error> {
        let Ensemble { tick, .. } = self.lease.ensemble;
        let shortest = self.lease.ensemble.shortest_timeout();
        if granted < shortest {
            return Err(Error::invalid(
                format!("session timeout {granted:?}"),
                format!(
                    "is what the service grants, but is shorter than three of its ticks ({tick:?} each): ask for \
                     {shortest:?} or more, or say what its tickTime is"
                ),
            ));
        }
        check_grace(self.grace, granted)
    }
}

/// A grace must leave room for two renewals before it begins.
pub(crate) fn check_grace(grace: Duration, timeout: Duration) -> Result<(), Error> {
    let most = Lease::span(timeout) - Lease::interval(timeout) * 2;
    if grace > most {
        return Err(Error::invalid(
            format!("grace {grace:?}"),
            format!("leaves no room for two renewals of a session of {timeout:?}; at most {most:?}"),
        ));
    }
    Ok(())
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
