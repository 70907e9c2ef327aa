//! Tests that send frames to a running server, and check the frames that the server sends.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use zoolock_server::{Error, Secret};
use zoolock_tests::four_letter::send_four_letter_word;
use zoolock_wire::{
    Acl, ConnectRequest, CreateRequest, EventKind, Hidden, Identity, OpResult, Reply, Request, SetWatches,
    Stat, op,
};

use crate::common::{
    PATIENCE, RawClient, Received, auth, builder, check, children, connect_request, create, create_op,
    delete, exists, finish_in_time, get, server, set,
};

fn stat_of(reply: Reply) -> Stat {
    match reply {
        Reply::Stat(stat) | Reply::PathStat { stat, .. } | Reply::Data { stat, .. } => stat,
        Reply::ChildrenStat { stat, .. } => stat,
        other => panic!("no stat in {other:?}"),
    }
}

fn path_of(reply: Reply) -> String {
    match reply {
        Reply::Path(path) | Reply::PathStat { path, .. } => path,
        other => panic!("no path in {other:?}"),
    }
}

#[tokio::test]
async fn timeouts_are_clamped_to_2_and_20_ticks() {
    let server = builder().tick(Duration::from_millis(100)).start().await.expect("a free port");
    for (asked, granted) in [(-5, 200), (0, 200), (700, 700), (i32::MAX, 2000)] {
        let request = ConnectRequest { timeout_ms: asked, ..connect_request() };
        let raw = RawClient::connect_with(server.local_addr(), &request);
        assert_eq!(raw.await.expect("a session").granted.timeout_ms, granted);
    }
    server.shutdown().await;
}

#[tokio::test]
async fn moved_session_gets_no_longer_timeout() {
    let server = server().await;
    let first = RawClient::connect(server.local_addr()).await;
    for (asked, granted) in [(20_000, 10_000), (8_000, 8_000), (10_000, 10_000)] {
        let (session, password) = (first.granted.session, first.granted.password.clone());
        let request = ConnectRequest { timeout_ms: asked, session, password, ..connect_request() };
        let moved = RawClient::connect_with(server.local_addr(), &request).await.expect("the session lives");
        assert_eq!((moved.granted.session, moved.granted.timeout_ms), (session, granted));
    }
    server.shutdown().await;
}

#[tokio::test]
async fn session_moves_only_with_its_password() {
    let server = server().await;
    let addr = server.local_addr();
    let mut first = RawClient::connect(addr).await;
    first.call_ok(create("/e", 1)).await;
    let granted = first.granted.clone();
    assert_ne!(granted.password.0, [0; 16]);
    let mut request = connect_request();
    (request.session, request.password) = (granted.session, granted.password.clone());

    for (session, password) in [
        (granted.session, Hidden(vec![0; 16])),
        (granted.session, Hidden(granted.password.0[..15].to_vec())),
        (granted.session ^ 1, granted.password.clone()),
    ] {
        let wrong = ConnectRequest { session, password, ..connect_request() };
        let mut refused = RawClient::connect_with(addr, &wrong).await.expect("an answer");
        assert_eq!((refused.granted.timeout_ms, refused.granted.session), (0, 0));
        assert_eq!(refused.granted.password.0, [0; 16]);
        assert!(refused.reads_end().await);
        // The session is still attached to its connection.
        first.call_ok(Request::Ping).await;
    }

    let mut second = RawClient::connect_with(addr, &request).await.expect("the session");
    assert_eq!(second.granted.session, granted.session);
    assert!(first.reads_end().await);
    second.call_ok(exists("/e", false)).await;
    assert_eq!(server.sessions(), 1);
    server.shutdown().await;
}

#[tokio::test]
async fn reply_has_read_only_byte_only_if_requested() {
    let server = server().await;
    let old = ConnectRequest { read_only: None, ..connect_request() };
    let raw = RawClient::connect_with(server.local_addr(), &old).await.expect("a session");
    assert_eq!(raw.granted.read_only, None);
    assert_eq!(RawClient::connect(server.local_addr()).await.granted.read_only, Some(false));
    server.shutdown().await;
}

