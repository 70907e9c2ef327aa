//! Polling for a condition that nothing announces.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{Failure, Result};

/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(20);

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
