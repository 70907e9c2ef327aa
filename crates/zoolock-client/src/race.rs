//! A race of attempts with staggered starts (RFC 8305).

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Runs attempts until one succeeds. Starts the next attempt when the newest attempt fails, or when
/// the newest attempt has run for `head_start`. Returns the errors of all attempts if none
/// succeeds. `next` waits for the next target, and returns `None` if none follows. Its future may be
/// dropped before that.
pub(crate) async fn race<Target, N, A, T, E>(
    next: impl Fn() -> N,
    attempt: impl Fn(Target) -> A,
    head_start: Duration,
) -> Result<T, Vec<E>>
where
    N: Future<Output = Option<Target>>,
    A: Future<Output = Result<T, E>> + Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    let mut running = JoinSet::new();
    let mut errors = Vec::new();
    let (mut newest, mut next_start, mut is_complete) = (0, Instant::now(), false);
    loop {
        tokio::select! {
            biased;
            Some(ended) = running.join_next() => match ended {
                Ok((_, Ok(reached))) => return Ok(reached),
                Ok((failed, Err(error))) => {
                    errors.push(error);
                    if failed == newest {
                        next_start = Instant::now();
                    }
                }
                Err(_) => {}
            },
            target = async { sleep_until(next_start).await; next().await }, if !is_complete => match target {
                Some(target) => {
                    newest += 1;
                    next_start = Instant::now() + head_start;
                    let attempt = attempt(target);
                    running.spawn(async move { (newest, attempt.await) });
                }
                None => is_complete = true,
            },
            else => return Err(errors),
        }
    }
}
