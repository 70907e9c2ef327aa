// Locks spread over several ensembles, called shards, by a hash of their names.
//
// All clients compute the shard of a lock by rendezvous hashing (Thaler and Ravishankar, 1998): the lock is on the shard
// with the highest weight for its name. So a new shard takes locks from all old shards, and no lock moves from one old
// shard to another.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

/// One ensemble.
pub struct Shard<C> {
    /// Decides which locks the shard has. It never changes, so the servers may change their addresses.
    pub name: &'static str,
    /// The client of the ensemble: a `zoolock::Zoolock`.
    pub client: C,
}

/// Returns the shard of the lock `name`. `None` if there are no shards.
pub fn shard_of<'a, C>(shards: &'a [Shard<C>], name: &str) -> Option<&'a Shard<C>> {
    shards.iter().max_by_key(|shard| (weight(shard.name, name), shard.name))
}

/// Returns the SipHash-2-4, with a key of zeros, of the shard's name, a zero byte and the lock's name. The function must
/// never change, because all clients must agree on the shard of a lock.
pub fn weight(shard: &str, name: &str) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(shard.as_bytes());
    hasher.write(&[0]);
    hasher.write(name.as_bytes());
    hasher.finish()
}
