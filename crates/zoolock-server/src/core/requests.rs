//! Requests of connections that have a session.

use zoolock_wire::{Code, EventKind, Reader, Reply, ReplyHeader, Request, RequestHeader, SetWatches, op};

use super::connection::HandshakePhase;
use super::{Core, Now};
use crate::acl;
use crate::ids::ConnId;
use crate::ids::SessionId;
use crate::prepare::{Requester, prepare};
use crate::query::query;
use crate::txn::{Change, WriteRefusal};
use crate::watches::WatchKinds;

/// Maximum number of identities of a connection.
const MAX_IDENTITIES: usize = 64;
/// Maximum length of credentials in bytes. The length is limited, because each access list with an
/// `auth` entry keeps a copy of the user name.
const MAX_CREDENTIALS: usize = 4096;

impl Core {
    pub(super) fn handle_request(&mut self, conn: ConnId, session: SessionId, frame: &[u8], now: Now) {
        let mut reader = Reader::new(frame);
        let header = match RequestHeader::decode(&mut reader) {
            Ok(header) => header,
            Err(error) => {
                tracing::debug!(%conn, %error, "not a request; closing the connection");
                return self.close(conn);
            }
        };
        if !self.may_request(conn, header.op) {
            tracing::info!(%conn, "request before authentication; closing the connection");
            self.reply(conn, header.xid, Err(Code::SessionClosedRequireAuth));
            return self.reject_unauthenticated(conn, now);
        }
        let request = match Request::decode(header.op, &mut reader) {
            Ok(request) => request,
            Err(error) => {
                tracing::debug!(%conn, op = header.op, %error, "malformed request");
                let mut result = Err(Code::MarshallingError);
                if op::is_write(header.op) {
                    let change = Change::Refused(WriteRefusal::One(Code::MarshallingError));
                    result = self.commit_change(session, change, now);
                }
                return self.reply(conn, header.xid, result);
            }
        };
        match request {
            Request::Ping => self.reply(conn, header.xid, Ok(Reply::Empty)),
            Request::Auth { scheme, credentials, .. } => {
                self.authenticate(conn, header.xid, &scheme, &credentials.0, now);
            }
            Request::CloseSession => {
                self.expiry.remove(session);
                let change = prepare(Request::CloseSession, &self.state, self.requester(conn, session));
                let result = self.commit_change(session, change, now);
                if result.is_err() {
                    // No transaction number is left for ending the session. The session expires
                    // after the next epoch has started.
                    self.expiry.extend_session(session, self.config.tick_ms, now.mono_ms);
                }
                self.attached.remove(&session);
                self.watches.remove_connection(conn);
                self.reply(conn, header.xid, result);
                self.close(conn);
            }
            Request::Create(_)
            | Request::Delete { .. }
            | Request::SetData { .. }
            | Request::SetAcl { .. }
            | Request::Check { .. }
            | Request::DeleteContainer
            | Request::Reconfig
            | Request::Multi(_) => {
                let change = prepare(request, &self.state, self.requester(conn, session));
                let result = self.commit_change(session, change, now);
                self.reply(conn, header.xid, result);
            }
            Request::Sasl { .. } => {
                // Replies like an Apache ZooKeeper without SASL. The connection gets no identity.
                self.send(conn, |writer| {
                    ReplyHeader { xid: header.xid, zxid: 0, err: 0 }.encode(writer);
                    Reply::Token(None).encode(writer);
                });
            }
            Request::SetWatches(set) => {
                self.set_watches(conn, &set);
                self.reply(conn, header.xid, Ok(Reply::Empty));
            }
            Request::AddWatch { path, mode } => {
                let result = match WatchKinds::from_add_mode(mode) {
                    Some(kinds) => {
                        self.add_watch(&path, conn, kinds);
                        Ok(Reply::Number(0))
                    }
                    None => Err(Code::MarshallingError),
                };
                self.reply(conn, header.xid, result);
            }
            Request::CheckWatches { path, kind } => {
                let result = Self::watcher_result(kind, |kinds| self.watches.contains(&path, conn, kinds));
                self.reply(conn, header.xid, result);
            }
            Request::RemoveWatches { path, kind } => {
                let result = Self::watcher_result(kind, |kinds| self.watches.remove(&path, conn, kinds));
                self.reply(conn, header.xid, result);
            }
            request => {
                let result = query(&request, &self.state, self.requester(conn, session));
                self.set_requested_watch(conn, &request, &result);
                self.reply(conn, header.xid, result);
            }
        }
    }

