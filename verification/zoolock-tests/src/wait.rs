//! Waits for conditions by polling them.

use std::future::ready;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::{Result, TestFailure};

/// Time between two checks of a condition.
const PAUSE: Duration = Duration::from_millis(20);

/// Time limit of [`finish_in_time`]. A step of a test takes much less.
const SOON: Duration = Duration::from_secs(60);

/// Awaits a future.
///
/// # Panics
/// Panics if the future is not ready within 60 s.
pub async fn finish_in_time<T>(what: impl Future<Output = T>) -> T {
    timeout(SOON, what).await.expect("finishes in time")
}

/// Waits until `condition` is true, for at most `bound`.
///
/// # Errors
/// Fails after `bound`, with `what` in the message.
pub async fn wait_until(what: &str, bound: Duration, mut condition: impl FnMut() -> bool) -> Result<()> {
    let check = || ready(if condition() { Ok(()) } else { Err(TestFailure::new("the condition is false")) });
    retry_until_ok(what, bound, check).await
}

/// Calls `check` until it returns `Ok`, for at most `bound`.
///
/// # Errors
/// Returns the last error of `check` after `bound`, with `what` and `bound` in the message.
pub async fn retry_until_ok<T, F>(what: &str, bound: Duration, mut check: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let deadline = Instant::now() + bound;
    loop {
        match check().await {
            Ok(value) => return Ok(value),
            Err(last) if Instant::now() >= deadline => {
                return Err(TestFailure::during(format_args!("{what}, not within {bound:?}"), last));
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}
