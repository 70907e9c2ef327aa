//! Requests, replies, events, and their order.

use zoolock_wire::{EventKind, OpResult, WatchEvent, encode_event};

use super::*;

#[test]
fn replies_are_matched_by_xid() {
    let mut harness = Harness::attached();
    let (first, second) = (harness.send(read()), harness.send(read()));
    let xids: Vec<i32> = harness.requests().iter().map(|(xid, _)| *xid).collect();
    // A refusal by the connected server may overtake the reply to an earlier request
    // (ZOOKEEPER-2775).
    harness.refuse(xids[1], Code::NoAuth);
    let sent = harness.now;
    let refused = Err(RequestError::Refused(Code::NoAuth.number()));
    assert_eq!(harness.output(), Output::Reply { request: second, sent, result: refused });
    harness.reply(xids[0], data());
    assert_eq!(harness.output(), Output::Reply { request: first, sent, result: Ok(data()) });
}

#[test]
fn replies_and_events_keep_the_order_of_the_server() {
    let mut harness = Harness::attached();
    let (first, second) = (harness.send(read()), harness.send(read()));
    let xids: Vec<i32> = harness.requests().iter().map(|(xid, _)| *xid).collect();
    let mut bytes = BytesMut::new();
    let reply = |xid, zxid, bytes: &mut BytesMut| {
        Writer::frame(bytes, |writer| {
            ReplyHeader { xid, zxid, err: 0 }.encode(writer);
            data().encode(writer);
        });
    };
    reply(xids[0], 200, &mut bytes);
    Writer::frame(&mut bytes, |writer| {
        // Servers before 3.9 send events without a zxid.
        ReplyHeader { xid: op::XID_EVENT, zxid: -1, err: 0 }.encode(writer);
        encode_event(EventKind::Deleted, "/locks/a", writer);
    });
    reply(xids[1], 201, &mut bytes);
    // The network may split the frames anywhere.
    for byte in bytes {
        harness.receive(&[byte]);
    }
    let outputs = harness.outputs();
    assert!(
        matches!(outputs.as_slice(), [
            Output::Reply { request: a, .. },
            Output::Event(WatchEvent { kind: EventKind::Deleted, .. }),
            Output::Reply { request: b, .. },
        ] if *a == first && *b == second),
        "{outputs:?}"
    );
}

#[test]
fn xids_continue_on_the_next_connection() {
    let mut harness = Harness::attached();
    harness.send(read());
    let last = harness.requests().last().expect("a request was sent").0;
    harness.disconnect();
    harness.attach();
    harness.send(read());
    let next = harness.requests().last().expect("a request was sent").0;
    assert!(next > last, "{next} after {last}");
}

#[test]
fn xids_wrap_to_positive_numbers() {
    let mut harness = Harness::attached();
    harness.session.last_xid = i32::MAX - 1;
    for _ in 0..3 {
        harness.send(read());
    }
    let xids: Vec<i32> = harness.requests().iter().map(|(xid, _)| *xid).collect();
    assert_eq!(xids, [i32::MAX, 1, 2]);
    for xid in xids {
        harness.reply(xid, data());
    }
    assert_eq!(harness.outputs().len(), 3);
}

#[test]
fn lost_connection_leaves_the_outcome_unknown() {
    let mut harness = Harness::attached();
    harness.now = harness.now.after(Duration::from_secs(1));
    let request = harness.send(create(3));
    let sent = harness.now;
    let id = harness.connection.expect("session has a connection");
    harness.disconnect();
    let outputs = harness.outputs();
    assert_eq!(
        outputs[..3],
        [
            Output::Reply { request, sent, result: Err(RequestError::ConnectionLoss) },
            Output::Close { id, leaves_write: false },
            Output::State(SessionState::Disconnected(DisconnectReason::Closed)),
        ]
    );
    assert!(matches!(outputs[3..], [Output::Dial { .. }]), "a lost connection is replaced at once");
    // The session does not repeat the request.
    let id = match outputs[3] {
        Output::Dial { id, .. } => id,
        _ => unreachable!(),
    };
    harness.bytes.clear();
    harness.connect(id);
    harness.connect_request();
    harness.respond_connect(ID, T);
    assert_eq!(harness.requests(), [(op::XID_PING, Request::Ping)]);
}

