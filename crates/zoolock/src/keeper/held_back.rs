//! A release that nobody waits for, and the create that often follows it in the same directory.
//!
//! Whoever lets go and asks again at once sends two writes within microseconds. ZooKeeper takes the second one up only
//! after it has made the first one durable, so that two commits are waited for. As one transaction they are one.

use futures_channel::oneshot;
use zoolock_core::Sequence;
use zoolock_core::contender::Failure;

use super::{Answer, KeeperError, Op};

/// How many digits of a sequential name are its number.
const DIGITS: usize = 10;

/// A transaction that has not been sent. It deletes a node first.
pub(super) struct HeldBack {
    pub(super) ops: Vec<Op>,
    /// Takes what comes of it.
    pub(super) sent: oneshot::Sender<Answer<()>>,
}

impl HeldBack {
    pub(super) fn new(ops: Vec<Op>) -> (HeldBack, oneshot::Receiver<Answer<()>>) {
        let (sent, receiver) = oneshot::channel();
        (HeldBack { ops, sent }, receiver)
    }

    fn deleted(&self) -> Option<&str> {
        match self.ops.first() {
            Some(Op::Delete(path)) => Some(path),
            _ => None,
        }
    }

    /// Whether the node to be made is in the same directory.
    pub(super) fn is_beside(&self, prefix: &str) -> bool {
        self.deleted().is_some_and(|path| directory(path) == directory(prefix))
    }

    /// What a sequential node with this prefix is called, if nobody has made another one since ours.
    pub(super) fn next(&self, prefix: &str) -> Option<String> {
        let path = self.deleted()?;
        let number = Sequence::parse(path.get(path.len().checked_sub(DIGITS)?..)?)?.0.checked_add(1)?;
        Some(format!("{prefix}{number:010}"))
    }
}

fn directory(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(directory, _)| directory)
}

/// Why nothing of a transaction was done.
#[derive(Debug, Clone)]
pub(super) struct Undone {
    /// Which part was refused, where it is known.
    pub(super) at: Option<usize>,
    pub(super) error: KeeperError,
}

impl Undone {
    /// Returns the error for the caller that asked for the whole transaction.
    pub(super) fn for_all(self) -> KeeperError {
        match (self.at, self.error.failure) {
            (Some(at), Failure::NodeExists) => {
                KeeperError { failure: Failure::NodeExistsAt(at), ..self.error }
            }
            _ => self.error,
        }
    }

    /// What that is for whoever asked for all that comes before that part.
    pub(super) fn for_those_before(self, part: usize) -> KeeperError {
        match self.at {
            // Not done, and not to be sent again blindly: by then the name may be somebody else's.
            Some(at) if at >= part => KeeperError { failure: Failure::Throttled, ..self.error },
            _ => self.error,
        }
    }

    /// What that is for whoever asked for that part.
    pub(super) fn for_the_one(self, part: usize) -> KeeperError {
        match self.at {
            // Nobody has looked at it yet.
            Some(at) if at < part => KeeperError { failure: Failure::Throttled, ..self.error },
            _ => self.error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_back(path: &str) -> HeldBack {
        HeldBack::new(vec![Op::Delete(path.to_owned())]).0
    }

    #[test]
    fn the_next_name_has_the_next_number() {
        let next = |path, prefix| held_back(path).next(prefix);
        assert_eq!(next("/a/x-0000000041", "/a/y-").as_deref(), Some("/a/y-0000000042"));
        assert_eq!(next("/a/x-2147483647", "/a/x-"), None, "there is none");
        assert_eq!(next("/a/x", "/a/x-"), None);
        assert_eq!(next("/ä/öüöüöü", "/ä/"), None);
    }

    #[test]
    fn what_was_not_looked_at_is_to_be_asked_again() {
        let error = KeeperError { failure: Failure::NoNode, message: "gone".to_owned() };
        let told = |at| {
            let undone = Undone { at, error: error.clone() };
            [undone.clone().for_those_before(2).failure, undone.for_the_one(2).failure]
        };
        assert_eq!(told(Some(0)), [Failure::NoNode, Failure::Throttled]);
        assert_eq!(told(Some(1)), [Failure::NoNode, Failure::Throttled]);
        assert_eq!(told(Some(2)), [Failure::Throttled, Failure::NoNode]);
        assert_eq!(told(None), [Failure::NoNode; 2]);
    }

    #[test]
    fn only_a_node_of_the_same_directory_is_beside() {
        let held = held_back("/a/b/x-0000000041");
        assert!(held.is_beside("/a/b/y-"));
        assert!(!held.is_beside("/a/b/c/y-"));
        assert!(!held.is_beside("/a/y-"));
    }
}
