//! Events and actions: the input and the output of the machine.

use std::fmt;

use crate::census::Clash;
use crate::ids::{SessionId, Zxid};
use crate::layout::Layout;
use crate::names::Node;
use crate::record::{HolderState, Marker, Record, Size};

/// Identifies a request until it is answered. After that, a new request may have the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u16);

/// Identifies a watch of one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub u16);

/// The flags in the data of a contender's znode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NodeFlags {
    /// Set if the contender waited for permits and was granted them.
    pub granted: bool,
    /// Set if another client asks the contender to release the lock.
    pub revoked: bool,
    /// Set if the contender belongs to this library and does not track crashes. Then it writes a `held` marker only
    /// if the record is tracked already.
    pub untracked: bool,
}

/// One read of the lock directory: its record and its Stat at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Directory {
    /// The transaction that created the directory.
    pub czxid: Zxid,
    /// The last transaction that created or deleted a child.
    pub pzxid: Zxid,
    /// The version of the directory's data.
    pub version: i32,
    /// Number of children.
    pub children: u32,
    /// The record in the directory's data.
    pub record: Record,
}

/// A request. Paths are relative to the lock directory, whose path the machine does not know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// Create an ephemeral contender, sequential if its prefix is. Answer: [`Reply::Joined`].
    Join,
    /// Create one contender in each directory, in one transaction. Answer: [`Reply::AllJoined`].
    JoinAll,
    /// Create the directory and its parents; `Done` also if it exists already.
    MakeDirectory,
    /// Read the directory's data and Stat. Answer: [`Reply::Directory`].
    ReadDirectory,
    /// List the children. Answer: [`Reply::Children`].
    List,
    /// List the children, and watch them. Answer: [`Reply::Children`]; no watch is set if there is no
    /// directory.
    WatchChildren(WatchId),
    /// Commit a transaction that changes nothing, and that only the leader answers. Answer: [`Reply::Done`].
    Barrier,
    /// Find every contender of *this acquisition* in the directory. Answer: [`Reply::Mine`].
    FindMine,
    /// Read a child, and watch it. Answer: [`Reply::Node`]; no watch is set if there is no such child.
    Watch {
        /// Name of the child.
        name: String,
        /// The watch in a later [`Event::Fired`].
        watch: WatchId,
    },
    /// Read our own znode, and watch it. The driver must report the deletion of our znode ([`Event::Fired`]), or an
    /// interruption of the connection ([`Event::Disconnected`]), before every later answer and before every later
    /// event of another watch.
    WatchOwn {
        /// Our znode.
        node: Node,
        /// The watch in a later [`Event::Fired`].
        watch: WatchId,
    },
    /// Read our own znode, without a watch. Answer: [`Reply::Node`], or `NoNode`.
    Exists(Node),
    /// Bring the server up to date with the leader. Answer: [`Reply::Done`].
    Sync,
    /// Delete our own znode.
    Delete(Node),
    /// Write to our own znode and delete it, in one transaction. A watch on the znode then reports a change instead
    /// of a deletion, so a successor that looks ahead reads the record.
    Withdraw(Node),
    /// Delete our own znode and leave the marker in the directory, in one transaction. A holder that panicked
    /// writes to its znode first, as with [`Request::Withdraw`].
    Release {
        /// Our znode.
        node: Node,
        /// The marker to write.
        marker: Marker,
        /// The version of the directory's data that was read; `None` overwrites any version.
        version: Option<i32>,
    },
    /// Delete our own znode in each directory and leave its marker if there is one, in one transaction.
    /// Without a marker, or after a panic, the znode is written first, as with [`Request::Withdraw`].
    ReleaseAll(Vec<ReleaseOp>),
    /// Write the `held` marker before the grant, in one transaction with a check that our own znode exists.
    Hold {
        /// Our znode; `None` only if a test switches the check off.
        node: Option<Node>,
        /// The marker to write.
        marker: Marker,
        /// The version of the directory's data that was read.
        version: i32,
    },
    /// Write the `held` markers of a multi-lock before the grant, in one transaction with checks that our znodes
    /// exist.
    HoldAll(Vec<HoldOp>),
    /// Write the size of a semaphore into the directory.
    WriteSize {
        /// The size to write.
        size: Size,
        /// The version of the directory's data that was read.
        version: i32,
    },
    /// Write into our own znode that its permits were granted.
    SayGranted {
        /// Our znode.
        node: Node,
        /// The known version of its data.
        version: i32,
        /// Set to write also that another client asks for a release.
        revoked: bool,
    },
    /// Delete the writer's znode and create a reader's with the same number, in one transaction; the driver reads
    /// the reader's znode in the same flight. Answer: [`Reply::Joined`] with the reader's znode, even if an earlier
    /// transaction created it; `NoNode` if neither znode exists.
    Downgrade {
        /// The writer's znode.
        node: Node,
        /// The marker to write into the directory, and the version that it replaces.
        marker: Option<(Marker, Option<i32>)>,
    },
    /// Delete the directory if it is empty.
    DeleteDirectory,
    /// Answer [`Reply::Done`] after this many milliseconds. Nothing is sent to the server.
    Sleep(u32),
}

