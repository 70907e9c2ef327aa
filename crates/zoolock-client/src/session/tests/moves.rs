//! Moves of a session to another server.

use super::*;

/// Returns a session that has created an ephemeral znode, as the session of a lock holder has.
fn holder(random: u64) -> Harness {
    let mut harness = Harness::new();
    harness.random = random;
    harness.attach();
    harness.create_ephemeral();
    harness
}

/// Runs the timers until `end`, or until the session dials. No request is answered.
fn run_timers_until(harness: &mut Harness, end: Instant) {
    while harness.now < end && !harness.has_dial() {
        let next = harness.session.next_timer().expect("a timer is set").min(end);
        harness.now = harness.now.max(next);
        harness.session.run_due_timers(harness.now, harness.random);
        harness.collect();
    }
}

#[test]
fn silent_server_is_replaced_within_a_sixth() {
    for (random, share) in [(0, 12), (1023, 6)] {
        let mut harness = holder(random);
        harness.renew();
        assert_eq!(harness.requests().len(), 2, "a ping and a renewal");
        let left = harness.run(T, Harness::has_dial).expect("session dials");
        let wanted = T / share;
        assert!(left <= wanted && left + T / 100 >= wanted, "{left:?}, expected {wanted:?}");
    }
}

#[test]
fn stalled_leader_is_given_more_time() {
    for (random, share) in [(0, 6), (1023, 4)] {
        let mut harness = holder(random);
        harness.renew();
        harness.reply(op::XID_PING, Reply::Empty);
        let left = harness.run(T, Harness::has_dial).expect("session dials");
        let wanted = T / share;
        assert!(left <= wanted && left + T / 100 >= wanted, "{left:?}, expected {wanted:?}");
    }
}

#[test]
fn pending_write_delays_the_move() {
    let mut harness = holder(0);
    // The write is sent before the ping, so it may hold back the reply to the ping.
    harness.send(create(3));
    harness.renew();
    let written = harness.now;
    run_timers_until(&mut harness, written.after(T));
    assert!(harness.has_dial());
    assert!(written.until(harness.now) >= T / 6, "{:?}", written.until(harness.now));
}

#[test]
fn session_without_ephemerals_moves_late() {
    let mut harness = Harness::attached();
    harness.wait(T / 3);
    assert_eq!(harness.requests().len(), 1);
    let left = harness.run(T, Harness::has_dial).expect("session dials");
    assert_eq!(left, T / 3, "a local session is known to one server only");
    // The connected server is dialed, too: it may work although its connection is broken.
    assert!(
        matches!(harness.outputs[..], [Output::Dial { avoid_current: false, .. }]),
        "{:?}",
        harness.outputs
    );
}

#[test]
fn move_fails_requests_then_closes_then_connects() {
    let mut harness = holder(0);
    let old = harness.connection.expect("session has a connection");
    let request = harness.send(create(3));
    let sent = harness.now;
    harness.requests();
    assert!(harness.run(T, Harness::has_dial).is_some());
    assert!(
        matches!(harness.outputs[..], [Output::Dial { avoid_current: true, .. }]),
        "{:?}",
        harness.outputs
    );
    let id = harness.dial();
    assert!(harness.session.is_connected(), "the old connection is kept until the new one is established");
    harness.bytes.clear();
    harness.connect(id);
    let outputs = harness.outputs();
    assert!(
        matches!(outputs.as_slice(), [
            Output::Reply { request: failed, sent: at, result: Err(RequestError::ConnectionLoss) },
            Output::Close { id: closed, leaves_write: true },
            Output::State(SessionState::Disconnected(DisconnectReason::Silent(_))),
        ] if *failed == request && *at == sent && *closed == old),
        "{outputs:?}"
    );
    assert_eq!(harness.connect_request().session, ID);
    // Bytes of the old connection are ignored.
    harness.session.receive(old, &[0, 0, 0, 1, 0], harness.now, 0);
    harness.collect();
    assert!(harness.outputs().is_empty());
}

/// Returns a holder that has just moved to another server, because its renewal got no answer.
fn holder_that_left_a_renewal() -> Harness {
    let mut harness = holder(0);
    harness.renew();
    harness.requests();
    harness.run(T, Harness::has_dial).expect("session dials");
    let id = harness.dial();
    harness.connect(id);
    harness
}

#[test]
fn unanswered_renewal_counts_as_an_old_write() {
    let mut harness = holder_that_left_a_renewal();
    let outputs = harness.outputs();
    let leaves_write = |output: &Output| matches!(output, Output::Close { leaves_write: true, .. });
    assert!(outputs.iter().any(leaves_write), "{outputs:?}");
}

