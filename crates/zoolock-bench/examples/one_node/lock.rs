//! The recipe, and what is wrong with it.

use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error};

use super::compare::{Lock, Outcome, SESSION_TIMEOUT};

const EPHEMERAL: CreateOptions<'static> = CreateMode::Ephemeral.with_acls(Acls::anyone_all());

/// One ephemeral znode is the lock: whoever creates it holds it, and everybody else watches it.
///
/// It excludes, and it needs no more than a page. But:
///
/// * **Herd.** All who wait watch the same znode. When it goes, the server wakes all of them, each tries to create,
///   one succeeds, and the others watch again: with N waiters up to N events and 2 N requests for a hand-over, and
///   N times as many for all to have one turn. (Fewer where turns are shorter than that takes: then many are still
///   on their way to watch when the znode goes again.)
/// * **No order.** Who comes first after the wake-up has it, which is whoever is nearest to the leader or had no
///   watch to wait for, such as the last holder. Nothing says that a waiter ever has a turn.
/// * **Nothing to fence with.** `lock` returns a path. Whoever was stopped for longer than its session lives goes
///   on working beside the next holder, and the resource cannot tell the two apart. (The znode's `czxid` would do,
///   and is thrown away here as in the articles.)
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

    /// Wrong with it:
    ///
    /// * A `create` whose reply is lost returns an error here, and the znode may be there. Then nobody holds the
    ///   lock, and nobody else gets it for as long as our session lives. Trying again finds `NodeExists` and waits
    ///   for ourselves.
    /// * The same if the caller drops this future (a timeout) while `create` is under way.
    /// * Two tasks of one session, too, can only be told apart by what is in the znode, and nothing is.
    async fn lock(&self) -> Outcome<()> {
        loop {
            match self.client.create(&self.path, b"", &EPHEMERAL).await {
                Ok(_) => return Ok(()),
                Err(Error::NodeExists) => {}
                Err(error) => return Err(error.into()),
            }
            // Gone in between: then the watch waits for somebody else's create, and is one more to be woken.
            let (stat, watcher) = self.client.check_and_watch_stat(&self.path).await?;
            if stat.is_some() {
                // Also how the end of our session shows, which then comes back as an error of `create`.
                watcher.changed().await;
            }
        }
    }

    /// Wrong with it:
    ///
    /// * Nobody looked whether the session still lives. The holder of a session that expired works on without
    ///   knowing, and only this fails.
    /// * It deletes a *name*. Where the session expired and a new one took its place, or where this is tried again
    ///   after a lost reply, the znode of that name is the next holder's.
    async fn release(&self, (): ()) -> Outcome<()> {
        Ok(self.client.delete(&self.path, None).await?)
    }
}
