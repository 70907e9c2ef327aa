//! The recipe, and what is wrong with it.

use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error};

use super::compare::{Lock, Outcome, SESSION_TIMEOUT};

const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
const SEQUENTIAL: CreateOptions<'static> = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());

/// Everybody creates an ephemeral sequential znode; the lowest holds, the others watch the directory.
///
/// It is fair: the server numbers the znodes. It is the recipe of ZooKeeper's own documentation but for one step
/// (there each watches only the znode before its own), and that step is what it costs:
///
/// * **Herd of reads.** Each release *and each arrival* changes the directory and wakes all who wait. Each of them
///   lists the directory, N names, to learn that it is not its turn: N² names for one hand-over, N³ for all to have
///   one turn. A long queue ends with answers above `jute.maxbuffer`, which look like lost connections, for ever.
/// * **Nothing to fence with,** as in `one_node`: a sequence number starts again with the directory, and is no token.
pub(crate) struct WatchTheDirectory {
    client: Client,
    directory: String,
}

impl Lock for WatchTheDirectory {
    const NAME: &'static str = "watch the directory";

    /// The name of our znode.
    type Held = String;

    async fn connect(server: &str, path: &str) -> Outcome<Self> {
        let client = Client::connector().with_session_timeout(SESSION_TIMEOUT).connect(server).await?;
        match client.create(path, b"", &PERSISTENT).await {
            // It is never deleted: whoever tried would race with those who create below it.
            Ok(_) | Err(Error::NodeExists) => Ok(Self { client, directory: path.to_owned() }),
            Err(error) => Err(error.into()),
        }
    }

    /// Wrong with it:
    ///
    /// * A `create` whose reply is lost leaves a znode that nobody knows to be his. It will be the lowest one day,
    ///   and then everybody waits until that session ends. Trying again makes a second one behind it.
    /// * The same for a caller who drops this future (a timeout): its znode keeps its place, is granted the lock,
    ///   and never lets go.
    /// * If somebody deletes our znode we never find ourselves lowest, and wait for ever. The worse variant asks
    ///   whether anything is lower, and then believes to hold without having a znode at all.
    async fn lock(&self) -> Outcome<String> {
        let (_, sequence) = self.client.create(&self.path("lock-"), b"", &SEQUENTIAL).await?;
        let ours = format!("lock-{sequence}");
        loop {
            let (children, watcher) = self.client.list_and_watch_children(&self.directory).await?;
            // As text: right for as long as all have ten digits and the same prefix, and nobody else lives here.
            if children.iter().min() == Some(&ours) {
                return Ok(ours);
            }
            watcher.changed().await;
        }
    }

    /// Wrong with it: as in `one_node`, a holder whose session expired works on until it comes here. Here at least
    /// the name is its own, until the directory is made anew and the numbers start again.
    async fn release(&self, ours: String) -> Outcome<()> {
        Ok(self.client.delete(&self.path(&ours), None).await?)
    }
}

impl WatchTheDirectory {
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }
}
