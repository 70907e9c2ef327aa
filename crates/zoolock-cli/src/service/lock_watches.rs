//! Watch events of locks, so that the locks are not read at short intervals.
//!
//! One watch of ZooKeeper 3.6 covers a lock and everything in it. It is set once, however many contenders wait.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::timeout;
use zoolock_client::{Notice, Notices, Requests, State};

use crate::plan::{Endpoint, Service};
use crate::service::connect::{chroot_of, connect_plainly};

/// The session of all watches. It is not the library's, which reads locks.
pub(crate) struct LockWatches {
    service: Service,
    /// The chroot of the connect string, before all paths.
    chroot: String,
    session: Mutex<Option<Arc<Requests>>>,
}

/// The watch of one lock. Dropping it removes the watch.
pub(crate) struct LockSubscription {
    path: String,
    notices: Notices,
    session: Arc<Requests>,
}

impl LockWatches {
    pub(crate) fn new(service: Service) -> Self {
        let chroot = match &service.endpoint {
            Endpoint::Remote { hosts, .. } => chroot_of(hosts),
            Endpoint::Local => String::new(),
        };
        Self { service, chroot, session: Mutex::default() }
    }

    /// Watches the lock with this path. `None` if the server has no such watches, or does not answer.
    pub(crate) async fn subscribe(&self, path: &str) -> Option<LockSubscription> {
        let session = self.session().await?;
        timeout(
            self.service.connect_timeout,
            LockSubscription::set(session, format!("{}{path}", self.chroot)),
        )
        .await
        .ok()?
    }

    async fn session(&self) -> Option<Arc<Requests>> {
        let mut kept = self.session.lock().await;
        if let Some(session) = kept.as_ref().filter(|session| !session.is_over()) {
            return Some(session.clone());
        }
        *kept = connect_plainly(&self.service).await.ok().map(Arc::new);
        kept.clone()
    }

    /// Closes the session.
    pub(crate) async fn close(&self) {
        if let Some(session) = self.session.lock().await.take() {
            session.close().await;
        }
    }
}

impl LockSubscription {
    async fn set(session: Arc<Requests>, path: String) -> Option<LockSubscription> {
        let notices = session.notices();
        session.watch_all_below(&path).await.ok()?;
        Some(LockSubscription { path, notices, session })
    }

    /// Waits for a change of the lock, or for a possible one. Sets the watch to `None` if it has ended: with its connection,
    /// or because too many events were missed. Waits for ever without a watch.
    pub(crate) async fn wait_for_change(subscription: &mut Option<LockSubscription>) {
        let Some(LockSubscription { path, notices, .. }) = subscription else {
            return std::future::pending().await;
        };
        loop {
            match notices.recv().await {
                Ok(Notice::Event(event)) if is_at_or_below(&event.path, path) => break,
                Ok(Notice::Event(_) | Notice::State(State::Connected { .. })) => {}
                Ok(Notice::State(_)) | Err(RecvError::Lagged(_) | RecvError::Closed) => {
                    *subscription = None;
                    return;
                }
            }
        }
        // One read of the lock covers all events that have arrived.
        loop {
            match notices.try_recv() {
                Ok(Notice::Event(_) | Notice::State(State::Connected { .. })) => {}
                Err(TryRecvError::Empty) => return,
                Ok(Notice::State(_)) | Err(TryRecvError::Lagged(_) | TryRecvError::Closed) => {
                    *subscription = None;
                    return;
                }
            }
        }
    }
}

impl Drop for LockSubscription {
    fn drop(&mut self) {
        self.session.forget_watches(&self.path);
    }
}

fn is_at_or_below(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || top == "/")
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use zoolock::{TestServer, Zoolock};
    use zoolock_wire::{Acl, perms};

    use super::*;

    #[tokio::test]
    async fn many_events_are_reported_once() {
        let server = TestServer::start().await.expect("a server");
        let session = Zoolock::builder().requests(&server.address()).await.expect("a session");
        session.create_ephemeral("/x", b"", &[Acl::anyone(perms::ALL)]).await.expect("a new znode");
        let session = Arc::new(session);
        let mut subscription = LockSubscription::set(session.clone(), "/x".to_owned()).await;
        assert!(subscription.is_some());
        for _ in 0..50 {
            session.write("/x", b"").await.expect("it exists");
        }
        // Events come before the reply to a later request.
        session.exists("/x").await.expect("a reply");
        LockSubscription::wait_for_change(&mut subscription).await;
        assert_eq!(LockSubscription::wait_for_change(&mut subscription).now_or_never(), None);
        assert!(subscription.is_some());
    }

    #[test]
    fn events_of_other_locks_are_left_out() {
        assert!(is_at_or_below("/a", "/a") && is_at_or_below("/a/b", "/a") && is_at_or_below("/a", "/"));
        assert!(!is_at_or_below("/ab", "/a") && !is_at_or_below("/", "/a"));
    }
}
