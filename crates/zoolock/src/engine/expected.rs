//! The replies that the engine expects to a request of the machine, and the results of their translation.

use std::collections::VecDeque;

use zoolock_core::acquisition::{Node, Reply, RequestFailure};
use zoolock_core::names::Prefix;
use zoolock_core::{ContenderId, Sequence, Zxid};
use zoolock_wire as wire;

use crate::zk::directory::DirectoryCreation;
use crate::zk::session::{self, PendingJoin, ReplyOutcome, TransactionPart, ZkError, zk_error};

/// The kind of reply that a request expects.
pub(super) enum ExpectedReply {
    /// The new znode of a contender.
    Joined(PendingJoin),
    /// The new znodes of a multi-lock.
    AllJoined,
    Directory,
    Children,
    /// A contender's znode, with its data.
    Node,
    /// The Stat of the acquisition's own znode, without its data.
    Own,
    /// The reader's znode after a downgrade of this writer's znode.
    Reader(Node),
    /// The results of a transaction of this many operations.
    Transaction(usize),
    /// Success without a value.
    Done,
    /// The next reply of a request that takes several rounds.
    Routine(Routine),
    /// The replies so far are being translated, or the answer is known.
    Taken,
}

impl ExpectedReply {
    /// Returns the number of replies that are translated together.
    pub(super) fn replies(&self) -> usize {
        match self {
            ExpectedReply::Joined(joining) => joining.replies(),
            ExpectedReply::Taken => 0,
            _ => 1,
        }
    }
}

/// A server's reply to one ZooKeeper request.
pub(super) struct ArrivedReply {
    pub(super) part: TransactionPart,
    pub(super) sent: zoolock_client::Instant,
    pub(super) outcome: ReplyOutcome,
}

/// The result of translating the replies to a request.
pub(super) enum Interpreted {
    /// The answer for the machine.
    Answer(Reply),
    /// The answer needs the next reply, after these requests are sent.
    Send(Vec<wire::Request>, ExpectedReply),
}

/// The meaning of the next reply, and what the next rounds need.
pub(super) enum Routine {
    /// The outcome of a create.
    Directory(DirectoryCreation),
    /// The paths of the session's znodes that may belong to the acquisition.
    OwnPaths,
    /// The names of all children of the directory, if the server cannot list the znodes of a session.
    Children,
    /// The znodes that may belong to the acquisition, one reply for each.
    OwnZnodes(Search),
    /// The Stat of the first of these new znodes.
    Czxid(NewZnodes),
}

/// The last round of a search for own znodes.
pub(super) struct Search {
    /// The numbers of the znodes whose replies are missing, in the order of the reads.
    pub(super) numbers: VecDeque<Sequence>,
    /// The acquisitions that had not ended when the listing was handled.
    pub(super) pending: Vec<ContenderId>,
    /// The own znodes so far, or the first failure.
    pub(super) mine: Result<Vec<Node>, ZkError>,
}

/// The numbers of the znodes that one transaction has created.
pub(super) enum NewZnodes {
    Joined(Sequence),
    /// One znode for each lock.
    AllJoined(Vec<Sequence>),
}

impl NewZnodes {
    pub(super) fn with_czxid(self, prefix: Prefix, czxid: Zxid) -> Reply {
        let node = |sequence| Node { prefix, sequence, czxid };
        match self {
            NewZnodes::Joined(sequence) => Reply::Joined(node(sequence)),
            NewZnodes::AllJoined(sequences) => Reply::AllJoined(sequences.into_iter().map(node).collect()),
        }
    }
}

/// Reads a new znode, because the server has not returned its czxid.
pub(super) fn read_czxid(path: &str, created: NewZnodes) -> Interpreted {
    send_one(session::exists_request(path), Routine::Czxid(created))
}

pub(super) fn send_one(request: wire::Request, routine: Routine) -> Interpreted {
    Interpreted::Send(vec![request], ExpectedReply::Routine(routine))
}

pub(super) fn unexpected() -> ZkError {
    zk_error(RequestFailure::Unknown, "unexpected reply type")
}
