//! Unusual operations. Most of these cases come from the random comparison with Apache ZooKeeper.

use std::time::Duration;

use zoolock_server::Limits;
use zoolock_tests::{Apache, ServerOptions, apache};
use zoolock_wire::{Acl, EventKind, Identity, OpResult, Reply, Request, op, perms};

use crate::common::{
    RawClient, auth, builder, children, create, create_op, create_with, delete, exists, finish_in_time, get,
    server, set,
};

fn create_ttl(path: &str, ttl: i64) -> Request {
    create_with(op::CREATE_TTL, path, 5, ttl)
}

#[tokio::test]
async fn unreadable_znode_sends_no_events() {
    let server = server().await;
    let mut owner = RawClient::connect(server.local_addr()).await;
    let mut other = RawClient::connect(server.local_addr()).await;
    owner.call_ok(auth("digest", "me:pw")).await;
    owner.call_ok(create("/open", 0)).await;
    other.call_ok(Request::AddWatch { path: "/open".into(), mode: 1 }).await;
    other.call_error(exists("/open/secret", true)).await;
    other.call_ok(children("/open", true)).await;
    let Request::Create(mut secret) = create("/open/secret", 0) else { unreachable!("it is a create") };
    secret.acl = vec![Acl { perms: perms::ALL, identity: Identity::new("auth", "") }];
    owner.call_ok(Request::Create(secret)).await;
    owner.call_ok(set("/open/secret", "x", -1)).await;
    owner.call_ok(delete("/open/secret", -1)).await;
    owner.call_ok(create("/open/secret", 0)).await;
    let (.., events) = other.call(Request::Ping).await;
    let heard: Vec<_> = events.iter().map(|event| (event.kind, event.path.as_str())).collect();
    // The client has no permission to read the first `/open/secret`, so it gets no events for that
    // znode. The first of these events has nevertheless removed the client's one-shot watch on
    // `/open/secret`. The last create fires the recursive watch on `/open`.
    let expected = [(EventKind::ChildrenChanged, "/open"), (EventKind::Created, "/open/secret")];
    assert_eq!(heard, expected);
    server.shutdown().await;
}

#[tokio::test]
async fn ttl_znode_with_children_does_not_expire() {
    let server = builder().container_check(Duration::from_millis(10)).start().await.expect("a free port");
    let mut raw = RawClient::connect(server.local_addr()).await;
    raw.call_ok(Request::Multi(vec![create_ttl("/parent", 1), create("/parent/child", 0)])).await;
    raw.call_ok(create_ttl("/long", 3_600_000)).await;
    let Reply::Stat(stat) = raw.call_ok(exists("/long", false)).await else { panic!("a stat") };
    assert_eq!(stat.ephemeral_owner, 0);
    raw.call_ok(create_ttl("/short", 1)).await;
    finish_in_time(async { while raw.call_error(exists("/short", false)).await == 0 {} }).await;
    raw.call_ok(exists("/parent", false)).await;
    raw.call_ok(delete("/parent/child", -1)).await;
    finish_in_time(async { while raw.call_error(exists("/parent", false)).await == 0 {} }).await;
    raw.call_ok(exists("/long", false)).await;
    server.shutdown().await;
}

#[tokio::test]
async fn invalid_or_disabled_ttl_is_refused() {
    let server = server().await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    for ttl in [0, -1, 0x100_0000_0000] {
        assert_eq!(raw.call_error(create_ttl("/x", ttl)).await, -8, "{ttl}");
    }
    raw.call_ok(create_ttl("/x", 0xff_ffff_ffff)).await;
    server.shutdown().await;
    let server = builder()
        .limits(Limits { extended_types: false, ..Limits::default() })
        .start()
        .await
        .expect("a free port");
    let mut raw = RawClient::connect(server.local_addr()).await;
    assert_eq!(raw.call_error(create_ttl("/x", 1)).await, -6);
    server.shutdown().await;
}

#[tokio::test]
async fn system_znodes_are_read_only() {
    let server = server().await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    for request in [
        create("/zookeeper/a", 0),
        create("/zookeeper/quota", 0),
        set("/zookeeper", "x", -1),
        set("/zookeeper/quota", "x", -1),
        Request::SetAcl { path: "/zookeeper".into(), acl: vec![Acl::anyone(perms::ALL)], version: -1 },
    ] {
        assert_eq!(raw.call_error(request.clone()).await, -102, "{request:?}");
    }
    let Reply::ChildrenStat { children, .. } = raw.call_ok(children("/zookeeper", false)).await else {
        panic!("children")
    };
    assert_eq!(children, ["config", "quota"]);
    server.shutdown().await;
}

