//! The connect request and its answers.

use super::*;

/// Returns a session that has credentials and has written its connect request. Also returns the
/// number of its connection.
fn with_credentials(sasl: bool) -> (ConnectionId, Harness) {
    let mut config = SessionConfig::new(T);
    config.sasl = sasl;
    config.credentials = vec![("digest".to_owned(), Hidden(b"me:pw".to_vec()))];
    let mut harness = Harness::with(config);
    let id = harness.dial();
    harness.connect(id);
    (id, harness)
}

#[test]
fn nothing_is_sent_behind_the_connect_request() {
    let mut harness = Harness::new();
    let id = harness.dial();
    harness.connect(id);
    assert_eq!(harness.session.request(&read(), harness.now), Err(RequestError::NotSent));
    let request = harness.connect_request();
    assert_eq!((request.session, request.timeout_ms, request.last_zxid_seen), (0, 30_000, 0));
    harness.respond_connect(ID, T);
    let connected = SessionState::Connected { session: ID, timeout: T, sent: harness.now };
    assert_eq!(harness.output(), Output::State(connected));
    assert_eq!(harness.requests(), [(op::XID_PING, Request::Ping)]);
}

#[test]
fn negative_session_id_is_accepted() {
    let mut harness = Harness::new();
    let id = harness.dial();
    harness.connect(id);
    harness.connect_request();
    harness.respond_connect(-5, T);
    assert!(harness.session.is_connected());
    assert_eq!(harness.session.id(), -5);
}

#[test]
fn reattach_shows_session_password_and_newest_zxid() {
    let mut harness = Harness::attached();
    let zxid = harness.zxid;
    harness.disconnect();
    let id = harness.dial();
    harness.connect(id);
    let request = harness.connect_request();
    assert_eq!((request.session, request.last_zxid_seen), (ID, zxid));
    assert_eq!(request.password, Hidden(vec![7; 16]));
    harness.respond_connect(ID, T);
    assert!(harness.session.is_connected());
}

#[test]
fn other_session_in_the_answer_ends_the_session() {
    let mut harness = Harness::attached();
    harness.disconnect();
    let id = harness.dial();
    harness.connect(id);
    harness.connect_request();
    harness.respond_connect(ID + 1, T);
    assert_eq!(
        harness.outputs(),
        [Output::Close { id, leaves_write: false }, Output::State(SessionState::Ended(End::Replaced))]
    );
    assert!(harness.bytes.is_empty(), "a request was sent on the other session");
    assert_eq!(harness.session.request(&read(), harness.now), Err(RequestError::SessionEnded));
    assert_eq!(harness.session.next_timer(), None);
}

#[test]
fn timeout_zero_is_expiry() {
    let mut harness = Harness::attached();
    harness.disconnect();
    let id = harness.dial();
    harness.connect(id);
    harness.respond_connect(0, Duration::ZERO);
    assert_eq!(
        harness.outputs(),
        [Output::Close { id, leaves_write: false }, Output::State(SessionState::Ended(End::Expired))]
    );
}

#[test]
fn read_only_server_is_not_used() {
    let mut harness = Harness::new();
    let id = harness.dial();
    harness.connect(id);
    harness.respond_with(&ConnectResponse {
        protocol: 0,
        timeout_ms: 30_000,
        session: ID,
        password: Hidden(vec![7; 16]),
        read_only: Some(true),
    });
    assert_eq!(harness.outputs(), [Output::Close { id, leaves_write: false }]);
    assert!(harness.run(T, Harness::has_dial).is_some(), "the next server is tried");
    assert_eq!(harness.session.id(), 0);
}

#[test]
fn hang_up_without_an_answer_is_no_expiry() {
    let mut harness = Harness::attached();
    harness.disconnect();
    for _ in 0..8 {
        let id = harness.dial();
        harness.connect(id);
        harness.connect_request();
        harness.disconnect();
        assert!(harness.run(T, Harness::has_dial).is_some());
    }
    assert_eq!(harness.session.end(), None);
}

/// A server that lacks the session's newest zxid closes the connection during the handshake. A
/// server restored from a backup never gets that zxid.
#[test]
fn session_that_no_server_attaches_is_given_up() {
    let mut harness = Harness::attached();
    let last = harness.now;
    harness.disconnect();
    while harness.session.end().is_none() {
        harness.run(T * 2, |harness| harness.has_dial() || harness.session.end().is_some());
        if harness.has_dial() {
            let id = harness.dial();
            harness.connect(id);
            harness.disconnect();
        }
    }
    assert_eq!(harness.session.end(), Some(End::NotAttached));
    assert_eq!(last.until(harness.now), T * 7 / 4);
}