#[test]
fn request_without_a_connection_is_refused_at_once() {
    let mut harness = Harness::attached();
    harness.disconnect();
    assert_eq!(harness.session.request(&read(), harness.now), Err(RequestError::NotSent));
}

#[test]
fn full_window_holds_requests_back_and_renewals_pass_them() {
    let mut config = SessionConfig::new(T);
    config.max_in_flight = 2;
    let mut harness = Harness::with(config);
    harness.attach();
    let requests: Vec<RequestNumber> = (0..4).map(|_| harness.send(read())).collect();
    let written = harness.requests();
    assert_eq!(written.len(), 2, "{written:?}");
    let renewed = harness.renew();
    let renewal = harness.requests();
    assert!(
        matches!(renewal.as_slice(), [(op::XID_PING, Request::Ping), (_, Request::Multi(_))]),
        "{renewal:?}"
    );
    harness.reply(written[0].0, data());
    // The renewal does not count in the window: on a slow network, renewals alone could fill it.
    assert_eq!(harness.requests().len(), 1);
    // Unwritten requests were not carried out, and written ones may have been.
    harness.outputs();
    harness.disconnect();
    let results: Vec<(RequestNumber, RequestError)> = harness
        .outputs()
        .into_iter()
        .filter_map(|output| match output {
            Output::Reply { request, result: Err(error), .. } => Some((request, error)),
            _ => None,
        })
        .collect();
    assert_eq!(
        results,
        [
            (requests[1], RequestError::ConnectionLoss),
            (renewed, RequestError::ConnectionLoss),
            (requests[2], RequestError::ConnectionLoss),
            (requests[3], RequestError::NotSent),
        ]
    );
}

/// With many requests in flight, a slow server would count as silent on each new connection. So
/// slow replies make the window smaller.
#[test]
fn window_follows_the_pace_of_the_replies() {
    let send = |harness: &mut Harness| {
        for _ in 0..100 {
            harness.send(read());
        }
        harness.requests()
    };
    for (wait, next) in [(T / 25, 32), (T / 24, 16), (T / 11, 4)] {
        let mut harness = Harness::new();
        harness.attach();
        let written = send(&mut harness);
        assert_eq!(written.len(), 16);
        harness.now = harness.now.after(wait);
        for (xid, _) in written {
            harness.reply(xid, data());
        }
        assert_eq!(harness.requests().len(), next);
        // A new connection begins with a window of 16 again.
        harness.outputs();
        harness.disconnect();
        harness.attach();
        assert_eq!(send(&mut harness).len(), 16);
    }
}

/// Only the time beyond a round trip shrinks the window. On a slow network, replies do not come
/// sooner if fewer requests are in flight. A window of 4 would fill with requests whose callers have
/// timed out, and delay all later requests.
#[test]
fn window_stays_on_a_slow_network() {
    let round_trip = T / 10;
    for (wait, next) in [(round_trip, 32), (round_trip + T / 40, 16), (round_trip + T / 23, 4)] {
        let mut harness = Harness::new();
        let id = harness.dial();
        harness.connect(id);
        harness.connect_request();
        harness.respond_connect(ID, T);
        harness.now = harness.now.after(round_trip);
        harness.answer_ping();
        for _ in 0..100 {
            harness.send(read());
        }
        let written = harness.requests();
        assert_eq!(written.len(), 16);
        harness.now = harness.now.after(wait);
        for (xid, _) in written {
            harness.reply(xid, data());
        }
        assert_eq!(harness.requests().len(), next, "{wait:?}");
    }
}

#[test]
fn queued_requests_follow_in_order() {
    let mut config = SessionConfig::new(T);
    config.max_in_flight = 1;
    let mut harness = Harness::with(config);
    harness.attach();
    let path = |n: i32| Request::Exists { path: format!("/{n}"), watch: false };
    for n in 0..5 {
        harness.send(path(n));
    }
    for n in 0..5 {
        let written = harness.requests();
        assert_eq!(written.iter().map(|(_, request)| request).collect::<Vec<_>>(), [&path(n)]);
        harness.reply(written[0].0, Reply::Stat(Stat::default()));
    }
}

