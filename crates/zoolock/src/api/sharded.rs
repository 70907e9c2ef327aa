//! Locks spread over several ensembles, called shards.
//!
//! Each lock belongs to one shard. All clients compute the shard from the lock's path by rendezvous hashing (Thaler and
//! Ravishankar, 1998): the lock is on the shard with the highest weight for this path. So a new shard takes locks from
//! all old shards, and no lock moves from one old shard to another.

use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use siphasher::sip::SipHasher24;

use crate::admin::snapshot::Snapshot;
use crate::api::guard::Guard;
use crate::api::locker::Locker;
use crate::api::multi::MultiLock;
use crate::api::mutex::Mutex;
use crate::api::rwlock::RwLock;
use crate::api::semaphore::Semaphore;
use crate::api::zoolock::Zoolock;
use crate::base::error::Error;

/// A client of several ensembles, called shards. Each lock is on one shard. Cheap to clone.
///
/// The write rate of one ensemble is limited, and more servers do not raise it. Several ensembles together have a
/// higher write rate, because independent locks need no common order. All clients must name the same shards, by the
/// same names, in any order. A client with another list may look for a lock on another shard, and then does not exclude
/// the other clients.
///
/// # Adding a shard
/// Of `n + 1` shards, the new one takes one lock in `n + 1`. No lock moves from one old shard to
/// another. [`Sharded::shard_for_path`] computes which locks move. The holder of such a lock on the old shard
/// does not exclude a contender on the new shard, and the fencing tokens of two ensembles cannot be
/// compared. So proceed in this order:
///
/// 1. Stop all programs that take locks.
/// 2. Wait until their locks are free (a session timeout at most).
/// 3. Raise the token epoch of all shards ([`Builder::token_epoch`](crate::Builder::token_epoch)).
/// 4. Start all programs with the new list.
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), zoolock::Error> {
/// use zoolock::Zoolock;
/// let shards = Zoolock::sharded([("red", "zk1:2181,zk2:2181,zk3:2181"), ("blue", "zk4:2181,zk5:2181,zk6:2181")]).await?;
/// let guard = shards.mutex("accounts/7").lock().await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone)]
pub struct Sharded {
    shards: Arc<[Shard]>,
}

struct Shard {
    name: String,
    zoolock: Zoolock,
}

impl Zoolock {
    /// Connects to several ensembles, given as pairs of name and address. Each client has the
    /// default settings. The name of a shard, not its address, decides which locks the shard has,
    /// so servers may change their addresses.
    ///
    /// # Errors
    /// As [`Builder::connect`](crate::Builder::connect) of the first ensemble that fails, and as [`Sharded::new`].
    pub async fn sharded<N, A>(shards: impl IntoIterator<Item = (N, A)>) -> Result<Sharded, Error>
    where
        N: Into<String>,
        A: AsRef<str>,
    {
        let shards = shards.into_iter().map(|(name, address)| async move {
            let zoolock = Zoolock::connect(address.as_ref()).await?;
            Ok::<(String, Zoolock), Error>((name.into(), zoolock))
        });
        Sharded::new(try_join_all(shards).await?)
    }
}

impl Sharded {
    /// Makes a sharded client from one client for each shard. Each client has its own settings.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no shard, if two shards have the same name, or if their roots differ: a lock name
    /// would mean different paths on different shards.
    pub fn new<N: Into<String>>(shards: impl IntoIterator<Item = (N, Zoolock)>) -> Result<Sharded, Error> {
        let shards: Arc<[Shard]> =
            shards.into_iter().map(|(name, zoolock)| Shard { name: name.into(), zoolock }).collect();
        let Some(first) = shards.first() else {
            return Err(Error::invalid("no shards", "name at least one ensemble"));
        };
        for (at, shard) in shards.iter().enumerate() {
            if shards[..at].iter().any(|other| other.name == shard.name) {
                return Err(Error::invalid(
                    format!("shard {:?}", shard.name),
                    "appears twice; give each shard its own name",
                ));
            }
            let (root, other) = (
                shard.zoolock.context().root_without_chroot(),
                first.zoolock.context().root_without_chroot(),
            );
            if root != other {
                return Err(Error::invalid(
                    format!("shard {:?}", shard.name),
                    format!(
                        "has the root {root}, but shard {:?} has {other}; use the same root for all shards",
                        first.name
                    ),
                ));
            }
        }
        Ok(Sharded { shards })
    }

    /// Returns the client of the shard that has this lock. For a bad name, returns one of the
    /// clients. Its calls then fail for that name.
    pub fn shard_client(&self, name: impl AsRef<str>) -> &Zoolock {
        &self.shard(name.as_ref()).zoolock
    }

    /// Returns the name of the shard that has this lock.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name.
    pub fn shard_name(&self, name: impl AsRef<str>) -> Result<&str, Error> {
        self.shards[0].zoolock.context().path(name.as_ref())?;
        Ok(&self.shard(name.as_ref()).name)
    }

    /// Returns the name of the shard that has the lock at `path`; `None` if there are no shards.
    /// The path is absolute and without the chroot, as in the output of `zoolock ls`. This connects
    /// to no server, so it can compute which locks a new shard would take.
    ///
    /// # Examples
    /// ```
    /// use zoolock::Sharded;
    /// assert_eq!(Sharded::shard_for_path(["red", "blue"], "/zoolock/accounts/7"), Some("blue"));
    /// ```
    pub fn shard_for_path<'a>(shards: impl IntoIterator<Item = &'a str>, path: &str) -> Option<&'a str> {
        shards.into_iter().max_by_key(|shard| (weight(shard, path), *shard))
    }

    /// Returns the names of the shards and their clients.
    pub fn shards(&self) -> impl Iterator<Item = (&str, &Zoolock)> {
        self.shards.iter().map(|shard| (shard.name.as_str(), &shard.zoolock))
    }

    /// Calls [`Zoolock::mutex`] on the shard that has the lock.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        self.shard_client(name.as_ref()).mutex(name)
    }

    /// Calls [`Zoolock::rwlock`] on the shard that has the lock.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        self.shard_client(name.as_ref()).rwlock(name)
    }

    /// Calls [`Zoolock::semaphore`] on the shard that has the lock.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        self.shard_client(name.as_ref()).semaphore(name, permits)
    }

    /// Calls [`Zoolock::multi`] on the shard that has all these locks. They must be on one shard, because no
    /// transaction spans two ensembles. Without a transaction, two callers could wait for each other for ever.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the locks are on several shards, or a name is bad.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<MultiLock, Error> {
        let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        let Some(first) = names.first() else { return Ok(self.shards[0].zoolock.multi(names)) };
        let home = self.shard_name(first)?;
        for name in &names {
            let shard = self.shard_name(name)?;
            if shard != home {
                return Err(Error::invalid(
                    format!("locks {first:?} and {name:?}"),
                    format!(
                        "are on different shards, {home:?} and {shard:?}, and cannot be acquired together; use one lock for \
                         both"
                    ),
                ));
            }
        }
        Ok(self.shard_client(first).multi(names))
    }

    /// Calls [`Zoolock::with_lock`] on the shard that has the lock.
    ///
    /// # Errors
    /// As [`Zoolock::with_lock`].
    ///
    /// # Cancel safety
    /// As [`Zoolock::with_lock`].
    pub async fn with_lock<T, F, Fut>(&self, name: &str, timeout: Duration, work: F) -> Result<T, Error>
    where
        F: FnOnce(Guard) -> Fut,
        Fut: Future<Output = T>,
    {
        self.shard_client(name).with_lock(name, timeout, work).await
    }

    /// Returns the locks of all shards, with their queues, in the order of their paths. Includes locks on shards to
    /// which they do not belong, for example after a shard was added.
    ///
    /// # Errors
    /// As [`Zoolock::locks`] of the first shard that fails.
    pub async fn locks(&self, prefix: Option<&str>) -> Result<Vec<Snapshot>, Error> {
        let locks = self.shards.iter().map(|shard| shard.zoolock.locks(prefix));
        let mut locks: Vec<Snapshot> = try_join_all(locks).await?.into_iter().flatten().collect();
        locks.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(locks)
    }

    /// Closes all clients; see [`Zoolock::close`].
    pub async fn close(&self) {
        join_all(self.shards.iter().map(|shard| shard.zoolock.close())).await;
    }

    fn shard(&self, name: &str) -> &Shard {
        let first = &self.shards[0];
        let path = first.zoolock.context().path(name);
        let path = path.as_ref().map_or(name, |path| first.zoolock.context().without_chroot(path.as_str()));
        let home = Self::shard_for_path(self.shards.iter().map(|shard| shard.name.as_str()), path);
        self.shards.iter().find(|shard| Some(shard.name.as_str()) == home).unwrap_or(first)
    }
}

