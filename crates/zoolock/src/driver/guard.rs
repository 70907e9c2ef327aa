//! The watch on the node of a waiter that is to be granted by the end of another node.
//!
//! Watches are looked at one after the other while events come in. Whether our own node went before the other one, or the
//! connection was interrupted, is therefore asked under the mutex of the machine before it is told anything: the client
//! hands out the events in the order in which they come.

use std::sync::Arc;
use std::task::Wake;

use futures_util::FutureExt;
use zoolock_core::Event;
use zoolock_core::contender::WatchId;

use super::{Acquisition, State};
use crate::keeper::{Interruptions, Keeper, Watch};

pub(super) struct NodeGuard {
    id: WatchId,
    /// Not yet in force without.
    watch: Option<Watch>,
    interruptions: Interruptions,
}

impl NodeGuard {
    /// To be made before the watch is asked for.
    pub(super) fn new(id: WatchId, keeper: &dyn Keeper) -> NodeGuard {
        NodeGuard { id, watch: None, interruptions: keeper.interruptions() }
    }

    pub(super) fn is(&self, id: WatchId) -> bool {
        self.id == id
    }

    /// Takes the watch that it is for, and gives back any other.
    pub(super) fn take(guard: &mut Option<NodeGuard>, id: WatchId, watch: Watch) -> Option<(WatchId, Watch)> {
        match guard {
            Some(guard) if guard.is(id) => {
                guard.watch = Some(watch);
                None
            }
            _ => Some((id, watch)),
        }
    }

    /// What is to be told before anything else.
    fn news(&mut self) -> Option<Event> {
        if (self.interruptions)() {
            return Some(Event::Disconnected);
        }
        let deleted = self.watch.as_mut()?.now_or_never()?;
        Some(Event::Fired { watch: self.id, deleted })
    }
}

impl Acquisition {
    pub(super) fn ask_guard(self: &Arc<Self>, state: &mut State) {
        if let Some(news) = state.guard.as_mut().and_then(NodeGuard::news) {
            state.guard = None;
            self.step(state, news);
        }
    }

    /// Granted: from now on its watch is like any other.
    pub(super) fn relieve_guard(self: &Arc<Self>, state: &mut State) {
        if let Some(NodeGuard { id, watch: Some(watch), .. }) = state.guard.take() {
            state.watches.push((id, watch));
            // So that it is polled.
            self.clone().wake();
        }
    }
}
