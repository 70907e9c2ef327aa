//! Requests without a lock: what there is to pay in any case. Through the same crate that zoolock uses.

use std::sync::Arc;

use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};

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

    const AT_ONCE: bool = true;

    async fn acquire(client: &Arc<Client>, path: &str) -> Outcome<String> {
        let prefix = format!("{path}/lock-");
        let (_, sequence) = client.create(&prefix, &DATA, &CONTENDER).await?;
        Ok(format!("{prefix}{sequence}"))
    }

    async fn release(client: &Client, _: &str, held: String) -> Outcome<()> {
        Ok(client.delete(&held, None).await?)
    }
}

/// Everything that zoolock sends where nobody else is: the create and a look at the directory in one flight, and a
/// transaction. `WATCHED`: and a watch on the node, where it is held for more than a few milliseconds.
#[derive(Clone)]
pub(super) struct Same<const WATCHED: bool>;

impl<const WATCHED: bool> Requests for Same<WATCHED> {
    type Held = String;

    const AT_ONCE: bool = true;

    async fn acquire(client: &Arc<Client>, path: &str) -> Outcome<String> {
        let prefix = format!("{path}/lock-");
        let (created, _) =
            tokio::try_join!(client.create(&prefix, &DATA, &CONTENDER), client.get_data(path))?;
        Ok(format!("{prefix}{}", created.1))
    }

    async fn release(client: &Client, path: &str, node: String) -> Outcome<()> {
        let mut transaction = client.new_multi_writer();
        transaction.add_delete(&node, None)?;
        transaction.add_set_data(path, &RECORD, None)?;
        let released = async { Ok(transaction.commit().await?) };
        let watched = async {
            // zoolock's is sent earlier, and nobody waits for it there either.
            if WATCHED { client.get_and_watch_data(&node).await.map(drop) } else { Ok(()) }
        };
        tokio::try_join!(watched, released).map(|_| ()).map_err(|error: zookeeper_client::Error| error.into())
    }
}
