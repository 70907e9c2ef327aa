//! The error codes of ZooKeeper, and the results of its transactions.

use zoolock_core::Zxid;
use zoolock_core::acquisition::{Refusal, RequestFailure};
use zoolock_wire::{Code, OpResult};

use super::inbox::TransactionPart;
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
    pub(crate) fn error_for(self, part: TransactionPart) -> ZkError {
        let FailedTransaction { at: Some(at), error } = self else { return self.error };
        match part {
            TransactionPart::All if error.failure == RequestFailure::NodeExists => {
                ZkError { failure: RequestFailure::NodeExistsAt(at), ..error }
            }
            // This transaction combined a release (the operations before `part`) with the create of
            // another acquisition (the operation `part`). The release was not carried out, because the
            // create failed. `Throttled` makes the acquisition that releases pause and check its znode,
            // because the name may belong to another contender by the time of a repeated request.
            TransactionPart::Before(part) if at >= part => {
                ZkError { failure: RequestFailure::Throttled, ..error }
            }
            // The release in this transaction failed, so the server has not tried the create.
            TransactionPart::Only(part) if at < part => {
                ZkError { failure: RequestFailure::Throttled, ..error }
            }
            _ => error,
        }
    }
}

/// Returns the znodes that a transaction of `parts` operations created, in order.
pub(crate) fn created_znodes(
    results: Vec<OpResult>,
    parts: usize,
) -> Result<Vec<Created>, FailedTransaction> {
    let unclear = || FailedTransaction {
        at: None,
        error: zk_error(RequestFailure::Unknown, "a transaction has no clear result"),
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
    let unknown = || zk_error(RequestFailure::Unknown, &format!("the server answered error {number}"));
    Code::from_number(number).map_or_else(unknown, error_of_code)
}

pub(crate) fn error_of_code(code: Code) -> ZkError {
    let failure = match code {
        Code::NoNode => RequestFailure::NoNode,
        Code::NodeExists => RequestFailure::NodeExists,
        Code::NotEmpty => RequestFailure::NotEmpty,
        Code::BadVersion => RequestFailure::BadVersion,
        Code::Throttled => RequestFailure::Throttled,
        Code::NoAuth | Code::InvalidAcl | Code::AuthFailed => RequestFailure::Refused(Refusal::Denied),
        Code::QuotaExceeded => RequestFailure::Refused(Refusal::Quota),
        // These errors leave open whether the request was carried out.
        Code::SystemError
        | Code::RuntimeInconsistency
        | Code::DataInconsistency
        | Code::SessionExpired
        | Code::SessionMoved
        | Code::UnknownSession
        | Code::RequestTimeout => RequestFailure::Unknown,
        _ => RequestFailure::Refused(Refusal::Other),
    };
    match code {
        // This client sends only well-formed ACLs. So the usual cause is that the server knows no identity of the
        // creator.
        Code::InvalidAcl => zk_error(failure, NO_IDENTITY),
        // The session client uses this code for requests that it did not send.
        Code::Throttled => zk_error(failure, "there is no connection, or the server has too many requests"),
        code => zk_error(failure, &code.to_string()),
    }
}

pub(crate) fn zk_error(failure: RequestFailure, message: &str) -> ZkError {
    ZkError { failure, message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untried_part_of_a_transaction_is_throttled() {
        let error = zk_error(RequestFailure::NoNode, "gone");
        let failures = |at| {
            let failed_transaction = FailedTransaction { at, error: error.clone() };
            [TransactionPart::Before(2), TransactionPart::Only(2)]
                .map(|part| failed_transaction.clone().error_for(part).failure)
        };
        assert_eq!(failures(Some(0)), [RequestFailure::NoNode, RequestFailure::Throttled]);
        assert_eq!(failures(Some(1)), [RequestFailure::NoNode, RequestFailure::Throttled]);
        assert_eq!(failures(Some(2)), [RequestFailure::Throttled, RequestFailure::NoNode]);
        assert_eq!(failures(None), [RequestFailure::NoNode; 2]);
    }

    #[test]
    fn error_of_whole_transaction_names_existing_znode() {
        let results = vec![OpResult::Error(0), OpResult::Error(Code::NodeExists.number())];
        let failed_transaction = created_znodes(results, 2).expect_err("it failed");
        assert_eq!(
            failed_transaction.clone().error_for(TransactionPart::All).failure,
            RequestFailure::NodeExistsAt(1)
        );
        assert_eq!(
            failed_transaction.error_for(TransactionPart::Only(1)).failure,
            RequestFailure::NodeExists
        );
        let unclear = created_znodes(vec![OpResult::Check], 2).expect_err("a result is missing");
        assert_eq!(unclear.error_for(TransactionPart::All).failure, RequestFailure::Unknown);
    }
}
