//! The options of a lock handle.

use std::sync::Arc;
use std::time::Duration;

use crate::base::events::Listeners;
use crate::base::naming::Naming;
use crate::base::owner_id::OwnerMode;

/// The options of one lock handle. Its clones have the same options.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub(crate) crash_detection: bool,
    pub(crate) lock_delay: Duration,
    pub(crate) tells_previous: bool,
    pub(crate) naming: Naming,
    pub(crate) kazoo_pattern: bool,
    pub(crate) owner_mode: OwnerMode,
    /// The note of this handle's contenders; that of the client unless set.
    pub(crate) note: Option<Arc<str>>,
    pub(crate) listeners: Listeners,
}
