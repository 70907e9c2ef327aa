//! Encoding and decoding of log and snapshot records, also of invalid ones.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use zoolock_server::acl::{self, AclList};
use zoolock_server::log::codec::{
    decode_acl, decode_node, decode_session, decode_txn, encode_acl, encode_node, encode_session, encode_txn,
};
use zoolock_server::log::replay;
use zoolock_server::tree::{CONTAINER, NodeMeta, NodeRecord};
use zoolock_server::txn::{Change, Create, Password, Txn, WriteRefusal};
use zoolock_server::{SessionId, State, StoredSession, Zxid};
use zoolock_wire::{Acl, Code, Identity, Reader, Writer};

fn zxid() -> impl Strategy<Value = Zxid> {
    any::<i64>().prop_map(Zxid)
}

fn path() -> impl Strategy<Value = Arc<str>> {
    prop_oneof!["(/[a-d]){1,3}", ".*"].prop_map(Arc::from)
}

fn data() -> impl Strategy<Value = Option<Bytes>> {
    proptest::option::of(vec(any::<u8>(), 0..40).prop_map(Bytes::from))
}

fn list() -> impl Strategy<Value = AclList> {
    let entry = (any::<i32>(), "[a-z]{0,5}", ".{0,9}")
        .prop_map(|(perms, scheme, id)| Acl { perms, identity: Identity::new(&scheme, id) });
    prop_oneof![Just(acl::open_list()), vec(entry, 0..4).prop_map(AclList::from)]
}

fn password() -> impl Strategy<Value = Password> {
    any::<[u8; 16]>().prop_map(Password)
}

fn owner() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(CONTAINER), 1..5_i64, any::<i64>()]
}

fn single() -> impl Strategy<Value = Change> {
    prop_oneof![
        (path(), data(), list(), owner(), any::<i32>(), any::<bool>()).prop_map(
            |(path, data, acl, owner, parent_created, with_stat)| Change::Create(Create {
                path,
                data,
                acl,
                owner,
                parent_created,
                with_stat
            })
        ),
        path().prop_map(|path| Change::Delete { path }),
        (path(), data(), any::<i32>()).prop_map(|(path, data, version)| Change::SetData {
            path,
            data,
            version
        }),
        (path(), list(), any::<i32>()).prop_map(|(path, acl, version)| Change::SetAcl { path, acl, version }),
        Just(Change::Check),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        5 => single(),
        2 => vec(single(), 0..5).prop_map(Change::Multi),
        1 => (any::<u32>(), password())
            .prop_map(|(timeout_ms, password)| Change::CreateSession { timeout_ms, password }),
        1 => Just(Change::CloseSession { ephemerals: Vec::new() }),
        1 => vec(path(), 0..3).prop_map(|ephemerals| Change::ClosePart { ephemerals }),
    ]
}

fn txn(change: impl Strategy<Value = Change>) -> impl Strategy<Value = Txn> {
    let session = prop_oneof![0..5_i64, any::<i64>()].prop_map(SessionId);
    (zxid(), session, any::<i64>(), change).prop_map(|(zxid, session, time, change)| Txn {
        zxid,
        session,
        time,
        change,
    })
}

