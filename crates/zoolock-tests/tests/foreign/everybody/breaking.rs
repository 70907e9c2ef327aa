//! Taking a lock away from one make by another.

use std::time::Duration;

use tokio::time::timeout;
use zoolock::{LossReason, Naming, Ticket};
use zoolock_tests::on_both_arms;

use crate::everybody::queue::{Queue, zoolock};
use zoolock_tests::locks::connect;

const UUID: &str = "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301";
const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";
const SOON: Duration = Duration::from_secs(30);
const DEAF: &str = "does not notice";

on_both_arms!(who_does_not_notice_that_it_was_broken_is_named, |place| async move {
    let zl = connect(&place).await;
    let cases = [
        ("x", format!("{HEX}__lock__"), "kazoo", "kazoo: job 7"),
        ("x", format!("{UUID}-lock-"), "curator", "Curator: job 7"),
        ("x", "x-5-".to_owned(), "write-lock", "a WriteLock of ZooKeeper's recipes: job 7"),
        ("s/leases", format!("{UUID}-lease-"), "curator", "Curator: job 7"),
    ];
    for (name, prefix, family, who) in cases {
        let queue = Queue::new(&place, name).await;
        let join = async || {
            let node = queue.join(&prefix, b"job 7").await;
            let seen = zl.mutex(name).snapshot().await.expect("a look").holder.expect("held");
            (node, seen.token.expect("readable"))
        };
        let (node, token) = join().await;
        let broken = zl.mutex(name).break_lock(token.parse::<Ticket>().expect("a ticket")).await;
        let broken = broken.expect("it is there");
        assert_eq!((broken.family, broken.pid), (family, None));
        assert_eq!((broken.token, broken.identifier.as_deref()), (Some(token), Some("job 7")));
        // Of a name that has a session in it only the number is told.
        let told = if family == "write-lock" { format!("x-…-{}", &node[node.len() - 10..]) } else { node };
        assert!(broken.node.ends_with(&told) && !broken.node.starts_with('/'), "{}", broken.node);
        let (_, token) = join().await;
        let said = zoolock(&place, &["break", name, "--token", &token]).await;
        assert_eq!(said.code, Some(0), "{}", said.notes);
        assert!(said.notes.contains(&format!("zoolock: {who} {DEAF}")), "{}", said.notes);
    }
});

on_both_arms!(ours_notice_that_they_were_broken_whatever_they_are_called, |place| async move {
    let zl = connect(&place).await;
    for naming in [Naming::Native, Naming::Curator, Naming::Kazoo, Naming::WriteLock] {
        let guard = zl.mutex("ours").naming(naming).lock().await.expect("free");
        let token = guard.token().to_string();
        let said = zoolock(&place, &["break", "ours", "--token", &token]).await;
        assert_eq!(said.code, Some(0), "{naming}: {}", said.notes);
        assert!(said.notes.contains(&token) && !said.notes.contains(DEAF), "{naming}: {}", said.notes);
        assert_eq!(timeout(SOON, guard.lost()).await.expect("told"), LossReason::Broken);
        let guard = zl.mutex("ours").naming(naming).lock().await.expect("free");
        let broken = zl.mutex("ours").break_lock(guard.token()).await.expect("it is there");
        assert_eq!((broken.pid, broken.role), (Some(std::process::id()), "exclusive"), "{naming}");
    }
});
