//! Tests of the proxy: exact counts and each fault.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};
use zoolock_tests::ports::Port;
use zoolock_tests::proxy::{ProxiedProtocol, ProxySettings};
use zoolock_tests::{Direction, Place, Proxy, on_both_servers, opcode, tree};

const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());

/// Starts a proxy and connects a client through it.
async fn proxied(place: &Place) -> (Proxy, Client) {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy started");
    let client = tree::connect(&place.connect_string_through(&proxy.addr())).await.expect("connected");
    (proxy, client)
}

on_both_servers!(bytes_of_listing_are_counted_exactly, |place| async move {
    let (proxy, client) = proxied(&place).await;
    for number in 0..100 {
        client.create(&format!("/n{number:03}"), b"", &PERSISTENT).await.expect("znode created");
    }
    let before = proxy.counts();
    let children = client.list_children("/").await.expect("children listed");
    assert_eq!(children.len(), 100);

    let added = proxy.counts().since(&before);
    assert_eq!(added.requests(opcode::GET_CHILDREN), 1);
    // A ping, which the client can send at any time: the frame's length, xid, opcode.
    let pings = (4 + 4 + 4) * added.requests(opcode::PING);
    // The frame's length, xid, opcode; the path and its length; the watch flag.
    let request = 4 + 4 + 4 + (4 + place.chroot().len() as u64) + 1;
    assert_eq!(added.bytes_to_server, request + pings);
    assert_eq!(added.replies(opcode::GET_CHILDREN), 1);
    // The reply to a ping: the frame's length, xid, zxid, error.
    let pings = (4 + 4 + 8 + 4) * added.replies(opcode::PING);
    // The frame's length, xid, zxid, error; the number of children; the length and the four letters of each name.
    let reply = 4 + 4 + 8 + 4 + 4 + 100 * (4 + 4);
    assert_eq!(added.bytes_to_client, reply + pings);
    assert_eq!(added.notifications, 0);

    let all = proxy.stats();
    assert_eq!((all.connections.len(), all.open()), (1, 1));
    assert_eq!(all.total.requests(opcode::CREATE_SESSION), 1);
    assert_eq!(all.total.replies(opcode::CREATE_SESSION), 1);
    assert_eq!(all.connections[0].counts, all.total);
});

on_both_servers!(watch_events_are_counted_separately, |place| async move {
    let (proxy, client) = proxied(&place).await;
    let (_, watcher) = client.list_and_watch_children("/").await.expect("children listed");
    client.create("/n", b"", &PERSISTENT).await.expect("znode created");
    watcher.changed().await;
    assert_eq!(proxy.counts().notifications, 1);
});

on_both_servers!(dropped_reply_leaves_request_executed, |place| async move {
    let (proxy, client) = proxied(&place).await;
    proxy.drop_next_reply(opcode::CREATE2);
    client.create("/done", b"", &PERSISTENT).await.expect_err("the reply was dropped");
    assert_eq!(proxy.stats().dropped_replies, 1);
    assert_eq!(tree::descendants(&place.connect_string(), "/").await.expect("server answered"), ["/done"]);
    // Only one reply is dropped, and the session continues over a new connection.
    client.create("/next", b"", &PERSISTENT).await.expect("znode created");
    assert_eq!(proxy.stats().connections.len(), 2);
});

on_both_servers!(dropped_request_is_not_executed, |place| async move {
    let (proxy, client) = proxied(&place).await;
    proxy.drop_next_request(opcode::CREATE2);
    client.create("/undone", b"", &PERSISTENT).await.expect_err("the request was dropped");
    assert_eq!(proxy.stats().dropped_requests, 1);
    assert_eq!(
        tree::descendants(&place.connect_string(), "/").await.expect("server answered"),
        Vec::<String>::new()
    );
    client.create("/undone", b"", &PERSISTENT).await.expect("znode created");
});

