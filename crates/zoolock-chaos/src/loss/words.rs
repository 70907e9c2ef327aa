//! What a holder says, a line of JSON each. Times are those of [`now`](crate::clock::now).

use serde::{Deserialize, Serialize};

/// A line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    /// It has the lock.
    Held { at: i64 },
    /// It looked at the clock, then asked its guard whether it is valid.
    Looked { at: i64, valid: bool },
    /// Its guard said that the lock is lost.
    Lost { at: i64, why: String },
}