#[test]
fn answer_stops_the_move() {
    let mut harness = holder(0);
    harness.renew();
    let written = harness.requests();
    assert!(harness.run(T, Harness::has_dial).is_some());
    let id = harness.dial();
    harness.reply(op::XID_PING, Reply::Empty);
    harness.reply(written[1].0, Reply::Multi(vec![OpResult::Check]));
    assert!(harness.outputs().contains(&Output::AbortDial { id, is_late: false }));
    // If the aborted dial still succeeds, its connection is not used.
    assert!(!harness.session.dial_succeeded(id, harness.now, 0));
    harness.collect();
    assert!(harness.outputs().is_empty());
    assert!(harness.session.is_connected());
}

#[test]
fn at_most_one_move_per_third() {
    let mut harness = holder_that_left_a_renewal();
    let moved = harness.now;
    harness.connect_request();
    harness.respond_connect(ID, T);
    harness.requests();
    harness.outputs();
    // The next server is silent, too.
    harness.run(T, Harness::has_dial).expect("session dials");
    assert_eq!(moved.until(harness.now), T / 3);
}

#[test]
fn only_one_dial_is_under_way() {
    let mut harness = Harness::attached();
    harness.disconnect();
    let id = harness.dial();
    harness.wait(T / 60);
    assert!(!harness.has_dial());
    let late = harness.run(T, |harness| !harness.outputs.is_empty()).expect("dial reaches its deadline");
    assert_eq!(harness.outputs(), [Output::AbortDial { id, is_late: true }]);
    assert!(late <= T / 6);
    // A late success of the aborted dial changes nothing.
    assert!(!harness.session.dial_succeeded(id, harness.now, 0));
    harness.collect();
    assert!(harness.outputs().is_empty());
}

#[test]
fn holder_dials_often_during_an_outage() {
    let mut harness = holder(1023);
    harness.disconnect();
    let start = harness.now;
    let mut dials = 0;
    while start.until(harness.now) < T / 4 {
        let id = harness.dial();
        harness.session.dial_failed(id, harness.now, harness.random);
        harness.collect();
        harness.run(T, Harness::has_dial).expect("session dials");
        dials += 1;
    }
    assert!(dials >= 15, "{dials} dials in {:?}", T / 4);
}

/// Connects to a server that closes the connection during the handshake. Returns the time until the
/// next dial.
fn wait_after_hang_up(harness: &mut Harness) -> Duration {
    let id = harness.dial();
    harness.connect(id);
    harness.disconnect();
    harness.outputs.retain(|output| matches!(output, Output::Dial { .. }));
    harness.run(T, Harness::has_dial).expect("session dials")
}

#[test]
fn newcomer_waits_longer_after_each_hang_up() {
    let mut newcomer = Harness::new();
    let waits: Vec<u128> = (0..5).map(|_| wait_after_hang_up(&mut newcomer).as_millis()).collect();
    assert_eq!(waits, [500, 1000, 2000, 3000, 3000]);
    let mut holder = holder(0);
    holder.disconnect();
    for _ in 0..5 {
        assert_eq!(wait_after_hang_up(&mut holder), T / 120, "a holder does not wait longer");
    }
}

#[test]
fn all_servers_are_tried_before_a_newcomer_waits() {
    let mut newcomer = Harness::with(SessionConfig { servers: 3, ..SessionConfig::new(T) });
    let waits: Vec<u128> = (0..6).map(|_| wait_after_hang_up(&mut newcomer).as_millis()).collect();
    assert_eq!(waits, [0, 0, 500, 0, 0, 1000]);
    let mut holder = holder_with_three_servers();
    holder.disconnect();
    assert_eq!(wait_after_hang_up(&mut holder), Duration::ZERO);
}

/// Each holder dials at least every half second, so the holders reach a started server first.
#[test]
fn newcomer_lets_holders_attach_first_after_an_outage() {
    let mut newcomer = Harness::new();
    let id = newcomer.dial();
    newcomer.session.dial_failed(id, newcomer.now, 0);
    newcomer.collect();
    let id = newcomer.dial();
    assert!(!newcomer.session.dial_succeeded(id, newcomer.now, 0), "the newcomer does not wait for holders");
    newcomer.collect();
    let least = (T / 12).max(Duration::from_secs(1));
    assert!(newcomer.run(T, Harness::has_dial).expect("session dials") >= least);
    newcomer.attach();
    // An existing session does not wait.
    newcomer.disconnect();
    let id = newcomer.dial();
    newcomer.session.dial_failed(id, newcomer.now, 0);
    newcomer.collect();
    newcomer.attach();
    assert!(newcomer.session.is_connected());
}

