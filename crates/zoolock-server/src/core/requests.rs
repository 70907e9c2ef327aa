//! Requests of connections that have a session.

use bytes::Bytes;
use zoolock_wire::{Acl, Code, Reader, Reply, ReplyHeader, Request, RequestHeader, WireError, op};

use super::connection::{EVERYTHING, HandshakePhase, NOTHING};
use super::jobs::WatchesToSet;
use super::output::encode_reply;
use super::{Core, Now};
use crate::acl::{self, stored_bytes};
use crate::caps::{MAX_OPERATIONS, MAX_REPLY_BYTES};
use crate::ids::{ConnId, SessionId, Zxid};
use crate::prepare::{Requester, prepare};
use crate::query::query;
use crate::txn::{Change, WriteRefusal};
use crate::watches::WatchKinds;

/// Maximum number of identities of a connection.
const MAX_IDENTITIES: usize = 64;
/// Maximum length of credentials in bytes. The length is limited, because each access list with an
/// `auth` entry keeps a copy of the user name.
const MAX_CREDENTIALS: usize = 4096;

/// Number of names in a list that takes as long as a long turn.
const LONG_LIST: usize = 16_384;

/// A decoded request of a connection that has a session.
#[derive(Debug)]
pub struct ReceivedRequest {
    /// Length of the frame in bytes.
    len: usize,
    decoded: Result<(RequestHeader, Result<Request, WireError>), WireError>,
    /// The paths of a `setWatches` request, which are taken from the request.
    watches: Option<WatchesToSet>,
}

impl ReceivedRequest {
    /// Decodes a frame without its length prefix.
    pub fn decode(frame: &[u8]) -> Self {
        let mut reader = Reader::new(frame);
        let mut decoded = RequestHeader::decode(&mut reader).map(|header| {
            let request = Request::decode(header.op, &mut reader);
            (header, request)
        });
        let watches = match &mut decoded {
            Ok((header, Ok(Request::SetWatches(set)))) => Some(WatchesToSet::new(header.xid, set)),
            _ => None,
        };
        ReceivedRequest { len: frame.len(), decoded, watches }
    }
}

impl Core {
    /// Returns whether a frame asks for a long list: of the children of a znode, or of a session's ephemeral znodes. Only the
    /// tree tells that the turn of such a small request takes long.
    pub fn asks_for_long_list(&self, conn: ConnId, frame: &[u8]) -> bool {
        let tree = &self.state.tree;
        // A small tree has no long list, so that most servers do not look at each request twice.
        if tree.len() <= LONG_LIST {
            return false;
        }
        let mut reader = Reader::new(frame);
        let Ok(header) = RequestHeader::decode(&mut reader) else { return false };
        let names = match header.op {
            op::GET_CHILDREN | op::GET_CHILDREN2 => {
                reader.string("path").ok().and_then(|path| tree.get(&path)).map(|node| node.child_count())
            }
            op::GET_EPHEMERALS => self.conns.get(&conn).and_then(|state| match state.phase {
                HandshakePhase::Attached { session, .. } => Some(tree.count_ephemerals(session)),
                HandshakePhase::New => None,
            }),
            _ => None,
        };
        names.is_some_and(|names| names > LONG_LIST)
    }