#[tokio::test]
async fn writes_below_the_quota_node_are_refused() {
    let server = server().await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    // The first two requests are those of `setquota -n 3 /a` in zkCli.
    for request in [
        create("/zookeeper/quota/a", 0),
        create("/zookeeper/quota/a/zookeeper_limits", 0),
        create("/zookeeper/quota/n-", 2),
        set("/zookeeper/quota/a", "count=3,bytes=-1", -1),
        delete("/zookeeper/quota/a", -1),
    ] {
        assert_eq!(raw.call_error(request.clone()).await, -6, "{request:?}");
    }
    let Reply::Multi(results) =
        raw.call_ok(Request::Multi(vec![create("/a", 0), create("/zookeeper/quota/a", 0)])).await
    else {
        panic!("results")
    };
    assert_eq!(results, [OpResult::Error(0), OpResult::Error(-6)]);
    assert_eq!(raw.call_error(exists("/zookeeper/quota/a", false)).await, -101);
    let Reply::ChildrenStat { children, .. } = raw.call_ok(children("/zookeeper/quota", false)).await else {
        panic!("children")
    };
    assert_eq!(children, [""; 0]);
    server.shutdown().await;
}

#[tokio::test]
async fn flags_decide_kind_of_znode_in_multi() {
    let server = server().await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    let ops = vec![
        create("/container", 4),
        create_op(op::CREATE2, "/plain", 0),
        create_op(op::CREATE_CONTAINER, "/ephemeral", 1),
    ];
    let Reply::Multi(results) = raw.call_ok(Request::Multi(ops)).await else { panic!("results") };
    let with_stat: Vec<bool> =
        results.iter().map(|result| matches!(result, OpResult::Create2 { .. })).collect();
    assert_eq!(with_stat, [true, false, false]);
    let Reply::Children(mine) = raw.call_ok(Request::GetEphemerals { prefix: String::new() }).await else {
        panic!("paths")
    };
    assert_eq!(mine, ["/ephemeral"]);
    // The flags of a time to live need `createTTL`. Without `createTTL` the whole multi fails, and
    // takes a zxid.
    let (before, ..) = raw.call(Request::Ping).await;
    let (after, ..) = raw.call(Request::Multi(vec![create("/x", 0), create("/y", 5)])).await;
    assert_eq!((after.err, after.zxid), (-5, before.zxid + 1));
    assert_eq!(raw.call_error(exists("/x", false)).await, -101);
    server.shutdown().await;
}

#[tokio::test]
async fn multi_read_sets_no_watch_and_takes_no_zxid() {
    let server = server().await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    raw.call_ok(create("/a", 0)).await;
    raw.call_ok(Request::MultiRead(vec![get("/a", true)])).await;
    let (header, _, events) = raw.call(set("/a", "y", -1)).await;
    assert!(events.is_empty());
    let (mixed, ..) = raw.call(Request::Multi(vec![create("/b", 0), get("/a", false)])).await;
    assert_eq!((mixed.err, mixed.zxid), (-5, header.zxid + 1));
    let (mixed, ..) = raw.call(Request::MultiRead(vec![delete("/a", -1)])).await;
    assert_eq!((mixed.err, mixed.zxid), (-5, header.zxid + 1));
    server.shutdown().await;
}

/// Creates as many znodes in one multi as Curator's tests do, and the most that this server accepts.
async fn create_many(addr: std::net::SocketAddr) {
    let mut client = RawClient::connect(addr).await;
    for (parent, count) in [("/curator", 10_001), ("/most", 16_384)] {
        client.call_ok(create(parent, 0)).await;
        let creates = (0..count).map(|number| create(&format!("{parent}/{number}"), 0));
        let reply = client.call_ok(Request::Multi(creates.collect())).await;
        assert!(matches!(reply, Reply::Multi(results) if results.len() == count), "{parent}");
        assert_eq!(
            client.call_ok(Request::GetAllChildrenNumber { path: parent.into() }).await,
            Reply::Number(count as i32)
        );
    }
}

#[tokio::test]
async fn large_multis_are_accepted_by_both_servers() {
    let server = server().await;
    create_many(server.local_addr()).await;
    server.shutdown().await;
    if !apache::availability().or_skip("large_multis_are_accepted_by_both_servers") {
        return;
    }
    let apache =
        Apache::start(ServerOptions { fsync: false, ..Default::default() }).await.expect("it starts");
    create_many(apache.socket_addr()).await;
}
