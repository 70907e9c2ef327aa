//! Being told by the service that something happened to a lock, without asking again and again.
//!
//! One watch of ZooKeeper 3.6 for a lock and all that is in it: nothing is read to set it again, however many wait.

use futures_util::FutureExt;
use tokio::sync::Mutex;
use tokio::time::timeout;
use zookeeper_client::{AddWatchMode, Client, EventType, PersistentWatcher};

use crate::connect::connect_plainly;
use crate::plan::{Endpoint, Service};

/// A session of its own: the library's reads locks, and what it has is not for others.
pub(crate) struct Pokes {
    service: Service,
    /// With the first part of all its paths.
    chroot: String,
    client: Mutex<Option<Client>>,
}

/// Somebody who is told.
pub(crate) struct Poked {
    watcher: Option<PersistentWatcher>,
}

impl Pokes {
    pub(crate) fn new(service: Service) -> Self {
        let chroot = match &service.endpoint {
            Endpoint::Remote { hosts, .. } => hosts.find('/').map_or("", |at| &hosts[at..]),
            Endpoint::Local => "",
        };
        let chroot = chroot.trim_end_matches('/').to_owned();
        Self { service, chroot, client: Mutex::default() }
    }

    /// Is told of what happens to the lock with this path; nothing where the service has no such watches, or is not to be
    /// had just now.
    pub(crate) async fn at(&self, path: &str) -> Option<Poked> {
        let client = self.client().await?;
        let path = format!("{}{path}", self.chroot);
        let set = client.watch(&path, AddWatchMode::PersistentRecursive);
        let watcher = timeout(self.service.connect_timeout, set).await.ok()?.ok()?;
        Some(Poked { watcher: Some(watcher) })
    }

    async fn client(&self) -> Option<Client> {
        let mut kept = self.client.lock().await;
        if let Some(client) = kept.as_ref().filter(|client| !client.state().is_terminated()) {
            return Some(client.clone());
        }
        *kept = connect_plainly(&self.service).await.ok();
        kept.clone()
    }

    /// Ends the session, so that nothing of it is left on the server.
    pub(crate) async fn close(&self) {
        let Some(client) = self.client.lock().await.take() else { return };
        let mut states = client.state_watcher();
        drop(client);
        let mut state = states.state();
        while !state.is_terminated() {
            state = states.changed().await;
        }
    }
}

impl Poked {
    /// Whether something may still come of it.
    pub(crate) fn works(&self) -> bool {
        self.watcher.is_some()
    }

    /// Resolves when something happened, or may have; never where there is nobody to tell.
    pub(crate) async fn told(poked: &mut Option<Poked>) {
        let Some(watcher) = poked.as_mut().and_then(|poked| poked.watcher.as_mut()) else {
            return std::future::pending().await;
        };
        let mut event = watcher.changed().await;
        // All that is there: a busy lock has more to tell than anybody looks, and the crate keeps what is not taken.
        loop {
            // What happened while there was no connection is not told afterwards (ZOOKEEPER-4698); and nothing comes after
            // the end of the session.
            if event.event_type == EventType::Session && event.session_state.is_terminated() {
                *poked = None;
                return;
            }
            match watcher.changed().now_or_never() {
                Some(next) => event = next,
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use zookeeper_client::{Acls, CreateMode};
    use zoolock::TestServer;

    use super::*;

    #[tokio::test]
    async fn what_happened_many_times_is_told_once() {
        let server = TestServer::start().await.expect("a server");
        let client = Client::connect(&server.address()).await.expect("a session");
        let mode = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create("/x", b"", &mode).await.expect("it is new");
        let set = client.watch("/x", AddWatchMode::PersistentRecursive);
        let mut poked = Some(Poked { watcher: Some(set.await.expect("a watch")) });
        for _ in 0..50 {
            client.set_data("/x", b"", None).await.expect("it is there");
        }
        // Events come before the answer to what was asked after them.
        client.get_data("/x").await.expect("it is there");
        Poked::told(&mut poked).await;
        assert_eq!(Poked::told(&mut poked).now_or_never(), None);
        assert!(poked.as_ref().is_some_and(Poked::works));
    }
}
