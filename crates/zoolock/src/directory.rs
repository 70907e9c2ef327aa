//! Lock directories: made when first needed, made again when the service removed them.

use std::sync::Arc;

use zoolock_core::contender::{Failure, Refusal};

use crate::keeper::{Keeper, KeeperError};

/// How often a directory may vanish under our hands before we say so.
const PATIENCE: usize = 100;

/// Makes `path` and whatever is missing above it, as containers, so that the service removes them when they have been
/// empty for a while; persistent where containers are not supported (before 3.5.3). The last one also where it is to be
/// `lasting`, since a directory that was removed forgets how its last holder left.
pub(crate) async fn make(keeper: Arc<dyn Keeper>, path: String, lasting: bool) -> Result<(), KeeperError> {
    let mut missing = vec![path];
    for _ in 0..PATIENCE {
        let Some(top) = missing.last() else { return Ok(()) };
        let container = if lasting && missing.len() == 1 {
            keeper.create_persistent(top).await
        } else {
            keeper.create_container(top).await
        };
        let outcome = match container {
            Err(KeeperError { failure: Failure::Refused(Refusal::Other), .. }) => {
                keeper.create_persistent(top).await
            }
            outcome => outcome,
        };
        match outcome {
            Ok(()) | Err(KeeperError { failure: Failure::NodeExists, .. }) => {
                missing.pop();
            }
            Err(error) if error.failure == Failure::NoNode => match top.rfind('/') {
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
    Err(KeeperError {
        failure: Failure::Refused(Refusal::Other),
        message: "the directory is removed as fast as it is made".to_owned(),
    })
}