    fn reply(&mut self, conn: ConnId, xid: i32, result: Result<Reply, Code>) {
        let zxid = self.state.zxid.0;
        self.send(conn, |writer| match result {
            Ok(reply) => {
                ReplyHeader { xid, zxid, err: 0 }.encode(writer);
                reply.encode(writer);
            }
            Err(code) => ReplyHeader { xid, zxid, err: code.number() }.encode(writer),
        });
    }

    fn requester(&self, conn: ConnId, session: SessionId) -> Requester<'_> {
        let extended_types = self.config.extended_types;
        Requester { session, identities: self.identities(conn), extended_types }
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
        let too_much = state.identities.len() >= MAX_IDENTITIES || credentials.len() > MAX_CREDENTIALS;
        let proven = match scheme {
            _ if too_much => None,
            // The credentials of the secret also prove a digest identity, as any credentials do on a server without
            // accounts.
            "digest" if access.is_secret(credentials) => Some(vec![acl::digest_identity(credentials)]),
            "digest" => access.verify_digest(credentials),
            "ip" => Some(Vec::new()),
            // The TLS handshake has already added the identity of the certificate. Authentication
            // fails if the client has sent no certificate.
            "x509" => state.identities.iter().any(|identity| identity.scheme == "x509").then(Vec::new),
            _ => None,
        };
        for identity in proven.iter().flatten() {
            if !state.identities.contains(identity) {
                state.identities.push(identity.clone());
            }
        }
        let is_admitted = access.admits_without_auth(&state.identities)
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
            self.send(conn, |writer| ReplyHeader { xid, zxid: 0, err }.encode(writer));
            return self.reject_unauthenticated(conn, now);
        }
        // As in ZooKeeper, replies to `auth` requests always contain zxid 0.
        self.send(conn, |writer| ReplyHeader { xid, zxid: 0, err: 0 }.encode(writer));
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

    /// Sets watches again after a reconnect. If a one-shot watch missed an event since `relative_zxid`, the event is
    /// sent at once and the watch is not set.
    fn set_watches(&mut self, conn: ConnId, set: &SetWatches) {
        let since = set.relative_zxid;
        for path in &set.data {
            match self.state.tree.get(path) {
                None => self.send_event(conn, EventKind::Deleted, path),
                Some(node) if node.mzxid().0 > since => self.send_event(conn, EventKind::DataChanged, path),
                Some(_) => self.add_watch(path, conn, WatchKinds::DATA),
            }
        }
        for path in &set.exist {
            match self.state.tree.get(path) {
                Some(_) => self.send_event(conn, EventKind::Created, path),
                None => self.add_watch(path, conn, WatchKinds::DATA),
            }
        }
        for path in &set.child {
            match self.state.tree.get(path) {
                None => self.send_event(conn, EventKind::Deleted, path),
                Some(node) if node.pzxid().0 > since => {
                    self.send_event(conn, EventKind::ChildrenChanged, path);
                }
                Some(_) => self.add_watch(path, conn, WatchKinds::CHILD),
            }
        }
        for path in set.persistent.iter().flatten() {
            self.add_watch(path, conn, WatchKinds::PERSISTENT);
        }
        for path in set.recursive.iter().flatten() {
            self.add_watch(path, conn, WatchKinds::RECURSIVE);
        }
    }

    fn watcher_result(number: i32, found: impl FnOnce(WatchKinds) -> bool) -> Result<Reply, Code> {
        let kinds = WatchKinds::from_watcher_type(number).ok_or(Code::MarshallingError)?;
        if found(kinds) { Ok(Reply::Empty) } else { Err(Code::NoWatcher) }
    }
}
