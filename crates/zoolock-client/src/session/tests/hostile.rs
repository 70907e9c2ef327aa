//! Invalid bytes from a server.

use proptest::prelude::*;

use super::*;

fn loss(harness: &mut Harness) -> DisconnectReason {
    let losses: Vec<DisconnectReason> = harness
        .outputs()
        .into_iter()
        .filter_map(|output| match output {
            Output::State(SessionState::Disconnected(loss)) => Some(loss),
            _ => None,
        })
        .collect();
    assert_eq!(losses.len(), 1);
    losses[0].clone()
}

fn message(harness: &mut Harness) -> String {
    match loss(harness) {
        DisconnectReason::Protocol(message) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn error_names_field_and_value() {
    let mut harness = Harness::attached();
    harness.send(read());
    let xid = harness.requests()[0].0;
    let mut frame = BytesMut::new();
    Writer::frame(&mut frame, |writer| {
        ReplyHeader { xid, zxid: 900, err: 0 }.encode(writer);
        writer.int(-7);
    });
    harness.receive(&frame);
    let message = message(&mut harness);
    assert!(message.contains("data") && message.contains("-7"), "{message}");
}

#[test]
fn long_frame_is_refused_before_it_is_read() {
    let mut harness = Harness::attached();
    harness.receive(&0x7fff_ffff_i32.to_be_bytes());
    assert!(message(&mut harness).contains("2147483647"));
}

#[test]
fn long_connect_response_is_refused() {
    let mut harness = Harness::new();
    let id = harness.dial();
    harness.connect(id);
    harness.receive(&2000_i32.to_be_bytes());
    assert_eq!(harness.outputs(), [Output::Close { id, leaves_write: false }]);
}

#[test]
fn reply_to_no_request_ends_the_connection() {
    let mut harness = Harness::attached();
    harness.reply(77, Reply::Empty);
    assert!(message(&mut harness).contains("77"));
}

#[test]
fn decreasing_zxid_ends_the_session() {
    let mut harness = Harness::attached();
    harness.send(read());
    harness.send(read());
    let xids: Vec<i32> = harness.requests().iter().map(|(xid, _)| *xid).collect();
    harness.reply_at(xids[0], 500, 0, data());
    harness.reply_at(xids[1], 499, 0, data());
    assert_eq!(harness.outputs().last(), Some(&Output::State(SessionState::Ended(End::WentBack))));
}

#[test]
fn request_with_an_invalid_reply_fails() {
    let mut harness = Harness::attached();
    let request = harness.send(read());
    let xid = harness.requests()[0].0;
    harness.reply(xid, Reply::Empty);
    let sent = harness.now;
    let failed = Output::Reply { request, sent, result: Err(RequestError::ConnectionLoss) };
    assert!(harness.outputs().contains(&failed));
}

proptest! {
    /// Checks that no bytes cause a panic, and that each request gets at most one result.
    #[test]
    fn any_bytes_are_harmless(
        pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..20),
        frames in any::<bool>(),
    ) {
        let mut harness = Harness::attached();
        let requests: Vec<RequestNumber> = (0..4).map(|_| harness.send(read())).collect();
        for piece in pieces {
            if harness.connection.is_none() || harness.session.end().is_some() {
                break;
            }
            let len = u32::try_from(piece.len()).expect("length fits in u32").to_be_bytes();
            if frames {
                harness.receive(&len);
            }
            harness.receive(&piece);
        }
        let results: Vec<RequestNumber> = harness
            .outputs()
            .into_iter()
            .filter_map(|output| match output {
                Output::Reply { request, .. } => Some(request),
                _ => None,
            })
            .collect();
        for request in requests {
            prop_assert!(results.iter().filter(|result| **result == request).count() <= 1);
        }
    }
}
