//! The reports of a holder, one line of JSON each. Times are those of [`now`](crate::clock::now).

use serde::{Deserialize, Serialize};

/// A report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum HolderReport {
    /// The lock was granted.
    Granted { at: i64 },
    /// The holder read the clock, and then checked whether its guard is valid.
    Checked { at: i64, valid: bool },
    /// The guard reported the loss.
    Lost { at: i64, why: String },
}
