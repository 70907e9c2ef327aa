//! The recipe and its faults.

use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error};

use super::compare::{Lock, Outcome, SESSION_TIMEOUT};

const EPHEMERAL: CreateOptions<'static> = CreateMode::Ephemeral.with_acls(Acls::anyone_all());

/// A lock that is one ephemeral znode. The client that creates the znode holds the lock, and all waiters watch it.
///
/// The lock has at most one holder while sessions live, and its code is short. Its faults:
///
/// * **Herd.** All waiters watch the same znode. When it is deleted, the server wakes all of them,
///   and each sends a create. One create succeeds, and the other waiters watch again. With N
///   waiters a release costs up to N events and 2 N requests. To grant the lock once to each waiter
///   costs N times as many. (A very short hold costs less, because the znode is deleted before many
///   waiters watch it again.)
/// * **No order.** The first create after the deletion wins. It comes from a client near the
///   leader, or from a client that waited for no watch event, such as the last holder. It is
///   possible that a waiter is never granted the lock.
/// * **No fencing token.** `lock` returns no token. A holder that is paused for longer than its session lives continues
///   to work beside the next holder, and the resource cannot distinguish them. (The `czxid` of the znode could be a
///   token. This recipe ignores the `czxid`, as published recipes do.)
pub(crate) struct OneNode {
    client: Client,
    path: String,
}

impl Lock for OneNode {
    const NAME: &'static str = "one node";

    type Held = ();

    async fn connect(server: &str, path: &str) -> Outcome<Self> {
        let client = Client::connector().with_session_timeout(SESSION_TIMEOUT).connect(server).await?;
        Ok(Self { client, path: path.to_owned() })
    }

    /// Faults:
    ///
    /// * If the reply to `create` is lost, this function returns an error, and the znode may exist. Then the lock has
    ///   no holder, and no client can acquire it while this session lives. A second call finds `NodeExists` and waits
    ///   for its own znode.
    /// * The same happens if the caller drops this future during `create`, for example after a timeout.
    /// * The znode has no data, so two tasks of one session cannot tell which of them created it.
    async fn lock(&self) -> Outcome<()> {
        loop {
            match self.client.create(&self.path, b"", &EPHEMERAL).await {
                Ok(_) => return Ok(()),
                Err(Error::NodeExists) => {}
                Err(error) => return Err(error.into()),
            }
            // If the znode was deleted meanwhile, the watch stays set, and fires when another client creates the znode.
            let (stat, watcher) = self.client.check_and_watch_stat(&self.path).await?;
            if stat.is_some() {
                // The end of the session also fires the watch. Then `create` returns an error.
                watcher.changed().await;
            }
        }
    }

    /// Faults:
    ///
    /// * The holder never checks that its session lives. After an expiry it continues to work, and only the release
    ///   fails.
    /// * The release deletes a *name*. The znode with that name belongs to the next holder if the
    ///   session expired and was replaced. The same is true if the release is repeated after a lost
    ///   reply.
    async fn release(&self, (): ()) -> Outcome<()> {
        Ok(self.client.delete(&self.path, None).await?)
    }
}