/// The `held` marker of one lock of a multi-lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HoldOp {
    /// The index of the lock.
    pub place: usize,
    /// Our znode.
    pub node: Node,
    /// The marker to write into the lock's directory.
    pub marker: Marker,
    /// The version of the directory's data that was read.
    pub version: i32,
}

/// The release of one znode of a multi-lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReleaseOp {
    /// Our znode.
    pub node: Node,
    /// The marker to write into the lock's directory, and the version that it replaces.
    pub marker: Option<(Marker, Option<i32>)>,
}

/// The answer to a request that succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reply {
    /// Our new contender.
    Joined(Node),
    /// Our new contenders, one in each directory.
    AllJoined(Vec<Node>),
    /// The directory.
    Directory(Directory),
    /// The children of the directory.
    Children {
        /// Names of the children.
        names: Vec<String>,
        /// The last transaction that created or deleted a child.
        pzxid: Zxid,
    },
    /// Our contenders in the directory.
    Mine(Vec<Node>),
    /// A child.
    Node {
        /// The transaction that created the child.
        czxid: Zxid,
        /// The session that owns the child.
        owner: SessionId,
        /// The version of the child's data.
        version: i32,
        /// The flags in the child's data; none in the answer to [`Request::Exists`].
        says: NodeFlags,
    },
    /// The request succeeded, and has no other result.
    Done,
}

/// The reason why a request failed. All but [`RequestFailure::Unknown`] are answers of the server, and mean that
/// nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestFailure {
    /// The connection was lost, or an unexpected error occurred: the request may have been carried out, may be
    /// carried out later, or never.
    Unknown,
    /// There is no such znode.
    NoNode,
    /// The znode exists already.
    NodeExists,
    /// A transaction failed, because the znode of the operation with this index exists already.
    NodeExistsAt(usize),
    /// The directory has children.
    NotEmpty,
    /// The data has another version.
    BadVersion,
    /// The server is temporarily too busy.
    Throttled,
    /// The server refuses the request, now and later.
    Refused(Refusal),
}

impl RequestFailure {
    /// Returns whether the server has decided the request. A lost reply and a busy server decide nothing.
    pub fn is_answer(self) -> bool {
        !matches!(self, RequestFailure::Unknown | RequestFailure::Throttled)
    }

    /// Returns whether a contender whose `held` marker failed with this may read the queue again and retry.
    pub(crate) fn is_transient(self) -> bool {
        matches!(
            self,
            RequestFailure::Unknown
                | RequestFailure::Throttled
                | RequestFailure::BadVersion
                | RequestFailure::NoNode
        )
    }

    /// Returns whether only a leader gives this answer to a write. Then the answer confirms the session, as a
    /// success does.
    ///
    /// The connected server may give the other answers by itself (an ACL: `enableEagerACLCheck`).
    pub fn is_decided(self) -> bool {
        match self {
            RequestFailure::NoNode
            | RequestFailure::NodeExists
            | RequestFailure::NodeExistsAt(_)
            | RequestFailure::NotEmpty
            | RequestFailure::BadVersion => true,
            RequestFailure::Unknown | RequestFailure::Throttled | RequestFailure::Refused(_) => false,
        }
    }
}

/// The reason for a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The ACL forbids it.
    Denied,
    /// A quota is exceeded.
    Quota,
    /// Another reason; the driver has the message.
    Other,
}

