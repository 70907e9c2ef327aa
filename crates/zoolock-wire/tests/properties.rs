//! Properties of the codec: every record is decoded from its own encoding, and no bytes make a decoder panic.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use zoolock_wire::{
    Acl, ConnectRequest, ConnectResponse, CreateRequest, EventKind, Hidden, Identity, OpResult, Reader,
    Reply, ReplyHeader, Request, RequestHeader, SetWatches, Stat, WatchEvent, Writer, op, split_frame,
};

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "/[a-zé/.-]{0,12}", any::<String>()]
}

fn data() -> impl Strategy<Value = Option<Bytes>> {
    proptest::option::of(vec(any::<u8>(), 0..40).prop_map(Bytes::from))
}

fn acls() -> impl Strategy<Value = Vec<Acl>> {
    vec(
        (any::<i32>(), text(), text())
            .prop_map(|(perms, scheme, id)| Acl { perms, identity: Identity { scheme, id } }),
        0..4,
    )
}

prop_compose! {
    fn stat()(longs in any::<[i64; 6]>(), ints in any::<[i32; 5]>()) -> Stat {
        let [czxid, mzxid, ctime, mtime, ephemeral_owner, pzxid] = longs;
        let [version, cversion, aversion, data_length, num_children] = ints;
        Stat { czxid, mzxid, ctime, mtime, version, cversion, aversion, ephemeral_owner, data_length, num_children, pzxid }
    }
}

fn create() -> impl Strategy<Value = Request> {
    let ops = proptest::sample::select(vec![op::CREATE, op::CREATE2, op::CREATE_CONTAINER, op::CREATE_TTL]);
    (ops, text(), data(), acls(), any::<i32>(), any::<i64>()).prop_map(|(op, path, data, acl, flags, ttl)| {
        let ttl = if op == op::CREATE_TTL { ttl } else { -1 };
        Request::Create(CreateRequest { op, path, data, acl, flags, ttl })
    })
}

fn write() -> impl Strategy<Value = Request> {
    prop_oneof![
        create(),
        (text(), any::<i32>()).prop_map(|(path, version)| Request::Delete { path, version }),
        (text(), any::<i32>()).prop_map(|(path, version)| Request::Check { path, version }),
        (text(), data(), any::<i32>()).prop_map(|(path, data, version)| Request::SetData {
            path,
            data,
            version
        }),
    ]
}

