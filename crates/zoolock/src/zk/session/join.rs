//! Creates the znode of a contender. Defers a release before it, so that a create in the same directory can join the
//! transaction of the release.
//!
//! If a program drops a guard, and at once acquires again, it sends two writes within microseconds.
//! ZooKeeper begins the second write after it has made the first one durable, so the program waits
//! for two commits. One transaction with both writes needs only one commit.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use zoolock_core::acquisition::RequestFailure;
use zoolock_core::{Sequence, SessionId, Zxid};
use zoolock_wire::{Reply, Request};

use super::codes::{created_znodes, error_of_code, zk_error};
use super::inbox::{ReplyAddress, ReplyOutcome, ReplyTo, TransactionPart};
use super::{Op, ZkError, ZkSession};
use crate::base::sync::lock;

/// The number of digits in the number of a sequential znode.
const DIGITS: usize = 10;

/// The deferred release of a session, and two properties of the servers that replies have shown.
pub(super) struct Deferral {
    /// A release that is not sent yet. It is sent before any other request except a renewal of the
    /// lease.
    deferred: Mutex<Option<Deferred>>,
    /// Set if the server returns the czxid of a znode that a transaction creates (ZOOKEEPER-4026: from 3.7.2 and 3.8.2
    /// on). Assumed until an answer shows otherwise.
    returns_zxids: AtomicBool,
    /// Set if the last guess of a new znode's name was right. Guesses are for servers that do not
    /// return the czxid. On such a server, a create joins a release only if the last guess was
    /// right. Guesses are seldom right while other clients queue.
    guesses_names: AtomicBool,
}

impl Default for Deferral {
    fn default() -> Deferral {
        Deferral {
            deferred: Mutex::default(),
            returns_zxids: AtomicBool::new(true),
            guesses_names: AtomicBool::new(true),
        }
    }
}

/// A transaction that has not been sent. Its first operation deletes a znode.
struct Deferred {
    ops: Vec<Op>,
    to: ReplyAddress,
}

impl Deferred {
    fn deleted_path(&self) -> Option<&str> {
        match self.ops.first() {
            Some(Op::Delete(path)) => Some(path),
            _ => None,
        }
    }

    /// Returns whether a znode with this prefix would be in the directory of the deleted znode.
    fn is_beside(&self, prefix: &str) -> bool {
        self.deleted_path().is_some_and(|path| directory(path) == directory(prefix))
    }

    /// Guesses the path of the next sequential znode with this prefix. The guess is right if no znode was created after
    /// the deleted one.
    fn next_path(&self, prefix: &str) -> Option<String> {
        let path = self.deleted_path()?;
        let number = Sequence::parse(path.get(path.len().checked_sub(DIGITS)?..)?)?.0.checked_add(1)?;
        Some(format!("{prefix}{number:010}"))
    }
}

fn directory(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(directory, _)| directory)
}

/// A sent request that creates the znode of a contender.
pub(crate) struct PendingJoin {
    /// The path without the number.
    prefix: String,
    /// The guessed path, if a release in the same directory was deferred.
    next: Option<String>,
    /// Set if a read of the guessed path was sent right after the create.
    reads_guess: bool,
}

impl PendingJoin {
    /// Returns the number of replies that the create gets.
    pub(crate) fn replies(&self) -> usize {
        if self.reads_guess { 2 } else { 1 }
    }
}

/// A znode that was created.
pub(crate) enum NewZnode {
    Known(Sequence, Zxid),
    /// The server has not returned the czxid. A read of this path shows it.
    Unread(Sequence, String),
}

