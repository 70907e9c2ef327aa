//! The same calls on our server and on Apache ZooKeeper 3.8, the answers compared field by field.

mod common;

use std::net::SocketAddr;

use common::{Heard, Raw, auth, check, children, create, create_op, delete, exists, get, set};
use zoolock_server::Limits;
use zoolock_server::acl::{Acl, Identity, perms};
use zoolock_server::wire::{CreateRequest, OpResult, Reply, Request, SetWatches, Stat, op};
use zoolock_tests::{Apache, ServerOptions, apache};

/// Plays the script on one server, and writes down every answer.
struct Transcript {
    addr: SocketAddr,
    lines: Vec<String>,
    /// Zxids are written relative to this.
    base: i64,
}

impl Transcript {
    fn zxid(&self, zxid: i64) -> i64 {
        if zxid == 0 { 0 } else { zxid - self.base }
    }

    fn stat(&self, stat: Stat, session: i64) -> Stat {
        Stat {
            czxid: self.zxid(stat.czxid),
            mzxid: self.zxid(stat.mzxid),
            pzxid: self.zxid(stat.pzxid),
            ctime: i64::from(stat.ctime != 0),
            mtime: i64::from(stat.mtime != 0),
            ephemeral_owner: match stat.ephemeral_owner {
                owner if owner == session => 1,
                owner if owner > 0 => 2,
                owner => owner,
            },
            ..stat
        }
    }

    async fn call(&mut self, raw: &mut Raw, request: Request) {
        let session = raw.granted.session;
        let (header, reply, events) = raw.call(request.clone()).await;
        let sorted = |mut names: Vec<String>| {
            names.sort();
            names
        };
        let reply = match reply {
            Reply::Stat(stat) => Reply::Stat(self.stat(stat, session)),
            Reply::PathStat { path, stat } => Reply::PathStat { path, stat: self.stat(stat, session) },
            Reply::Data { data, stat } => Reply::Data { data, stat: self.stat(stat, session) },
            Reply::Children(children) => Reply::Children(sorted(children)),
            Reply::ChildrenStat { children, stat } => {
                Reply::ChildrenStat { children: sorted(children), stat: self.stat(stat, session) }
            }
            Reply::AclStat { acl, stat } => Reply::AclStat { acl, stat: self.stat(stat, session) },
            Reply::Multi(results) => Reply::Multi(
                results
                    .into_iter()
                    .map(|result| match result {
                        OpResult::SetData(stat) => OpResult::SetData(self.stat(stat, session)),
                        OpResult::Create2 { path, stat } => {
                            OpResult::Create2 { path, stat: self.stat(stat, session) }
                        }
                        OpResult::GetData { data, stat } => {
                            OpResult::GetData { data, stat: self.stat(stat, session) }
                        }
                        OpResult::GetChildren(children) => OpResult::GetChildren(sorted(children)),
                        other => other,
                    })
                    .collect(),
            ),
            Reply::Clients(mut clients) => {
                clients.sort();
                Reply::Clients(clients)
            }
            other => other,
        };
        // A reply to auth carries no zxid, and overtakes the pipeline there.
        let zxid = if header.zxid == 0 { 0 } else { self.zxid(header.zxid) };
        let events: Vec<_> = events.into_iter().map(|event| (event.kind, event.path)).collect();
        self.lines.push(format!(
            "{request:?}\n  -> zxid +{zxid} err {} {reply:?}\n  events {events:?}",
            header.err
        ));
    }

    async fn hear(&mut self, raw: &mut Raw) {
        let heard = match raw.hear(0).await {
            Heard::Event(event) => format!("  heard {:?} {}", event.kind, event.path),
            other => format!("  heard {other:?}"),
        };
        self.lines.push(heard);
    }
}

async fn play(addr: SocketAddr) -> Vec<String> {
    // A clean start on a server that is not fresh.
    let mut a = Raw::connect(addr).await;
    let mut todo = vec!["/sbs".to_owned()];
    let mut found = Vec::new();
    while let Some(path) = todo.pop() {
        if let (_, Reply::ChildrenStat { children, .. }, _) = a.call(children(&path, false)).await {
            todo.extend(children.iter().map(|name| format!("{path}/{name}")));
        }
        found.push(path);
    }
    let mut su = Raw::connect(addr).await;
    su.ok(auth("digest", "super:test")).await;
    for path in found.iter().rev() {
        su.err(delete(path, -1)).await;
    }
    let (header, ..) = a.call(Request::Ping).await;
    let mut t = Transcript { addr, lines: Vec::new(), base: header.zxid };
    script(&mut t, a).await;
    t.lines
}

