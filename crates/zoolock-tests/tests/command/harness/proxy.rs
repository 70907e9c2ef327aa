//! The proxy counts exactly and fails on command.

use std::time::{Duration, Instant};

use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};
use zoolock_tests::{Direction, Proxy, ServerOptions, on_both_arms, opcode, tree};

const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());

async fn proxied(place: &zoolock_tests::Place) -> (Proxy, Client) {
    let proxy = Proxy::start(&place.addr()).await.expect("there are free ports");
    let client = tree::connect(&place.through(&proxy.addr())).await.expect("the proxy forwards");
    (proxy, client)
}

on_both_arms!(bytes_of_a_listing_are_counted_exactly, |place| async move {
    let (proxy, client) = proxied(&place).await;
    for number in 0..100 {
        client.create(&format!("/n{number:03}"), b"", &PERSISTENT).await.expect("a new node");
    }
    let before = proxy.counts();
    let children = client.list_children("/").await.expect("the chroot is there");
    assert_eq!(children.len(), 100);

    let added = proxy.counts().since(&before);
    assert_eq!(added.requests(opcode::GET_CHILDREN), 1);
    // The frame's length, xid, opcode; the path and its length; the flag of the watch.
    assert_eq!(added.request_bytes(opcode::GET_CHILDREN), 4 + 4 + 4 + (4 + place.chroot().len() as u64) + 1);
    assert_eq!(added.replies(opcode::GET_CHILDREN), 1);
    // The frame's length, xid, zxid, error; the number of children; each one's length and four letters.
    assert_eq!(added.reply_bytes(opcode::GET_CHILDREN), 4 + 4 + 8 + 4 + 4 + 100 * (4 + 4));
    assert_eq!(added.notifications, 0);

    let all = proxy.stats();
    assert_eq!((all.connections.len(), all.open()), (1, 1));
    assert_eq!(all.total.requests(opcode::CREATE_SESSION), 1);
    assert_eq!(all.total.replies(opcode::CREATE_SESSION), 1);
    assert_eq!(
        all.connections[0].counts.reply_bytes(opcode::GET_CHILDREN),
        added.reply_bytes(opcode::GET_CHILDREN)
    );
});

on_both_arms!(events_are_counted_apart, |place| async move {
    let (proxy, client) = proxied(&place).await;
    let (_, watcher) = client.list_and_watch_children("/").await.expect("the chroot is there");
    client.create("/n", b"", &PERSISTENT).await.expect("a new node");
    watcher.changed().await;
    assert_eq!(proxy.counts().notifications, 1);
    // The frame's length, xid, zxid, error, kind, state, the path with its length.
    let path = place.chroot().len() as u64;
    assert_eq!(proxy.counts().notification_bytes, 4 + 4 + 8 + 4 + 4 + 4 + 4 + path);
});

on_both_arms!(a_lost_reply_leaves_the_deed_done, |place| async move {
    let (proxy, client) = proxied(&place).await;
    proxy.drop_next_reply(opcode::CREATE2);
    client.create("/done", b"", &PERSISTENT).await.expect_err("the reply was lost");
    assert_eq!(proxy.stats().dropped_replies, 1);
    assert_eq!(tree::descendants(&place.connect_string(), "/").await.expect("it runs"), ["/done"]);
    // Once only, and the session goes on over a new connection.
    client.create("/next", b"", &PERSISTENT).await.expect("the order is spent");
    assert_eq!(proxy.stats().connections.len(), 2);
});

on_both_arms!(a_lost_request_leaves_the_deed_undone, |place| async move {
    let (proxy, client) = proxied(&place).await;
    proxy.drop_next_request(opcode::CREATE2);
    client.create("/undone", b"", &PERSISTENT).await.expect_err("the request was lost");
    assert_eq!(proxy.stats().dropped_requests, 1);
    assert_eq!(tree::descendants(&place.connect_string(), "/").await.expect("it runs"), Vec::<String>::new());
    client.create("/undone", b"", &PERSISTENT).await.expect("the order is spent");
});