/// Returns a holder that can choose between three servers.
fn holder_with_three_servers() -> Harness {
    let mut harness = Harness::with(SessionConfig { servers: 3, ..SessionConfig::new(T) });
    harness.attach();
    harness.create_ephemeral();
    harness
}

/// Dials a server that does not answer the connect request. Returns the time after which the connection is given up.
fn wait_for_attach(harness: &mut Harness) -> Duration {
    let id = harness.dial();
    harness.connect(id);
    harness.connect_request();
    harness
        .run(T, |harness| harness.outputs.contains(&Output::Close { id, leaves_write: false }))
        .expect("connection is given up")
}

#[test]
fn silent_handshake_is_abandoned() {
    let idle = Harness::with(SessionConfig { servers: 3, ..SessionConfig::new(T) });
    for (mut harness, share) in [(holder_with_three_servers(), 24), (idle, 24), (holder(0), 4)] {
        if harness.connection.is_some() {
            harness.disconnect();
        }
        assert_eq!(
            wait_for_attach(&mut harness),
            T / share,
            "a session with other servers waits less for this one"
        );
        assert!(harness.run(T, Harness::has_dial).expect("session dials") <= T / 60);
    }
}

#[test]
fn holder_dials_the_next_server_at_once_after_a_silent_handshake() {
    let idle = Harness::with(SessionConfig { servers: 3, ..SessionConfig::new(T) });
    for (mut harness, dials) in [(holder_with_three_servers(), true), (idle, false), (holder(0), false)] {
        if harness.connection.is_some() {
            harness.disconnect();
        }
        wait_for_attach(&mut harness);
        assert_eq!(harness.has_dial(), dials, "others pause, to leave room for holders");
    }
}

#[test]
fn newcomer_leaves_each_silent_server_soon_once() {
    let mut newcomer = Harness::with(SessionConfig { servers: 3, ..SessionConfig::new(T) });
    let waits: Vec<Duration> = (0..5).map(|_| wait_for_attach(&mut newcomer)).collect();
    assert_eq!(
        waits,
        [24, 24, 24, 4, 4].map(|share| T / share),
        "later attaches get time, because servers may be slow"
    );
}

/// A server that has just started may drop a connect request, so the holder soon repeats it.
/// Without an outage, the server may only be slow, so the holder waits longer.
#[test]
fn holder_soon_repeats_connect_request_after_an_outage() {
    let mut harness = holder(0);
    harness.disconnect();
    assert_eq!(wait_for_attach(&mut harness), T / 4);
    for _ in 0..2 {
        let id = harness.dial();
        harness.session.dial_failed(id, harness.now, 0);
        harness.collect();
        harness.run(T, Harness::has_dial).expect("session dials");
        let waits: Vec<Duration> = (0..2).map(|_| wait_for_attach(&mut harness)).collect();
        assert_eq!(waits, [24, 4].map(|share| T / share));
    }
    // If the server closes the connection during the handshake, that counts as an outage, too.
    assert_eq!(wait_after_hang_up(&mut harness), T / 120);
    assert_eq!(wait_for_attach(&mut harness), T / 24);
}

#[test]
fn slow_leader_gets_a_longer_attach_every_second_round() {
    let mut harness = holder_with_three_servers();
    harness.disconnect();
    let waits: Vec<Duration> = (0..8).map(|_| wait_for_attach(&mut harness)).collect();
    assert_eq!(waits, [24, 24, 24, 24, 24, 24, 8, 24].map(|share| T / share));
    // After a working connection, the count of slow attaches starts over.
    harness.attach();
    harness.disconnect();
    assert_eq!(wait_for_attach(&mut harness), T / 24);
}

