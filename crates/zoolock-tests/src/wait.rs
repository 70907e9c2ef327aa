//! Polling for a condition that nothing announces.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::{Failure, Result};

/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(20);

/// Time limit of [`soon`], much longer than a step of a test takes.
const SOON: Duration = Duration::from_secs(60);

/// Awaits a future.
///
/// # Panics
/// Panics if the future is not ready within 60 s.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(SOON, what).await.expect("finishes in time")
}

/// Calls `check` until it returns `Ok`, for at most `bound`.
///
/// # Errors
/// Returns the last error of `check`, with `what` and the bound before it.
pub async fn eventually<T, F>(what: &str, bound: Duration, mut check: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let deadline = Instant::now() + bound;
    loop {
        match check().await {
            Ok(value) => return Ok(value),
            Err(last) if Instant::now() >= deadline => {
                return Err(Failure::during(format_args!("{what}, not within {bound:?}"), last));
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}