on_both_servers!(only_requested_opcode_is_dropped, |place| async move {
    let (proxy, client) = proxied(&place).await;
    proxy.drop_next_reply(opcode::DELETE);
    client.create("/n", b"", &PERSISTENT).await.expect("znode created");
    client.delete("/n", None).await.expect_err("the reply was dropped");
});

on_both_servers!(cut_closes_every_connection, |place| async move {
    let (proxy, client) = proxied(&place).await;
    let other = tree::connect(&place.connect_string_through(&proxy.addr())).await.expect("connected");
    assert_eq!(proxy.stats().open(), 2);
    proxy.close_connections().await;
    assert!(proxy.stats().connections[..2].iter().all(|connection| connection.closed));
    proxy.until("both clients reconnect", |stats| stats.open() == 2).await;
    client.check_stat("/").await.expect("session continues");
    other.check_stat("/").await.expect("session continues");
});

on_both_servers!(refusing_proxy_accepts_no_new_connection, |place| async move {
    let (proxy, client) = proxied(&place).await;
    proxy.refuse(true).await;
    TcpStream::connect(proxy.addr()).await.expect_err("the proxy refuses connections");
    client.check_stat("/").await.expect("open connection stays open");
    proxy.close_connections().await;
    assert_eq!(proxy.stats().open(), 0);
    proxy.refuse(false).await;
    proxy.until("the client reconnects", |stats| stats.open() == 1).await;
    client.check_stat("/").await.expect("session continues");
});

on_both_servers!(blackhole_delays_bytes_without_losing_them, |place| async move {
    let (proxy, client) = proxied(&place).await;
    for direction in [Direction::ToServer, Direction::ToClient] {
        let before = proxy.counts();
        proxy.blackhole_towards(direction, true);
        let mut reply = std::pin::pin!(client.check_stat("/"));
        let soon = Duration::from_millis(200);
        tokio::time::timeout(soon, reply.as_mut()).await.expect_err("no bytes pass a black hole");
        let requests = proxy.counts().since(&before).requests(opcode::EXISTS);
        assert_eq!(requests, u64::from(direction == Direction::ToClient));
        proxy.blackhole_towards(direction, false);
        reply.await.expect("server answered").expect("the chroot exists");
    }
    assert_eq!(proxy.stats().connections.len(), 1);
});

on_both_servers!(delay_applies_in_each_direction, |place| async move {
    let (proxy, client) = proxied(&place).await;
    proxy.delay(Duration::from_millis(150));
    let begun = Instant::now();
    client.check_stat("/").await.expect("server answered");
    assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
    // Requests that are in flight together are delayed together.
    let begun = Instant::now();
    let asked: Vec<_> = (0..20).map(|_| client.check_stat("/")).collect();
    for answer in asked {
        answer.await.expect("server answered");
    }
    assert!(begun.elapsed() < Duration::from_millis(20 * 150), "{:?}", begun.elapsed());
});

on_both_servers!(four_letter_words_pass_the_proxy, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy started");
    let addr = proxy.addr().parse().expect("valid address");
    let answer =
        zoolock_tests::four_letter::send_four_letter_word(addr, "ruok").await.expect("server answered");
    assert_eq!(answer, "imok");
    let counts = proxy.counts();
    assert_eq!((counts.bytes_to_server, counts.bytes_to_client), (4, 4));
});

#[tokio::test(flavor = "multi_thread")]
async fn only_whole_frames_are_counted_as_requests() {
    const CONNECT: [u8; 6] = [0, 0, 0, 2, 7, 8];
    const EXISTS: [u8; 12] = [0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 3];
    let frames = [&CONNECT[..], &[0; 4], &EXISTS, &EXISTS].concat();
    // Each stream, with the number of its requests to connect and of its other requests.
    for (stream, connects, exists) in [
        (&frames[..], 1, 2),
        (&b"ruok"[..], 0, 0),
        (&CONNECT[..5], 0, 0),
        (&EXISTS[..3], 0, 0),
        (&EXISTS[..0], 0, 0),
    ] {
        let server = TcpListener::bind("127.0.0.1:0").await.expect("listening");
        let addr = server.local_addr().expect("bound").to_string();
        let proxy = Proxy::start(&addr).await.expect("proxy started");
        let mut client = TcpStream::connect(proxy.addr()).await.expect("connected");
        client.write_all(stream).await.expect("bytes sent");
        client.shutdown().await.expect("end of the bytes sent");
        let (mut connection, _) = server.accept().await.expect("the proxy connects");
        let mut received = Vec::new();
        connection.read_to_end(&mut received).await.expect("bytes received");
        assert_eq!(received, stream);
        let counts = proxy.counts();
        let requests = (counts.requests(opcode::CREATE_SESSION), counts.requests(opcode::EXISTS));
        assert_eq!(requests, (connects, exists), "{stream:?}");
    }
}