#[tokio::test]
async fn client_with_newer_zxid_is_refused() {
    let server = server().await;
    let ahead = ConnectRequest { last_zxid_seen: i64::MAX, ..connect_request() };
    assert!(RawClient::connect_with(server.local_addr(), &ahead).await.is_none());
    server.shutdown().await;
}

#[tokio::test]
async fn expiry_deletes_all_ephemerals_in_one_transaction() {
    let server = builder().tick(Duration::from_millis(20)).start().await.expect("a free port");
    let addr = server.local_addr();
    let mut watcher = RawClient::connect(addr).await;
    let brief = ConnectRequest { timeout_ms: 40, ..connect_request() };
    let mut dying = RawClient::connect_with(addr, &brief).await.expect("a session");
    for path in ["/e1", "/e2"] {
        dying.call_ok(create(path, 1)).await;
        watcher.call_ok(exists(path, true)).await;
    }
    // Pings keep the watcher alive while the other session is silent.
    let mut deleted = Vec::new();
    finish_in_time(async {
        while deleted.len() < 2 {
            let (_, _, events) = watcher.call(Request::Ping).await;
            deleted.extend(events.into_iter().map(|event| (event.kind, event.path)));
        }
    })
    .await;
    assert_eq!(deleted, [(EventKind::Deleted, "/e1".to_owned()), (EventKind::Deleted, "/e2".to_owned())]);
    assert!(dying.reads_end().await);
    let root = stat_of(watcher.call_ok(get("/", false)).await);
    let (header, ..) = watcher.call(Request::Ping).await;
    assert_eq!(root.pzxid, header.zxid);
    assert_eq!(server.sessions(), 1);
    server.shutdown().await;
}

#[tokio::test]
async fn event_precedes_reply_that_shows_its_change() {
    let server = server().await;
    let addr = server.local_addr();
    let (mut a, mut b) = (RawClient::connect(addr).await, RawClient::connect(addr).await);
    for round in 0..200 {
        assert_eq!(a.call_error(exists("/x", true)).await, -101);
        // B's reply proves that the znode was created. A sends its next request after that reply.
        b.call_ok(create("/x", 0)).await;
        let (_, reply, events) = a.call(exists("/x", true)).await;
        assert_ne!(reply, Reply::Empty, "round {round}");
        assert_eq!(events.len(), 1, "round {round}");
        b.call_ok(delete("/x", -1)).await;
        let (header, _, events) = a.call(exists("/x", false)).await;
        assert_eq!((header.err, events.len()), (-101, 1), "round {round}");
    }
    server.shutdown().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = server().await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    let mut expected = Vec::new();
    for i in 0..5000 {
        let request = if i % 2 == 0 { create("/s-", 2) } else { exists("/none", false) };
        expected.push((raw.send(&request).await, request.op()));
    }
    let mut last = 0;
    for (xid, code) in expected {
        let Received::Reply(header, _) = raw.receive(code).await else { panic!("a reply") };
        assert_eq!(header.xid, xid);
        assert!(header.zxid >= last);
        last = header.zxid;
    }
    server.shutdown().await;
}

