//! The watch on the node of a waiter that is to be granted by the end of another node.
//!
//! Watches are looked at one after the other while events come in. Whether our own node went before the other one, or the
//! connection was interrupted, is therefore asked under the mutex of the machine before it is told anything: the client
//! hands out the events in the order in which they come.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use tokio::task::coop::unconstrained;
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

    /// What is to be told before anything else. What it does not tell wakes `context` later.
    fn news(&mut self, context: &mut Context<'_>) -> Option<Event> {
        if (self.interruptions)() {
            return Some(Event::Disconnected);
        }
        // However much this task has done already: that it has no budget left must not look like no news.
        let watch = pin!(unconstrained(self.watch.as_mut()?));
        match watch.poll(context) {
            Poll::Ready(deleted) => Some(Event::Fired { watch: self.id, deleted }),
            Poll::Pending => None,
        }
    }
}

impl Acquisition {
    pub(super) fn ask_guard(self: &Arc<Self>, state: &mut State) {
        let Some(guard) = &mut state.guard else { return };
        let waker = Waker::from(self.clone());
        if let Some(news) = guard.news(&mut Context::from_waker(&waker)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(watch: Watch) -> NodeGuard {
        NodeGuard { id: WatchId(3), watch: Some(watch), interruptions: Box::new(|| false) }
    }

    #[tokio::test]
    async fn a_task_that_has_done_much_hears_of_its_node_all_the_same() {
        let (tell, told) = tokio::sync::oneshot::channel();
        let mut guard = guard(Box::pin(async move { told.await.unwrap_or_default() }));
        let context = &mut Context::from_waker(Waker::noop());
        assert_eq!(guard.news(context), None);
        tell.send(true).expect("somebody waits");
        while tokio::task::coop::has_budget_remaining() {
            tokio::task::coop::poll_proceed(context).map(|budget| budget.made_progress()).is_ready();
        }
        assert_eq!(guard.news(context), Some(Event::Fired { watch: WatchId(3), deleted: true }));
    }

    #[tokio::test]
    async fn an_interruption_is_told_before_any_event() {
        let mut guard = guard(Box::pin(std::future::ready(true)));
        guard.interruptions = Box::new(|| true);
        assert_eq!(guard.news(&mut Context::from_waker(Waker::noop())), Some(Event::Disconnected));
    }
}
