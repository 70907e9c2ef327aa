//! Requests without a lock, through the session client that zoolock uses: the minimum cost of a lock.

use std::sync::Arc;

use tokio::runtime::Handle;
use zoolock_client::{Host, Os, RequestError, RequestSession, SessionConfig};
use zoolock_wire::{Acl, CreateRequest, Reply, Request, op, perms};

use super::peer::SESSION_TIMEOUT;
use super::session::LockRequests;
use crate::Outcome;

/// Data as long as that of zoolock's contenders.
const DATA: [u8; 160] = [b'x'; 160];
/// Data as long as zoolock's release marker.
const RECORD: [u8; 40] = [b'x'; 40];

const EPHEMERAL_SEQUENTIAL: i32 = 3;
const ANY_VERSION: i32 = -1;

async fn open(address: &str) -> Outcome<Arc<RequestSession>> {
    let host = |text: &str| -> Outcome<Host> {
        let (name, port) = text.rsplit_once(':').ok_or("an address without a port")?;
        Ok(Host::Tcp { name: name.to_owned(), port: port.parse()? })
    };
    let hosts: Vec<Host> = address.split(',').map(host).collect::<Outcome<_>>()?;
    let config = SessionConfig::new(SESSION_TIMEOUT);
    Ok(Arc::new(RequestSession::open(config, hosts, Os::with_runtime(&Handle::current())).await?))
}

pub(super) fn create_request(path: &str) -> Request {
    Request::Create(CreateRequest {
        op: op::CREATE2,
        path: format!("{path}/lock-"),
        data: Some(DATA.to_vec().into()),
        acl: vec![Acl::anyone(perms::ALL)],
        flags: EPHEMERAL_SEQUENTIAL,
        ttl: 0,
    })
}

pub(super) fn created_path(reply: Reply) -> Outcome<String> {
    match reply {
        Reply::PathStat { path, .. } => Ok(path),
        other => Err(format!("the reply to a create is {other:?}").into()),
    }
}

/// Returns the read that zoolock sends together with a create.
pub(super) fn read_request(path: &str) -> Request {
    Request::GetData { path: path.to_owned(), watch: false }
}

/// Returns the transaction with which zoolock releases the lock that `node` holds.
pub(super) fn release_request(path: &str, node: String) -> Request {
    Request::Multi(vec![
        Request::Delete { path: node, version: ANY_VERSION },
        Request::SetData { path: path.to_owned(), data: Some(RECORD.to_vec().into()), version: ANY_VERSION },
    ])
}

/// One create and one delete.
#[derive(Clone)]
pub(super) struct RawRequests;

impl LockRequests for RawRequests {
    type Client = Arc<RequestSession>;
    type Held = String;

    async fn open(address: &str) -> Outcome<Arc<RequestSession>> {
        open(address).await
    }

    async fn acquire(client: &Arc<RequestSession>, path: &str) -> Outcome<String> {
        created_path(client.call(&create_request(path)).await?)
    }

    async fn release(client: &Arc<RequestSession>, _: &str, held: String) -> Outcome<()> {
        Ok(client.delete(&held).await?)
    }
}

/// The requests that zoolock sends for a lock without other contenders: the create together with a
/// read of the directory, and then a transaction. With `WATCHED`, there is also a watch on the
/// znode, as for a lock that is held for more than a few milliseconds.
#[derive(Clone)]
pub(super) struct SameRequests<const WATCHED: bool>;

impl<const WATCHED: bool> LockRequests for SameRequests<WATCHED> {
    type Client = Arc<RequestSession>;
    type Held = String;

    async fn open(address: &str) -> Outcome<Arc<RequestSession>> {
        open(address).await
    }

    async fn acquire(client: &Arc<RequestSession>, path: &str) -> Outcome<String> {
        let (creation, read) = (create_request(path), read_request(path));
        let (reply, _) = tokio::try_join!(client.call(&creation), client.call(&read))?;
        created_path(reply)
    }

    async fn release(client: &Arc<RequestSession>, path: &str, node: String) -> Outcome<()> {
        let released = release_request(path, node.clone());
        let watch = Request::GetData { path: node, watch: true };
        let watched = async {
            // zoolock sends the watch earlier, and does not wait for its reply.
            if WATCHED { client.call(&watch).await.map(drop) } else { Ok(()) }
        };
        tokio::try_join!(watched, client.call(&released))
            .map(|_| ())
            .map_err(|error: RequestError| error.into())
    }
}
