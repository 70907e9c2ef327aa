//! Connections that the core closes or refuses.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use bytes::BytesMut;
use zoolock_server::core::{ConnId, Core, CoreConfig, Now};
use zoolock_wire::{Acl, ConnectRequest, CreateRequest, Hidden, Identity, Request, Writer, op, perms};

use crate::core_client::{LOCALHOST, config, connect, connect_from, send_request};

const NOW: Now = Now { mono_ms: 0, wall_ms: 1 };

#[test]
fn cut_off_connection_is_woken_again() {
    let mut core = Core::new(CoreConfig { max_output: 1000, ..config() }, 1);
    let (watcher, writer) = (connect(&mut core, 1, NOW), connect(&mut core, 2, NOW));
    send_request(&mut core, watcher, &Request::AddWatch { path: "/".to_owned(), mode: 1 }, NOW);
    core.take_output(watcher, &mut BytesMut::new());
    let acl = vec![Acl::anyone(perms::ALL)];
    let create = CreateRequest { op: op::CREATE, path: "/a".into(), data: None, acl, flags: 0, ttl: 0 };
    send_request(&mut core, writer, &Request::Create(create), NOW);
    core.take_output(watcher, &mut BytesMut::new());
    core.take_woken();
    let set = Request::SetData { path: "/a".to_owned(), data: None, version: -1 };
    send_request(&mut core, writer, &set, NOW);
    assert_eq!(core.take_woken(), [watcher]);
    // The watcher's task takes no output meanwhile: its own buffer is full, because its peer does not read.
    while !core.is_cut_off(watcher) {
        assert_eq!(core.take_woken(), []);
        send_request(&mut core, writer, &set, NOW);
    }
    assert_eq!(core.take_woken(), [watcher]);
}

#[test]
fn disconnect_clears_queued_bytes() {
    let mut core = Core::new(config(), 1);
    let conn = connect(&mut core, 1, NOW);
    assert!(core.stats().queued > 0);
    core.disconnect_all();
    assert_eq!(core.stats().queued, 0);
    core.remove_connection(conn, NOW);
    assert_eq!(core.stats().queued, 0);
}

/// Opens a session with an ephemeral znode.
fn hold(core: &mut Core, id: u64) -> ConnId {
    hold_from(core, LOCALHOST, id)
}

/// Does the same as [`hold`] for a client with this address.
fn hold_from(core: &mut Core, address: IpAddr, id: u64) -> ConnId {
    let conn = connect_from(core, address, id, NOW);
    let (path, acl) = (format!("/held{id}"), vec![Acl::anyone(perms::ALL)]);
    let create = CreateRequest { op: op::CREATE, path, data: None, acl, flags: 1, ttl: 0 };
    send_request(core, conn, &Request::Create(create), NOW);
    conn
}

/// Limits of 100 connections, in all or of one address. Of these, 25 can be reserved.
fn limits() -> [CoreConfig; 2] {
    [
        CoreConfig { max_connections: 100, ..config() },
        CoreConfig { max_connections_per_address: 100, ..config() },
    ]
}

/// Opens sessions with an ephemeral znode, and ends their connections.
fn leave_holders(core: &mut Core, address: IpAddr, ids: Range<u64>) {
    for id in ids {
        let holder = hold_from(core, address, id);
        core.remove_connection(holder, NOW);
    }
}

/// Opens new sessions until one is refused. Returns their connections.
fn connect_newcomers(core: &mut Core, address: IpAddr) -> Vec<ConnId> {
    let connect_next = |id| {
        let conn = connect_from(core, address, id, NOW);
        let is_admitted = core.is_admitted(conn);
        if !is_admitted {
            assert!(core.take_output(conn, &mut BytesMut::new()), "the connection is closed");
            core.remove_connection(conn, NOW);
        }
        is_admitted.then_some(conn)
    };
    (10_000..10_200).map_while(connect_next).collect()
}

#[test]
fn new_session_gets_no_reserved_connection() {
    for config in limits() {
        let mut core = Core::new(config, 1);
        leave_holders(&mut core, LOCALHOST, 1..11);
        assert_eq!(connect_newcomers(&mut core, LOCALHOST).len(), 90);
        assert_eq!(core.stats().refused, 1);
        // The sessions of the holders expire, and those of the newcomers.
        core.expire_due_sessions(Now { mono_ms: 60_000, ..NOW });
        let later = connect(&mut core, 20_000, Now { mono_ms: 60_000, ..NOW });
        assert!(core.is_admitted(later));
    }
}