#[tokio::test]
async fn sequence_numbers_stop_at_their_maximum() {
    let server = server().await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    raw.call_ok(create("/d", 0)).await;
    assert!(server.set_child_counter("/d", i32::MAX - 1));
    assert_eq!(path_of(raw.call_ok(create("/d/n-", 2)).await), "/d/n-2147483646");
    assert_eq!(path_of(raw.call_ok(create("/d/n-", 2)).await), "/d/n-2147483647");
    let before = stat_of(raw.call_ok(get("/d", false)).await);
    assert_eq!(raw.call_error(create("/d/n-", 2)).await, -110);
    // Another prefix gets the same number, and pzxid does not change.
    assert_eq!(path_of(raw.call_ok(create("/d/m-", 2)).await), "/d/m-2147483647");
    let after = stat_of(raw.call_ok(get("/d", false)).await);
    assert_eq!((after.pzxid, after.num_children), (before.pzxid, before.num_children + 1));
    raw.call_ok(delete("/d/n-2147483647", -1)).await;
    assert_eq!(path_of(raw.call_ok(create("/d/n-", 2)).await), "/d/n-2147483647");
    // With two creates in one transaction, the second sees the wrapped counter.
    let two = Request::Multi(vec![create("/d/k-", 2), create("/d/k-", 2)]);
    let Reply::Multi(results) = raw.call_ok(two).await else { panic!("results") };
    let path = |path: &str| OpResult::Create { path: path.to_owned() };
    assert_eq!(results, [path("/d/k-2147483647"), path("/d/k--2147483648")]);
    assert!(!server.set_child_counter("/none", 1));
    server.shutdown().await;
}

#[tokio::test]
async fn only_used_container_is_removed_when_empty() {
    let server = builder().container_check(Duration::from_millis(20)).start().await.expect("a free port");
    let mut raw = RawClient::connect(server.local_addr()).await;
    raw.call_ok(create_op(op::CREATE_CONTAINER, "/unused", 4)).await;
    raw.call_ok(create_op(op::CREATE_CONTAINER, "/used", 4)).await;
    raw.call_ok(create("/used/x", 0)).await;
    raw.call_ok(exists("/used", true)).await;
    raw.call_ok(delete("/used/x", -1)).await;
    let heard = finish_in_time(async {
        loop {
            let (header, _, events) = raw.call(exists("/used", false)).await;
            if header.err == -101 {
                return events;
            }
        }
    });
    assert_eq!(heard.await[0].kind, EventKind::Deleted);
    raw.call_ok(exists("/unused", false)).await;
    server.shutdown().await;
}

#[tokio::test]
async fn watches_end_with_their_connection() {
    let server = server().await;
    let addr = server.local_addr();
    let mut stays = RawClient::connect(addr).await;
    let mut goes = RawClient::connect(addr).await;
    goes.call_error(exists("/x", true)).await;
    goes.call_ok(children("/", true)).await;
    assert_eq!(server.stats().watches, 2);
    drop(goes);
    finish_in_time(async {
        while server.stats().watches > 0 {
            stays.call_ok(Request::Ping).await;
        }
    })
    .await;
    server.shutdown().await;
}

#[tokio::test]
async fn set_watches_sends_missed_events() {
    let server = server().await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    raw.call_ok(create("/a", 0)).await;
    let (header, ..) = raw.call(Request::Ping).await;
    raw.call_ok(set("/a", "1", -1)).await;
    let watches = SetWatches {
        relative_zxid: header.zxid,
        data: vec!["/a".into(), "/gone".into()],
        exist: vec!["/a".into(), "/never".into()],
        child: vec!["/a".into()],
        ..SetWatches::default()
    };
    let (header, _, events) = raw.call(Request::SetWatches(watches)).await;
    assert_eq!(header.xid, op::XID_SET_WATCHES);
    let heard: Vec<_> = events.iter().map(|event| (event.kind, event.path.as_str())).collect();
    let expected =
        [(EventKind::DataChanged, "/a"), (EventKind::Deleted, "/gone"), (EventKind::Created, "/a")];
    assert_eq!(heard, expected);
    assert_eq!(server.stats().watches, 2);
    server.shutdown().await;
}

#[tokio::test]
async fn unknown_and_malformed_requests_leave_the_connection_open() {
    let server = server().await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    for code in [99, 0, i32::MIN, -1, -10] {
        assert_eq!(raw.call_error(Request::Unknown { op: code }).await, -6, "operation {code}");
    }
    // A `getData` with extra bytes, and a truncated `getData`.
    raw.write(&[0, 0, 0, 16, 0, 0, 0, 7, 0, 0, 0, 4, 0, 0, 0, 1, b'/', 0, 0, 0][..20]).await;
    let Received::Reply(header, _) = raw.receive(op::GET_DATA).await else { panic!("a reply") };
    assert_eq!((header.xid, header.err), (7, -5));
    raw.write(&[0, 0, 0, 11, 0, 0, 0, 8, 0, 0, 0, 4, 0, 0, 9]).await;
    let Received::Reply(header, _) = raw.receive(op::GET_DATA).await else { panic!("a reply") };
    assert_eq!((header.xid, header.err), (8, -5));
    raw.call_ok(Request::Ping).await;
    server.shutdown().await;
}

