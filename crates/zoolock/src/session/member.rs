//! The interface of a session to its acquisitions. The engine implements it.

use std::pin::Pin;
use std::sync::Arc;

use zoolock_core::acquisition::Node;
use zoolock_core::{ContenderId, Event};

use crate::base::path::LockPath;
use crate::zk::session::Arrival;

/// The operations of an acquisition that its session uses.
pub(crate) trait SessionAcquisition: Send + Sync + 'static {
    fn id(&self) -> ContenderId;

    /// Returns the directories of the acquisition's locks; there is at least one.
    fn directories(&self) -> &[LockPath];

    /// Returns the acquisition's znode in the first directory; `None` if the lock is not held.
    fn held_node(&self) -> Option<Node>;

    /// Returns whether this is the directory of one of the acquisition's locks, and an answer may
    /// still tell the acquisition of another znode of its own there.
    fn may_learn_of_znode_in(&self, directory: &LockPath) -> bool;

    /// Returns whether the caller no longer wants the lock, so that only clean-up is left.
    fn is_leaving(&self) -> bool;

    /// Waits until the clean-up is done.
    fn wait_until_ended(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Handles an event of the session.
    fn tell(self: Arc<Self>, event: Event);

    /// Handles a reply, a watch event or a due timer of this acquisition.
    fn receive(self: Arc<Self>, arrival: Arrival);

    /// Reports to the listeners that the lock is suspect (`is_suspect`), or that the server has
    /// confirmed it again.
    fn report_connection(&self, is_suspect: bool);
}