fn read() -> impl Strategy<Value = Request> {
    prop_oneof![
        (text(), any::<bool>()).prop_map(|(path, watch)| Request::GetData { path, watch }),
        (text(), any::<bool>()).prop_map(|(path, watch)| Request::GetChildren { path, watch }),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let texts = || vec(text(), 0..4);
    let both = proptest::option::of((texts(), texts()));
    prop_oneof![
        write(),
        read(),
        vec(write(), 0..5).prop_map(Request::Multi),
        vec(read(), 0..5).prop_map(Request::MultiRead),
        (text(), any::<bool>()).prop_map(|(path, watch)| Request::Exists { path, watch }),
        (text(), any::<bool>()).prop_map(|(path, watch)| Request::GetChildren2 { path, watch }),
        text().prop_map(|path| Request::GetAcl { path }),
        (text(), acls(), any::<i32>()).prop_map(|(path, acl, version)| Request::SetAcl {
            path,
            acl,
            version
        }),
        text().prop_map(|path| Request::Sync { path }),
        (text(), any::<i32>()).prop_map(|(path, kind)| Request::CheckWatches { path, kind }),
        (text(), any::<i32>()).prop_map(|(path, kind)| Request::RemoveWatches { path, kind }),
        (text(), any::<i32>()).prop_map(|(path, mode)| Request::AddWatch { path, mode }),
        (any::<i32>(), text(), vec(any::<u8>(), 0..20)).prop_map(|(kind, scheme, credentials)| {
            Request::Auth { kind, scheme, credentials: Hidden(credentials) }
        }),
        text().prop_map(|prefix| Request::GetEphemerals { prefix }),
        text().prop_map(|path| Request::GetAllChildrenNumber { path }),
        Just(Request::Ping),
        Just(Request::WhoAmI),
        Just(Request::CloseSession),
        Just(Request::Reconfig),
        data().prop_map(|token| Request::Sasl { token }),
        (any::<i64>(), texts(), texts(), texts(), both).prop_map(
            |(relative_zxid, data, exist, child, both)| {
                let (persistent, recursive) = both.unzip();
                Request::SetWatches(SetWatches { relative_zxid, data, exist, child, persistent, recursive })
            }
        ),
    ]
}

fn result() -> impl Strategy<Value = OpResult> {
    prop_oneof![
        text().prop_map(|path| OpResult::Create { path }),
        (text(), stat()).prop_map(|(path, stat)| OpResult::Create2 { path, stat }),
        Just(OpResult::Delete),
        stat().prop_map(OpResult::SetData),
        Just(OpResult::Check),
        (data(), stat()).prop_map(|(data, stat)| OpResult::GetData { data, stat }),
        vec(text(), 0..4).prop_map(OpResult::GetChildren),
        any::<i32>().prop_map(OpResult::Error),
    ]
}

fn reply() -> impl Strategy<Value = (i32, Reply)> {
    prop_oneof![
        Just((op::PING, Reply::Empty)),
        text().prop_map(|path| (op::CREATE, Reply::Path(path))),
        (text(), stat()).prop_map(|(path, stat)| (op::CREATE2, Reply::PathStat { path, stat })),
        stat().prop_map(|stat| (op::EXISTS, Reply::Stat(stat))),
        (data(), stat()).prop_map(|(data, stat)| (op::GET_DATA, Reply::Data { data, stat })),
        vec(text(), 0..4).prop_map(|children| (op::GET_CHILDREN, Reply::Children(children))),
        (vec(text(), 0..4), stat())
            .prop_map(|(children, stat)| (op::GET_CHILDREN2, Reply::ChildrenStat { children, stat })),
        (acls(), stat()).prop_map(|(acl, stat)| (op::GET_ACL, Reply::AclStat { acl, stat })),
        any::<i32>().prop_map(|number| (op::ADD_WATCH, Reply::Number(number))),
        data().prop_map(|token| (op::SASL, Reply::Token(token))),
        vec(result(), 0..5).prop_map(|results| (op::MULTI, Reply::Multi(results))),
        vec((text(), text()), 0..3).prop_map(|clients| (op::WHO_AM_I, Reply::Identities(clients))),
    ]
}

fn bytes_of(encode: impl FnOnce(&mut Writer<'_>)) -> BytesMut {
    let mut out = BytesMut::new();
    encode(&mut Writer::new(&mut out));
    out
}

proptest! {
    #[test]
    fn requests_round_trip(request in request(), xid in any::<i32>()) {
        let header = RequestHeader { xid, op: request.op() };
        let bytes = bytes_of(|writer| {
            header.encode(writer);
            request.encode(writer);
        });
        let mut reader = Reader::new(&bytes);
        prop_assert_eq!(RequestHeader::decode(&mut reader), Ok(header));
        prop_assert_eq!(Request::decode(header.op, &mut reader), Ok(request));
    }

    #[test]
    fn truncated_or_longer_request_is_an_error(request in request(), cut in any::<proptest::sample::Index>()) {
        let mut bytes = bytes_of(|writer| request.encode(writer));
        if !bytes.is_empty() {
            let at = cut.index(bytes.len());
            prop_assert!(Request::decode(request.op(), &mut Reader::new(&bytes[..at])).is_err());
        }
        bytes.extend_from_slice(&[0]);
        prop_assert!(Request::decode(request.op(), &mut Reader::new(&bytes)).is_err());
    }

    #[test]
    fn replies_round_trip((code, reply) in reply(), xid in any::<i32>(), zxid in any::<i64>(), err in any::<i32>()) {
        let header = ReplyHeader { xid, zxid, err };
        let bytes = bytes_of(|writer| {
            header.encode(writer);
            reply.encode(writer);
        });
        let mut reader = Reader::new(&bytes);
        prop_assert_eq!(ReplyHeader::decode(&mut reader), Ok(header));
        prop_assert_eq!(Reply::decode(code, &mut reader), Ok(reply));
    }

    #[test]
    fn truncated_or_longer_reply_is_an_error((code, reply) in reply(), cut in any::<proptest::sample::Index>()) {
        let mut bytes = bytes_of(|writer| reply.encode(writer));
        if !bytes.is_empty() {
            let at = cut.index(bytes.len());
            prop_assert!(Reply::decode(code, &mut Reader::new(&bytes[..at])).is_err());
        }
        bytes.extend_from_slice(&[0]);
        prop_assert!(Reply::decode(code, &mut Reader::new(&bytes)).is_err());
    }

    #[test]
    fn frames_are_found_however_the_bytes_arrive(
        bodies in vec(vec(any::<u8>(), 0..20), 0..6),
        pieces in vec(1..30_usize, 1..20),
    ) {
        let mut sent = BytesMut::new();
        for body in &bodies {
            Writer::frame(&mut sent, |writer| body.iter().for_each(|byte| writer.bool(*byte != 0)));
        }
        let (mut input, mut found) = (BytesMut::new(), Vec::new());
        let mut pieces = pieces.into_iter().cycle();
        while !sent.is_empty() {
            let piece = sent.split_to(pieces.next().expect("the cycle of lengths is endless").min(sent.len()));
            input.extend_from_slice(&piece);
            while let Some(frame) = split_frame(&mut input, 20).expect("frame lengths are within the limit") {
                found.push(frame.to_vec());
            }
        }
        let bodies: Vec<Vec<u8>> =
            bodies.iter().map(|body| body.iter().map(|byte| u8::from(*byte != 0)).collect()).collect();
        prop_assert_eq!(found, bodies);
        prop_assert!(input.is_empty());
    }

    #[test]
    fn connect_records_round_trip(
        longs in any::<[i64; 2]>(),
        timeout_ms in any::<i32>(),
        password in vec(any::<u8>(), 0..20).prop_map(Hidden),
        read_only in any::<Option<bool>>(),
    ) {
        let [last_zxid_seen, session] = longs;
        let request =
            ConnectRequest { protocol: 0, last_zxid_seen, timeout_ms, session, password: password.clone(), read_only };
        let bytes = bytes_of(|writer| request.encode(writer));
        prop_assert_eq!(ConnectRequest::decode(&bytes), Ok(request));
        let response = ConnectResponse { protocol: 0, timeout_ms, session, password, read_only };
        let bytes = bytes_of(|writer| response.encode(writer));
        prop_assert_eq!(ConnectResponse::decode(&bytes), Ok(response));
    }

    #[test]
    fn events_round_trip(path in text(), kind in 0..4_usize) {
        let kinds = [EventKind::Created, EventKind::Deleted, EventKind::DataChanged, EventKind::ChildrenChanged];
        let event = WatchEvent { kind: kinds[kind], path };
        let bytes = bytes_of(|writer| event.encode(writer));
        prop_assert_eq!(WatchEvent::decode(&mut Reader::new(&bytes)), Ok(event));
    }

    #[test]
    fn decoders_never_panic(code in -12..110_i32, bytes in vec(any::<u8>(), 0..200)) {
        let _ = Request::decode(code, &mut Reader::new(&bytes));
        let _ = Reply::decode(code, &mut Reader::new(&bytes));
        let _ = ConnectRequest::decode(&bytes);
        let _ = ConnectResponse::decode(&bytes);
        let _ = WatchEvent::decode(&mut Reader::new(&bytes));
    }
}