    pub(super) fn handle_request(
        &mut self,
        conn: ConnId,
        session: SessionId,
        received: ReceivedRequest,
        now: Now,
    ) {
        let ReceivedRequest { len, decoded, watches } = received;
        self.record_received(conn, len);
        let (header, request) = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                tracing::debug!(%conn, %error, "not a request; closing the connection");
                return self.close(conn);
            }
        };
        if let Some(state) = self.conns.get_mut(&conn) {
            state.client.begin_request();
        }
        if !self.may_request(conn, header.op) {
            tracing::info!(%conn, "request before authentication; closing the connection");
            self.reply(conn, header.xid, NOTHING, Err(Code::SessionClosedRequireAuth));
            return self.reject_unauthenticated(conn, now);
        }
        let request = match request {
            Ok(request) => request,
            Err(error) => {
                tracing::debug!(%conn, op = header.op, %error, "malformed request");
                let mut result = Err(Code::MarshallingError);
                if op::is_write(header.op) {
                    let change = Change::Refused(WriteRefusal::One(Code::MarshallingError));
                    result = self.commit_change(session, change, now);
                }
                return self.reply(conn, header.xid, NOTHING, result);
            }
        };
        if let Request::Multi(ops) | Request::MultiRead(ops) = &request
            && ops.len() > MAX_OPERATIONS
        {
            let operations = ops.len();
            tracing::info!(
                %conn,
                operations,
                budget_multi_operations_limit = MAX_OPERATIONS,
                "a multi has too many operations; refusing it"
            );
            return self.reply(conn, header.xid, NOTHING, Err(Code::QuotaExceeded));
        }
        let shown = self.shown_by_reply(&request);
        match request {
            Request::Ping => self.reply(conn, header.xid, NOTHING, Ok(Reply::Empty)),
            Request::Auth { scheme, credentials, .. } => {
                self.authenticate(conn, header.xid, &scheme, &credentials.0, now);
            }
            Request::CloseSession => {
                self.expiry.remove(session);
                self.attached.remove(&session);
                if let Some(state) = self.conns.get_mut(&conn) {
                    state.is_ending_session = true;
                }
                // The reply follows when all ephemerals are deleted.
                if self
                    .delete_ephemerals(session, Some((conn, header.xid)), self.config.max_part, now)
                    .is_err()
                {
                    // No transaction number is left for ending the session. The session expires
                    // after the next epoch has started.
                    self.expiry.extend_session(session, self.config.tick_ms, now.mono_ms);
                }
            }
            Request::Create(_)
            | Request::Delete { .. }
            | Request::SetData { .. }
            | Request::SetAcl { .. }
            | Request::Check { .. }
            | Request::DeleteContainer
            | Request::Reconfig
            | Request::Multi(_) => {
                let Some(requester) = self.requester(conn, session) else { return };
                let change = match self.is_out_of_memory() && takes_memory(&request) {
                    true => Change::Refused(WriteRefusal::One(Code::QuotaExceeded)),
                    false => prepare(request, &self.state, requester),
                };
                let result = self.commit_change(session, change, now);
                self.answer_write(conn, header.xid, shown, result);
            }
            Request::Sasl { .. } => {
                // Replies like an Apache ZooKeeper without SASL. The connection gets no identity.
                self.send(conn, NOTHING, |writer| {
                    ReplyHeader { xid: header.xid, zxid: 0, err: 0 }.encode(writer);
                    Reply::Token(None).encode(writer);
                });
            }
            Request::SetWatches(_) => {
                if let Some(watches) = watches {
                    self.continue_set_watches(conn, watches);
                }
            }
            Request::AddWatch { path, mode } => {
                let result = match WatchKinds::from_add_mode(mode) {
                    Some(kinds) => {
                        self.add_watch(&path, conn, kinds);
                        Ok(Reply::Number(0))
                    }
                    None => Err(Code::MarshallingError),
                };
                self.reply(conn, header.xid, NOTHING, result);
            }
            Request::CheckWatches { path, kind } => {
                let result = Self::watcher_result(kind, |kinds| self.watches.contains(&path, conn, kinds));
                self.reply(conn, header.xid, NOTHING, result);
            }
            Request::RemoveWatches { path, kind } => {
                let result = Self::watcher_result(kind, |kinds| self.watches.remove(&path, conn, kinds));
                self.reply(conn, header.xid, NOTHING, result);
            }
            request => {
                let Some(requester) = self.requester(conn, session) else { return };
                let result = query(&request, &self.state, requester);
                if result == Err(Code::QuotaExceeded) {
                    tracing::info!(
                        %conn,
                        op = header.op,
                        budget_reply_bytes_limit = MAX_REPLY_BYTES,
                        "the reply to a read is too large; refusing the read"
                    );
                }
                self.set_requested_watch(conn, &request, &result);
                self.reply(conn, header.xid, shown, result);
            }
        }
    }

    /// Sends a reply that may show the effects of transactions up to `shown`.
    pub(super) fn reply(&mut self, conn: ConnId, xid: i32, shown: Zxid, result: Result<Reply, Code>) {
        let zxid = self.state.zxid.0;
        self.send(conn, shown, |writer| encode_reply(xid, zxid, result, writer));
    }

    /// Returns the last transaction whose effects the reply to a request may show.
    fn shown_by_reply(&self, request: &Request) -> Zxid {
        match request {
            Request::Sync { .. } | Request::WhoAmI => NOTHING,
            Request::Exists { path, .. }
            | Request::GetData { path, .. }
            | Request::GetAcl { path }
            | Request::GetChildren { path, .. }
            | Request::GetChildren2 { path, .. }
            | Request::Check { path, .. } => {
                self.state.tree.last_change(path).map_or(EVERYTHING, |zxid| zxid.max(self.last_acl_change))
            }
            Request::Multi(ops) | Request::MultiRead(ops) => {
                ops.iter().map(|op| self.shown_by_reply(op)).max().unwrap_or(NOTHING)
            }
            _ => EVERYTHING,
        }
    }

    fn is_out_of_memory(&self) -> bool {
        let max = self.config.max_znode_memory;
        max != 0 && self.state.tree.memory() > max
    }

    fn requester(&self, conn: ConnId, session: SessionId) -> Option<Requester<'_>> {
        let extended_types = self.config.extended_types;
        let client = &self.conns.get(&conn)?.client;
        Some(Requester { session, client, extended_types })
    }

    fn may_request(&self, conn: ConnId, op: i32) -> bool {
        matches!(op, op::PING | op::AUTH | op::CLOSE_SESSION) || self.is_admitted(conn)
    }

    /// Closes a connection because its authentication is missing or has failed. A session that was
    /// never admitted ends now. An admitted session expires after its timeout, as in ZooKeeper,
    /// because its client may rely on the session's ephemerals until then.
    fn reject_unauthenticated(&mut self, conn: ConnId, now: Now) {
        self.end_if_never_admitted(conn, now);
        self.close(conn);
    }

    fn authenticate(&mut self, conn: ConnId, xid: i32, scheme: &str, credentials: &[u8], now: Now) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        let access = &self.config.access;
        let too_much =
            state.client.identities().len() >= MAX_IDENTITIES || credentials.len() > MAX_CREDENTIALS;
        let proven = match scheme {
            _ if too_much => None,
            // The credentials of the secret also prove a digest identity, as any credentials do on a server without
            // accounts.
            "digest" if access.is_secret(credentials) => Some(vec![acl::digest_identity(credentials)]),
            "digest" => access.verify_digest(credentials),
            "ip" => Some(Vec::new()),
            // The TLS handshake has already added the identity of the certificate. Authentication
            // fails if the client has sent no certificate.
            "x509" => {
                state.client.identities().iter().any(|identity| identity.scheme == "x509").then(Vec::new)
            }
            _ => None,
        };
        for identity in proven.iter().flatten() {
            state.client.add_identity(identity.clone());
        }
        let is_admitted = access.admits_without_auth(state.client.identities())
            || scheme == "digest" && access.is_secret(credentials);
        let admitted = match &mut state.phase {
            HandshakePhase::Attached { admitted, .. } => {
                *admitted |= is_admitted;
                *admitted
            }
            HandshakePhase::New => true,
        };
        if proven.is_none() || !admitted {
            self.totals.auth_failures += 1;
            tracing::info!(%conn, scheme, "authentication failed; closing the connection");
            let err = Code::AuthFailed.number();
            self.send(conn, NOTHING, |writer| ReplyHeader { xid, zxid: 0, err }.encode(writer));
            return self.reject_unauthenticated(conn, now);
        }
        // As in ZooKeeper, replies to `auth` requests always contain zxid 0.
        self.send(conn, NOTHING, |writer| ReplyHeader { xid, zxid: 0, err: 0 }.encode(writer));
    }

    /// Sets the watch that a read requested. A failed read sets no watch, except `exists` of a
    /// missing znode. As in ZooKeeper, the reads of a `multiRead` set no watches.
    fn set_requested_watch(&mut self, conn: ConnId, request: &Request, result: &Result<Reply, Code>) {
        match (request, result) {
            (Request::Exists { path, watch: true }, Ok(_) | Err(Code::NoNode)) => {
                self.add_watch(path, conn, WatchKinds::DATA);
            }
            (Request::GetData { path, watch: true }, Ok(_)) => self.add_watch(path, conn, WatchKinds::DATA),
            (
                Request::GetChildren { path, watch: true } | Request::GetChildren2 { path, watch: true },
                Ok(_),
            ) => {
                self.add_watch(path, conn, WatchKinds::CHILD);
            }
            _ => {}
        }
    }

    fn watcher_result(number: i32, found: impl FnOnce(WatchKinds) -> bool) -> Result<Reply, Code> {
        let kinds = WatchKinds::from_watcher_type(number).ok_or(Code::MarshallingError)?;
        if found(kinds) { Ok(Reply::Empty) } else { Err(Code::NoWatcher) }
    }
}