#[tokio::test]
async fn other_protocols_are_disconnected() {
    let server = builder().connect_timeout(Duration::from_millis(100)).start().await.expect("a free port");
    let addr = server.local_addr();
    let hostile: [&[u8]; 7] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\xff\xff\xff\xff",
        b"\x00\x10\x00\x00",
        b"\x00\x00\x00\x03abc",
        b"\x00\x00\x00\x2c\x00",
        b"",
    ];
    for bytes in hostile {
        let mut socket = TcpStream::connect(addr).await.expect("the server listens");
        socket.write_all(bytes).await.expect("the server reads");
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut rest)).await;
        let _ = ended.expect("the server closes the connection");
        assert!(rest.is_empty(), "{bytes:?}");
    }
    assert_eq!(server.stats().sessions, 0);
    server.shutdown().await;
}

async fn word(addr: std::net::SocketAddr, word: &str) -> String {
    send_four_letter_word(addr, word).await.expect("an answer")
}

#[tokio::test]
async fn four_letter_words_are_answered() {
    let server = server().await;
    let addr = server.local_addr();
    let mut raw = RawClient::connect(addr).await;
    raw.call_ok(create("/a", 0)).await;
    assert_eq!(word(addr, "ruok").await, "imok");
    assert_eq!(word(addr, "ruok\n").await, "imok");
    assert_eq!(word(addr, "isro").await, "rw");
    let srvr = word(addr, "srvr").await;
    let lines: Vec<&str> = srvr.lines().collect();
    assert!(lines[0].starts_with("Zookeeper version: 3.8.0-"), "{srvr}");
    let latency = lines[1].strip_prefix("Latency min/avg/max: ").expect("the second line has the latency");
    let parts: Vec<f64> =
        latency.split('/').map(|part| part.parse().expect("latencies are numbers")).collect();
    assert!(parts.len() == 3 && parts[0] <= parts[1] && parts[1] <= parts[2], "{srvr}");
    assert_eq!(lines[2..4], ["Received: 6", "Sent: 5"]);
    assert_eq!(lines[5..], ["Outstanding: 0", "Zxid: 0x100000002", "Mode: standalone", "Node count: 6"]);
    server.shutdown().await;
}

#[tokio::test]
async fn clients_without_secret_are_refused() {
    let server = builder().secret(Secret::new("s3cret")).start().await.expect("a free port");
    let addr = server.local_addr();
    let mut early = RawClient::connect(addr).await;
    early.call_ok(Request::Ping).await;
    let (header, ..) = early.call(get("/", false)).await;
    assert_eq!(header.err, -124);
    assert!(early.reads_end().await);
    for wrong in ["zoolock:wrong", "other:s3cret", "zoolock:s3cret2", ""] {
        let mut raw = RawClient::connect(addr).await;
        assert_eq!(raw.call_error(auth("digest", wrong)).await, -115);
        assert!(raw.reads_end().await);
    }
    assert_eq!(server.sessions(), 0);
    assert_eq!(word(addr, "ruok").await, "imok");
    assert!(word(addr, "srvr").await.contains("not executed"));
    let mut raw = RawClient::connect(addr).await;
    raw.call_ok(auth("digest", "zoolock:s3cret")).await;
    raw.call_ok(get("/", false)).await;
    raw.call_ok(auth("digest", "me:too")).await;
    server.shutdown().await;
}

