//! Operation codes of request headers, and the special xids.

/// The type of a watch event inside a server. No request may have this code.
pub const NOTIFICATION: i32 = 0;
/// Creates a znode. The reply has its path.
pub const CREATE: i32 = 1;
/// Deletes a znode.
pub const DELETE: i32 = 2;
/// Reads a znode's stat, or sets a watch on a missing znode.
pub const EXISTS: i32 = 3;
/// Reads a znode's data and stat.
pub const GET_DATA: i32 = 4;
/// Writes a znode's data.
pub const SET_DATA: i32 = 5;
/// Reads a znode's access list.
pub const GET_ACL: i32 = 6;
/// Writes a znode's access list.
pub const SET_ACL: i32 = 7;
/// Lists a znode's children.
pub const GET_CHILDREN: i32 = 8;
/// Waits until the server has applied all writes that the leader committed before this request.
pub const SYNC: i32 = 9;
/// Keeps the session alive.
pub const PING: i32 = 11;
/// Lists a znode's children, with its stat.
pub const GET_CHILDREN2: i32 = 12;
/// Checks that a znode exists, and that its data has the given version.
pub const CHECK: i32 = 13;
/// Carries several writes, which all succeed or all fail.
pub const MULTI: i32 = 14;
/// Creates a znode. The reply has its path and stat.
pub const CREATE2: i32 = 15;
/// Changes the members of the ensemble.
pub const RECONFIG: i32 = 16;
/// Checks whether a watch is set.
pub const CHECK_WATCHES: i32 = 17;
/// Removes a watch.
pub const REMOVE_WATCHES: i32 = 18;
/// Creates a container.
pub const CREATE_CONTAINER: i32 = 19;
/// Removes an empty container. Only a server sends this request.
pub const DELETE_CONTAINER: i32 = 20;
/// Creates a znode with a time to live.
pub const CREATE_TTL: i32 = 21;
/// Carries several reads.
pub const MULTI_READ: i32 = 22;
/// Presents credentials.
pub const AUTH: i32 = 100;
/// Sets watches again after a reconnect.
pub const SET_WATCHES: i32 = 101;
/// Carries a SASL token.
pub const SASL: i32 = 102;
/// Lists the session's ephemeral znodes.
pub const GET_EPHEMERALS: i32 = 103;
/// Counts all descendants of a znode.
pub const GET_ALL_CHILDREN_NUMBER: i32 = 104;
/// Sets watches again after a reconnect, persistent ones included.
pub const SET_WATCHES2: i32 = 105;
/// Adds a persistent watch.
pub const ADD_WATCH: i32 = 106;
/// Lists the identities of the connection.
pub const WHO_AM_I: i32 = 107;
/// Creates a session inside a server. No request of a client may have this code.
pub const CREATE_SESSION: i32 = -10;
/// Ends the session.
pub const CLOSE_SESSION: i32 = -11;

/// Returns whether an operation is a write. A write uses up a zxid even if it fails.
pub fn is_write(code: i32) -> bool {
    matches!(
        code,
        CREATE
            | CREATE2
            | CREATE_CONTAINER
            | CREATE_TTL
            | DELETE
            | DELETE_CONTAINER
            | SET_DATA
            | SET_ACL
            | CHECK
            | MULTI
    )
}

/// The xid of watch events.
pub const XID_EVENT: i32 = -1;
/// The xid of pings.
pub const XID_PING: i32 = -2;
/// The xid of `auth` requests and of their replies.
pub const XID_AUTH: i32 = -4;
/// The xid of `setWatches` and `setWatches2` requests and of their replies.
pub const XID_SET_WATCHES: i32 = -8;
