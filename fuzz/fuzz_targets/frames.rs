//! Frames and records: several connections send whatever they like to a whole server.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use zoolock_server::core::{ConnId, Core, CoreConfig, Fresh, Now};
use zoolock_server::wire::{ConnectRequest, Reader, Reply, Request, RequestHeader, Writer};
use zoolock_server::{Hidden, txn};

const CONFIG: CoreConfig = CoreConfig {
    tick_ms: 100,
    min_timeout_ms: 200,
    max_timeout_ms: 4000,
    secret: None,
    super_digest: None,
    max_output: 1 << 20,
    journal: false,
};

fuzz_target!(|data: &[u8]| {
    round_trips(data);
    let mut core = Core::new(CONFIG, 1);
    let (mut now, mut seed) = (Now { mono_ms: 0, wall_ms: 1 }, 0);
    let mut conns: Vec<ConnId> = (0..3).map(|_| connect(&mut core, now, &mut seed)).collect();
    let mut rest = data;
    while let Some((&[action, len], after)) = rest.split_first_chunk() {
        let (frame, after) = after.split_at(after.len().min(usize::from(len)));
        rest = after;
        let who = usize::from(action) % conns.len();
        match action >> 4 {
            0 => conns[who] = core.open(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            1 => conns[who] = connect(&mut core, now, &mut seed),
            2 => core.closed(conns[who], now),
            3 => {
                now.mono_ms += u64::from(len) * 20;
                now.wall_ms += i64::from(len) * 20;
                core.tick(now);
                core.remove_empty_containers(now);
            }
            _ => {
                let fresh = || fresh(&mut seed);
                core.receive(conns[who], frame, now, fresh);
            }
        }
        for &conn in &conns {
            let mut out = BytesMut::new();
            core.take_output(conn, &mut out);
            whole_frames(&out);
        }
        core.take_woken();
    }
});

fn connect(core: &mut Core, now: Now, seed: &mut u64) -> ConnId {
    let conn = core.open(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let request = ConnectRequest {
        protocol: 0,
        last_zxid_seen: 0,
        timeout_ms: 1000,
        session: 0,
        password: Hidden(vec![0; 16]),
        read_only: None,
    };
    let mut frame = BytesMut::new();
    request.encode(&mut Writer::new(&mut frame));
    core.receive(conn, &frame, now, || fresh(seed));
    conn
}

fn fresh(seed: &mut u64) -> Fresh {
    *seed += 1;
    Fresh { id: *seed, password: txn::Password([9; 16]) }
}

/// What is decoded is encoded to the same, and no decoder panics.
fn round_trips(data: &[u8]) {
    let _ = ConnectRequest::decode(data);
    let mut reader = Reader::new(data);
    let Ok(header) = RequestHeader::decode(&mut reader) else { return };
    let _ = Reply::decode(header.op, &mut Reader::new(data));
    if let Ok(request) = Request::decode(header.op, &mut reader) {
        let mut out = BytesMut::new();
        header.encode(&mut Writer::new(&mut out));
        request.encode(&mut Writer::new(&mut out));
        let mut again = Reader::new(&out);
        RequestHeader::decode(&mut again).expect("we wrote it");
        let decoded = Request::decode(header.op, &mut again).expect("we wrote it");
        assert_eq!(decoded, request);
    }
}

fn whole_frames(mut out: &[u8]) {
    while let Some((len, rest)) = out.split_first_chunk() {
        out = rest.get(u32::from_be_bytes(*len) as usize..).expect("a whole frame");
    }
    assert!(out.is_empty(), "a cut frame");
}