#[tokio::test]
async fn secret_must_arrive_in_time() {
    let server = builder()
        .secret(Secret::new("s3cret"))
        .connect_timeout(Duration::from_millis(100))
        .start()
        .await
        .expect("a free port");
    let mut raw = RawClient::connect(server.local_addr()).await;
    assert!(raw.reads_end().await);
    server.shutdown().await;
}

#[tokio::test]
async fn an_unknown_auth_scheme_ends_the_connection() {
    let server = server().await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    assert_eq!(raw.call_error(auth("sasl", "x")).await, -115);
    assert!(raw.reads_end().await);
    server.shutdown().await;
}

#[tokio::test]
async fn zxids_never_go_back_over_restarts() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut last = 0;
    for epoch in 1..=3 {
        let server = builder().data_dir(dir.path()).start().await.expect("a free port");
        assert_eq!(server.epoch(), epoch);
        let second = builder().data_dir(dir.path()).start().await;
        assert!(matches!(second, Err(Error::Locked { .. })), "{second:?}");
        let mut raw = RawClient::connect(server.local_addr()).await;
        let stat = stat_of(raw.call_ok(create_op(op::CREATE2, &format!("/x{epoch}"), 0)).await);
        assert!(stat.czxid > last && stat.czxid >> 32 == i64::from(epoch));
        last = stat.czxid;
        server.shutdown().await;
    }
}

#[tokio::test]
async fn address_in_use_error_names_the_address() {
    let server = server().await;
    let error = builder().listen(server.local_addr()).start().await.expect_err("in use").to_string();
    assert!(error.contains(&server.local_addr().to_string()) && error.contains("another port"), "{error}");
    server.shutdown().await;
}

#[tokio::test]
async fn idle_time_starts_without_sessions() {
    let server = server().await;
    assert!(server.idle_since().is_some());
    let mut raw = RawClient::connect(server.local_addr()).await;
    assert_eq!((server.sessions(), server.idle_since()), (1, None));
    raw.call_ok(Request::CloseSession).await;
    assert!(raw.reads_end().await);
    assert_eq!(server.sessions(), 0);
    assert!(server.idle_since().is_some());
    server.shutdown().await;
}

#[tokio::test]
async fn shutdown_ends_connections_and_frees_the_port() {
    let server = server().await;
    let addr = server.local_addr();
    let mut raw = RawClient::connect(addr).await;
    server.shutdown().await;
    assert!(raw.reads_end().await);
    let again = builder().listen(addr).start().await.expect("the port is free again");
    drop(again);
    finish_in_time(async { while TcpStream::connect(addr).await.is_ok() {} }).await;
}

#[tokio::test]
async fn a_failed_multi_changes_nothing_but_the_zxid() {
    let server = server().await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    let ops = vec![create("/a", 0), check("/a", 5), create("/b", 0)];
    let (header, reply, _) = raw.call(Request::Multi(ops)).await;
    assert_eq!(header.err, 0);
    assert_eq!(reply, Reply::Multi(vec![OpResult::Error(0), OpResult::Error(-103), OpResult::Error(-2)]));
    assert_eq!(raw.call_error(exists("/a", false)).await, -101);
    assert_eq!(stat_of(raw.call_ok(get("/", false)).await).cversion, -1);
    server.shutdown().await;
}

#[tokio::test]
async fn server_stops_reading_from_slow_reader() {
    let server = server().await;
    let addr = server.local_addr();
    let mut other = RawClient::connect(addr).await;
    other.call_ok(set("/", &"x".repeat(500_000), -1)).await;
    let mut raw = RawClient::connect(addr).await;
    let xids = {
        let mut xids = Vec::new();
        for _ in 0..400 {
            xids.push(raw.send(&get("/", false)).await);
        }
        xids
    };
    // 200 MB of replies are pending. Other clients are served meanwhile.
    other.call_ok(create("/y", 0)).await;
    for xid in xids {
        let Received::Reply(header, _) = raw.receive(op::GET_DATA).await else { panic!("a reply") };
        assert_eq!(header.xid, xid);
    }
    server.shutdown().await;
}

