//! What goes into the machine and what comes out of it.

use crate::ids::{Sequence, SessionId, Zxid};
use crate::record::{Left, Marker, Record};

/// Names a request, so that its answer can be told from others. Used again once answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u16);

/// Names a watch of one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub u16);

/// A znode of ours: its number, and the transaction that created it, which tells it from a later one of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// Its number in its directory.
    pub sequence: Sequence,
    /// The transaction that created it.
    pub czxid: Zxid,
}

/// One reading of the lock directory: its record and its Stat, of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Directory {
    /// The transaction that created the directory.
    pub czxid: Zxid,
    /// The last transaction that created or deleted a child.
    pub pzxid: Zxid,
    /// The version of its data.
    pub version: i32,
    /// How many children it has.
    pub children: u32,
    /// What its data says.
    pub record: Record,
}

/// A request. Paths are relative to the lock directory, which the machine does not know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// Create an ephemeral sequential contender. Answer: [`Reply::Joined`].
    Join,
    /// Create the directory and its parents; `Done` also where it was there already.
    MakeDirectory,
    /// Read the directory's data and Stat. Answer: [`Reply::Directory`].
    ReadDirectory,
    /// List the children. Answer: [`Reply::Children`].
    List,
    /// Find every contender of *this acquisition* in the directory. Answer: [`Reply::Mine`].
    FindMine,
    /// Read a child, and watch it. Answer: [`Reply::Node`]; no watch is set where there is no node.
    Watch {
        /// Which child.
        name: String,
        /// The name of the watch in a later [`Event::Fired`].
        watch: WatchId,
    },
    /// Look at the Stat of our own node, without a watch. Answer: [`Reply::Node`], or `NoNode`.
    Exists(Sequence),
    /// Bring the server up to date with the leader. Answer: [`Reply::Done`].
    Sync,
    /// Delete our own node.
    Delete(Sequence),
    /// Delete our own node and leave the marker in the directory, in one transaction.
    Release {
        /// Our node.
        sequence: Sequence,
        /// What to write.
        marker: Marker,
        /// The version of the directory's data that we saw; `None` writes over any.
        version: Option<i32>,
    },
    /// Delete the directory if it is empty.
    DeleteDirectory,
    /// Answer [`Reply::Done`] after this many milliseconds. Goes nowhere near the server.
    Sleep(u32),
}

/// The answer to a request that succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reply {
    /// Our new contender.
    Joined(Node),
    /// The directory.
    Directory(Directory),
    /// The names of its children.
    Children(Vec<String>),
    /// Our contenders in it.
    Mine(Vec<Node>),
    /// A child: who created it, and when.
    Node {
        /// The transaction that created it.
        czxid: Zxid,
        /// The session it belongs to.
        owner: SessionId,
    },
    /// It is done, and there is nothing to say about it.
    Done,
}

/// Why a request failed. All but [`Failure::Unknown`] are the server's own word that nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The connection was lost, or something happened that we do not understand: the request may have been
    /// carried out, may yet be, or never will.
    Unknown,
    /// There is no such node.
    NoNode,
    /// There is such a node.
    NodeExists,
    /// The directory has children.
    NotEmpty,
    /// The data has another version.
    BadVersion,
    /// The server is too busy. Not for ever.
    Throttled,
    /// The server will not do it, now or later.
    Refused(Refusal),
}

/// Why the server will not do it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The ACL forbids it.
    Denied,
    /// A quota is exceeded.
    Quota,
    /// Something else; the driver knows the words.
    Other,
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionEnd {
    /// The server, or our own clock, said so.
    Expired,
    /// We closed it.
    Closed,
    /// The server did not accept our credentials.
    AuthFailed,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// Begin.
    Start,
    /// A request was answered.
    Answer(RequestId, Result<Reply, Failure>),
    /// A watch fired, and is gone.
    Fired {
        /// Which.
        watch: WatchId,
        /// Whether the node was deleted; otherwise something else about it changed.
        deleted: bool,
    },
    /// The session has no connection just now: what is sent will wait for one.
    Disconnected,
    /// The session has a connection again.
    Reconnected,
    /// The session's lease was renewed.
    LeaseRenewed,
    /// The session's lease ran out.
    LeaseLost,
    /// The session is over.
    SessionOver(SessionEnd),
    /// The caller's deadline passed.
    TimedOut,
    /// The caller does not want the lock any more.
    Cancel,
    /// The holder lets go.
    Release(Left),
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this.
    Send(RequestId, Request),
    /// Take this watch back.
    Unwatch(WatchId),
    /// The caller holds the lock.
    Granted(Grant),
    /// The caller will not get the lock.
    Failed(Reason),
    /// The holder does not hold it any more. Said once.
    Lost(Loss),
    /// The answer to [`Event::Release`].
    Released(Departed),
    /// Nothing of this acquisition is left. Drop the machine.
    Over,
}

/// What the holder is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The node that holds the lock.
    pub node: Node,
    /// How the holder before us left.
    pub previous: Previous,
}

/// How the last holder left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Previous {
    /// It released the lock.
    Clean,
    /// It is not known: it crashed, or gave up, or was a foreign client, or there was none.
    Unknown,
}

/// Why an acquisition failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The deadline passed.
    TimedOut,
    /// It is not free ([`Mode::Try`](super::Mode::Try)).
    Busy,
    /// Somebody deleted our place in the queue.
    Broken,
    /// A semaphore lives in this directory.
    OtherKind,
    /// The server will not have it.
    Refused(Failure),
    /// The session ended.
    SessionOver(SessionEnd),
}

/// Why a lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Somebody else deleted our node.
    Broken,
    /// The lease ran out.
    Unreachable,
    /// The session ended.
    SessionOver(SessionEnd),
}

/// How a release ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Departed {
    /// The node is gone by our own hand.
    Clean,
    /// The lock had been lost before.
    Lost(Loss),
    /// The server refuses the delete. It is tried again until the session ends.
    Refused(Failure),
}
