//! The error codes of ZooKeeper, and the results of its transactions.

use zoolock_core::Zxid;
use zoolock_core::contender::{Failure, Refusal};
use zoolock_wire::{Code, OpResult};

use super::inbox::Part;
use super::{Created, NO_IDENTITY, ZkError};

/// The reason why a transaction was not carried out.
#[derive(Debug, Clone)]
pub(crate) struct FailedTransaction {
    /// The index of the operation that was refused, if it is known.
    at: Option<usize>,
    error: ZkError,
}

impl FailedTransaction {
    /// Returns the error for the caller that asked for this part of the transaction.
    pub(crate) fn error_for(self, part: Part) -> ZkError {
        let FailedTransaction { at: Some(at), error } = self else { return self.error };
        match part {
            Part::All if error.failure == Failure::NodeExists => {
                ZkError { failure: Failure::NodeExistsAt(at), ..error }
            }
            // Not carried out. It must not be repeated blindly: the name may belong to another contender by then.
            Part::Before(part) if at >= part => ZkError { failure: Failure::Throttled, ..error },
            // The server has not tried this operation.
            Part::Only(part) if at < part => ZkError { failure: Failure::Throttled, ..error },
            _ => error,
        }
    }
}

/// Returns the znodes that a transaction of `parts` operations created, in order.
pub(crate) fn transaction(results: Vec<OpResult>, parts: usize) -> Result<Vec<Created>, FailedTransaction> {
    let unclear = || FailedTransaction {
        at: None,
        error: failed(Failure::Unknown, "a transaction has no clear result"),
    };
    if results.len() != parts {
        return Err(unclear());
    }
    let mut created = Vec::new();
    let mut has_failed = false;
    for (at, result) in results.into_iter().enumerate() {
        match result {
            OpResult::Create { path } => created.push(Created { path, czxid: None }),
            OpResult::Create2 { path, stat } => {
                created.push(Created { path, czxid: (stat.czxid > 0).then_some(Zxid(stat.czxid)) });
            }
            // Operations before the refused one have the error 0, and later operations have -2.
            OpResult::Error(number) if !matches!(number, 0 | -2) => {
                return Err(FailedTransaction { at: Some(at), error: error_of(number) });
            }
            OpResult::Error(_) => has_failed = true,
            _ => {}
        }
    }
    if has_failed { Err(unclear()) } else { Ok(created) }
}

/// Returns the error of an operation that failed with this number.
pub(super) fn error_of(number: i32) -> ZkError {
    let unknown = || failed(Failure::Unknown, &format!("the server answered error {number}"));
    Code::from_number(number).map_or_else(unknown, refused)
}

pub(crate) fn refused(code: Code) -> ZkError {
    let failure = match code {
        Code::NoNode => Failure::NoNode,
        Code::NodeExists => Failure::NodeExists,
        Code::NotEmpty => Failure::NotEmpty,
        Code::BadVersion => Failure::BadVersion,
        Code::Throttled => Failure::Throttled,
        Code::NoAuth | Code::InvalidAcl | Code::AuthFailed => Failure::Refused(Refusal::Denied),
        Code::QuotaExceeded => Failure::Refused(Refusal::Quota),
        // The server did not decide, or decided for another session.
        Code::SystemError
        | Code::RuntimeInconsistency
        | Code::DataInconsistency
        | Code::SessionExpired
        | Code::SessionMoved
        | Code::UnknownSession
        | Code::RequestTimeout => Failure::Unknown,
        _ => Failure::Refused(Refusal::Other),
    };
    match code {
        // All ACLs come from this client, and few servers check the other identities in them.
        Code::InvalidAcl => failed(failure, NO_IDENTITY),
        code => failed(failure, &code.to_string()),
    }
}

pub(crate) fn failed(failure: Failure, message: &str) -> ZkError {
    ZkError { failure, message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_that_was_not_tried_is_repeated() {
        let error = failed(Failure::NoNode, "gone");
        let failures = |at| {
            let failed_transaction = FailedTransaction { at, error: error.clone() };
            [Part::Before(2), Part::Only(2)].map(|part| failed_transaction.clone().error_for(part).failure)
        };
        assert_eq!(failures(Some(0)), [Failure::NoNode, Failure::Throttled]);
        assert_eq!(failures(Some(1)), [Failure::NoNode, Failure::Throttled]);
        assert_eq!(failures(Some(2)), [Failure::Throttled, Failure::NoNode]);
        assert_eq!(failures(None), [Failure::NoNode; 2]);
    }

    #[test]
    fn existing_znode_is_named_to_the_caller_of_the_whole() {
        let results = vec![OpResult::Error(0), OpResult::Error(Code::NodeExists.number())];
        let failed_transaction = transaction(results, 2).expect_err("it failed");
        assert_eq!(failed_transaction.clone().error_for(Part::All).failure, Failure::NodeExistsAt(1));
        assert_eq!(failed_transaction.error_for(Part::Only(1)).failure, Failure::NodeExists);
        let unclear = transaction(vec![OpResult::Check], 2).expect_err("a result is missing");
        assert_eq!(unclear.error_for(Part::All).failure, Failure::Unknown);
    }
}