fn encoded(txn: &Txn) -> BytesMut {
    let mut out = BytesMut::new();
    encode_txn(txn, &mut out).expect("the transaction can be logged");
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(super::iterations(2000, 100_000) as u32))]

    #[test]
    fn transaction_round_trips(txn in txn(change())) {
        let bytes = encoded(&txn);
        prop_assert_eq!(decode_txn(&bytes), Ok(txn));
    }

    #[test]
    fn transaction_of_wrong_length_is_refused(txn in txn(change()), extra in any::<u8>()) {
        let mut bytes = encoded(&txn);
        for len in 0..bytes.len() {
            prop_assert!(decode_txn(&bytes[..len]).is_err());
        }
        bytes.extend([extra]);
        prop_assert!(decode_txn(&bytes).is_err());
    }

    #[test]
    fn snapshot_records_round_trip(
        session in (any::<i64>(), any::<u32>(), password()),
        node in (path(), data(), list(), owner(), vec(zxid(), 3), vec(any::<i64>(), 2), vec(any::<i32>(), 3)),
    ) {
        let (id, timeout_ms, password) = session;
        let (id, session) = (SessionId(id), StoredSession { timeout_ms, password });
        let mut out = BytesMut::new();
        encode_session(id, &session, &mut out);
        let mut reader = Reader::new(&out);
        prop_assert_eq!(decode_session(&mut reader), Ok((id, session)));
        prop_assert!(reader.is_empty());

        let (path, data, acl, owner, zxids, times, counts) = node;
        let node = NodeRecord {
            path: path.as_ref().to_owned(), data, acl: acl.clone(), meta: NodeMeta {
                czxid: zxids[0], mzxid: zxids[1], pzxid: zxids[2], ctime: times[0], mtime: times[1],
                version: counts[0], created: counts[1], aversion: counts[2], owner,
            },
        };
        let mut out = BytesMut::new();
        encode_node(&node, 1, &mut out);
        let mut reader = Reader::new(&out);
        prop_assert_eq!(decode_node(&[acl::open_list(), acl.clone()], &mut reader), Ok(node));
        prop_assert!(reader.is_empty());
        prop_assert!(decode_node(&[acl::open_list()], &mut Reader::new(&out)).is_err());

        let mut out = BytesMut::new();
        encode_acl(&acl, &mut Writer::new(&mut out));
        prop_assert_eq!(decode_acl(&mut Reader::new(&out)), Ok(acl));
    }

    /// Checks that replay never panics, and that the transactions that replay accepts make a valid
    /// tree.
    #[test]
    fn replay_refuses_invalid_changes(changes in vec((0..4_i64, plausible_change()), 1..40)) {
        let mut state = State::new(0);
        for (i, (session, change)) in (1..).zip(changes) {
            let txn = Txn { zxid: Zxid(i), session: SessionId(session), time: 0, change };
            if replay(txn, &mut state).is_ok() {
                prop_assert_eq!(state.zxid.0, i);
            }
            let again = zoolock_server::tree::Tree::from_records(state.tree.records());
            let again = again.map_err(TestCaseError::fail)?;
            for record in state.tree.records() {
                let children = |tree: &zoolock_server::tree::Tree| tree.get(&record.path).map(|node| node.stat());
                prop_assert_eq!(children(&again), children(&state.tree));
                let owned = record.meta.owner > 0;
                let owner = SessionId(record.meta.owner);
                prop_assert!(!owned || state.sessions.contains_key(&owner) || state.ending.contains(&owner));
                prop_assert!(!owned || children(&state.tree).is_some_and(|stat| stat.num_children == 0));
            }
        }
    }
}

/// Generates changes that are sometimes valid.
fn plausible_change() -> impl Strategy<Value = Change> {
    let path = || prop_oneof![9 => "(/[ab]){1,3}", 1 => "[/a]{0,3}"].prop_map(Arc::from);
    let one = move || {
        prop_oneof![
            4 => (path(), prop_oneof![4 => Just(0), 4 => 1..4_i64, 1 => Just(CONTAINER), 1 => Just(-7)]).prop_map(
                |(path, owner)| Change::Create(Create {
                    path, data: None, acl: acl::open_list(), owner, parent_created: -1, with_stat: false
                })
            ),
            2 => path().prop_map(|path| Change::Delete { path }),
            1 => path().prop_map(|path| Change::SetData { path, data: None, version: 1 }),
            1 => path().prop_map(|path| Change::SetAcl { path, acl: acl::open_list(), version: 1 }),
        ]
    };
    prop_oneof![
        6 => one(),
        2 => vec(one(), 0..4).prop_map(Change::Multi),
        2 => Just(Change::CreateSession { timeout_ms: 1, password: Password([0; 16]) }),
        1 => Just(Change::CloseSession { ephemerals: Vec::new() }),
        1 => vec(path(), 0..3).prop_map(|ephemerals| Change::ClosePart { ephemerals }),
        1 => Just(Change::Refused(WriteRefusal::One(Code::NoNode))),
    ]
}

#[test]
fn unreadable_changes_are_not_encoded() {
    let session = || Change::CreateSession { timeout_ms: 1, password: Password([0; 16]) };
    let bad = [
        Change::Refused(WriteRefusal::One(Code::NoNode)),
        Change::Multi(vec![Change::Multi(Vec::new())]),
        Change::Multi(vec![session()]),
        Change::Multi(vec![Change::CloseSession { ephemerals: Vec::new() }]),
        Change::Multi(vec![Change::ClosePart { ephemerals: Vec::new() }]),
    ];
    for change in bad {
        let txn = Txn { zxid: Zxid(1), session: SessionId::NONE, time: 0, change };
        assert!(encode_txn(&txn, &mut BytesMut::new()).is_err(), "{txn:?}");
    }
}
