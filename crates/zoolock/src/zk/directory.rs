//! Creates lock directories when they are first needed, and again after the server removed them.

use std::sync::Arc;

use zoolock_core::acquisition::{Refusal, RequestFailure};

use crate::zk::session::{ZkError, ZkSession};

/// Maximum number of creates, besides two for each part of the path. If the directory is removed again after each
/// create, this limit ends the attempt.
const MAX_CREATES: usize = 100;

/// Creates `path` and its missing parents as containers, so that the server removes them after they have been empty for
/// a while. Creates persistent znodes if the server does not support containers (before 3.5.3). With `lasting`, the
/// znode at `path` is persistent in any case, because a removed directory loses the record of how its last holder left.
pub(crate) async fn create_with_parents(
    zk: Arc<ZkSession>,
    path: String,
    lasting: bool,
) -> Result<(), ZkError> {
    let parts = path.matches('/').count();
    let mut missing = vec![path];
    for _ in 0..MAX_CREATES + 2 * parts {
        let Some(top) = missing.last() else { return Ok(()) };
        let container = if lasting && missing.len() == 1 {
            zk.create_persistent(top).await
        } else {
            zk.create_container(top).await
        };
        let outcome = match container {
            Err(ZkError { failure: RequestFailure::Refused(Refusal::Other), .. }) => {
                zk.create_persistent(top).await
            }
            outcome => outcome,
        };
        match outcome {
            Ok(()) | Err(ZkError { failure: RequestFailure::NodeExists, .. }) => {
                missing.pop();
            }
            Err(error) if error.failure == RequestFailure::NoNode => match top.rfind('/') {
                Some(at) if at > 0 => {
                    let parent = top[..at].to_owned();
                    missing.push(parent);
                }
                _ => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(ZkError {
        failure: RequestFailure::Refused(Refusal::Other),
        message: "the directory is deleted again after each create".to_owned(),
    })
}
