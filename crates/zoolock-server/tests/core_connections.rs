//! The pure core and the connections that it ends.

use std::net::{IpAddr, Ipv4Addr};

use bytes::BytesMut;
use zoolock_server::core::{ConnId, Core, CoreConfig, Fresh, Now};
use zoolock_server::wire::{ConnectRequest, Request, RequestHeader, Writer};
use zoolock_server::{Access, Hidden, txn};

const NOW: Now = Now { mono_ms: 0, wall_ms: 1 };

fn core(max_output: usize) -> Core {
    let config = CoreConfig {
        tick_ms: 1000,
        min_timeout_ms: 2000,
        max_timeout_ms: 20_000,
        access: Access::default(),
        max_output,
        extended_types: true,
        max_queued: 0,
        max_watches: 0,
        journal: false,
    };
    Core::new(config, 1)
}

fn connect(core: &mut Core, id: u64) -> ConnId {
    let conn = core.open(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let request = ConnectRequest {
        protocol: 0,
        last_zxid_seen: 0,
        timeout_ms: 4000,
        session: 0,
        password: Hidden(vec![0; 16]),
        read_only: None,
    };
    let mut frame = BytesMut::new();
    request.encode(&mut Writer::new(&mut frame));
    core.receive(conn, &frame, NOW, || Fresh { id, password: txn::Password([9; 16]) });
    conn
}

fn ask(core: &mut Core, conn: ConnId, request: &Request) {
    let mut frame = BytesMut::new();
    let mut writer = Writer::new(&mut frame);
    RequestHeader { xid: 1, op: request.op() }.encode(&mut writer);
    request.encode(&mut writer);
    core.receive(conn, &frame, NOW, || unreachable!("it has a session"));
}

#[test]
fn who_is_cut_off_is_woken_though_he_was_woken_before() {
    let mut core = core(1000);
    let (watcher, writer) = (connect(&mut core, 1), connect(&mut core, 2));
    ask(&mut core, watcher, &Request::AddWatch { path: "/".to_owned(), mode: 1 });
    core.take_output(watcher, &mut BytesMut::new());
    let set = Request::SetData { path: "/zookeeper".to_owned(), data: None, version: -1 };
    ask(&mut core, writer, &set);
    assert_eq!(core.take_woken(), [watcher]);
    // His task takes nothing meanwhile: it has enough to write, and its peer does not read.
    while !core.is_cut_off(watcher) {
        assert_eq!(core.take_woken(), []);
        ask(&mut core, writer, &set);
    }
    assert_eq!(core.take_woken(), [watcher]);
}

#[test]
fn what_waits_for_connections_that_are_ended_counts_no_more() {
    let mut core = core(1000);
    let conns: Vec<ConnId> = (1..4).map(|id| connect(&mut core, id)).collect();
    assert!(core.stats().queued > 0);
    core.disconnect_all();
    for conn in conns {
        core.closed(conn, NOW);
    }
    assert_eq!(core.stats().queued, 0);
}