/// Size of data in bytes that a write may always have. The records of a lock are smaller, so that it can be released.
const SMALL_DATA: usize = 1024;

/// Number of entries of an access list that a write may always have.
const SMALL_LIST: usize = 8;

/// Returns whether a write takes much memory: it creates more znodes than it deletes, or writes large data or a list.
fn takes_memory(request: &Request) -> bool {
    let is_large = |data: &Option<Bytes>| data.as_ref().is_some_and(|data| data.len() > SMALL_DATA);
    let is_large_list = |list: &[Acl]| list.len() > SMALL_LIST || stored_bytes(list) > SMALL_DATA;
    match request {
        Request::Create(_) | Request::SetAcl { .. } => true,
        Request::SetData { data, .. } => is_large(data),
        Request::Multi(ops) => {
            let creates = ops.iter().filter(|op| matches!(op, Request::Create(_))).count();
            let deletes = ops.iter().filter(|op| matches!(op, Request::Delete { .. })).count();
            let large = |op: &Request| match op {
                Request::Create(create) => {
                    is_large(&create.data) || create.path.len() > SMALL_DATA || is_large_list(&create.acl)
                }
                Request::SetData { data, .. } => is_large(data),
                op => matches!(op, Request::SetAcl { .. }),
            };
            creates > deletes || ops.iter().any(large)
        }
        _ => false,
    }
}
