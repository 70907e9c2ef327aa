//! Events and actions: the input and the output of the machine, the state machine of an acquisition.

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
    /// Set if the contender belongs to this library and does not track crashes. Then it writes a `held` marker only if
    /// the record is tracked already.
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

/// A request of the machine. Paths are relative to the lock directory, whose path the machine does not know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// Create our ephemeral sequential znode. Answer: [`Reply::Joined`].
    Join,
    /// Create our ephemeral sequential znode in each directory, in one transaction. Answer: [`Reply::AllJoined`].
    JoinAll,
    /// Create the directory and its parents. Answer: [`Reply::Done`], also if the directory exists already.
    MakeDirectory,
    /// Read the directory's data and Stat. Answer: [`Reply::Directory`].
    ReadDirectory,
    /// List the children. Answer: [`Reply::Children`].
    List,
    /// List the children, and watch them. Answer: [`Reply::Children`]; no watch is set if there is no directory.
    WatchChildren(WatchId),
    /// Commit a transaction that changes nothing. Only the leader can answer this request. Answer: [`Reply::Done`].
    Barrier,
    /// Find every znode of *this acquisition* in the directory. Answer: [`Reply::Mine`].
    FindMine,
    /// Read a child, and watch it. Answer: [`Reply::Node`]; no watch is set if there is no such child.
    Watch {
        /// Name of the child.
        name: String,
        /// The watch in a later [`Event::Fired`].
        watch: WatchId,
    },
    /// Read our own znode, and watch it. Answer: [`Reply::Node`].
    ///
    /// If our znode is deleted, the driver must report the deletion ([`Event::Fired`]), or that the connection was
    /// interrupted ([`Event::Disconnected`]). It must do so before it reports any later answer, or any later event of
    /// another watch.
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
    /// Write to our own znode and delete it, in one transaction. A watch on the znode then reports a change instead of
    /// a deletion, so a successor that looks ahead reads the record.
    Withdraw(Node),
    /// Delete our own znode and leave the marker in the directory, in one transaction. A holder that panicked writes to
    /// its znode first, as with [`Request::Withdraw`].
    Release {
        /// Our znode.
        node: Node,
        /// The marker to write.
        marker: Marker,
        /// The version of the directory's data that was read; `None` overwrites any version.
        version: Option<i32>,
    },
    /// Delete our own znode in each directory, and write the directory's marker if there is one, in one transaction. If
    /// there is no marker, or after a panic, the znode is written before its delete, as with [`Request::Withdraw`].
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
    /// Write the `held` markers of a multi-lock before the grant, in one transaction with checks that our znodes exist.
    HoldAll(Vec<HoldOp>),
    /// Write the size of a semaphore into the directory.
    WriteSize {
        /// The size to write.
        size: Size,
        /// The version of the directory's data that was read.
        version: i32,
    },
    /// Write into our own znode that its permits were granted.
    MarkGranted {
        /// Our znode.
        node: Node,
        /// The version of the znode's data that the write replaces.
        version: i32,
        /// Set if the data must also say that another client asks us to release the lock.
        revoked: bool,
    },
    /// Delete the writer's znode and create a reader's znode with the same number, in one transaction. Answer:
    /// [`Reply::Done`]; `NoNode` if the writer's znode does not exist.
    Downgrade {
        /// The writer's znode.
        node: Node,
        /// The marker to write into the directory, and the version that it replaces.
        marker: Option<(Marker, Option<i32>)>,
    },
    /// Read the reader's znode that a [`Request::Downgrade`] of this writer's znode creates. Answer: [`Reply::Joined`];
    /// `NoNode` also if another contender's znode has that name.
    FindReader(Node),
    /// Delete the directory if it is empty.
    DeleteDirectory,
    /// Answer [`Reply::Done`] after this many milliseconds. Nothing is sent to the server.
    Sleep(u32),
}

/// The `held` marker of one lock of a multi-lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HoldOp {
    /// The index of the lock.
    pub lock_index: usize,
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
    /// Our new znode.
    Joined(Node),
    /// Our new znodes, one in each directory.
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
    /// Our znodes in the directory.
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
        flags: NodeFlags,
    },
    /// The request succeeded, and has no other result.
    Done,
}