impl Locker for Sharded {
    type Guard = Guard;

    async fn with_lock<T, F, Fut>(&self, key: &str, timeout: Duration, work: F) -> Result<T, Error>
    where
        T: Send,
        F: FnOnce(Guard) -> Fut + Send,
        Fut: Future<Output = T> + Send,
    {
        Sharded::with_lock(self, key, timeout, work).await
    }
}

impl std::fmt::Debug for Sharded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.shards.iter().map(|shard| &shard.name)).finish()
    }
}

/// Returns the weight of a shard for a lock: the SipHash-2-4, with a key of zeros, of the shard's name, a zero byte and
/// the path. The function must never change, since clients of all versions must agree on the shard of a lock.
fn weight(shard: &str, path: &str) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(shard.as_bytes());
    hasher.write(&[0]);
    hasher.write(path.as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{Sharded, weight};

    fn home<'a>(shards: &[&'a str], path: &str) -> &'a str {
        Sharded::shard_for_path(shards.iter().copied(), path).expect("at least one shard")
    }

    #[test]
    fn weights_never_change() {
        // The expected values come from another implementation of SipHash-2-4.
        assert_eq!(weight("red", "/locks/nightly"), 3_443_438_918_419_679_669);
        assert_eq!(weight("blue", "/locks/nightly"), 12_489_297_842_871_463_884);
    }

    #[test]
    fn added_shard_moves_only_its_share() {
        let before = ["a", "b", "c", "d"];
        let after = ["a", "b", "c", "d", "e"];
        let (mut moved, mut from) = (0, HashMap::new());
        let paths: Vec<String> = (0..100_000).map(|at| format!("/locks/accounts/{at}")).collect();
        for path in &paths {
            let (old, new) = (home(&before, path), home(&after, path));
            if old != new {
                assert_eq!(new, "e", "{path} moved between old shards");
                moved += 1;
                *from.entry(old).or_insert(0) += 1;
            }
        }
        assert!((19_000..21_000).contains(&moved), "{moved} of 100,000 locks moved");
        assert_eq!(from.len(), 4);
        assert!(from.values().all(|of_one| (4_500..5_500).contains(of_one)), "{from:?}");
    }
}