/// A process that was stopped reads replies that arrived long ago. Meanwhile the servers may have gone back to an older
/// state.
#[test]
fn old_reply_does_not_keep_the_session() {
    let mut harness = Harness::attached();
    harness.send(read());
    let (xid, _) = harness.requests().remove(0);
    harness.now = harness.now.after(T * 2);
    harness.reply(xid, data());
    harness.disconnect();
    harness.wait(Duration::ZERO);
    assert_eq!(harness.session.end(), Some(End::NotAttached));
}

/// If a server attaches the session, and then closes the connection, it is not dialed in a tight
/// loop.
#[test]
fn short_connections_are_redialed_after_a_pause() {
    let mut harness = Harness::attached();
    let start = harness.now;
    for _ in 0..20 {
        harness.disconnect();
        let id = harness.dial();
        harness.connect(id);
        harness.connect_request();
        harness.respond_connect(ID, T);
        harness.answer_ping();
    }
    assert!(start.until(harness.now) >= Duration::from_secs(4), "{:?}", start.until(harness.now));
}

#[test]
fn lost_connection_is_replaced_at_once() {
    let mut harness = Harness::attached();
    let start = harness.now;
    harness.disconnect();
    harness.dial();
    assert_eq!(harness.now, start);
}

#[test]
fn tiny_timeout_does_not_make_the_session_spin() {
    let mut harness = Harness::new();
    let id = harness.dial();
    harness.connect(id);
    harness.connect_request();
    harness.respond_connect(ID, Duration::from_millis(1));
    harness.run(Duration::from_secs(1), |_| false);
    let (keep_alives, outputs) = (harness.requests().len(), harness.outputs().len());
    assert!((20..=40).contains(&keep_alives) && outputs <= 6, "{keep_alives} keep-alives, {outputs} outputs");
    harness.disconnect();
    let start = harness.now;
    let ended = |harness: &Harness| harness.session.end().is_some();
    harness.run(T, ended);
    assert!(start.until(harness.now) <= Duration::from_millis(2), "the session ends within two timeouts");
}

#[test]
fn session_keeps_the_shortest_granted_timeout() {
    let mut harness = Harness::attached();
    harness.disconnect();
    let id = harness.dial();
    harness.connect(id);
    assert_eq!(harness.connect_request().timeout_ms, 30_000);
    harness.respond_connect(ID, T / 3);
    assert_eq!(harness.session.timeout(), T / 3);
    assert_eq!(harness.granted.last(), Some(&(T / 3, harness.now)));
    // A longer timeout that the next server grants does not replace the shorter one.
    harness.disconnect();
    let id = harness.dial();
    harness.connect(id);
    assert_eq!(harness.connect_request().timeout_ms, 30_000, "the timeout of the creation is requested");
    harness.respond_connect(ID, T);
    assert_eq!(harness.session.timeout(), T / 3);
}

#[test]
fn reattach_never_asks_for_more_than_the_creation_granted() {
    let mut harness = Harness::new();
    let id = harness.dial();
    harness.connect(id);
    harness.connect_request();
    harness.respond_connect(ID, T / 2);
    harness.disconnect();
    let id = harness.dial();
    harness.connect(id);
    assert_eq!(harness.connect_request().timeout_ms, 15_000);
}

#[test]
fn credentials_come_before_requests() {
    let (_, mut harness) = with_credentials(false);
    harness.connect_request();
    harness.respond_connect(ID, T);
    let requests = harness.requests();
    assert!(matches!(requests.as_slice(), [(op::XID_AUTH, Request::Auth { .. })]), "{requests:?}");
    assert_eq!(harness.session.request(&read(), harness.now), Err(RequestError::NotSent));
    harness.reply_at(op::XID_AUTH, 0, 0, Reply::Empty);
    assert!(harness.session.is_connected());
}

#[test]
fn refused_credentials_end_the_session() {
    let (_, mut harness) = with_credentials(false);
    harness.respond_connect(ID, T);
    harness.reply_at(op::XID_AUTH, 0, Code::AuthFailed.number(), Reply::Empty);
    assert_eq!(harness.outputs().last(), Some(&Output::State(SessionState::Ended(End::AuthFailed))));
}

