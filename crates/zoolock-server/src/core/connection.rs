use std::fmt;
use std::net::IpAddr;

use bytes::BytesMut;
use zoolock_wire::Identity;

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
    /// Address of the client, in its IPv4 form if it has one.
    pub(super) peer: IpAddr,
    pub(super) identities: Vec<Identity>,
    pub(super) output: BytesMut,
    /// What was taken of the output and not written when it was taken from last; the socket's task has it.
    pub(super) unwritten: usize,
    pub(super) counts: Counts,
    /// Nothing more is read or queued; what is queued is still to be written.
    pub(super) closing: bool,
    /// Nothing is to be written either.
    pub(super) cut_off: bool,
    pub(super) woken: bool,
}

/// What happened on a connection, as `cons` tells it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames received.
    pub received: u64,
    /// Frames sent.
    pub sent: u64,
    /// The operation answered last; 0 before the first.
    pub last_op: i32,
    /// Its number.
    pub last_xid: i32,
    /// The zxid in its answer.
    pub last_zxid: i64,
    /// When it was answered, in milliseconds of the monotonic clock.
    pub last_answer_ms: u64,
    /// How long requests took.
    pub latency: Latency,
}

/// How long requests took, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Latency {
    /// How many requests.
    pub count: u64,
    /// All together.
    pub total: u64,
    /// The shortest.
    pub min: u64,
    /// The longest.
    pub max: u64,
    /// The last.
    pub last: u64,
}

impl Counts {
    /// Notes a request. It is answered now, or never.
    pub(super) fn note(&mut self, frame: &[u8], now_ms: u64) {
        if let Some((xid, rest)) = frame.split_first_chunk()
            && let Some(op) = rest.first_chunk()
        {
            (self.last_xid, self.last_op) = (i32::from_be_bytes(*xid), i32::from_be_bytes(*op));
        }
        self.last_answer_ms = now_ms;
    }
}

impl Latency {
    /// Adds some requests that were done together.
    pub fn add(&mut self, requests: u64, ms: u64) {
        self.min = if self.count == 0 { ms } else { self.min.min(ms) };
        self.max = self.max.max(ms);
        self.last = ms;
        self.count += requests;
        self.total = self.total.saturating_add(ms.saturating_mul(requests));
    }

    /// The average.
    pub fn average(&self) -> f64 {
        self.total as f64 / self.count.max(1) as f64
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Phase {
    /// The first frame has not come.
    New,
    Attached {
        session: SessionId,
        timeout_ms: u32,
        /// This connection began the session, or took it from one that did and was not let in.
        fresh: bool,
        /// It has proven what it must.
        admitted: bool,
    },
}

impl Conn {
    pub(super) fn new(peer: IpAddr, who: Option<Identity>) -> Self {
        Conn {
            phase: Phase::New,
            peer: peer.to_canonical(),
            // Every connection is somebody under the scheme `ip`.
            identities: std::iter::once(Identity::new("ip", peer.to_string())).chain(who).collect(),
            output: BytesMut::new(),
            unwritten: 0,
            counts: Counts::default(),
            closing: false,
            cut_off: false,
            woken: false,
        }
    }
}
