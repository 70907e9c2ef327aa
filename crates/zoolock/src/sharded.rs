//! Locks spread over several ensembles.
//!
//! Each lock lives on one of them, which everybody computes from its name: rendezvous hashing (Thaler and Ravishankar,
//! 1998). The shard with the highest weight for a name has it, so a shard that is added takes its share from all the
//! others, and nothing else moves.

use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use siphasher::sip::SipHasher24;

use crate::error::Error;
use crate::guard::Guard;
use crate::locker::Locker;
use crate::multi::MultiLock;
use crate::mutex::Mutex;
use crate::rwlock::RwLock;
use crate::semaphore::Semaphore;
use crate::snapshot::Snapshot;
use crate::zoolock::Zoolock;

/// Several ensembles that have the locks among them, each lock on one. Cheap to clone.
///
/// One ensemble commits so many writes a second and no more, however many servers it has; locks that have nothing to do
/// with each other need no common order. Everybody has to name the same shards, by the same names, in any order: whoever
/// computes another shard for a lock does not exclude the others.
///
/// # Adding a shard
/// Of `n + 1` shards the new one takes one lock in `n + 1`, and no lock moves between the others
/// ([`Sharded::shard_of`] tells for each). Who holds such a lock on its old shard does not exclude who asks on the new one,
/// and the tokens of two ensembles do not compare. So: stop everybody who takes locks, wait until what they held is free
/// (a session timeout at most), raise the token epoch on all of them
/// ([`Builder::token_epoch`](crate::Builder::token_epoch)), start everybody with the new list.
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
    /// Connects to several ensembles with the default settings: the name of each, and its address. The names decide which
    /// lock lives where, so that servers may change their addresses.
    ///
    /// # Errors
    /// As [`Builder::connect`](crate::Builder::connect) of the first that fails, and as [`Sharded::new`].
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
    /// Makes one of clients with settings of their own.
    ///
    /// # Errors
    /// [`Error::Invalid`] where there is no shard, where two have the same name, and where their roots differ: a name would
    /// mean one path on this shard and another on that one.
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
                    "is named twice; the name decides which locks it has",
                ));
            }
            let (root, other) = (shard.zoolock.shown_root(), first.zoolock.shown_root());
            if root != other {
                return Err(Error::invalid(
                    format!("shard {:?}", shard.name),
                    format!(
                        "has the root {root}, and shard {:?} has {other}; all have to have the same",
                        first.name
                    ),
                ));
            }
        }
        Ok(Sharded { shards })
    }

    /// The client of the shard that has this lock. For a bad name that of any: its calls report what is wrong.
    pub fn of(&self, name: impl AsRef<str>) -> &Zoolock {
        &self.shard(name.as_ref()).zoolock
    }

    /// The name of the shard that has this lock.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name.
    pub fn shard_of(&self, name: impl AsRef<str>) -> Result<&str, Error> {
        self.shards[0].zoolock.path(name.as_ref())?;
        Ok(&self.shard(name.as_ref()).name)
    }

    /// Which of these shards has the lock at a path, as `zoolock ls` shows paths; none of none. By the names alone, so that
    /// what moves can be known before a shard is added.
    ///
    /// # Examples
    /// ```
    /// use zoolock::Sharded;
    /// assert_eq!(Sharded::home(["red", "blue"], "/zoolock/accounts/7"), Some("blue"));
    /// ```
    pub fn home<'a>(shards: impl IntoIterator<Item = &'a str>, path: &str) -> Option<&'a str> {
        shards.into_iter().max_by_key(|shard| (weight(shard, path), *shard))
    }

    /// The names of the shards and their clients.
    pub fn shards(&self) -> impl Iterator<Item = (&str, &Zoolock)> {
        self.shards.iter().map(|shard| (shard.name.as_str(), &shard.zoolock))
    }

    /// As [`Zoolock::mutex`], on the shard that has it.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        self.of(name.as_ref()).mutex(name)
    }

    /// As [`Zoolock::rwlock`], on the shard that has it.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        self.of(name.as_ref()).rwlock(name)
    }

    /// As [`Zoolock::semaphore`], on the shard that has it.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        self.of(name.as_ref()).semaphore(name, permits)
    }

    /// As [`Zoolock::multi`], where one shard has them all: no transaction spans two ensembles, and without one, two
    /// callers could wait for each other for ever.
    ///
    /// # Errors
    /// [`Error::Invalid`] where they are on several shards, or a name is bad.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<MultiLock, Error> {
        let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        let Some(first) = names.first() else { return Ok(self.shards[0].zoolock.multi(names)) };
        let home = self.shard_of(first)?;
        for name in &names {
            let shard = self.shard_of(name)?;
            if shard != home {
                return Err(Error::invalid(
                    format!("locks {first:?} and {name:?}"),
                    format!(
                        "are on the shards {home:?} and {shard:?}, and nothing takes both at once; let one lock stand \
                         for both"
                    ),
                ));
            }
        }
        Ok(self.of(first).multi(names))
    }

    /// As [`Zoolock::with_lock`], on the shard that has it.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn with_lock<T, F, Fut>(&self, name: &str, timeout: Duration, work: F) -> Result<T, Error>
    where
        F: FnOnce(Guard) -> Fut,
        Fut: Future<Output = T>,
    {
        self.of(name).with_lock(name, timeout, work).await
    }

    /// The locks of all shards, with their queues, by path. What stands on a shard that does not have it (any more) is
    /// listed, too.
    ///
    /// # Errors
    /// As [`Zoolock::locks`] of the first that fails.
    pub async fn locks(&self, prefix: Option<&str>) -> Result<Vec<Snapshot>, Error> {
        let locks = self.shards.iter().map(|shard| shard.zoolock.locks(prefix));
        let mut locks: Vec<Snapshot> = try_join_all(locks).await?.into_iter().flatten().collect();
        locks.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(locks)
    }

    /// Closes all of them; see [`Zoolock::close`].
    pub async fn close(&self) {
        join_all(self.shards.iter().map(|shard| shard.zoolock.close())).await;
    }

    fn shard(&self, name: &str) -> &Shard {
        let first = &self.shards[0];
        let path = first.zoolock.path(name);
        let path = path.as_ref().map_or(name, |path| first.zoolock.shown(path.as_str()));
        let home = Self::home(self.shards.iter().map(|shard| shard.name.as_str()), path);
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

/// How much a shard wants a lock: SipHash-2-4 with a key of zeros over `shard NUL path`. It may never change, since clients
/// of all versions have to agree.
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
        Sharded::home(shards.iter().copied(), path).expect("there are some")
    }

    #[test]
    fn the_weights_are_the_same_for_ever() {
        // Computed by another implementation.
        assert_eq!(weight("red", "/locks/nightly"), 3_443_438_918_419_679_669);
        assert_eq!(weight("blue", "/locks/nightly"), 12_489_297_842_871_463_884);
    }

    #[test]
    fn a_shard_that_is_added_takes_its_share_from_all_and_nothing_else_moves() {
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
        assert!((19_000..21_000).contains(&moved), "{moved} of 100,000 moved");
        assert_eq!(from.len(), 4);
        assert!(from.values().all(|of_one| (4_500..5_500).contains(of_one)), "{from:?}");
    }
}