/// A server that requires credentials answers the first request with `SessionClosedRequireAuth`, and closes the
/// session.
#[test]
fn requests_of_a_refused_client_are_refused() {
    let mut harness = Harness::attached();
    let (first, second) = (harness.send(read()), harness.send(read()));
    let xid = harness.requests()[0].0;
    harness.refuse(xid, Code::SessionClosedRequireAuth);
    let refused = RequestError::Refused(Code::AuthFailed.number());
    let outputs = harness.outputs();
    for request in [first, second] {
        assert!(outputs.contains(&Output::Reply { request, sent: harness.now, result: Err(refused) }));
    }
    assert_eq!(outputs.last(), Some(&Output::State(SessionState::Ended(End::AuthFailed))));
    assert_eq!(harness.session.request(&read(), harness.now), Err(refused));
}

#[test]
fn sasl_comes_before_credentials() {
    let (id, mut harness) = with_credentials(true);
    harness.connect_request();
    harness.respond_connect(ID, T);
    assert_eq!(harness.output(), Output::SaslChallenge(id, None));
    harness.session.sasl_step(id, SaslStep::Send(Bytes::from_static(b"hello")), harness.now, 0);
    harness.collect();
    let (xid, request) = harness.requests().remove(0);
    assert_eq!(request, Request::Sasl { token: Some(Bytes::from_static(b"hello")) });
    harness.reply_at(xid, 0, 0, Reply::Token(Some(Bytes::from_static(b"challenge"))));
    assert_eq!(harness.output(), Output::SaslChallenge(id, Some(Bytes::from_static(b"challenge"))));
    harness.session.sasl_step(id, SaslStep::SendLast(Bytes::from_static(b"proof")), harness.now, 0);
    harness.collect();
    let (xid, _) = harness.requests().remove(0);
    harness.reply_at(xid, 0, 0, Reply::Token(None));
    assert!(matches!(harness.requests().as_slice(), [(op::XID_AUTH, Request::Auth { .. })]));
    harness.reply_at(op::XID_AUTH, 0, 0, Reply::Empty);
    assert!(harness.session.is_connected());
}

#[test]
fn failed_sasl_exchange_ends_only_a_new_session() {
    let (id, mut harness) = with_credentials(true);
    harness.respond_connect(ID, T);
    harness.session.sasl_step(id, SaslStep::Failed, harness.now, 0);
    assert_eq!(harness.session.end(), Some(End::AuthFailed));

    // Without a token, the session tries the next server.
    let (id, mut harness) = with_credentials(true);
    harness.respond_connect(ID, T);
    harness.session.sasl_step(id, SaslStep::NoToken, harness.now, 0);
    harness.collect();
    assert_eq!(harness.session.end(), None);
    assert!(harness.outputs().contains(&Output::Close { id, leaves_write: false }));

    let (id, mut harness) = with_credentials(true);
    harness.respond_connect(ID, T);
    harness.session.sasl_step(id, SaslStep::Done, harness.now, 0);
    harness.collect();
    harness.requests();
    harness.reply_at(op::XID_AUTH, 0, 0, Reply::Empty);
    assert!(harness.session.is_connected());
    harness.outputs();
    harness.disconnect();
    let id = harness.dial();
    harness.connect(id);
    harness.connect_request();
    harness.respond_connect(ID, T);
    harness.outputs();
    harness.session.sasl_step(id, SaslStep::Failed, harness.now, 0);
    harness.collect();
    assert_eq!(harness.session.end(), None);
    assert!(
        harness.outputs().contains(&Output::Close { id, leaves_write: false }),
        "the next server may accept another ticket"
    );
}

#[test]
fn debug_output_shows_no_password() {
    let mut config = SessionConfig::new(T);
    config.credentials = vec![("digest".to_owned(), Hidden(b"me:pw".to_vec()))];
    let mut session = Session::new(config, Instant(0));
    let Some(Output::Dial { id, .. }) = session.next_output() else { panic!("session does not dial") };
    assert!(session.dial_succeeded(id, Instant(0), 0));
    // The session's buffer holds the connect request, which contains the password.
    let shown = format!("{session:?}");
    let (_, mut harness) = with_credentials(false);
    harness.respond_connect(ID, T);
    for shown in [shown, format!("{:?}", harness.session)] {
        let hidden = ["7, 7", "109, 101", "me:pw", "\\0\\0\\0"];
        assert!(!hidden.iter().any(|hidden| shown.contains(hidden)), "{shown}");
    }
}
