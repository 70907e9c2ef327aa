//! Features for operators: limits, metrics, an orderly shutdown.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use zoolock_server::{Limits, ServerHandle, Users};
use zoolock_wire::{ConnectRequest, Request, op};

use crate::common::{
    PATIENCE, RawClient, Received, auth, builder, children, connect_request, create, exists, finish_in_time,
    get, set,
};

/// Sends an HTTP request. Returns the status, the head and the body of the response.
async fn http_request(addr: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String, String) {
    let mut socket = TcpStream::connect(addr).await.expect("server listens");
    let length = body.len();
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}");
    socket.write_all(request.as_bytes()).await.expect("server reads");
    let mut answer = String::new();
    finish_in_time(socket.read_to_string(&mut answer)).await.expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, head.to_owned(), body.to_owned())
}

async fn http_get(addr: SocketAddr, path: &str) -> (u16, String) {
    let (status, _, body) = http_request(addr, "GET", path, "").await;
    (status, body)
}

/// Connects from this address of the loopback network.
async fn connect_from(source: [u8; 4], addr: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((source, 0).into()).expect("an address of this machine");
    socket.connect(addr).await.expect("server listens")
}

/// Opens a session that does not expire while a test waits.
async fn long_session(server: &ServerHandle) -> RawClient {
    let request = ConnectRequest { timeout_ms: 40_000, ..connect_request() };
    RawClient::connect_with(server.local_addr(), &request).await.expect("a session")
}