/// The reason why a request failed. All but [`RequestFailure::Unknown`] are answers of the server, and mean that
/// nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestFailure {
    /// The connection was lost, or an unexpected error occurred: the request may have been carried out, may be carried
    /// out later, or never.
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
    /// Returns whether the failure is the server's final answer to the request. A lost reply and a busy server are no
    /// final answer.
    pub fn is_answer(self) -> bool {
        !matches!(self, RequestFailure::Unknown | RequestFailure::Throttled)
    }

    /// Returns whether a contender may read the queue again and retry, if the write of its `held` marker failed for
    /// this reason.
    pub(crate) fn is_transient(self) -> bool {
        matches!(
            self,
            RequestFailure::Unknown
                | RequestFailure::Throttled
                | RequestFailure::BadVersion
                | RequestFailure::NoNode
        )
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
    /// The caller takes the grant. Ignored if the lock is not granted. The driver passes the guard to the caller only if
    /// the machine does not answer with [`Action::Unclaimed`].
    Claimed,
    /// The holder releases the lock. The value is the state for the release marker.
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
    /// The lock is granted. The caller takes the grant with [`Event::Claimed`].
    Granted(Grant),
    /// The grant is given back, because the lock was lost before the caller took the grant, or because the caller has not
    /// taken it in time (`None`). The caller may acquire again. No other action reports the end of this grant.
    Unclaimed(Option<Loss>),
    /// The way in which the previous holder left. Sent if the record was not read before the grant.
    Previous(Previous),
    /// The previous holder of one lock crashed, or released while it unwound from a panic. `marker` is its marker. The
    /// `held` marker or the release marker of this acquisition replaces it. Readers write no marker, so they do not
    /// send this. Sent at most once for each lock, before the grant. An interruption right after the write of the
    /// `held` marker loses it.
    CrashFound {
        /// The index of the lock.
        lock_index: usize,
        /// The marker of the previous holder.
        marker: Marker,
    },
    /// The caller will not get the lock.
    Failed(Reason),
    /// The holder has lost the lock. Reported once.
    Lost(Loss),
    /// The answer to [`Event::Release`].
    Released(ReleaseOutcome),
    /// The answer to [`Event::Downgrade`]: the znode that holds the lock now. This is still the writer's znode if the
    /// server refused the downgrade, or if this kind of lock has no downgrade. Not reported if the lock is lost
    /// meanwhile.
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
    /// incomplete. Without `crash_detection`, only a panic is detected.
    Crashed,
    /// It is not known how the last holder left. This is so after a crash without `crash_detection`, after the
    /// directory was removed or an operator broke the lock, and if there was no previous holder. It is also so if the predecessor gave up, or uses
    /// another client library. Without `tell_previous`, another cause is possible: the record was not read before the
    /// grant.
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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The deadline passed.
    TimedOut,
    /// The lock is not free ([`Mode::Try`](super::Mode::Try)).
    Busy,
    /// Another client deleted our znode in the queue, or the reader's znode of an upgrade.
    Broken,
    /// The directory contains locks of another kind.
    OtherKind,
    /// The directory contains a semaphore in the layout of another client library.
    OtherLayout(Layout),
    /// Contenders of different client libraries in this queue ignore each other's znodes, or ours.
    Clash(Clash),
    /// The semaphore has another number of permits.
    OtherSize(u32),
    /// The data of the directory belongs to another program, so the data cannot store the size of a semaphore or a
    /// `held` marker.
    ForeignRecord,
    /// The upgrade of a reader fails, because another reader goes first, or readers are queued behind a writer that
    /// waits for our reader.
    Outranked,
    /// The directory is near the end of its sequence numbers, and an upgrade cannot leave this directory, because its
    /// reader holds there.
    Exhausted,
    /// The directory of the lock with this index is near the end of its sequence numbers. This child, which is no
    /// contender, keeps it from being deleted.
    Occupied(usize, String),
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
    /// The server refuses the delete. The delete is repeated until the session ends.
    Refused(RequestFailure),
}
