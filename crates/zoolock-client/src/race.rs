//! A race of attempts with staggered starts (RFC 8305).

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

/// Runs attempts until one succeeds. The next attempt starts when the newest attempt fails, or when
/// the newest attempt has run for `head_start`. Returns the errors of all attempts if none
/// succeeds.
pub(crate) async fn race<T, E>(
    attempts: impl Iterator<Item: Future<Output = Result<T, E>> + Send + 'static>,
    head_start: Duration,
) -> Result<T, Vec<E>>
where
    T: Send + 'static,
    E: Send + 'static,
{
    let mut running = JoinSet::new();
    let mut errors = Vec::new();
    for (newest, attempt) in attempts.enumerate() {
        running.spawn(async move { (newest, attempt.await) });
        let wait = timeout(head_start, async {
            while let Some(ended) = running.join_next().await {
                match ended {
                    Ok((_, Ok(reached))) => return Some(reached),
                    Ok((failed, Err(error))) => {
                        errors.push(error);
                        if failed == newest {
                            return None;
                        }
                    }
                    Err(_) => {}
                }
            }
            None
        });
        if let Ok(Some(reached)) = wait.await {
            return Ok(reached);
        }
    }
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok((_, Ok(reached))) => return Ok(reached),
            Ok((_, Err(error))) => errors.push(error),
            Err(_) => {}
        }
    }
    Err(errors)
}