#[test]
fn reattach_moves_although_the_server_answers() {
    let mut harness = holder(0);
    harness.session.reattach(true, false, harness.now);
    harness.collect();
    assert!(!harness.has_dial(), "the session was attached too recently");
    harness.now = harness.now.after(T / 8);
    harness.session.reattach(true, false, harness.now);
    harness.collect();
    let outputs = &harness.outputs[..];
    assert!(matches!(outputs, [Output::Dial { avoid_current: false, same_first: false, .. }]), "{outputs:?}");
    let id = harness.dial();
    // An answer does not stop this move.
    harness.renew();
    harness.reply(op::XID_PING, Reply::Empty);
    assert!(harness.outputs().is_empty());
    harness.bytes.clear();
    harness.connect(id);
    assert!(
        harness
            .outputs()
            .contains(&Output::State(SessionState::Disconnected(DisconnectReason::LeaseEndsSoon)))
    );
    harness.connect_request();
    harness.respond_connect(ID, T);
    harness.answer_ping();
    assert_eq!(harness.granted.last(), Some(&(T, harness.now)), "the lease counts from the new attach");
    // The next move has the ordinary limits again.
    harness.outputs();
    harness.renew();
    assert_eq!(harness.run(T, Harness::has_dial), Some(T / 3));
}

#[test]
fn answer_stops_a_reattach_that_takes_long() {
    let mut harness = holder(0);
    harness.now = harness.now.after(T / 8);
    harness.session.reattach(true, false, harness.now);
    harness.collect();
    let id = harness.dial();
    harness.now = harness.now.after(T / 6);
    harness.renew();
    harness.reply(op::XID_PING, Reply::Empty);
    assert!(harness.outputs().contains(&Output::AbortDial { id, is_late: false }));
    assert!(harness.session.is_connected());
}

#[test]
fn slow_attach_delays_the_next_reattach() {
    // A reattach is possible only after twice the time that the last attach took, or after a sixth
    // of the timeout.
    for (attach, rest) in [(T / 8, T / 8), (T / 2, T / 24)] {
        let mut harness = holder(0);
        harness.disconnect();
        let id = harness.dial();
        harness.connect(id);
        harness.connect_request();
        harness.now = harness.now.after(attach);
        harness.respond_connect(ID, T);
        harness.answer_ping();
        harness.outputs();
        for (wait, moves) in [(T / 8, false), (rest, true)] {
            harness.now = harness.now.after(wait);
            harness.session.reattach(true, false, harness.now);
            harness.collect();
            assert_eq!(harness.has_dial(), moves, "attached after {attach:?}");
        }
    }
}

#[test]
fn reattach_begins_with_a_server_that_works() {
    for (waited, works) in [(Duration::ZERO, true), (T / 24, true), (T / 20, false)] {
        let mut harness = holder(0);
        harness.now = harness.now.after(T / 8);
        harness.send(read());
        harness.now = harness.now.after(waited);
        harness.session.reattach(true, true, harness.now);
        harness.collect();
        let dial = harness.outputs.iter().find(|output| matches!(output, Output::Dial { .. }));
        let Some(Output::Dial { avoid_current, same_first, .. }) = dial else { panic!("no dial") };
        assert_eq!((*avoid_current, *same_first), (false, works), "a request waits for {waited:?}");
    }
}

#[test]
fn holder_with_other_servers_gives_up_a_dial_sooner() {
    for (mut harness, share) in [(holder_with_three_servers(), 12), (holder(0), 6)] {
        harness.disconnect();
        let id = harness.dial();
        let given_up =
            harness.run(T, |harness| harness.outputs.contains(&Output::AbortDial { id, is_late: true }));
        assert_eq!(given_up, Some(T / share));
    }
}

#[test]
fn reattach_waits_for_answers_under_way() {
    let mut harness = holder(0);
    harness.now = harness.now.after(T / 8);
    harness.session.reattach(false, true, harness.now);
    harness.collect();
    assert!(!harness.has_dial(), "every request was answered");
    harness.renew();
    harness.requests();
    harness.session.reattach(false, true, harness.now);
    harness.collect();
    assert!(!harness.has_dial(), "an answer may come");
    harness.now = harness.now.after(T / 8 + Duration::from_millis(1));
    harness.session.reattach(false, true, harness.now);
    harness.collect();
    assert!(harness.has_dial(), "no answer came for an eighth of the timeout");
}

#[test]
fn session_without_ephemerals_does_not_reattach() {
    let mut harness = Harness::attached();
    harness.now = harness.now.after(T / 8);
    harness.session.reattach(true, false, harness.now);
    harness.collect();
    assert!(!harness.has_dial());
}

#[test]
fn reattach_without_a_connection_does_nothing() {
    let mut harness = holder(0);
    harness.disconnect();
    let id = harness.dial();
    harness.session.reattach(true, false, harness.now.after(T / 8));
    harness.collect();
    assert!(harness.outputs().is_empty());
    harness.session.dial_failed(id, harness.now, 0);
    harness.session.close(harness.now);
    harness.session.reattach(true, false, harness.now);
    harness.collect();
    assert!(harness.session.id() == ID);
}
