//! The recipe and its faults.

use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error};

use super::compare::{Lock, Outcome, SESSION_TIMEOUT};

const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
const SEQUENTIAL: CreateOptions<'static> = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());

/// A queue of ephemeral sequential znodes. The contender with the lowest number holds the lock, and all waiters watch
/// the directory.
///
/// The queue is fair, because the server numbers the znodes. One step differs from the recipe in ZooKeeper's
/// documentation: there, a waiter watches only its predecessor. The faults:
///
/// * **Herd of reads.** Each release *and each new contender* changes the directory and wakes all waiters. Each waiter
///   lists the N names in the directory to learn that it is not the first. That is N² names for a release, and N³ for
///   one grant of each waiter. The listing of a long queue is longer than `jute.maxbuffer`. Every such listing then
///   fails like a lost connection.
/// * **No fencing token,** as in `one_node`. Sequence numbers start again with a new directory, so they are no tokens.
pub(crate) struct WatchTheDirectory {
    client: Client,
    directory: String,
}

impl Lock for WatchTheDirectory {
    const NAME: &'static str = "watch the directory";

    /// The name of the contender's znode.
    type Held = String;

    async fn connect(server: &str, path: &str) -> Outcome<Self> {
        let client = Client::connector().with_session_timeout(SESSION_TIMEOUT).connect(server).await?;
        match client.create(path, b"", &PERSISTENT).await {
            // The directory is never deleted, because a new contender could need it at the same
            // time.
            Ok(_) | Err(Error::NodeExists) => Ok(Self { client, directory: path.to_owned() }),
            Err(error) => Err(error.into()),
        }
    }

    /// Faults:
    ///
    /// * If the reply to `create` is lost, the znode stays, and the client does not know its name.
    ///   When this znode is the lowest, all contenders wait until the session of the client ends. A
    ///   second call of `lock` creates a second znode behind the first one.
    /// * The same happens if the caller drops this future, for example after a timeout. The znode keeps its queue
    ///   position, is granted the lock, and is never deleted.
    /// * If another client deletes the znode, this function never returns. A worse variant checks that no znode is
    ///   lower: it then grants the lock without a znode.
    async fn lock(&self) -> Outcome<String> {
        let (_, sequence) = self.client.create(&self.path("lock-"), b"", &SEQUENTIAL).await?;
        let ours = format!("lock-{sequence}");
        loop {
            let (children, watcher) = self.client.list_and_watch_children(&self.directory).await?;
            // Names are compared as text. That is correct while all have ten digits and the same prefix.
            if children.iter().min() == Some(&ours) {
                return Ok(ours);
            }
            watcher.changed().await;
        }
    }

    /// Fault: as in `one_node`, a holder whose session expired continues to work until it calls this function. The
    /// deleted name belongs to the holder's own znode, unless the directory was deleted and created again. Then the
    /// numbers start again.
    async fn release(&self, ours: String) -> Outcome<()> {
        Ok(self.client.delete(&self.path(&ours), None).await?)
    }
}

impl WatchTheDirectory {
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }
}
