//! The numbers of ZooKeeper's operations, as they stand in a request's header.

/// Creates a session: the first frame of a connection, which has no header.
pub const CREATE_SESSION: i32 = -10;
/// Closes the session.
pub const CLOSE_SESSION: i32 = -11;
/// Creates a node and answers with its name.
pub const CREATE: i32 = 1;
/// Deletes a node.
pub const DELETE: i32 = 2;
/// Looks whether a node exists.
pub const EXISTS: i32 = 3;
/// Reads a node's data.
pub const GET_DATA: i32 = 4;
/// Writes a node's data.
pub const SET_DATA: i32 = 5;
/// Reads a node's ACL.
pub const GET_ACL: i32 = 6;
/// Writes a node's ACL.
pub const SET_ACL: i32 = 7;
/// Lists children.
pub const GET_CHILDREN: i32 = 8;
/// Waits until the server has caught up with its leader.
pub const SYNC: i32 = 9;
/// Says that the session lives.
pub const PING: i32 = 11;
/// Lists children, with the parent's Stat.
pub const GET_CHILDREN2: i32 = 12;
/// Checks a version (in a multi).
pub const CHECK: i32 = 13;
/// Several writes as one transaction.
pub const MULTI: i32 = 14;
/// Creates a node and answers with its name and Stat.
pub const CREATE2: i32 = 15;
/// Asks whether a watch is there.
pub const CHECK_WATCHES: i32 = 17;
/// Removes watches.
pub const REMOVE_WATCHES: i32 = 18;
/// Creates a container.
pub const CREATE_CONTAINER: i32 = 19;
/// Creates a node with a time to live.
pub const CREATE_TTL: i32 = 21;
/// Several reads in one request.
pub const MULTI_READ: i32 = 22;
/// Adds an identity to the connection.
pub const AUTH: i32 = 100;
/// Sets watches again after a reconnect.
pub const SET_WATCHES: i32 = 101;
/// Lists the session's ephemeral nodes.
pub const GET_EPHEMERALS: i32 = 103;
/// Counts all descendants.
pub const GET_ALL_CHILDREN_NUMBER: i32 = 104;
/// Sets watches again after a reconnect, persistent ones included.
pub const SET_WATCHES2: i32 = 105;
/// Adds a persistent watch.
pub const ADD_WATCH: i32 = 106;
/// Lists the connection's identities.
pub const WHO_AM_I: i32 = 107;
