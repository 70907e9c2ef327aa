//! The deferral of a release, and the create that often follows it in the same directory.
//!
//! A program that drops a guard and acquires again at once sends two writes within microseconds. ZooKeeper begins the second
//! write after it has made the first one durable, so the program waits for two commits. As one transaction they are one
//! commit.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use zoolock_core::contender::Failure;
use zoolock_core::{Sequence, Zxid};
use zoolock_wire::Reply;

use super::codes::{failed, refused, transaction};
use super::inbox::{Address, Part, ReplyOutcome, ReplyTo};
use super::{Answer, Op, Stat, ZkError, ZkSession};
use crate::base::sync::lock;

/// The number of digits in the number of a sequential znode.
const DIGITS: usize = 10;

/// The deferred release of a session.
pub(super) struct Deferral {
    /// A release that is sent before any other request.
    deferred: Mutex<Option<Deferred>>,
    /// Set if a transaction returns the zxid of its creates (ZOOKEEPER-4026: from 3.7.2 and 3.8.2 on). Assumed until
    /// known.
    returns_zxids: AtomicBool,
    /// For servers that do not: set if the last guessed name was right. A guess is seldom right if other clients queue.
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

/// A transaction that has not been sent. It deletes a znode first.
struct Deferred {
    ops: Vec<Op>,
    to: Address,
}

impl Deferred {
    fn deleted(&self) -> Option<&str> {
        match self.ops.first() {
            Some(Op::Delete(path)) => Some(path),
            _ => None,
        }
    }

    /// Returns whether a znode with this prefix is created in the same directory.
    fn is_beside(&self, prefix: &str) -> bool {
        self.deleted().is_some_and(|path| directory(path) == directory(prefix))
    }

    /// Returns the path of the next sequential znode with this prefix, if none was created since the deleted one.
    fn next(&self, prefix: &str) -> Option<String> {
        let path = self.deleted()?;
        let number = Sequence::parse(path.get(path.len().checked_sub(DIGITS)?..)?)?.0.checked_add(1)?;
        Some(format!("{prefix}{number:010}"))
    }
}

fn directory(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(directory, _)| directory)
}

/// The create of a contender that was sent.
pub(crate) struct Joining {
    /// The path without the number.
    prefix: String,
    /// The guessed path, if the create follows a release.
    next: Option<String>,
    /// A read of the guessed path in the same flight.
    guess_read: Option<Answer<Option<Stat>>>,
}

/// The result of a create.
pub(crate) enum Joined {
    Now(Result<(Sequence, Zxid), ZkError>),
    /// Another request is needed.
    Later(Answer<(Sequence, Zxid)>),
}

impl ZkSession {
    /// Sends the deferred release. Keep the returned guard while the next request is sent, so that no other request
    /// overtakes the release.
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

    /// Commits one transaction that deletes a znode first. The next call joins the transaction if it is
    /// [`ZkSession::join`] in the same directory. Otherwise the transaction is sent before the next request, or
    /// as soon as the runtime has a thread for it.
    pub(crate) fn release_soon(self: &Arc<Self>, ops: Vec<Op>, to: Address) {
        {
            let mut deferred = lock(&self.deferral.deferred);
            self.send_release(&mut deferred);
            *deferred = Some(Deferred { ops, to });
        }
        let zk = self.clone();
        self.tasks.spawn(async move { drop(zk.flush_deferred_release()) });
    }

    /// Creates an ephemeral sequential znode; the number is appended to `prefix`.
    pub(crate) fn join(&self, prefix: &str, data: &[u8], to: Address) -> Joining {
        let Deferral { deferred, returns_zxids, guesses_names } = &self.deferral;
        let mut deferred = lock(deferred);
        let mut joining = Joining { prefix: prefix.to_owned(), next: None, guess_read: None };
        if let Some(before) = deferred.as_ref().filter(|before| before.is_beside(prefix)) {
            joining.next = before.next(prefix);
            let returns_zxids = returns_zxids.load(Ordering::Relaxed);
            let pays = returns_zxids || guesses_names.load(Ordering::Relaxed);
            if let Some(Deferred { mut ops, to: release }) = deferred.take_if(|_| pays && self.is_connected())
            {
                let at = ops.len();
                ops.push(Op::Join { prefix: prefix.to_owned(), data: data.to_owned() });
                let release = Address { part: Part::Before(at), ..release };
                let create = Address { part: Part::Only(at), ..to };
                self.send_now(&self.multi(ops), ReplyTo::Both(release, create));
                // The guess is read in the same flight. It is right unless another contender queued in between.
                let guess = joining.next.as_ref().filter(|_| !returns_zxids);
                joining.guess_read = guess.map(|path| self.exists_now(path));
                return joining;
            }
        }
        self.send_release(&mut deferred);
        self.send_now(&self.create_contender(prefix, data), ReplyTo::Acquisition(to, None));
        joining
    }

