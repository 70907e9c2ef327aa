//! Replies: decodes any bytes as messages from a server.
//!
//! The encoding of a decoded record must decode to the same record. A decoded vector must not have more elements than
//! its frame can hold. So a hostile server cannot make a client allocate more than a small multiple of the bytes that
//! it sent.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use zoolock_fuzz::Input;
use zoolock_wire::{
    ConnectResponse, FrameError, OpResult, Reader, Reply, ReplyHeader, WatchEvent, Writer, split_frame,
};

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    match input.byte() % 4 {
        0 => frames(&mut input),
        1 => connect_response(input.rest()),
        2 => watch_event(input.rest()),
        _ => {
            let code = i32::from(input.byte() as i8);
            reply(code, input.rest());
        }
    }
});

/// Splits the bytes into frames, in pieces as a socket gives them, and reads each frame as a reply.
fn frames(input: &mut Input<'_>) {
    let limit = usize::from(input.short());
    let mut buffer = BytesMut::new();
    while !input.is_empty() {
        buffer.extend_from_slice(input.bytes());
        loop {
            match split_frame(&mut buffer, limit) {
                Ok(Some(frame)) => {
                    assert!(frame.len() <= limit);
                    let mut reader = Reader::new(&frame);
                    if let Ok(header) = ReplyHeader::decode(&mut reader) {
                        let mut out = BytesMut::new();
                        header.encode(&mut Writer::new(&mut out));
                        assert_eq!(out[..], frame[..16]);
                        let _ = Reply::decode(header.err, &mut reader);
                    }
                }
                Ok(None) => break,
                Err(FrameError { len, .. }) => {
                    assert!(usize::try_from(len).map_or(true, |len| len > limit));
                    return;
                }
            }
        }
    }
}

fn connect_response(bytes: &[u8]) {
    let Ok(response) = ConnectResponse::decode(bytes) else { return };
    assert!(!format!("{response:?}").contains(&format!("{:?}", response.password.0)), "a password is shown");
    let mut out = BytesMut::new();
    response.encode(&mut Writer::new(&mut out));
    assert_eq!(ConnectResponse::decode(&out), Ok(response));
}

fn watch_event(bytes: &[u8]) {
    let Ok(event) = WatchEvent::decode(&mut Reader::new(bytes)) else { return };
    let mut out = BytesMut::new();
    event.encode(&mut Writer::new(&mut out));
    assert_eq!(WatchEvent::decode(&mut Reader::new(&out)), Ok(event));
}

fn reply(code: i32, bytes: &[u8]) {
    let Ok(reply) = Reply::decode(code, &mut Reader::new(bytes)) else { return };
    // Each element takes at least this many bytes of the frame.
    let (elements, bytes_each) = match &reply {
        Reply::Children(children) | Reply::ChildrenStat { children, .. } => (children.len(), 4),
        Reply::AclStat { acl, .. } => (acl.len(), 12),
        Reply::Identities(clients) => (clients.len(), 8),
        Reply::Multi(results) => (results.len(), 9),
        _ => (0, 0),
    };
    assert!(elements * bytes_each <= bytes.len(), "more elements than the frame can hold");
    if let Reply::Multi(results) = &reply {
        let errors = results.iter().filter(|result| matches!(result, OpResult::Error(_))).count();
        assert!(errors * 13 <= bytes.len());
    }
    let mut out = BytesMut::new();
    reply.encode(&mut Writer::new(&mut out));
    assert_eq!(Reply::decode(code, &mut Reader::new(&out)), Ok(reply));
}