on_both_servers!(private proxy_survives_server_restart, |place| async move {
    let (proxy, client) = proxied(&place).await;
    place.server().kill().await;
    proxy.until("the connection ends", |stats| stats.connections[0].closed).await;
    proxy.close_connections().await;
    drop(client);
    place.server().restart().await.expect("server restarted");
    let again = tree::connect(&proxy.addr()).await.expect("connected");
    again.check_stat("/").await.expect("server answered");
});

/// Starts a proxy for this protocol. Returns a client's connection, and the connection of its server.
async fn connect_through(protocol: ProxiedProtocol) -> (Proxy, TcpStream, TcpStream) {
    let server = TcpListener::bind("127.0.0.1:0").await.expect("listening");
    let upstream = server.local_addr().expect("bound");
    let port = Port::reserve().expect("a port is free");
    let settings = ProxySettings { port, upstream, protocol, patience: Duration::ZERO };
    let proxy = Proxy::start_with(settings).await;
    let client = TcpStream::connect(proxy.addr()).await.expect("connected");
    client.set_nodelay(true).expect("the connection is open");
    let (server, _) = server.accept().await.expect("the proxy connects");
    server.set_nodelay(true).expect("the connection is open");
    (proxy, client, server)
}

#[tokio::test(flavor = "multi_thread")]
async fn any_protocol_is_not_split_into_frames() {
    let (_proxy, mut client, mut server) = connect_through(ProxiedProtocol::Any).await;
    // As the beginning of a frame, these bytes would be held until the whole frame has arrived.
    let bytes = [0, 0, 0, 100, 7];
    client.write_all(&bytes).await.expect("bytes sent");
    let mut received = [0; 5];
    server.read_exact(&mut received).await.expect("bytes received");
    assert_eq!(received, bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn election_message_gets_return_address() {
    let protocol =
        ProxiedProtocol::Election { return_address: "127.0.0.1:12345".parse().expect("an address") };
    let (_proxy, mut client, mut server) = connect_through(protocol).await;
    let head = [[0xff; 8], [3; 8]].concat();
    let message = |address: &[u8]| [&head, &(address.len() as u32).to_be_bytes()[..], address].concat();
    client.write_all(&message(b"localhost:1")).await.expect("bytes sent");
    client.write_all(b"vote").await.expect("bytes sent");
    client.shutdown().await.expect("end of the bytes sent");
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.expect("bytes received");
    assert_eq!(received, [&message(b"127.0.0.1:12345")[..], b"vote"].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn delay_below_one_millisecond_is_exact() {
    let (proxy, mut client, mut server) = connect_through(ProxiedProtocol::Any).await;
    let delay = Duration::from_micros(300);
    proxy.delay(delay);
    let mut fastest = Duration::MAX;
    for _ in 0..200 {
        let begun = Instant::now();
        client.write_all(b"?").await.expect("byte sent");
        server.read_u8().await.expect("byte received");
        server.write_all(b"!").await.expect("byte sent");
        client.read_u8().await.expect("byte received");
        fastest = fastest.min(begun.elapsed());
    }
    // Timers that count milliseconds would make each round trip last longer than this.
    assert!(fastest >= 2 * delay && fastest < Duration::from_micros(1_200), "{fastest:?}");
}
