//! Writes the seeds of all targets: inputs of every kind, which the fuzzer then varies.
//!
//! `cargo run --manifest-path verification/fuzz/Cargo.toml --example seeds -- verification/fuzz/seeds`

use std::path::{Path, PathBuf};

use bytes::BytesMut;
use zoolock_fuzz::sim_disk::Random;
use zoolock_fuzz::{Input, PATHS, frame};
use zoolock_server::acl::AclList;
use zoolock_server::log::codec;
use zoolock_server::tree::Tree;
use zoolock_server::txn::{Change, Create, Password, Txn};
use zoolock_server::{FourLetterWord, SessionId, Zxid, fuzzing};
use zoolock_wire::{
    Acl, ConnectRequest, ConnectResponse, EventKind, Hidden, Identity, OpResult, Reply, ReplyHeader, Request,
    Stat, WatchEvent, Writer, op,
};

fn main() -> std::io::Result<()> {
    let dir = PathBuf::from(std::env::args_os().nth(1).expect("the directory for the seeds"));
    frames(&dir.join("frames"))?;
    log(&dir.join("log"))?;
    multi(&dir.join("multi"))?;
    paths_acls(&dir.join("paths_acls"))?;
    replies(&dir.join("replies"))?;
    words_http(&dir.join("words_http"))
}

fn frames(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let mut random = Random(1);
    for i in 0..24_u8 {
        // A configuration, then random requests and other actions.
        let mut seed = vec![[0, 0, 0, 1, 2, 3, 64, 128][usize::from(i % 8)]];
        seed.extend((0..300).map(|_| random.number() as u8));
        std::fs::write(dir.join(format!("life-{i:02}")), seed)?;
    }
    for (i, request) in requests(&mut random).iter().enumerate() {
        // The request is written as bytes, which the fuzzer can damage.
        let frame = frame(1, request);
        let mut seed = vec![0, 6 << 3, frame.len() as u8];
        seed.extend_from_slice(&frame);
        std::fs::write(dir.join(format!("frame-{i:02}")), seed)?;
        std::fs::write(dir.join(format!("record-{i:02}")), frame)?;
    }
    Ok(())
}

fn replies(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let write = |name: &str, head: &[u8], encode: &dyn Fn(&mut Writer<'_>)| {
        let mut seed = BytesMut::from(head);
        encode(&mut Writer::new(&mut seed));
        std::fs::write(dir.join(name), seed)
    };
    let stat = Stat { czxid: 1, mzxid: 2, pzxid: 3, num_children: 2, ..Stat::default() };
    let children = vec!["lock-0000000000".to_owned(), "lock-0000000001".to_owned()];
    let data = Some("record".into());
    let replies = [
        (op::CREATE, Reply::Path("/a".to_owned())),
        (op::CREATE2, Reply::PathStat { path: "/a".to_owned(), stat }),
        (op::EXISTS, Reply::Stat(stat)),
        (op::GET_DATA, Reply::Data { data, stat }),
        (op::GET_CHILDREN, Reply::Children(children.clone())),
        (op::GET_CHILDREN2, Reply::ChildrenStat { children: children.clone(), stat }),
        (op::GET_ACL, Reply::AclStat { acl: vec![Acl::anyone(31)], stat }),
        (op::ADD_WATCH, Reply::Number(0)),
        (op::SASL, Reply::Token(Some("token".into()))),
        (op::WHO_AM_I, Reply::Identities(vec![("ip".to_owned(), "127.0.0.1".to_owned())])),
        (
            op::MULTI,
            Reply::Multi(vec![
                OpResult::Create { path: "/a".to_owned() },
                OpResult::Create2 { path: "/a".to_owned(), stat },
                OpResult::Delete,
                OpResult::SetData(stat),
                OpResult::Check,
                OpResult::GetChildren(children),
                OpResult::Error(-101),
            ]),
        ),
    ];
    for (i, (code, reply)) in replies.iter().enumerate() {
        write(&format!("reply-{i:02}"), &[3, *code as u8], &|writer| reply.encode(writer))?;
    }
    let response = ConnectResponse {
        protocol: 0,
        timeout_ms: 30_000,
        session: 1,
        password: Hidden(vec![7; 16]),
        read_only: Some(false),
    };
    write("connect", &[1], &|writer| response.encode(writer))?;
    let event = WatchEvent { kind: EventKind::Deleted, path: "/a".to_owned() };
    write("event", &[2], &|writer| event.encode(writer))?;
    let mut frames = BytesMut::new();
    for xid in 0..3 {
        Writer::frame(&mut frames, |writer| ReplyHeader { xid, zxid: 9, err: 0 }.encode(writer));
    }
    // A limit in two bytes, then pieces that begin with their length.
    let pieces = frames.chunks(25).flat_map(|piece| [&[piece.len() as u8], piece].concat());
    std::fs::write(dir.join("frames"), [0, 1, 0].into_iter().chain(pieces).collect::<Vec<u8>>())
}