#[test]
fn sessions_that_hang_up_leave_room_for_newcomers() {
    for config in limits() {
        let mut core = Core::new(config, 1);
        leave_holders(&mut core, LOCALHOST, 1..301);
        assert_eq!(connect_newcomers(&mut core, LOCALHOST).len(), 75);
    }
}

/// docs/design/limits.md has these figures.
#[test]
fn quarter_is_left_for_holders_after_restart() {
    for config in limits() {
        let mut before = Core::new(config.clone(), 1);
        for id in 1..91 {
            hold(&mut before, id);
        }
        let restart = || Core::restore(config.clone(), before.state().clone(), 2, NOW);
        assert_eq!(connect_newcomers(&mut restart(), LOCALHOST).len(), 75);
    }
}

#[test]
fn holders_that_restart_together_all_connect() {
    for config in limits() {
        let mut core = Core::new(config, 1);
        leave_holders(&mut core, LOCALHOST, 1..74);
        let restarted: Vec<ConnId> = (101..174).map(|id| hold(&mut core, id)).collect();
        assert!(restarted.iter().all(|&conn| core.is_admitted(conn)));
    }
}

#[test]
fn reserved_connections_are_left_for_holders() {
    for config in limits() {
        let mut core = Core::new(config, 1);
        leave_holders(&mut core, LOCALHOST, 1..26);
        let newcomers = connect_newcomers(&mut core, LOCALHOST);
        let sessions: Vec<_> = core.state().sessions.keys().copied().collect();
        let detached: Vec<_> = sessions
            .into_iter()
            .filter(|session| !core.state().tree.ephemerals(*session).is_empty())
            .collect();
        for session in &detached {
            let conn = core.add_connection(LOCALHOST);
            let password = Hidden(vec![9; 16]);
            let request =
                ConnectRequest { session: session.0, password, ..ConnectRequest::new_session(4000) };
            let mut bytes = BytesMut::new();
            request.encode(&mut Writer::new(&mut bytes));
            core.receive(conn, &bytes, NOW, || unreachable!("the session exists"));
            assert!(core.is_admitted(conn));
        }
        assert_eq!(newcomers.len() + detached.len(), 100);
    }
}

#[test]
fn connections_are_reserved_per_client_address() {
    let other = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let mut core = Core::new(CoreConfig { max_connections_per_address: 8, ..config() }, 1);
    leave_holders(&mut core, other, 1..3);
    assert_eq!(connect_newcomers(&mut core, LOCALHOST).len(), 8);
    // Two connections of the other address are reserved for its holders.
    assert_eq!(connect_newcomers(&mut core, other).len(), 6);
}

#[test]
fn refused_sessions_are_counted() {
    let mut core = Core::new(CoreConfig { max_sessions: 2, ..config() }, 1);
    assert_eq!(connect_newcomers(&mut core, LOCALHOST).len(), 2);
    assert_eq!(core.stats().refused, 1);
}

#[test]
fn mapped_address_has_the_permissions_of_its_ipv4_address() {
    let mut core = Core::new(config(), 1);
    let mapped = IpAddr::V6(Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped());
    let client = connect_from(&mut core, mapped, 1, NOW);
    let outsider = connect_from(&mut core, IpAddr::V4(Ipv4Addr::new(10, 1, 3, 3)), 2, NOW);
    let create = |path: &str| {
        let acl = vec![Acl { perms: perms::ALL, identity: Identity::new("ip", "10.1.2.0/24") }];
        let path = path.to_owned();
        Request::Create(CreateRequest { op: op::CREATE, path, data: None, acl, flags: 0, ttl: 0 })
    };
    send_request(&mut core, client, &create("/subnet"), NOW);
    let before = core.last_change();
    send_request(&mut core, outsider, &create("/subnet/child"), NOW);
    assert_eq!(core.last_change(), before, "a client outside of the subnet created a znode");
    send_request(&mut core, client, &create("/subnet/child"), NOW);
    assert!(core.last_change() > before, "a client of the subnet was refused");
}