#[tokio::test]
async fn admitted_session_survives_refused_authentication() {
    let server = server().await;
    let mut holder = RawClient::connect(server.local_addr()).await;
    holder.call_ok(create("/held", 1)).await;
    assert_eq!(holder.call_error(auth("no-such-scheme", "x")).await, -115);
    assert!(holder.reads_end().await);
    // The session keeps its znode until it expires, because its client relies on the lock until then.
    let mut other = RawClient::connect(server.local_addr()).await;
    other.call_ok(exists("/held", false)).await;
    let again = ConnectRequest {
        session: holder.granted.session,
        password: holder.granted.password.clone(),
        ..connect_request()
    };
    let again = RawClient::connect_with(server.local_addr(), &again).await.expect("an answer");
    assert_eq!(again.granted.session, holder.granted.session);
    server.shutdown().await;
}

#[tokio::test]
async fn disconnect_before_admission_ends_session() {
    let server = builder().secret(Secret::new("s3cret")).start().await.expect("a free port");
    for _ in 0..20 {
        drop(RawClient::connect(server.local_addr()).await);
    }
    finish_in_time(async {
        while server.sessions() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    server.shutdown().await;
}

#[tokio::test]
async fn session_moved_before_admission_survives() {
    let server = builder().secret(Secret::new("s3cret")).start().await.expect("a free port");
    let first = RawClient::connect(server.local_addr()).await;
    let (session, password) = (first.granted.session, first.granted.password.clone());
    let again = ConnectRequest { session, password, ..connect_request() };
    let mut raw = RawClient::connect_with(server.local_addr(), &again).await.expect("an answer");
    assert_eq!(raw.granted.session, session);
    raw.call_ok(auth("digest", "zoolock:s3cret")).await;
    raw.call_ok(create("/held", 1)).await;
    drop(first);
    finish_in_time(async {
        while server.stats().connections > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    raw.call_ok(exists("/held", false)).await;
    // A session that is admitted on neither of two connections ends when the second connection
    // ends.
    let first = RawClient::connect(server.local_addr()).await;
    let (session, password) = (first.granted.session, first.granted.password.clone());
    let again = ConnectRequest { session, password, ..connect_request() };
    drop(RawClient::connect_with(server.local_addr(), &again).await.expect("an answer"));
    finish_in_time(async {
        while server.sessions() > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    server.shutdown().await;
}

#[tokio::test]
async fn auth_expansion_has_limits() {
    let server = server().await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    // Long credentials are refused, because every access list with `auth` would repeat them.
    assert_eq!(raw.call_error(auth("digest", &format!("{}:x", "u".repeat(5000)))).await, -115);
    let mut raw = RawClient::connect(server.local_addr()).await;
    for identity in 0..60 {
        raw.call_ok(auth("digest", &format!("{}{identity}:x", "u".repeat(4000)))).await;
    }
    let who = Identity { scheme: "auth".to_owned(), id: String::new() };
    let acl = |entries| (0..entries).map(|perms| Acl { perms, identity: who.clone() }).collect::<Vec<_>>();
    for (entries, code) in [(1, None), (900, Some(-114)), (2000, Some(-114))] {
        let mut request = create(&format!("/n{entries}"), 0);
        if let Request::Create(create) = &mut request {
            create.acl = acl(entries);
        }
        match code {
            None => drop(raw.call_ok(request).await),
            Some(code) => assert_eq!(raw.call_error(request).await, code, "{entries}"),
        }
    }
    let creates = (0..30).map(|i| match create(&format!("/m{i}"), 0) {
        Request::Create(create) => Request::Create(CreateRequest { acl: acl(1), ..create }),
        other => other,
    });
    let Reply::Multi(results) = raw.call_ok(Request::Multi(creates.collect())).await else {
        panic!("a multi")
    };
    assert!(results.contains(&OpResult::Error(-114)), "{results:?}");
    assert_eq!(raw.call_error(exists("/m0", false)).await, -101);
    server.shutdown().await;
}
