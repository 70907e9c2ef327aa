//! Watch events of a lock, on a session of its own so that reads are not delayed.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::plan::Service;
use crate::service::lock_watches::{LockSubscription, LockWatches};

/// Shortest and longest pause between attempts to set the watch.
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);

type Attempt = Pin<Box<dyn Future<Output = Option<LockSubscription>> + Send>>;

/// Watch events of one lock. There are none if the server does not support persistent watches.
pub(super) struct WatchStream {
    watches: Arc<LockWatches>,
    path: String,
    subscription: Option<LockSubscription>,
    /// The attempt to set the watch. Kept here, so that it continues when [`WatchStream::changed`] is cancelled.
    attempt: Option<Attempt>,
    pause: Duration,
}

impl WatchStream {
    pub(super) fn new(service: &Service, path: &str) -> WatchStream {
        let (watches, path) = (Arc::new(LockWatches::new(service.clone())), path.to_owned());
        WatchStream { watches, path, subscription: None, attempt: None, pause: Duration::ZERO }
    }

    pub(super) fn is_set(&self) -> bool {
        self.subscription.is_some()
    }

    /// Drops the watch until the next call of [`WatchStream::changed`].
    pub(super) fn close(&mut self) {
        self.subscription = None;
    }

    /// Resolves when the lock has changed or may have changed. Setting the watch counts as a change because earlier
    /// changes caused no event.
    pub(super) async fn changed(&mut self) {
        if self.subscription.is_some() {
            return LockSubscription::wait_for_change(&mut self.subscription).await;
        }
        while self.subscription.is_none() {
            let attempt = self.attempt.get_or_insert_with(|| {
                let (watches, path, pause) = (Arc::clone(&self.watches), self.path.clone(), self.pause);
                Box::pin(async move {
                    sleep(pause).await;
                    watches.subscribe(&path).await
                })
            });
            self.subscription = attempt.await;
            self.attempt = None;
            self.pause = (self.pause * 2).clamp(MIN_PAUSE, MAX_PAUSE);
        }
        self.pause = Duration::ZERO;
    }

    /// Closes the session.
    pub(super) async fn shut_down(self) {
        let WatchStream { watches, subscription, attempt, .. } = self;
        drop((subscription, attempt));
        watches.close().await;
    }
}
