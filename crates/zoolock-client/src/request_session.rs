//! A client whose callers await the reply to each request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{broadcast, oneshot};
use zoolock_wire::{Acl, Code, CreateRequest, Reply, Request, Stat, WatchEvent};

use crate::Instant;
use crate::driver::{Client, Handler, Servers};
use crate::hosts::DialError;
use crate::platform::Platform;
use crate::session::{End, RequestError, RequestNumber, SessionConfig, SessionState};

/// The number of notices that are kept for a receiver. A receiver that lags behind by more misses notices, and gets an
/// error.
const KEPT_NOTICES: usize = 256;

/// A change of the session, or a watch event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The state of the session changed.
    State(SessionState),
    /// A watch fired.
    Event(WatchEvent),
}

/// A receiver of the [`Notice`]s of a session.
pub type Notices = broadcast::Receiver<Notice>;

/// The reason why [`RequestSession::open`] failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No server was reached. The list has the error of each server.
    #[error("{}", join_errors(.0))]
    Unreachable(Vec<DialError>),
    /// The server refused the credentials, or did not prove its identity.
    #[error("the server refused the credentials")]
    Denied,
    /// The session ended before a server attached it.
    #[error("the session ended before it was attached: {0}")]
    Ended(End),
}

/// A session for single requests, without locks.
///
/// Dropping this value closes the session in the background.
pub struct RequestSession {
    client: Client<PendingReplies>,
    notices: broadcast::Sender<Notice>,
}

struct PendingReplies {
    /// The waiting caller of [`RequestSession::open`]. `None` after the caller has got the result.
    opener: Option<oneshot::Sender<Result<(), OpenError>>>,
    replies: HashMap<RequestNumber, oneshot::Sender<Result<Reply, RequestError>>>,
    notices: broadcast::Sender<Notice>,
}

impl Handler for PendingReplies {
    fn handle_reply(&mut self, request: RequestNumber, _: Instant, result: Result<Reply, RequestError>) {
        if let Some(caller) = self.replies.remove(&request) {
            let _ = caller.send(result);
        }
    }

    fn handle_event(&mut self, event: WatchEvent) {
        let _ = self.notices.send(Notice::Event(event));
    }

    fn handle_state_change(&mut self, state: SessionState) {
        match state {
            SessionState::Connected { .. } => self.finish_opening(Ok(())),
            SessionState::Ended(End::AuthFailed) => self.finish_opening(Err(OpenError::Denied)),
            SessionState::Ended(end) => self.finish_opening(Err(OpenError::Ended(end))),
            SessionState::Disconnected(_) => {}
        }
        let _ = self.notices.send(Notice::State(state));
    }

    fn handle_failed_dial(&mut self, errors: &[DialError]) {
        self.finish_opening(Err(OpenError::Unreachable(errors.to_vec())));
    }
}

impl PendingReplies {
    fn finish_opening(&mut self, outcome: Result<(), OpenError>) {
        if let Some(opener) = self.opener.take() {
            let _ = opener.send(outcome);
        }
    }
}

fn join_errors(errors: &[DialError]) -> String {
    errors.iter().map(DialError::to_string).collect::<Vec<_>>().join("; ")
}

impl RequestSession {
    /// Opens a session. The caller must limit the time, because a server that was reached may take any time to attach
    /// the session.
    ///
    /// # Errors
    /// [`OpenError::Unreachable`] if no server is reached at the first attempt, [`OpenError::Denied`] if the server
    /// refuses the credentials, and [`OpenError::Ended`] if the session ends for another reason.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt, and closes a session that was just opened.
    ///
    /// # Panics
    /// There is no server in `servers`.
    pub async fn open(
        config: SessionConfig,
        servers: impl Into<Servers>,
        platform: Arc<dyn Platform>,
    ) -> Result<RequestSession, OpenError> {
        let (opener, opened) = oneshot::channel();
        let notices = broadcast::Sender::new(KEPT_NOTICES);
        let pending =
            PendingReplies { opener: Some(opener), replies: HashMap::new(), notices: notices.clone() };
        let requests = RequestSession { client: Client::start(config, servers, pending, platform), notices };
        opened.await.unwrap_or(Err(OpenError::Ended(End::Abandoned)))?;
        Ok(requests)
    }

    /// Sends a request when first polled, and returns its reply.
    ///
    /// # Errors
    /// The errors of [`Session::request`](crate::Session::request), and the error codes of the server.
    ///
    /// # Cancel safety
    /// Dropping the future does not cancel the request.
    pub async fn call(&self, request: &Request) -> Result<Reply, RequestError> {
        let (sender, reply) = oneshot::channel();
        self.client.with(|session, pending, now| {
            session.request(request, now).map(|id| pending.replies.insert(id, sender))
        })?;
        reply.await.unwrap_or(Err(RequestError::SessionEnded))
    }