on_both_arms!(other_operations_are_not_lost, |place| async move {
    let (proxy, client) = proxied(&place).await;
    proxy.drop_next_reply(opcode::DELETE);
    client.create("/n", b"", &PERSISTENT).await.expect("a create is no delete");
    client.delete("/n", None).await.expect_err("the reply was lost");
});

on_both_arms!(a_cut_closes_every_connection, |place| async move {
    let (proxy, client) = proxied(&place).await;
    let other = tree::connect(&place.through(&proxy.addr())).await.expect("the proxy forwards");
    assert_eq!(proxy.stats().open(), 2);
    proxy.cut().await;
    assert!(proxy.stats().connections[..2].iter().all(|connection| connection.closed));
    proxy.until("both are back", |stats| stats.open() == 2).await;
    client.check_stat("/").await.expect("the session lives");
    other.check_stat("/").await.expect("the session lives");
});

on_both_arms!(a_refusing_proxy_lets_nobody_in, |place| async move {
    let (proxy, client) = proxied(&place).await;
    proxy.refuse(true).await;
    tokio::net::TcpStream::connect(proxy.addr()).await.expect_err("it refuses");
    client.check_stat("/").await.expect("what is open stays");
    proxy.cut().await;
    assert_eq!(proxy.stats().open(), 0);
    proxy.refuse(false).await;
    proxy.until("the client is back", |stats| stats.open() == 1).await;
    client.check_stat("/").await.expect("the session lives");
});

on_both_arms!(a_black_hole_holds_back_what_it_swallows, |place| async move {
    let (proxy, client) = proxied(&place).await;
    for direction in [Direction::ToServer, Direction::ToClient] {
        let before = proxy.counts();
        proxy.blackhole_towards(direction, true);
        let mut asked = std::pin::pin!(client.check_stat("/"));
        let soon = Duration::from_millis(200);
        tokio::time::timeout(soon, asked.as_mut()).await.expect_err("nothing comes through a black hole");
        let asked_so_far = proxy.counts().since(&before).requests(opcode::EXISTS);
        assert_eq!(asked_so_far, u64::from(direction == Direction::ToClient));
        proxy.blackhole_towards(direction, false);
        asked.await.expect("it was held back, not lost").expect("the chroot is there");
    }
    assert_eq!(proxy.stats().connections.len(), 1);
});

on_both_arms!(a_delay_is_added_in_each_direction, |place| async move {
    let (proxy, client) = proxied(&place).await;
    proxy.delay(Duration::from_millis(150));
    let begun = Instant::now();
    client.check_stat("/").await.expect("it runs");
    assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
    // Requests in flight together are delayed together.
    let begun = Instant::now();
    let asked: Vec<_> = (0..20).map(|_| client.check_stat("/")).collect();
    for answer in asked {
        answer.await.expect("it runs");
    }
    assert!(begun.elapsed() < Duration::from_millis(20 * 150), "{:?}", begun.elapsed());
});

on_both_arms!(four_letter_words_pass_the_proxy, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("there are free ports");
    let addr = proxy.addr().parse().expect("an address");
    let answer = zoolock_tests::four_letter::four_letter(addr, "ruok").await.expect("it passes");
    assert_eq!(answer, "imok");
    let counts = proxy.counts();
    assert_eq!((counts.bytes_to_server, counts.bytes_to_client), (4, 4));
});

on_both_arms!(private(ServerOptions::default()) a_proxy_outlives_its_server, |place| async move {
    let (proxy, client) = proxied(&place).await;
    place.server().kill().await;
    proxy.until("the connection ends", |stats| stats.connections[0].closed).await;
    proxy.cut().await;
    drop(client);
    place.server().restart().await.expect("it starts again");
    let again = tree::connect(&proxy.addr()).await.expect("the proxy finds the server again");
    again.check_stat("/").await.expect("it runs");
});
