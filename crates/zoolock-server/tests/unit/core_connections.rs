//! Connections that the core closes or refuses.

use std::net::{IpAddr, Ipv4Addr};

use bytes::BytesMut;
use zoolock_server::core::{ConnId, Core, CoreConfig, Now};
use zoolock_wire::{Acl, CreateRequest, Identity, Request, op, perms};

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

#[test]
fn new_session_gets_no_reserved_connection() {
    let limits = [
        CoreConfig { max_connections: 3, ..config() },
        CoreConfig { max_connections_per_address: 3, ..config() },
    ];
    for config in limits {
        let mut core = Core::new(config, 1);
        let holders = [hold(&mut core, 1), hold(&mut core, 2)];
        for holder in holders {
            core.remove_connection(holder, NOW);
        }
        // The third connection is not reserved.
        let first = connect(&mut core, 3, NOW);
        assert!(core.is_admitted(first));
        let second = connect(&mut core, 4, NOW);
        assert!(!core.is_admitted(second));
        assert!(core.take_output(second, &mut BytesMut::new()), "the connection is closed");
        core.remove_connection(second, NOW);
        // The sessions of the holders expire.
        core.expire_due_sessions(Now { mono_ms: 60_000, ..NOW });
        let third = connect(&mut core, 5, Now { mono_ms: 60_000, ..NOW });
        assert!(core.is_admitted(third));
    }
}

#[test]
fn connections_are_reserved_per_client_address() {
    let other = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let mut core = Core::new(CoreConfig { max_connections_per_address: 2, ..config() }, 1);
    for id in 1..=2 {
        let holder = hold_from(&mut core, other, id);
        core.remove_connection(holder, NOW);
    }
    for id in 3..=4 {
        let ours = connect(&mut core, id, NOW);
        assert!(core.is_admitted(ours), "session {id} was refused");
    }
    // Both connections of the other address are reserved for its holders.
    let newcomer = connect_from(&mut core, other, 5, NOW);
    assert!(!core.is_admitted(newcomer));
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