    /// Evaluates the reply to the create of a contender.
    pub(crate) fn joined(self: &Arc<Self>, joining: Joining, part: Part, outcome: ReplyOutcome) -> Joined {
        let Joining { prefix, next, guess_read } = joining;
        let unknown = |message: &str| failed(Failure::Unknown, message);
        let number = |path: &str| {
            let number = path.strip_prefix(&prefix).and_then(Sequence::parse);
            number.ok_or_else(|| unknown("the server created a znode with another name"))
        };
        let guesses = |path: &String| {
            let is_right = next.as_ref() == Some(path);
            self.deferral.guesses_names.store(is_right, Ordering::Relaxed);
            is_right
        };
        match reply(outcome) {
            Err(error) => Joined::Now(Err(error)),
            Ok(Reply::PathStat { path, stat }) => {
                if next.is_some() {
                    guesses(&path);
                }
                Joined::Now(number(&path).map(|number| (number, Zxid(stat.czxid))))
            }
            Ok(Reply::Multi(results)) => {
                let parts = if let Part::Only(at) = part { at + 1 } else { 1 };
                let created = match transaction(results, parts) {
                    Ok(created) => created.into_iter().next(),
                    Err(failed_transaction) => return Joined::Now(Err(failed_transaction.error_for(part))),
                };
                let Some(created) = created else {
                    return Joined::Now(Err(unknown("the server created nothing")));
                };
                let number = match number(&created.path) {
                    Ok(number) => number,
                    Err(error) => return Joined::Now(Err(error)),
                };
                if let Some(czxid) = created.czxid {
                    return Joined::Now(Ok((number, czxid)));
                }
                self.deferral.returns_zxids.store(false, Ordering::Relaxed);
                let guess_read = match guess_read {
                    Some(guess_read) if guesses(&created.path) => guess_read,
                    _ => self.exists(&created.path),
                };
                let session = self.session();
                Joined::Later(Box::pin(async move {
                    // The create has succeeded in spite of this error.
                    let stat = guess_read.await.map_err(|error| failed(Failure::Unknown, &error.message))?;
                    let stat = stat.filter(|stat| stat.owner == session);
                    let gone = || failed(Failure::Unknown, "the new znode was deleted at once");
                    Ok((number, stat.ok_or_else(gone)?.czxid))
                }))
            }
            Ok(_) => Joined::Now(Err(unknown("unexpected reply type"))),
        }
    }
}

/// Returns the reply, or the error of a request that was refused or whose outcome is unknown.
pub(crate) fn reply(outcome: ReplyOutcome) -> Result<Reply, ZkError> {
    outcome.ok_or_else(|| failed(Failure::Unknown, "the connection was lost"))?.map_err(refused)
}

#[cfg(test)]
mod tests {
    use zoolock_core::ContenderId;
    use zoolock_core::contender::RequestId;

    use super::*;

    fn deferred(path: &str) -> Deferred {
        let to = Address { contender: ContenderId(1), request: RequestId(1), part: Part::All };
        Deferred { ops: vec![Op::Delete(path.to_owned())], to }
    }

    #[test]
    fn next_name_has_the_next_number() {
        let next = |path, prefix| deferred(path).next(prefix);
        assert_eq!(next("/a/x-0000000041", "/a/y-").as_deref(), Some("/a/y-0000000042"));
        assert_eq!(next("/a/x-2147483647", "/a/x-"), None, "there is none");
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
