//! Awaiting a condition that nothing announces.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{Failure, Result};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Looks again and again until `look` says `Ok`, or `bound` is over.
///
/// # Errors
/// What the last look answered, with `what` and the bound before it.
pub async fn eventually<T, F>(what: &str, bound: Duration, mut look: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let deadline = Instant::now() + bound;
    loop {
        match look().await {
            Ok(found) => return Ok(found),
            Err(last) if Instant::now() >= deadline => {
                return Err(Failure::during(format_args!("{what}, not within {bound:?}"), last));
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}
