//! Requests without a lock: what there is to pay in any case. Through the same crate that zoolock uses.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::poll;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error, OneshotWatcher, Stat};

use super::session::Requests;
use crate::Outcome;

const CONTENDER: CreateOptions<'static> = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());

/// As long as what zoolock's contenders say of themselves.
const DATA: [u8; 160] = [b'x'; 160];
/// As long as zoolock's record of a release.
const RECORD: [u8; 40] = [b'x'; 40];

/// One create, one delete.
#[derive(Clone)]
pub(super) struct Raw;

impl Requests for Raw {
    type Held = String;

    async fn acquire(client: &Arc<Client>, path: &str) -> Outcome<String> {
        let prefix = format!("{path}/lock-");
        let (_, sequence) = client.create(&prefix, &DATA, &CONTENDER).await?;
        Ok(format!("{prefix}{sequence}"))
    }

    async fn release(client: &Client, _: &str, held: String) -> Outcome<()> {
        Ok(client.delete(&held, None).await?)
    }
}

/// Everything that zoolock sends where nobody else is: the create and a look at the directory in one flight, a watch
/// on the own znode that nobody waits for, and a transaction.
#[derive(Clone)]
pub(super) struct Same;

/// The answer to the watch, which comes when it comes.
type Watching = Pin<Box<dyn Future<Output = Result<(Vec<u8>, Stat, OneshotWatcher), Error>> + Send>>;

impl Requests for Same {
    type Held = (String, Watching);

    async fn acquire(client: &Arc<Client>, path: &str) -> Outcome<Self::Held> {
        let prefix = format!("{path}/lock-");
        let (created, _) =
            tokio::try_join!(client.create(&prefix, &DATA, &CONTENDER), client.get_data(path))?;
        let node = format!("{prefix}{}", created.1);
        let (client, path) = (client.clone(), node.clone());
        let mut watching: Watching = Box::pin(async move { client.get_and_watch_data(&path).await });
        // The first poll sends it.
        let _ = poll!(&mut watching);
        Ok((node, watching))
    }

    async fn release(client: &Client, path: &str, (node, watching): Self::Held) -> Outcome<()> {
        let mut transaction = client.new_multi_writer();
        transaction.add_delete(&node, None)?;
        transaction.add_set_data(path, &RECORD, None)?;
        let gone = transaction.commit();
        let (watching, gone) = tokio::join!(watching, gone);
        gone?;
        // It has fired; before that, to drop it would be a request more.
        watching?.2.changed().await;
        Ok(())
    }
}