impl ZkSession {
    /// Sends the deferred release. The caller keeps the returned guard until its next request is
    /// sent. Otherwise another thread could defer a release that this request would overtake.
    pub(super) fn flush_deferred_release(&self) -> impl Sized + '_ {
        let mut deferred = lock(&self.deferral.deferred);
        self.send_release(&mut deferred);
        deferred
    }

    fn send_release(&self, deferred: &mut Option<Deferred>) {
        let Some(Deferred { ops, to }) = deferred.take() else { return };
        let request = match <[Op; 1]>::try_from(ops) {
            Ok([op @ Op::Delete(_)]) => self.wire_op(op),
            Ok(ops) => self.multi(ops.into()),
            Err(ops) => self.multi(ops),
        };
        self.send_now(&request, ReplyTo::Acquisition(to, None));
    }

    /// Defers one transaction whose first operation deletes a znode. If the next request is a [`ZkSession::join`] in
    /// the same directory, its create joins the transaction. Otherwise the transaction is sent before the next request,
    /// or as soon as the runtime has a thread for it.
    pub(crate) fn defer_release(self: &Arc<Self>, ops: Vec<Op>, to: ReplyAddress) {
        {
            let mut deferred = lock(&self.deferral.deferred);
            self.send_release(&mut deferred);
            *deferred = Some(Deferred { ops, to });
        }
        let zk = self.clone();
        self.tasks.spawn(async move { drop(zk.flush_deferred_release()) });
    }

    /// Creates an ephemeral sequential znode; the number is appended to `prefix`. The create joins the deferred release
    /// in the same directory, if there is one.
    pub(crate) fn join(&self, prefix: &str, data: &[u8], to: ReplyAddress) -> PendingJoin {
        let Deferral { deferred, returns_zxids, guesses_names } = &self.deferral;
        let mut deferred = lock(deferred);
        let mut joining = PendingJoin { prefix: prefix.to_owned(), next: None, reads_guess: false };
        if let Some(before) = deferred.as_ref().filter(|before| before.is_beside(prefix)) {
            joining.next = before.next_path(prefix);
            let returns_zxids = returns_zxids.load(Ordering::Relaxed);
            let pays = returns_zxids || guesses_names.load(Ordering::Relaxed);
            if let Some(Deferred { mut ops, to: release }) = deferred.take_if(|_| pays && self.is_connected())
            {
                let at = ops.len();
                ops.push(Op::Join { prefix: prefix.to_owned(), data: data.to_owned() });
                let release = ReplyAddress { part: TransactionPart::Before(at), ..release };
                let create = ReplyAddress { part: TransactionPart::Only(at), ..to };
                self.send_now(&self.multi(ops), ReplyTo::Both(release, create));
                // If the server does not return the czxid, reads the znode at the guessed path right after
                // the transaction. The guess is right unless another contender has queued in between.
                if let Some(path) = joining.next.as_ref().filter(|_| !returns_zxids) {
                    let read = Request::Exists { path: path.clone(), watch: false };
                    self.send_now(&read, ReplyTo::Acquisition(to, None));
                    joining.reads_guess = true;
                }
                return joining;
            }
        }
        self.send_release(&mut deferred);
        self.send_now(&self.create_contender(prefix, data), ReplyTo::Acquisition(to, None));
        joining
    }

    /// Evaluates the reply to the create of a contender's znode. `guess_read`: the reply to the read of the guessed path, if
    /// it was sent.
    ///
    /// # Errors
    /// The create has failed, or its outcome is unknown.
    pub(crate) fn interpret_join_reply(
        &self,
        joining: PendingJoin,
        part: TransactionPart,
        outcome: ReplyOutcome,
        guess_read: Option<ReplyOutcome>,
    ) -> Result<NewZnode, ZkError> {
        let PendingJoin { prefix, next, .. } = joining;
        let unknown = |message: &str| zk_error(RequestFailure::Unknown, message);
        let number = |path: &str| {
            let number = path.strip_prefix(&prefix).and_then(Sequence::parse);
            number.ok_or_else(|| unknown("the server created a znode with another name"))
        };
        let guesses = |path: &String| {
            let is_right = next.as_ref() == Some(path);
            self.deferral.guesses_names.store(is_right, Ordering::Relaxed);
            is_right
        };
        match reply_or_error(outcome)? {
            Reply::PathStat { path, stat } => {
                if next.is_some() {
                    guesses(&path);
                }
                Ok(NewZnode::Known(number(&path)?, Zxid(stat.czxid)))
            }
            Reply::Multi(results) => {
                let parts = if let TransactionPart::Only(at) = part { at + 1 } else { 1 };
                let created = created_znodes(results, parts)
                    .map_err(|failed_transaction| failed_transaction.error_for(part))?;
                let created = created.into_iter().next();
                let created = created.ok_or_else(|| unknown("the server created nothing"))?;
                let number = number(&created.path)?;
                if let Some(czxid) = created.czxid {
                    return Ok(NewZnode::Known(number, czxid));
                }
                self.deferral.returns_zxids.store(false, Ordering::Relaxed);
                match guess_read {
                    Some(read) if guesses(&created.path) => {
                        Ok(NewZnode::Known(number, czxid_of_new_znode(reply_or_error(read), self.session())?))
                    }
                    _ => Ok(NewZnode::Unread(number, created.path)),
                }
            }
            _ => Err(unknown("unexpected reply type")),
        }
    }
}

/// Returns the czxid in the reply to a read of a znode that this session has just created. Any failure leaves the outcome of
/// the create unknown, because the create itself has succeeded.
pub(crate) fn czxid_of_new_znode(read: Result<Reply, ZkError>, session: SessionId) -> Result<Zxid, ZkError> {
    let unknown = |message: &str| zk_error(RequestFailure::Unknown, message);
    match read {
        Ok(Reply::Stat(stat)) if stat.ephemeral_owner == session.0 => Ok(Zxid(stat.czxid)),
        Ok(_) | Err(ZkError { failure: RequestFailure::NoNode, .. }) => {
            Err(unknown("the new znode was deleted at once"))
        }
        Err(error) => Err(unknown(&error.message)),
    }
}

/// Returns the reply, or the error of a request that was refused or whose outcome is unknown.
pub(crate) fn reply_or_error(outcome: ReplyOutcome) -> Result<Reply, ZkError> {
    outcome
        .ok_or_else(|| zk_error(RequestFailure::Unknown, "the connection ended before the reply"))?
        .map_err(error_of_code)
}

#[cfg(test)]
mod tests {
    use zoolock_core::ContenderId;
    use zoolock_core::acquisition::RequestId;

    use super::*;

    fn deferred(path: &str) -> Deferred {
        let to =
            ReplyAddress { contender: ContenderId(1), request: RequestId(1), part: TransactionPart::All };
        Deferred { ops: vec![Op::Delete(path.to_owned())], to }
    }

    #[test]
    fn next_name_has_the_next_number() {
        let next = |path, prefix| deferred(path).next_path(prefix);
        assert_eq!(next("/a/x-0000000041", "/a/y-").as_deref(), Some("/a/y-0000000042"));
        assert_eq!(next("/a/x-2147483647", "/a/x-"), None, "there is no higher number");
        assert_eq!(next("/a/x", "/a/x-"), None);
        assert_eq!(next("/ä/öüöüöü", "/ä/"), None);
    }

    #[test]
    fn only_a_znode_of_the_same_directory_is_beside() {
        let before = deferred("/a/b/x-0000000041");
        assert!(before.is_beside("/a/b/y-"));
        assert!(!before.is_beside("/a/b/c/y-"));
        assert!(!before.is_beside("/a/y-"));
    }
}
