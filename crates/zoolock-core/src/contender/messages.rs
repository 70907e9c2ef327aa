//! What goes into the machine and what comes out of it.

use crate::census::Clash;
use crate::ids::{Sequence, SessionId, Zxid};
use crate::layout::Layout;
use crate::names::Prefix;
use crate::record::{Left, Marker, Record, Size};

/// Names a request, so that its answer can be told from others. Used again once answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u16);

/// Names a watch of one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub u16);

/// A znode of ours: its name, and the transaction that created it, which tells it from a later one of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// What its name begins with.
    pub prefix: Prefix,
    /// Its number in its directory.
    pub sequence: Sequence,
    /// The transaction that created it.
    pub czxid: Zxid,
}

impl Node {
    /// Its name in the directory.
    pub fn name(&self) -> String {
        self.prefix.name(self.sequence)
    }
}

/// What the data of a contender's znode says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Says {
    /// It waited for permits and has them.
    pub granted: bool,
    /// Somebody asks it to let go.
    pub revoked: bool,
    /// It is one of ours and does not say so when it begins, unless others do.
    pub untracked: bool,
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
    /// Create an ephemeral contender, sequential if its prefix is. Answer: [`Reply::Joined`].
    Join,
    /// Create one in each directory, in one transaction. Answer: [`Reply::AllJoined`].
    JoinAll,
    /// Create the directory and its parents; `Done` also where it was there already.
    MakeDirectory,
    /// Read the directory's data and Stat. Answer: [`Reply::Directory`].
    ReadDirectory,
    /// List the children. Answer: [`Reply::Children`].
    List,
    /// List the children, and watch them. Answer: [`Reply::Children`]; no watch is set where there is no directory.
    WatchChildren(WatchId),
    /// Find every contender of *this acquisition* in the directory. Answer: [`Reply::Mine`].
    FindMine,
    /// Read a child, and watch it. Answer: [`Reply::Node`]; no watch is set where there is no node.
    Watch {
        /// Which child.
        name: String,
        /// The name of the watch in a later [`Event::Fired`].
        watch: WatchId,
    },
    /// The same for our own node. Before the event of any other watch, or an answer, that comes after the end of this
    /// node or after an interruption of the connection, [`Event::Fired`] or [`Event::Disconnected`] has to be told.
    WatchOwn {
        /// Our node.
        node: Node,
        /// The name of the watch.
        watch: WatchId,
    },
    /// Look at our own node, without a watch. Answer: [`Reply::Node`], or `NoNode`.
    Exists(Node),
    /// Bring the server up to date with the leader. Answer: [`Reply::Done`].
    Sync,
    /// Delete our own node.
    Delete(Node),
    /// Write to our own node and delete it, in one transaction: its watch says "changed", and whoever its end would have
    /// granted looks again.
    Withdraw(Node),
    /// Delete our own node and leave the marker in the directory, in one transaction. One that unwinds writes to its node
    /// first, as with [`Request::Withdraw`].
    Release {
        /// Our node.
        node: Node,
        /// What to write.
        marker: Marker,
        /// The version of the directory's data that we saw; `None` writes over any.
        version: Option<i32>,
    },
    /// Delete our own node in each directory and leave its marker where there is one, in one transaction. Who leaves
    /// none, or unwinds, writes to its node first, as with [`Request::Withdraw`].
    ReleaseAll(Vec<Parting>),
    /// Write the marker of one that has begun, in one transaction with a check that our own node is there.
    Hold {
        /// Our node; `None` only where the model breaks a rule.
        node: Option<Node>,
        /// What to write.
        marker: Marker,
        /// The version of the directory's data that we saw.
        version: i32,
    },
    /// Write the size of a semaphore into the directory.
    WriteSize {
        /// What to write.
        size: Size,
        /// The version of the directory's data that we saw.
        version: i32,
    },
    /// Write into our own node that we have our permits.
    SayGranted {
        /// Our node.
        node: Node,
        /// The version of its data that we know.
        version: i32,
        /// Whether to say as well that we were asked to let go.
        revoked: bool,
    },
    /// Delete the writer's node and create a reader's with the same number, in one transaction; the reader's is
    /// looked at in the same flight. Answer: [`Reply::Joined`] with it, whichever transaction made it; `NoNode` where
    /// neither node is there.
    Downgrade {
        /// The writer's node.
        node: Node,
        /// What to write into the directory, over which version.
        marker: Option<(Marker, Option<i32>)>,
    },
    /// Delete the directory if it is empty.
    DeleteDirectory,
    /// Answer [`Reply::Done`] after this many milliseconds. Goes nowhere near the server.
    Sleep(u32),
}

/// How one node of a multi-lock leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Parting {
    /// Our node.
    pub node: Node,
    /// What to write into its directory, over which version.
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
        /// Their names.
        names: Vec<String>,
        /// The last transaction that created or deleted one.
        pzxid: Zxid,
    },
    /// Our contenders in it.
    Mine(Vec<Node>),
    /// A child.
    Node {
        /// The transaction that created it.
        czxid: Zxid,
        /// The session it belongs to.
        owner: SessionId,
        /// The version of its data.
        version: i32,
        /// What its data says; nothing in the answer to [`Request::Exists`].
        says: Says,
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

impl Failure {
    /// Whether only a leader says so when it is asked to write something, for it is as much a decision as a success is.
    ///
    /// The others may be said by the server that we are connected to, on its own (an ACL: `enableEagerACLCheck`).
    pub fn is_decided(self) -> bool {
        match self {
            Failure::NoNode | Failure::NodeExists | Failure::NotEmpty | Failure::BadVersion => true,
            Failure::Unknown | Failure::Throttled | Failure::Refused(_) => false,
        }
    }
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
    /// The writer wants to go on as a reader.
    Downgrade,
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
    /// How the holder before us left, where the grant did not say it because it was not read before.
    Previous(Previous),
    /// The caller will not get the lock.
    Failed(Reason),
    /// The holder does not hold it any more. Said once.
    Lost(Loss),
    /// The answer to [`Event::Release`].
    Released(Departed),
    /// The answer to [`Event::Downgrade`]: the holder holds as a reader. A loss on the way is said as ever.
    Downgraded(Node),
    /// Somebody asks the holder to let go. Said once.
    Revoked,
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
    /// It is gone without a word, or left while it unwound from a panic.
    Crashed,
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
    /// Locks of another kind live in this directory.
    OtherKind,
    /// A semaphore in the layout of another client library lives in this directory.
    OtherLayout(Layout),
    /// Contenders of different families stand in this queue that do not see each other, or us.
    Clash(Clash),
    /// The semaphore has another number of permits.
    OtherSize(u32),
    /// The data of the directory is somebody else's, so the size of the semaphore cannot be agreed.
    ForeignRecord,
    /// Another reader that wants to write goes before us, or readers stand behind a writer that waits for us.
    Outranked,
    /// The directory is near the end of its numbers, and we cannot leave it without losing what we hold there.
    Exhausted,
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