fn log(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let mut random = Random(4);
    // A damaged history, a history with a crash, forged segments, and a forged snapshot.
    for (name, kind) in [("damaged", 0), ("crashed", 3), ("segments", 4), ("snapshot", 6)] {
        for i in 0..10 {
            let mut seed = vec![kind];
            seed.extend((0..300).map(|_| random.number() as u8));
            if kind == 4 {
                seed[1..].iter_mut().for_each(|byte| *byte %= 240);
            }
            std::fs::write(dir.join(format!("{name}-{i}")), seed)?;
        }
    }
    let acl: AclList = [Acl::anyone(1)].into();
    let create = Create {
        path: "/a".into(),
        data: Some("x".into()),
        acl,
        owner: 0,
        parent_created: 1,
        with_stat: true,
    };
    let changes = [
        Change::Create(create.clone()),
        Change::Delete { path: "/a".into() },
        Change::SetData { path: "/a".into(), data: None, version: 1 },
        Change::SetAcl { path: "/a".into(), acl: create.acl.clone(), version: 1 },
        Change::Multi(vec![Change::Create(create), Change::Check]),
        Change::CreateSession { timeout_ms: 1000, password: Password([1; 16]) },
        Change::CloseSession { ephemerals: Vec::new() },
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let session = SessionId(1);
        let txn = Txn { zxid: Zxid(1), session, time: 1, change };
        let mut bytes = BytesMut::from(&[7_u8, 0][..]);
        codec::encode_txn(&txn, &mut bytes).expect("the transaction can be logged");
        std::fs::write(dir.join(format!("record-{i}")), &bytes)?;
    }
    let mut bytes = BytesMut::from(&[7_u8, 2][..]);
    let root = Tree::new().records().next().expect("the tree has a root");
    codec::encode_node(&root, 0, &mut bytes);
    std::fs::write(dir.join("znode"), &bytes)
}

/// Returns one request of each kind, short enough for a frame of a seed.
fn requests(random: &mut Random) -> Vec<Request> {
    let one = |kind: u8, random: &mut Random| {
        loop {
            let mut bytes = vec![kind];
            bytes.extend((0..60).map(|_| (random.number() % 240) as u8));
            let request = Input::new(&bytes).request();
            if frame(1, &request).len() < 250 {
                return request;
            }
        }
    };
    (0..32).map(|kind| one(kind, random)).collect()
}

fn multi(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let mut random = Random(2);
    for i in 0..16 {
        let mut seed = vec![if i % 4 == 0 { 10 } else { 2 }];
        seed.extend((0..20 + 8 * i).map(|_| random.number() as u8));
        std::fs::write(dir.join(format!("ops-{i:02}")), seed)?;
    }
    let multis = (0..60).flat_map(|_| requests(&mut random));
    let multis = multis.filter(|request| matches!(request, Request::Multi(_) | Request::MultiRead(_)));
    for (i, request) in multis.take(16).enumerate() {
        let mut seed = vec![u8::from(matches!(request, Request::MultiRead(_)))];
        seed.extend_from_slice(&frame(1, &request)[8..]);
        std::fs::write(dir.join(format!("bytes-{i:02}")), seed)?;
    }
    Ok(())
}