/// The reason for the end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionEnd {
    /// The session expired, according to the server or to the client's clock.
    Expired,
    /// The client closed it.
    Closed,
    /// The server did not accept the credentials.
    AuthFailed,
}

/// An input of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// Start the acquisition.
    Start,
    /// A request was answered.
    Answer(RequestId, Result<Reply, RequestFailure>),
    /// A watch fired, and does not exist any more.
    Fired {
        /// The watch that fired.
        watch: WatchId,
        /// Set if the znode was deleted; otherwise it changed.
        deleted: bool,
    },
    /// The session has no connection: requests wait for one.
    Disconnected,
    /// The session has a connection again.
    Reconnected,
    /// The session's lease was renewed.
    LeaseRenewed,
    /// The session's lease ended.
    LeaseLost,
    /// The session ended.
    SessionOver(SessionEnd),
    /// The caller's deadline passed.
    TimedOut,
    /// The caller does not want the lock any more.
    Cancel,
    /// The holder releases the lock.
    Release(HolderState),
    /// The writer becomes a reader.
    Downgrade,
}

/// An output of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this request.
    Send(RequestId, Request),
    /// Remove this watch.
    Unwatch(WatchId),
    /// The caller holds the lock.
    Granted(Grant),
    /// The way in which the previous holder left, if it was not read before the grant.
    Previous(Previous),
    /// The caller will not get the lock.
    Failed(Reason),
    /// The holder has lost the lock. Reported once.
    Lost(Loss),
    /// The answer to [`Event::Release`].
    Released(ReleaseOutcome),
    /// The answer to [`Event::Downgrade`]: the znode that holds the lock now. It is still the writer's if the
    /// server refused the downgrade or the kind of lock has none. Not reported if the lock is lost meanwhile.
    Downgraded(Node),
    /// Another client asks the holder to release the lock. Reported once.
    Revoked,
    /// The acquisition has no znode and no request left. Drop the machine.
    Finished,
}

/// The result of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The znode that holds the lock.
    pub node: Node,
    /// The way in which the previous holder left.
    pub previous: Previous,
}

/// The way in which the last holder left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Previous {
    /// The last holder released the lock: its writes are complete.
    Clean,
    /// The last holder ended without a release, or released while it unwound from a panic: its writes may be
    /// incomplete. Without `crash_detection`, only the panic is known.
    Crashed,
    /// Not known: after a crash without `crash_detection`, after a contender that gave up or that uses another
    /// client library, after the directory was removed, or if there was no previous holder. Also if the record was
    /// not read yet, see `tell_previous`.
    Unknown,
}

impl fmt::Display for Previous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Previous::Clean => "clean",
            Previous::Crashed => "crashed",
            Previous::Unknown => "unknown",
        })
    }
}

/// The reason why an acquisition failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The deadline passed.
    TimedOut,
    /// The lock is not free ([`Mode::Try`](super::Mode::Try)).
    Busy,
    /// Another client deleted our znode in the queue.
    Broken,
    /// The directory contains locks of another kind.
    OtherKind,
    /// The directory contains a semaphore in the layout of another client library.
    OtherLayout(Layout),
    /// Contenders of different client libraries in this queue ignore each other's znodes, or ours.
    Clash(Clash),
    /// The semaphore has another number of permits.
    OtherSize(u32),
    /// The data of the directory belongs to another program, so it cannot store the size of a semaphore or a `held`
    /// marker.
    ForeignRecord,
    /// Another reader that upgrades goes first, or readers are queued behind a writer that waits for our reader.
    Outranked,
    /// The directory is near the end of its numbers, and an upgrade cannot leave it: its reader holds there.
    Exhausted,
    /// The server refuses a request.
    Refused(RequestFailure),
    /// The session ended.
    SessionOver(SessionEnd),
}

/// The reason why a lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Another client deleted our znode.
    Broken,
    /// The lease ended.
    Unreachable,
    /// The session ended.
    SessionOver(SessionEnd),
}

/// The outcome of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReleaseOutcome {
    /// This acquisition deleted the znode.
    Clean,
    /// The lock had been lost before.
    Lost(Loss),
    /// The server refuses the delete. It is retried until the session ends.
    Refused(RequestFailure),
}
