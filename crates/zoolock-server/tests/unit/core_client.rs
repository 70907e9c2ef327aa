//! Functions that connect clients to a core without sockets, and send their requests.

use std::net::{IpAddr, Ipv4Addr};

use bytes::BytesMut;
use zoolock_server::core::{ConnId, Core, CoreConfig, Now, SessionSeed};
use zoolock_server::txn;
use zoolock_wire::{ConnectRequest, Request, RequestHeader, Writer};

pub(crate) const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Returns a configuration with short session timeouts.
pub(crate) fn config() -> CoreConfig {
    CoreConfig {
        tick_ms: 1000,
        min_timeout_ms: 2000,
        max_timeout_ms: 20_000,
        max_output: 1 << 20,
        ..CoreConfig::default()
    }
}

/// Opens a connection and a session. The session id is made from `id`.
pub(crate) fn connect(core: &mut Core, id: u64, now: Now) -> ConnId {
    connect_from(core, LOCALHOST, id, now)
}

/// Does the same as [`connect`] for a client with this address.
pub(crate) fn connect_from(core: &mut Core, address: IpAddr, id: u64, now: Now) -> ConnId {
    let conn = core.add_connection(address);
    let request = ConnectRequest { read_only: None, ..ConnectRequest::new_session(4000) };
    let mut bytes = BytesMut::new();
    request.encode(&mut Writer::new(&mut bytes));
    core.receive(conn, &bytes, now, || SessionSeed { id, password: txn::Password([9; 16]) });
    conn
}

/// Sends a request on a connection that has a session.
pub(crate) fn send_request(core: &mut Core, conn: ConnId, request: &Request, now: Now) {
    core.receive(conn, &frame(request), now, || unreachable!("the session exists"));
}

/// Encodes a request with its header.
pub(crate) fn frame(request: &Request) -> BytesMut {
    let mut bytes = BytesMut::new();
    let mut writer = Writer::new(&mut bytes);
    RequestHeader { xid: 1, op: request.op() }.encode(&mut writer);
    request.encode(&mut writer);
    bytes
}
