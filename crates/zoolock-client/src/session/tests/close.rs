//! The end of a session.

use super::*;

#[test]
fn close_is_confirmed_by_the_server() {
    let mut harness = Harness::attached();
    harness.session.close(harness.now);
    harness.collect();
    assert_eq!(harness.session.request(&read(), harness.now), Err(RequestError::SessionEnded));
    let (xid, request) = harness.requests().remove(0);
    assert_eq!(request, Request::CloseSession);
    let id = harness.connection.expect("session has a connection");
    harness.reply(xid, Reply::Empty);
    assert_eq!(
        harness.outputs(),
        [Output::Close { id, leaves_write: false }, Output::State(SessionState::Ended(End::Closed))]
    );
}

#[test]
fn nothing_is_sent_behind_the_close() {
    let mut config = SessionConfig::new(T);
    config.max_in_flight = 1;
    let mut harness = Harness::with(config);
    harness.attach();
    let (_, second) = (harness.send(read()), harness.send(read()));
    harness.session.close(harness.now);
    harness.collect();
    let not_sent =
        Output::Reply { request: second, sent: Instant::default(), result: Err(RequestError::NotSent) };
    assert_eq!(harness.output(), not_sent);
    let written = harness.requests();
    assert_eq!(written[1].1, Request::CloseSession);
    harness.reply(written[0].0, data());
    assert!(harness.requests().is_empty());
}

#[test]
fn refused_close_is_repeated_on_the_next_connection() {
    let mut harness = Harness::attached();
    harness.session.close(harness.now);
    harness.collect();
    let xid = harness.requests()[0].0;
    harness.refuse(xid, Code::Throttled);
    assert_eq!(harness.session.end(), None);
    let id = harness.dial();
    harness.connect(id);
    harness.connect_request();
    harness.respond_connect(ID, T);
    assert_eq!(harness.requests()[0].1, Request::CloseSession);
}

#[test]
fn lost_close_is_repeated_on_the_next_connection() {
    let mut harness = Harness::attached();
    harness.session.close(harness.now);
    harness.collect();
    harness.requests();
    harness.disconnect();
    let id = harness.dial();
    harness.connect(id);
    harness.connect_request();
    harness.respond_connect(ID, T);
    let (xid, request) = harness.requests().remove(0);
    assert_eq!(request, Request::CloseSession, "nothing else is sent");
    assert!(!harness.session.is_connected());
    harness.reply(xid, Reply::Empty);
    assert_eq!(harness.outputs().last(), Some(&Output::State(SessionState::Ended(End::Closed))));
}

#[test]
fn close_of_expired_session_succeeds() {
    let mut harness = Harness::attached();
    harness.session.close(harness.now);
    harness.disconnect();
    let id = harness.dial();
    harness.connect(id);
    harness.respond_connect(0, Duration::ZERO);
    assert_eq!(harness.outputs().last(), Some(&Output::State(SessionState::Ended(End::Closed))));
}

#[test]
fn close_gives_up_after_the_session_timeout() {
    let mut harness = Harness::attached();
    harness.disconnect();
    let id = harness.dial();
    harness.session.dial_failed(id, harness.now, 0);
    harness.session.close(harness.now);
    let over = |harness: &Harness| harness.session.end().is_some();
    assert_eq!(harness.run(T * 2, over), Some(T));
    assert_eq!(harness.outputs().last(), Some(&Output::State(SessionState::Ended(End::Closed))));
}

#[test]
fn close_before_creation_ends_at_once() {
    let mut harness = Harness::new();
    let id = harness.dial();
    harness.session.close(harness.now);
    harness.collect();
    assert_eq!(
        harness.outputs(),
        [Output::AbortDial { id, is_late: false }, Output::State(SessionState::Ended(End::Closed))]
    );
}

#[test]
fn ended_session_does_nothing_more() {
    let mut harness = Harness::attached();
    harness.session.close(harness.now);
    harness.collect();
    let xid = harness.requests()[0].0;
    harness.reply(xid, Reply::Empty);
    harness.outputs();
    let id = harness.connection.expect("session has a connection");
    harness.session.receive(id, &[0; 40], harness.now, 0);
    harness.session.handle_connection_end(id, harness.now, 0);
    harness.session.close(harness.now);
    assert_eq!(harness.session.renew(&check(), harness.now), Err(RequestError::SessionEnded));
    harness.wait(T * 3);
    assert!(harness.outputs().is_empty() && harness.requests().is_empty());
}