#[test]
fn ping_goes_ahead_of_each_renewal_in_one_write() {
    let mut harness = Harness::attached();
    let (request, sent) = (harness.renew(), harness.now);
    let written = harness.requests();
    assert_eq!(written.iter().map(|(_, request)| request).collect::<Vec<_>>(), [&Request::Ping, &check()]);
    harness.reply(op::XID_PING, Reply::Empty);
    assert!(harness.outputs().is_empty());
    harness.reply(written[1].0, Reply::Multi(vec![OpResult::Check]));
    let result = Ok(Reply::Multi(vec![OpResult::Check]));
    assert_eq!(harness.output(), Output::Reply { request, sent, result });
    // The ping of the renewal also delays the next keep-alive ping.
    harness.wait(T / 3 - Duration::from_millis(1));
    assert!(harness.requests().is_empty());
}

#[test]
fn keep_alive_takes_the_place_of_a_ping() {
    let mut harness = Harness::attached();
    let sync = Request::Sync { path: "/".to_owned() };
    harness.wait(T / 3 - Duration::from_millis(1));
    harness.session.keep_alive(&sync, harness.now).expect("session has a connection");
    harness.collect();
    let written = harness.requests();
    assert_eq!(written.iter().map(|(_, request)| request).collect::<Vec<_>>(), [&sync]);
    harness.reply(written[0].0, Reply::Path("/".to_owned()));
    harness.outputs();
    harness.wait(T / 3 - Duration::from_millis(1));
    assert!(harness.requests().is_empty());
}

#[test]
fn session_pings_every_third() {
    let mut harness = Harness::attached();
    harness.wait(T / 3 - Duration::from_millis(1));
    assert!(harness.requests().is_empty());
    harness.wait(Duration::from_millis(1));
    assert_eq!(harness.requests(), [(op::XID_PING, Request::Ping)]);
}

#[test]
fn session_expired_reply_ends_the_session() {
    let mut harness = Harness::attached();
    let first = harness.send(read());
    harness.send(read());
    let xid = harness.requests()[0].0;
    harness.refuse(xid, Code::SessionExpired);
    let outputs = harness.outputs();
    assert_eq!(outputs.last(), Some(&Output::State(SessionState::Ended(End::Expired))));
    let failed =
        |request| Output::Reply { request, sent: harness.now, result: Err(RequestError::SessionEnded) };
    assert!(outputs.contains(&failed(first)), "the refused request has a result, too: {outputs:?}");
}

#[test]
fn moved_session_attaches_again() {
    let mut harness = Harness::attached();
    harness.send(read());
    let xid = harness.requests()[0].0;
    harness.refuse(xid, Code::SessionMoved);
    assert!(harness.outputs.contains(&Output::State(SessionState::Disconnected(DisconnectReason::Moved))));
    harness.dial();
}

/// ZooKeeper answers an expired session in the refused part of a transaction, and before 3.6 also a moved one.
#[test]
fn refusal_in_a_part_ends_connection_or_session() {
    let parts = |code: Code| {
        Reply::Multi(vec![OpResult::Error(0), OpResult::Error(code.number()), OpResult::Error(-2)])
    };
    for (code, error, state) in [
        (
            Code::SessionMoved,
            RequestError::ConnectionLoss,
            SessionState::Disconnected(DisconnectReason::Moved),
        ),
        (Code::SessionExpired, RequestError::SessionEnded, SessionState::Ended(End::Expired)),
    ] {
        let mut harness = Harness::attached();
        let request = harness.send(check());
        let xid = harness.requests().last().expect("a request was sent").0;
        let sent = harness.now;
        harness.reply(xid, parts(code));
        let outputs = harness.outputs();
        assert_eq!(outputs[0], Output::Reply { request, sent, result: Err(error) });
        assert_eq!(outputs.last(), Some(&Output::State(state)));
    }
    // Another refusal is the caller's.
    let mut harness = Harness::attached();
    let request = harness.send(check());
    let xid = harness.requests().last().expect("a request was sent").0;
    let sent = harness.now;
    harness.reply(xid, parts(Code::NoNode));
    assert_eq!(harness.output(), Output::Reply { request, sent, result: Ok(parts(Code::NoNode)) });
}