fn paths_acls(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    for (i, path) in PATHS.into_iter().chain(["/a/./b", "/a/../b", "/\u{7f}", "/é", "/\u{f900}"]).enumerate()
    {
        std::fs::write(dir.join(format!("path-{i:02}")), format!("\0{path}"))?;
    }
    let ids = [
        ("world", "anyone"),
        ("auth", ""),
        ("digest", "me:hash"),
        ("ip", "10.1.2.0/23"),
        ("ip", "2001:db8::/32"),
        ("x509", "CN=me,O=\"us, and\\; them\"+OU=#0403"),
        ("x509", "1.2.3=a;DC=b"),
    ];
    for (i, (scheme, id)) in ids.into_iter().enumerate() {
        let list = [Acl { perms: 31, identity: Identity::new(scheme, id) }, Acl::anyone(1)];
        let mut bytes = BytesMut::from(&[1_u8][..]);
        Acl::encode_list(&list, &mut Writer::new(&mut bytes));
        std::fs::write(dir.join(format!("list-{i:02}")), &bytes)?;
    }
    // The part of a certificate that the server reads, with a common name as its subject.
    for (name, text) in [("certificate", &b"\x0c\x02me"[..]), ("certificate-bmp", b"\x1e\x02\0m")] {
        let mut der = [b"\x06\x03\x55\x04\x03", text].concat();
        for tag in [0x30, 0x31, 0x30] {
            der = [&[tag, der.len() as u8], &der[..]].concat();
        }
        der = [b"\xa0\x03\x02\x01\x02\x02\x01\x01\x30\0\x30\0\x30\0", &der[..]].concat();
        for _ in 0..2 {
            der = [&[0x30, der.len() as u8], &der[..]].concat();
        }
        assert!(fuzzing::subject(&der).is_some_and(|subject| subject.starts_with("CN=")));
        std::fs::write(dir.join(name), [&[3, 0], &der[..]].concat())?;
    }
    let mut random = Random(3);
    for i in 0..8 {
        let mut seed = vec![2];
        seed.extend((0..40).map(|_| random.number() as u8 % 8));
        std::fs::write(dir.join(format!("entries-{i:02}")), seed)?;
        let mut seed = vec![3, 32];
        for text in [" a ", "a, \"b\"", "é\\\\;", "#<+>="] {
            seed.extend([(random.number() % 4) as u8, 0, (random.number() % 16) as u8, 0, text.len() as u8]);
            seed.extend_from_slice(text.as_bytes());
        }
        std::fs::write(dir.join(format!("names-{i:02}")), seed)?;
    }
    std::fs::write(dir.join("accounts"), b"\x04\x05me:pw# ours\n\nsuper:D/InIHSb7yEEbrWz8b9l71RjZJU=\r\n")
}

fn words_http(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let write = |name: &str, choice: u8, sizes: &[u8], bytes: &[u8]| {
        let seed = [&[choice | sizes.len() as u8], sizes, bytes].concat();
        std::fs::write(dir.join(name), seed)
    };
    for word in FourLetterWord::ALL {
        write(word.name(), 0, &[0], word.name().as_bytes())?;
    }
    for (name, bytes) in [
        ("tls", &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..]),
        ("ssh", b"SSH-2.0-OpenSSH_9.2\r\n"),
        ("get", b"GET / HTTP/1.1\r\n\r\n"),
        ("two", b"ru"),
        ("foreign", b"gtmk"),
        ("long", b"\x00\x00\x10\x01"),
    ] {
        write(name, 0, &[1], bytes)?;
    }
    let mut greeting = BytesMut::new();
    let request = ConnectRequest::new_session(10_000);
    Writer::frame(&mut greeting, |writer| request.encode(writer));
    write("greeting", 16, &[10, 20], &greeting)?;
    let mut random = Random(5);
    for (i, request) in requests(&mut random).iter().enumerate() {
        let mut bytes = greeting.to_vec();
        for request in [request, &Request::WhoAmI, &Request::CloseSession] {
            let frame = frame(1, request);
            bytes.extend((frame.len() as u32).to_be_bytes());
            bytes.extend_from_slice(&frame);
        }
        write(&format!("session-{i:02}"), (i as u8 % 6) << 5 & !64 | 8, &[30, 3], &bytes)?;
    }
    for (i, bytes) in [
        "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        "GET /ready HTTP/1.1\r\n\r\nGET /live HTTP/1.1\r\n\r\n",
        "GET /live HTTP/1.0\r\n\r\n",
        "HEAD /metrics?x=%20 HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /ready HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "POST /none HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET http://a/live HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        write(&format!("http-{i}"), 64 | 24, &[5, 9], bytes.as_bytes())?;
    }
    Ok(())
}
