//! The example that spreads locks over several ensembles.

#[expect(unreachable_pub, reason = "programs copy the file")]
#[path = "../../../../examples/shards/shards.rs"]
mod example;

use std::collections::HashMap;

use zoolock::{TestServer, Zoolock};

use self::example::{Shard, shard_of, weight};

fn name_of(shards: &[&'static str], lock: &str) -> &'static str {
    let shards: Vec<Shard<()>> = shards.iter().map(|name| Shard { name, client: () }).collect();
    shard_of(&shards, lock).expect("at least one shard").name
}

/// Connects a client to each server, in this order.
async fn shards(servers: &[TestServer; 3], order: [usize; 3]) -> Vec<Shard<Zoolock>> {
    let mut shards = Vec::new();
    for at in order {
        let name = ["red", "green", "blue"][at];
        shards.push(Shard { name, client: servers[at].connect().await.expect("session starts") });
    }
    shards
}

#[tokio::test]
async fn shard_order_does_not_change_lock_location() {
    let start = async || TestServer::start().await.expect("server starts");
    let servers = [start().await, start().await, start().await];
    let (ours, theirs) = (shards(&servers, [0, 1, 2]).await, shards(&servers, [2, 0, 1]).await);
    for at in 0..30 {
        let name = format!("job/{at}");
        let [ours, theirs] = [&ours, &theirs].map(|shards| shard_of(shards, &name).expect("three shards"));
        let _guard = ours.client.mutex(&name).lock().await.expect("lock acquired");
        assert!(
            theirs.client.mutex(&name).try_lock().await.expect("attempt succeeds").is_none(),
            "{name} was held twice"
        );
    }
    for shard in ours.into_iter().chain(theirs) {
        shard.client.close().await;
    }
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
    for at in 0..100_000 {
        let lock = format!("accounts/{at}");
        let (old, new) = (name_of(&before, &lock), name_of(&after, &lock));
        if old != new {
            assert_eq!(new, "e", "{lock} moved between old shards");
            moved += 1;
            *from.entry(old).or_insert(0) += 1;
        }
    }
    assert!((19_000..21_000).contains(&moved), "{moved} of 100,000 locks moved");
    assert_eq!(from.len(), 4);
    assert!(from.values().all(|of_one| (4_500..5_500).contains(of_one)), "{from:?}");
}
