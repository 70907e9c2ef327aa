use std::net::IpAddr;

use bytes::BytesMut;
use zoolock_wire::Identity;

use super::jobs::Job;

use crate::client::Client;
use crate::ids::{SessionId, Zxid};

/// The mark of output that shows no transaction. It does not wait for the log.
pub(super) const NOTHING: Zxid = Zxid(0);
/// The mark of output that may show all transactions up to the present one.
pub(super) const EVERYTHING: Zxid = Zxid(i64::MAX);

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) phase: HandshakePhase,
    /// Address of the client, in its IPv4 form if it has one.
    pub(super) peer: IpAddr,
    pub(super) client: Client,
    pub(super) output: BytesMut,
    /// The last transaction whose effects `output` may show.
    pub(super) shown: Zxid,
    /// Number of bytes in the buffer of the connection's task when the task last took `output`. The
    /// taken bytes are included.
    pub(super) unwritten: usize,
    /// Number of frames received.
    pub(super) received: u64,
    /// Number of frames sent.
    pub(super) sent: u64,
    /// Set if nothing more is read or queued. Queued output is still written.
    pub(super) closing: bool,
    /// Set if the connection must be closed at once, without writing its queued output.
    pub(super) cut_off: bool,
    pub(super) woken: bool,
    /// Cleared if the connection gets no more events, because its watches have ended.
    pub(super) gets_events: bool,
    /// Number of events that the connection has got or does not watch (see [`super::deliveries`]).
    pub(super) events_seen: u64,
    /// Set while the connection takes no events itself, because [`Core::continue_work`](super::Core::continue_work) delivers
    /// the events that it misses.
    pub(super) waits_for_events: bool,
    /// The unfinished request.
    pub(super) job: Option<Job>,
    /// Set while the server does not read from the connection ([`Core::begin_wait`](super::Core::begin_wait)).
    pub(super) waits_for_server: bool,
    /// Set while the client's request to close its session is under way.
    pub(super) is_ending_session: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum HandshakePhase {
    /// The first frame has not arrived.
    New,
    Attached {
        session: SessionId,
        timeout_ms: u32,
        /// Set if this connection began the session. Also set if it took the session over from a
        /// connection that has this flag and was never admitted.
        began_session: bool,
        /// Set if the connection has authenticated as required.
        admitted: bool,
    },
}

impl Conn {
    pub(super) fn new(peer: IpAddr, identity: Option<Identity>) -> Self {
        // On an IPv6 listener, an IPv4 client has an IPv4-mapped IPv6 address. An IPv4 address in
        // an access list does not match such an address, so the address is converted to IPv4.
        let peer = peer.to_canonical();
        Conn {
            phase: HandshakePhase::New,
            peer,
            // Every connection has an identity of the scheme `ip`.
            client: Client::new(
                std::iter::once(Identity::new("ip", peer.to_string())).chain(identity).collect(),
            ),
            output: BytesMut::new(),
            shown: NOTHING,
            unwritten: 0,
            received: 0,
            sent: 0,
            closing: false,
            cut_off: false,
            woken: false,
            gets_events: true,
            events_seen: 0,
            waits_for_events: false,
            job: None,
            waits_for_server: false,
            is_ending_session: false,
        }
    }

    /// Returns the number of bytes that the server keeps for the connection until its client reads.
    pub(super) fn queued_bytes(&self) -> usize {
        self.output.len() + self.unwritten + self.job.as_ref().map_or(0, Job::queued_bytes)
    }
}
