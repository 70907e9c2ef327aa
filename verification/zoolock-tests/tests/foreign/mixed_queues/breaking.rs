//! Breaking locks of other libraries.

use std::time::Duration;

use tokio::time::timeout;
use zoolock::admin::Role;
use zoolock::{LossReason, Naming};
use zoolock_tests::locks::connect;
use zoolock_tests::on_both_servers;

use crate::mixed_queues::queue::{Queue, zoolock};

const SOON: Duration = Duration::from_secs(30);
const UNNOTICED: &str = "may not notice";

on_both_servers!(break_warns_of_holders_that_do_not_notice, |place| async move {
    let zl = connect(&place).await;
    let cases = [
        ("x", "HEX__lock__", "kazoo", "kazoo: job 7"),
        ("x", "UUID-lock-", "curator", "Curator: job 7"),
        ("x", "x-5-", "write-lock", "a WriteLock of ZooKeeper's recipes: job 7"),
        ("x", "job-", "unknown", "an unknown client library (NODE): job 7"),
        ("s/leases", "UUID-lease-", "curator", "Curator: job 7"),
    ];
    for (name, prefix, family, holder) in cases {
        let queue = Queue::new(&place, name).await;
        let join = async || {
            let node = queue.join(prefix, b"job 7").await;
            let seen = zl.admin().snapshot(name).await.expect("snapshot read").holder.expect("a holder");
            (node, seen.token.expect("the token is readable"))
        };
        let (node, token) = join().await;
        let broken = zl.admin().break_lock(name, token).await;
        let broken = broken.expect("the holder exists");
        assert_eq!((broken.family.as_str(), broken.pid), (family, None));
        assert_eq!((broken.token, broken.identifier.as_deref()), (Some(token), Some("job 7")));
        // If a name contains a session id, `…` replaces the id.
        let shown = if family == "write-lock" { format!("x-…-{}", &node[node.len() - 10..]) } else { node };
        assert!(broken.node.ends_with(&shown) && !broken.node.starts_with('/'), "{}", broken.node);
        let (node, token) = join().await;
        let holder = holder.replace("NODE", &node);
        let output = zoolock(&place, &["break", name, "--token", &token.to_string()]).await;
        output.assert(0, &[&format!("zoolock: {holder} {UNNOTICED}")]);
    }
});

on_both_servers!(broken_holder_notices_under_every_naming, |place| async move {
    let zl = connect(&place).await;
    for naming in [Naming::Native, Naming::Curator, Naming::Kazoo, Naming::WriteLock] {
        let guard = zl.mutex("ours").naming(naming).lock().await.expect("lock granted");
        let token = guard.token().to_string();
        let output = zoolock(&place, &["break", "ours", "--token", &token]).await;
        output.assert(0, &[&token]);
        assert!(!output.stderr.contains(UNNOTICED), "{naming}: {}", output.stderr);
        assert_eq!(timeout(SOON, guard.lost()).await.expect("the holder notices"), LossReason::Broken);
        let guard = zl.mutex("ours").naming(naming).lock().await.expect("lock granted");
        let broken = zl.admin().break_lock("ours", guard.token()).await.expect("the holder exists");
        assert_eq!((broken.pid, broken.role), (Some(std::process::id()), Role::Exclusive), "{naming}");
    }
});