async fn wait_for_stats(
    server: &ServerHandle,
    what: &str,
    condition: impl Fn(&zoolock_server::core::ServerStats) -> bool,
) {
    let met = async {
        while !condition(&server.stats()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let Err(_) = tokio::time::timeout(PATIENCE, met).await else { return };
    panic!("not reached in time: {what}; {:?}", server.stats());
}

#[tokio::test]
async fn metrics_have_the_names_of_zookeeper() {
    let server = builder().metrics(([127, 0, 0, 1], 0).into()).start().await.expect("it starts");
    let addr = server.metrics_addr().expect("metrics are served");
    let mut raw = RawClient::connect(server.local_addr()).await;
    raw.call_ok(create("/e", 1)).await;
    raw.call_ok(get("/e", true)).await;
    let (status, text) = http_get(addr, "/metrics").await;
    assert_eq!(status, 200);
    for line in [
        "# TYPE znode_count gauge",
        "znode_count 6",
        "ephemerals_count 1",
        "watch_count 1",
        "num_alive_connections 1",
        "global_sessions 1",
        "packets_received 3",
        "# TYPE connection_rejected counter",
        "connection_rejected 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    // Except for their prefix, the names are exactly those that `mntr` shows.
    let mntr = zoolock_tests::four_letter::send_four_letter_word(server.local_addr(), "mntr")
        .await
        .expect("an answer");
    let names = |text: &str, prefix: &str, mark: char| -> Vec<String> {
        let names = text.lines().filter_map(|line| line.strip_prefix(prefix)?.split(mark).next());
        names
            .map(str::to_owned)
            .filter(|name| !["version", "server_state", "zoolock_info"].contains(&name.as_str()))
            .collect()
    };
    assert_eq!(names(&mntr, "zk_", '\t'), names(&text, "# TYPE ", ' '));
    assert_eq!(http_get(addr, "/live").await, (200, "live\n".to_owned()));
    assert_eq!(http_get(addr, "/ready").await, (200, "ready\n".to_owned()));
    assert_eq!(http_get(addr, "/nothing").await.0, 404);
    server.shutdown().await;
    assert!(TcpStream::connect(addr).await.is_err());
}

#[tokio::test]
async fn stopping_server_is_alive_but_not_ready() {
    let server = builder().metrics(([127, 0, 0, 1], 0).into()).start().await.expect("it starts");
    let addr = server.metrics_addr().expect("metrics are served");
    // The shutdown waits for a client that does not read its replies.
    let mut raw = RawClient::connect(server.local_addr()).await;
    raw.call_ok(create("/big", 0)).await;
    raw.call_ok(set("/big", &"x".repeat(1_000_000), -1)).await;
    for _ in 0..40 {
        raw.send(&get("/big", false)).await;
    }
    wait_for_stats(&server, "replies queued", |stats| stats.queued > 500_000).await;
    let stopping = tokio::spawn(server.shutdown());
    finish_in_time(async {
        while http_get(addr, "/ready").await != (503, "stopping\n".to_owned()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(http_get(addr, "/live").await.0, 200);
    drop(raw);
    finish_in_time(stopping).await.expect("shutdown does not panic");
}

#[tokio::test]
async fn pending_replies_are_sent_before_shutdown() {
    let server = builder().start().await.expect("it starts");
    let mut raw = RawClient::connect(server.local_addr()).await;
    raw.call_ok(create("/big", 0)).await;
    let data = "x".repeat(900_000);
    raw.call_ok(set("/big", &data, -1)).await;
    let received = server.stats().received;
    // The replies have more bytes than the socket buffers hold, but fewer than the server may
    // queue.
    for _ in 0..6 {
        raw.send(&get("/big", false)).await;
    }
    wait_for_stats(&server, "requests received", |stats| stats.received > received).await;
    let sent = server.stats().sent;
    let stopping = tokio::spawn(server.shutdown());
    let mut answers = 0;
    while let Received::Reply(header, _) = raw.receive(op::GET_DATA).await {
        assert_eq!(header.err, 0);
        answers += 1;
    }
    assert!(answers + 3 >= sent, "{answers} replies received, {sent} sent including 3 earlier ones");
    finish_in_time(stopping).await.expect("shutdown does not panic");
}

#[tokio::test]
async fn unread_replies_have_a_total_limit() {
    let server = builder()
        .limits(Limits { max_queued: 8 << 20, ..Limits::default() })
        .start()
        .await
        .expect("it starts");
    let mut writer = RawClient::connect(server.local_addr()).await;
    writer.call_ok(create("/big", 0)).await;
    writer.call_ok(set("/big", &"x".repeat(1_000_000), -1)).await;
    let mut slow_clients = Vec::new();
    for _ in 0..20 {
        let mut raw = RawClient::connect(server.local_addr()).await;
        for _ in 0..20 {
            raw.send(&get("/big", false)).await;
        }
        slow_clients.push(raw);
    }
    wait_for_stats(&server, "connections cut off", |stats| stats.cut_off > 0).await;
    wait_for_stats(&server, "queued bytes within the limit", |stats| stats.queued <= 8 << 20).await;
    // A client that reads its replies is served.
    for _ in 0..5 {
        writer.call_ok(get("/big", false)).await;
    }
    drop(slow_clients);
    wait_for_stats(&server, "nothing queued", |stats| stats.connections == 1 && stats.queued == 0).await;
    server.shutdown().await;
}

#[tokio::test]
async fn incomplete_requests_have_a_total_limit() {
    let server = builder()
        .limits(Limits { max_queued: 8 << 20, ..Limits::default() })
        .start()
        .await
        .expect("it starts");
    let mut other = long_session(&server).await;
    let mut slow_clients = Vec::new();
    for _ in 0..20 {
        let mut raw = long_session(&server).await;
        let mut frame = 1_000_000_u32.to_be_bytes().to_vec();
        frame.resize(900_000, 0);
        slow_clients.push(tokio::spawn(async move {
            let _ = raw.try_write(&frame).await;
            raw
        }));
    }
    wait_for_stats(&server, "connections closed", |stats| stats.connections <= 10).await;
    assert!(server.stats().connections > 5, "more connections closed than needed");
    // A client that sends small requests is served.
    other.call_ok(create("/a", 0)).await;
    drop(slow_clients);
    wait_for_stats(&server, "other connections ended", |stats| stats.connections == 1).await;
    other.call_ok(set("/a", &"x".repeat(1_000_000), -1)).await;
    server.shutdown().await;
}

#[tokio::test]
async fn watches_have_a_limit() {
    let server =
        builder().limits(Limits { max_watches: 10, ..Limits::default() }).start().await.expect("it starts");
    let mut raw = RawClient::connect(server.local_addr()).await;
    for i in 0..10 {
        assert_eq!(raw.call_error(exists(&format!("/{i}"), true)).await, -101);
    }
    // Watching the same path again does not count towards the limit.
    assert_eq!(raw.call_error(exists("/3", true)).await, -101);
    raw.call_ok(Request::AddWatch { path: "/3".into(), mode: 1 }).await;
    raw.send(&children("/", true)).await;
    assert!(raw.reads_end().await);
    wait_for_stats(&server, "no watches left", |stats| stats.watches == 0 && stats.watch_sides == 0).await;
    server.shutdown().await;
}

#[tokio::test]
async fn connections_have_a_limit() {
    let server =
        builder().max_connections(3).metrics(([127, 0, 0, 1], 0).into()).start().await.expect("it starts");
    let addr = server.local_addr();
    let mut in_time = Vec::new();
    for _ in 0..3 {
        in_time.push(RawClient::connect(addr).await);
    }
    let mut socket = TcpStream::connect(addr).await.expect("server listens");
    let mut rest = Vec::new();
    let _ = finish_in_time(socket.read_to_end(&mut rest)).await;
    assert_eq!(rest, b"");
    let (_, text) = http_get(server.metrics_addr().expect("metrics are served"), "/metrics").await;
    assert!(text.contains("connection_rejected 1\n"), "{text}");
    for raw in &mut in_time {
        raw.call_ok(Request::Ping).await;
    }
    in_time.pop();
    finish_in_time(async {
        loop {
            let mut socket = TcpStream::connect(addr).await.expect("server listens");
            let mut answer = String::new();
            if socket.write_all(b"ruok").await.is_ok()
                && socket.read_to_string(&mut answer).await.is_ok_and(|n| n > 0)
            {
                return;
            }
        }
    })
    .await;
    server.shutdown().await;
}

#[tokio::test]
async fn large_first_frame_is_refused() {
    let server = builder().connect_timeout(Duration::from_secs(3600)).start().await.expect("it starts");
    let mut socket = TcpStream::connect(server.local_addr()).await.expect("server listens");
    socket.write_all(&100_000_u32.to_be_bytes()).await.expect("server reads");
    let mut rest = Vec::new();
    let _ = finish_in_time(socket.read_to_end(&mut rest)).await;
    assert_eq!(rest, b"");
    server.shutdown().await;
}

#[tokio::test]
async fn large_frame_before_authentication_is_refused() {
    let users = Users::parse("me:xlpJGzVhaayvpHfFn/RwowgwqI4=\n").expect("an account");
    let long = Duration::from_secs(3600);
    let server =
        builder().users(users).require_auth().connect_timeout(long).start().await.expect("it starts");
    let mut raw = long_session(&server).await;
    raw.write(&100_000_u32.to_be_bytes()).await;
    assert!(raw.reads_end().await);
    server.shutdown().await;
    // A client may send a large frame after the secret, without waiting for a reply.
    let server = builder().secret(zoolock_server::Secret::new("s")).start().await.expect("it starts");
    let mut raw = RawClient::connect(server.local_addr()).await;
    raw.send(&auth("digest", "zoolock:s")).await;
    raw.send(&create("/big", 0)).await;
    raw.send(&set("/big", &"x".repeat(100_000), -1)).await;
    for code in [op::AUTH, op::CREATE, op::SET_DATA] {
        let Received::Reply(header, _) = raw.receive(code).await else { panic!("a reply") };
        assert_eq!(header.err, 0);
    }
    server.shutdown().await;
}

#[tokio::test]
async fn silent_http_client_is_disconnected() {
    let quick = Duration::from_millis(300);
    let server = builder().metrics(([127, 0, 0, 1], 0).into()).connect_timeout(quick);
    let server = server.start().await.expect("it starts");
    let addr = server.metrics_addr().expect("metrics are served");
    let mut slow = Vec::new();
    for begun in ["", "GET /metrics HTTP/1.1\r\nX: "] {
        let mut socket = TcpStream::connect(addr).await.expect("server listens");
        socket.write_all(begun.as_bytes()).await.expect("server reads");
        slow.push(socket);
    }
    for socket in &mut slow {
        let _ = finish_in_time(socket.read_to_end(&mut Vec::new())).await;
    }
    assert_eq!(http_get(addr, "/live").await.0, 200);
    server.shutdown().await;
}

#[tokio::test]
async fn http_connections_have_a_limit() {
    let server = builder().metrics(([127, 0, 0, 1], 0).into()).connect_timeout(Duration::from_secs(3600));
    let server = server.start().await.expect("it starts");
    let addr = server.metrics_addr().expect("metrics are served");
    let mut idle = Vec::new();
    for _ in 0..64 {
        idle.push(TcpStream::connect(addr).await.expect("server listens"));
    }
    // The address has its share now. A newer connection replaces the oldest one, and is answered.
    assert_eq!(http_get(addr, "/live").await.0, 200);
    let _ = finish_in_time(idle.remove(0).read_to_end(&mut Vec::new())).await;
    // Another address cannot close these connections, however many connections it opens.
    let mut flood = Vec::new();
    for _ in 0..200 {
        flood.push(connect_from([127, 0, 0, 2], addr).await);
    }
    let _ = finish_in_time(flood.remove(0).read_to_end(&mut Vec::new())).await;
    for socket in &mut idle {
        socket.write_all(b"GET /live HTTP/1.1\r\nHost: me\r\n\r\n").await.expect("server reads");
        let mut answer = String::new();
        finish_in_time(socket.read_to_string(&mut answer)).await.expect("text");
        assert!(answer.ends_with("\r\n\r\nlive\n"), "{answer}");
    }
    finish_in_time(server.shutdown()).await;
}

#[tokio::test]
async fn http_methods_and_paths_are_checked() {
    let server = builder().metrics(([127, 0, 0, 1], 0).into()).start().await.expect("it starts");
    let addr = server.metrics_addr().expect("metrics are served");
    for path in ["/metrics", "/ready", "/live"] {
        let (status, got, body) = http_request(addr, "GET", path, "").await;
        assert!(status == 200 && !body.is_empty());
        let (status, head, body) = http_request(addr, "HEAD", path, "").await;
        let kind =
            |head: &str| head.lines().find(|line| line.starts_with("content-type:")).map(str::to_owned);
        assert_eq!((status, body.as_str(), kind(&head)), (200, "", kind(&got)));
        for method in ["POST", "DELETE", "OPTIONS"] {
            let (status, head, _) = http_request(addr, method, path, "unread").await;
            assert_eq!(status, 405, "{method} {path}");
            assert!(head.lines().any(|line| line == "allow: GET,HEAD"), "{head}");
        }
    }
    assert_eq!(http_request(addr, "GET", "/", "").await.0, 404);
    assert_eq!(http_request(addr, "POST", "/nothing", "").await.0, 404);
    assert_eq!(http_request(addr, "GET", &format!("/{}", "x".repeat(100_000)), "").await.0, 414);
    server.shutdown().await;
}

#[tokio::test]
async fn unknown_account_is_refused() {
    let users = Users::parse("me:xlpJGzVhaayvpHfFn/RwowgwqI4=\n").expect("an account");
    let server = builder().users(users).start().await.expect("it starts");
    let mut raw = RawClient::connect(server.local_addr()).await;
    // A client without an account has the permissions of `world`.
    raw.call_ok(create("/open", 0)).await;
    assert_eq!(raw.call_error(auth("digest", "you:pw")).await, -115);
    assert!(raw.reads_end().await);
    assert!(RawClient::connect_with(server.local_addr(), &connect_request()).await.is_some());
    server.shutdown().await;
}