    /// Returns a receiver of all notices from now on.
    pub fn notices(&self) -> Notices {
        self.notices.subscribe()
    }

    /// Returns the shortest session timeout that a server granted.
    pub fn timeout(&self) -> Duration {
        self.client.with(|session, _, _| session.timeout())
    }

    /// Returns whether the session has ended.
    pub fn is_over(&self) -> bool {
        self.client.with(|session, _, _| session.end().is_some())
    }

    /// Closes the session, and waits until the server has confirmed the close or the session timeout has passed.
    pub async fn close(&self) {
        let mut notices = self.notices();
        self.client.close();
        while !self.is_over() {
            if let Err(broadcast::error::RecvError::Closed) = notices.recv().await {
                return;
            }
        }
    }

    /// Reads the stat of a znode. Returns `None` if the znode does not exist.
    ///
    /// # Errors
    /// As [`RequestSession::call`].
    pub async fn exists(&self, path: &str) -> Result<Option<Stat>, RequestError> {
        match self.call(&Request::Exists { path: path.to_owned(), watch: false }).await {
            Ok(Reply::Stat(stat)) => Ok(Some(stat)),
            Err(error) if error.code() == Some(Code::NoNode) => Ok(None),
            other => Err(into_request_error(other)),
        }
    }

    /// Reads the access list of a znode.
    ///
    /// # Errors
    /// As [`RequestSession::call`].
    pub async fn acl(&self, path: &str) -> Result<Vec<Acl>, RequestError> {
        match self.call(&Request::GetAcl { path: path.to_owned() }).await {
            Ok(Reply::AclStat { acl, .. }) => Ok(acl),
            other => Err(into_request_error(other)),
        }
    }

    /// Lists the children of a znode.
    ///
    /// # Errors
    /// As [`RequestSession::call`].
    pub async fn children(&self, path: &str) -> Result<Vec<String>, RequestError> {
        match self.call(&Request::GetChildren { path: path.to_owned(), watch: false }).await {
            Ok(Reply::Children(names)) => Ok(names),
            other => Err(into_request_error(other)),
        }
    }

    /// Creates an ephemeral znode, which the server deletes when the session ends.
    ///
    /// # Errors
    /// As [`RequestSession::call`].
    pub async fn create_ephemeral(&self, path: &str, data: &[u8], acl: &[Acl]) -> Result<(), RequestError> {
        let create = CreateRequest {
            op: zoolock_wire::op::CREATE2,
            path: path.to_owned(),
            data: Some(Bytes::copy_from_slice(data)),
            acl: acl.to_vec(),
            flags: 1,
            ttl: 0,
        };
        self.call(&Request::Create(create)).await.map(drop)
    }

    /// Writes the data of a znode, at any version.
    ///
    /// # Errors
    /// As [`RequestSession::call`].
    pub async fn write(&self, path: &str, data: &[u8]) -> Result<(), RequestError> {
        let data = Some(Bytes::copy_from_slice(data));
        self.call(&Request::SetData { path: path.to_owned(), data, version: -1 }).await.map(drop)
    }

    /// Deletes a znode, at any version.
    ///
    /// # Errors
    /// As [`RequestSession::call`].
    pub async fn delete(&self, path: &str) -> Result<(), RequestError> {
        self.call(&Request::Delete { path: path.to_owned(), version: -1 }).await.map(drop)
    }

    /// Waits until the connected server has caught up with the leader.
    ///
    /// # Errors
    /// As [`RequestSession::call`].
    pub async fn sync(&self, path: &str) -> Result<(), RequestError> {
        self.call(&Request::Sync { path: path.to_owned() }).await.map(drop)
    }

    /// Watches a znode and everything below it, until the connection is lost. Events come as [`Notice::Event`].
    ///
    /// # Errors
    /// As [`RequestSession::call`]. Servers before 3.6 do not know the request.
    pub async fn watch_all_below(&self, path: &str) -> Result<(), RequestError> {
        self.call(&Request::AddWatch { path: path.to_owned(), mode: PERSISTENT_RECURSIVE }).await.map(drop)
    }
}

impl RequestSession {
    /// Removes all watches of the session on this path, without waiting for the reply.
    pub fn remove_watches(&self, path: &str) {
        // The error is ignored: without a connection the session has no watches.
        let _ = self.client.request(&Request::RemoveWatches { path: path.to_owned(), kind: ANY_WATCH });
    }
}

/// The watch type of `removeWatches` that stands for all types.
const ANY_WATCH: i32 = 3;

/// The mode of `addWatch` for a watch on a znode and on all znodes below it. The watch stays set
/// after it fires.
const PERSISTENT_RECURSIVE: i32 = 1;

/// Returns the error of a result that is not the expected reply. A reply of another kind does not occur, because the
/// session decodes each reply by its request.
fn into_request_error(result: Result<Reply, RequestError>) -> RequestError {
    result.err().unwrap_or(RequestError::ConnectionLoss)
}