async fn script(t: &mut Transcript, mut a: Raw) {
    let a = &mut a;
    let b = &mut Raw::connect(t.addr).await;
    // Creations of all kinds, and their errors.
    t.call(a, exists("/sbs", true)).await;
    t.call(b, create("/sbs", 0)).await;
    t.hear(a).await;
    for request in [
        create("/sbs", 0),
        create("/sbs/a/b", 0),
        create("sbs", 0),
        create("", 0),
        create("/", 0),
        create("/sbs/", 0),
        create("/sbs//x", 0),
        create("/sbs/./x", 0),
        create("/sbs/..", 0),
        create("/sbs/\u{1}", 0),
        create("/sbs/\u{1f512}", 0),
        create("/sbs/nul\0", 0),
        create("/sbs/x", 7),
        create("/sbs/x", -1),
        create("/sbs/x", 5),
        create_op(op::CREATE_TTL, "/sbs/x", 5),
        create_op(op::CREATE_TTL, "/sbs/x", 7),
        Request::Multi(vec![create("/sbs/y", 0), create_op(op::CREATE_TTL, "/sbs/x", 6)]),
        Request::DeleteContainer,
        Request::Reconfig,
        Request::Sasl,
        create_op(op::CREATE2, "/sbs/c2", 0),
        create_op(op::CREATE2, "/sbs/e", 1),
        create_op(op::CREATE2, "/sbs/e/x", 0),
        create("/sbs/s-", 2),
        create("/sbs/s-", 3),
        create("/sbs/", 2),
        create_op(op::CREATE_CONTAINER, "/sbs/box", 4),
        create("/sbs/four", 4),
        exists("/sbs/four", false),
        exists("/sbs/box", false),
        exists("/sbs/e", false),
        children("/sbs", false),
        Request::GetChildren { path: "/sbs".into(), watch: false },
        Request::GetEphemerals { prefix: "/sbs".into() },
        Request::GetEphemerals { prefix: "/".into() },
        Request::GetAllChildrenNumber { path: "/sbs".into() },
        Request::GetAllChildrenNumber { path: "/none".into() },
    ] {
        t.call(a, request).await;
    }
    let mut null = CreateRequest {
        op: op::CREATE2,
        path: "/sbs/null".into(),
        data: None,
        acl: vec![Acl::anyone(perms::ALL)],
        flags: 0,
        ttl: -1,
    };
    t.call(a, Request::Create(null.clone())).await;
    t.call(a, get("/sbs/null", false)).await;
    (null.path, null.acl) = ("/sbs/noacl".into(), vec![]);
    t.call(a, Request::Create(null.clone())).await;
    null.acl = vec![Acl { perms: 31, who: Identity::new("nobody", "x") }];
    t.call(a, Request::Create(null.clone())).await;
    null.acl = vec![Acl { perms: 31, who: Identity::new("auth", "") }];
    t.call(a, Request::Create(null.clone())).await;
    // Data, versions, deletions.
    for request in [
        set("/sbs/c2", "one", 0),
        set("/sbs/c2", "two", 0),
        set("/sbs/c2", "", -1),
        set("/none", "x", -1),
        set("relative", "x", -1),
        get("/sbs/c2", false),
        get("/none", false),
        get("relative", false),
        exists("nul\0", false),
        exists("/none/", false),
        delete("/sbs", -1),
        delete("/sbs/c2", 7),
        delete("/none", -1),
        delete("/", -1),
        delete("/zookeeper", -1),
        delete("/zookeeper/quota", -1),
        delete("relative", -1),
        delete("/sbs/c2", 2),
        exists("/sbs", false),
        get("/", false),
        get("/zookeeper/config", false),
        exists("/zookeeper/quota", false),
        exists("/zookeeper", false),
        Request::Sync { path: "/sbs".into() },
        Request::GetAcl { path: "/sbs".into() },
        Request::GetAcl { path: "/zookeeper/config".into() },
        Request::GetAcl { path: "/none".into() },
        Request::WhoAmI,
    ] {
        if !matches!(&request, Request::GetData { path, .. } | Request::Exists { path, .. } if path == "/") {
            t.call(a, request).await;
        }
    }
    // Multis.
    for ops in [
        vec![create("/sbs/m", 0), set("/sbs/m", "1", 0), check("/sbs/m", 1), delete("/sbs/m", 1)],
        vec![create("/sbs/m-", 2), create("/sbs/m-", 2), check("/sbs", 0)],
        vec![create("/sbs/m", 0), check("/sbs", 9), create("/sbs/n", 0)],
        vec![create("/sbs/m", 0), create("/sbs/m", 0)],
        vec![delete("/sbs/none", -1), create("/sbs/m", 0)],
        vec![create("/sbs/p", 0), create("/sbs/p/q", 0), delete("/sbs/p", -1)],
        vec![create("relative", 0)],
        vec![create_op(op::CREATE_CONTAINER, "/sbs/mbox", 4)],
        vec![create("/sbs/me", 1), create("/sbs/me/x", 0)],
        vec![delete("/sbs/mbox", 0)],
        vec![],
    ] {
        t.call(a, Request::Multi(ops)).await;
    }
    t.call(a, check("/sbs", 9)).await;
    t.call(a, exists("/sbs/m", false)).await;
    t.call(a, exists("/sbs", false)).await;
    t.call(a, create("/sbs/after-", 2)).await;
    let reads = vec![get("/sbs/null", false), Request::GetChildren { path: "/sbs".into(), watch: false }];
    t.call(a, Request::MultiRead(reads)).await;
    t.call(a, Request::MultiRead(vec![get("/none", false)])).await;
    // Watches: who hears what, in which order, before which reply.
    t.call(a, create("/sbs/w", 0)).await;
    t.call(a, get("/sbs/w", true)).await;
    t.call(a, exists("/sbs/w", true)).await;
    t.call(a, children("/sbs/w", true)).await;
    t.call(a, children("/sbs", true)).await;
    t.call(a, create("/sbs/w/1", 0)).await;
    t.call(a, set("/sbs/w", "2", -1)).await;
    t.call(a, delete("/sbs/w/1", -1)).await;
    t.call(a, get("/sbs/w", true)).await;
    t.call(a, children("/sbs/w", true)).await;
    t.call(a, exists("/sbs/w", true)).await;
    t.call(a, delete("/sbs/w", -1)).await;
    t.call(a, exists("/sbs/w", true)).await;
    t.call(a, children("/sbs/w", true)).await;
    t.call(a, get("/sbs/w", true)).await;
    let both = vec![create("/sbs/w", 0), set("/sbs/w", "3", -1), delete("/sbs/w", -1)];
    t.call(a, Request::Multi(both)).await;
    // Persistent and recursive ones, alone.
    for (path, mode) in [("/sbs/pw", 0), ("/sbs/rw", 1)] {
        t.call(a, Request::AddWatch { path: path.into(), mode }).await;
        for kind in 1..=3 {
            t.call(a, Request::CheckWatches { path: path.into(), kind }).await;
        }
        t.call(a, create(path, 0)).await;
        t.call(a, create(&format!("{path}/x"), 0)).await;
        t.call(a, create(&format!("{path}/x/y"), 0)).await;
        t.call(a, set(path, "4", -1)).await;
        t.call(a, set(&format!("{path}/x"), "4", -1)).await;
        t.call(a, delete(&format!("{path}/x/y"), -1)).await;
        t.call(a, delete(&format!("{path}/x"), -1)).await;
        t.call(a, delete(path, -1)).await;
        t.call(a, create(path, 0)).await;
        t.call(a, Request::RemoveWatches { path: path.into(), kind: 3 }).await;
        t.call(a, Request::RemoveWatches { path: path.into(), kind: 3 }).await;
        t.call(a, delete(path, -1)).await;
    }
    t.call(a, get("/sbs/null", true)).await;
    t.call(a, Request::RemoveWatches { path: "/sbs/null".into(), kind: 1 }).await;
    t.call(a, Request::CheckWatches { path: "/sbs/null".into(), kind: 2 }).await;
    t.call(a, Request::RemoveWatches { path: "/sbs/null".into(), kind: 2 }).await;
    t.call(a, set("/sbs/null", "5", -1)).await;
    t.call(a, Request::AddWatch { path: "/sbs".into(), mode: 9 }).await;
    // Watches set again after a reconnect: nothing missed, then everything missed.
    for relative_zxid in [i64::MAX, 0] {
        let paths = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let set_watches = SetWatches {
            relative_zxid,
            data: paths(&["/sbs/null", "/sbs/gone"]),
            exist: paths(&["/sbs/box", "/sbs/never"]),
            child: paths(&["/sbs", "/sbs/gone"]),
            persistent: None,
            recursive: None,
        };
        t.call(b, Request::SetWatches(set_watches)).await;
        t.call(b, create("/sbs/never", 0)).await;
        t.call(b, set("/sbs/null", "6", -1)).await;
        t.call(b, delete("/sbs/never", -1)).await;
    }
    // Access lists.
    t.call(b, auth("digest", "me:pw")).await;
    t.call(b, Request::WhoAmI).await;
    let mine = vec![
        Acl { perms: perms::ALL, who: Identity::new("auth", "") },
        Acl { perms: perms::READ, who: Identity::new("digest", "you:hash") },
        Acl { perms: perms::READ, who: Identity::new("digest", "you:hash") },
    ];
    t.call(b, Request::SetAcl { path: "/sbs/null".into(), acl: mine.clone(), version: 3 }).await;
    t.call(b, Request::SetAcl { path: "/sbs/null".into(), acl: mine, version: 0 }).await;
    t.call(b, Request::GetAcl { path: "/sbs/null".into() }).await;
    t.call(b, get("/sbs/null", false)).await;
    for request in [
        get("/sbs/null", false),
        set("/sbs/null", "7", -1),
        Request::GetAcl { path: "/sbs/null".into() },
        create("/sbs/null/x", 0),
        children("/sbs/null", false),
        exists("/sbs/null", false),
        Request::Multi(vec![check("/sbs/null", -1)]),
        delete("/sbs/null", -1),
    ] {
        t.call(a, request).await;
    }
    // A session ends: its ephemerals go in one transaction.
    t.call(a, create("/sbs/e2", 1)).await;
    t.call(b, exists("/sbs/e2", true)).await;
    t.call(b, children("/sbs", true)).await;
    t.call(a, Request::CloseSession).await;
    for _ in 0..2 {
        t.hear(b).await;
    }
    let mut rest = t.lines.split_off(t.lines.len() - 2);
    rest.sort();
    t.lines.append(&mut rest);
    t.call(b, exists("/sbs", false)).await;
    t.call(b, exists("/sbs/e2", false)).await;
    t.call(b, Request::GetEphemerals { prefix: String::new() }).await;
}

/// `super:test`, as both servers keep it.
const SUPER: &str = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";

#[tokio::test]
async fn answers_are_those_of_apache_zookeeper() {
    if !apache::availability().or_skip("answers_are_those_of_apache_zookeeper") {
        return;
    }
    let properties = vec![
        format!("zookeeper.DigestAuthenticationProvider.superDigest={SUPER}"),
        // As it comes: nodes with a time to live are off.
        "zookeeper.extendedTypesEnabled=false".to_owned(),
    ];
    let options = ServerOptions { properties, ..Default::default() };
    let apache = Apache::start(options).await.expect("it starts");
    let theirs = play(apache.socket_addr()).await;
    let server = common::builder()
        .super_digest(SUPER)
        .limits(Limits { extended_types: false, ..Limits::default() })
        .start()
        .await
        .expect("a free port on the loopback address");
    let ours = play(server.local_addr()).await;
    server.shutdown().await;
    let mut differ = 0;
    for (ours, theirs) in ours.iter().zip(&theirs) {
        if ours != theirs {
            differ += 1;
            eprintln!("ours:   {ours}\ntheirs: {theirs}\n");
        }
    }
    assert_eq!(differ, 0, "answers differ");
    assert_eq!(ours.len(), theirs.len());
}
