//! The lock on one server as in the documentation of Redis: a key that expires, and a script that deletes the key only
//! if it still has the token of the holder. There is no queue, and no guarantee after the key has expired.

use redis::aio::MultiplexedConnection;
use redis::{Client, Script};

use super::peer::{Peer, SESSION_TIMEOUT};
use crate::Outcome;

#[derive(Clone)]
pub(super) struct Redis(MultiplexedConnection);

#[derive(Clone)]
pub(super) struct RedisLock {
    connection: MultiplexedConnection,
    key: String,
    unlock: Script,
}

const UNLOCK: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// The token. It would be random if there were other clients.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

impl Peer for Redis {
    type Lock = RedisLock;
    type Held = ();

    async fn open(address: &str) -> Outcome<Self> {
        let client = Client::open(format!("redis://{address}/"))?;
        Ok(Self(client.get_multiplexed_async_connection().await?))
    }

    fn lock(&self, path: &str) -> RedisLock {
        RedisLock { connection: self.0.clone(), key: path.to_owned(), unlock: Script::new(UNLOCK) }
    }

    async fn acquire(lock: &RedisLock) -> Outcome<()> {
        let mut connection = lock.connection.clone();
        let mut set = redis::cmd("SET");
        set.arg(&lock.key).arg(TOKEN).arg("NX").arg("PX").arg(SESSION_TIMEOUT.as_secs() * 1_000);
        let done: Option<String> = set.query_async(&mut connection).await?;
        done.map(|_| ()).ok_or_else(|| "another client holds it".into())
    }

    async fn release(lock: &RedisLock, (): ()) -> Outcome<()> {
        let mut connection = lock.connection.clone();
        let deleted: u64 = lock.unlock.key(&lock.key).arg(TOKEN).invoke_async(&mut connection).await?;
        if deleted == 1 { Ok(()) } else { Err("it had expired".into()) }
    }

    async fn prepare(_: &str, _: &[String]) -> Outcome<()> {
        Ok(())
    }

    async fn await_contenders(_: &str, _: &[String], _: usize) -> Outcome<()> {
        Err("it has no queue".into())
    }
}
