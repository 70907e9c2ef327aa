use std::fmt;
use std::net::IpAddr;

use bytes::BytesMut;

use crate::acl::Identity;
use crate::ids::SessionId;

/// Identifies a connection for as long as the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub(crate) u64);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) phase: Phase,
    pub(super) identities: Vec<Identity>,
    pub(super) output: BytesMut,
    /// Nothing more is read or queued; what is queued is still to be written.
    pub(super) closing: bool,
    pub(super) woken: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Phase {
    /// The first frame has not come.
    New,
    Attached {
        session: SessionId,
        timeout_ms: u32,
        /// This connection began the session.
        fresh: bool,
        /// It has proven what it must.
        admitted: bool,
    },
}

impl Conn {
    pub(super) fn new(peer: IpAddr, who: Option<Identity>) -> Self {
        Conn {
            phase: Phase::New,
            // Every connection is somebody under the scheme `ip`.
            identities: std::iter::once(Identity::new("ip", peer.to_string())).chain(who).collect(),
            output: BytesMut::new(),
            closing: false,
            woken: false,
        }
    }
}
