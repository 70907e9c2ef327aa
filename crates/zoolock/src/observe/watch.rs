//! Sets the watch on an observed lock, and sets it again when the watch has ended.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::base::path::LockPath;
use crate::lock::context::Context;
use crate::session::subscription::Subscription;

/// Minimum pause after a failed attempt to set the watch.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause after a failed attempt to set the watch. Each failure doubles the pause.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// A watch on one lock and everything in it. When the watch has ended, it is set again. Servers
/// before ZooKeeper 3.6 do not support such watches.
pub(super) struct LockWatch {
    path: LockPath,
    subscription: Option<Subscription>,
    /// The attempt to set the watch. It continues when the future of [`LockWatch::changed`] is dropped.
    attempt: Option<oneshot::Receiver<Option<Subscription>>>,
    /// Pause before the next attempt.
    pause: Duration,
}

impl LockWatch {
    pub(super) fn new(path: LockPath) -> LockWatch {
        LockWatch { path, subscription: None, attempt: None, pause: Duration::ZERO }
    }

    pub(super) fn is_set(&self) -> bool {
        self.subscription.is_some()
    }

    /// Waits until the lock has changed or may have changed. When the watch is set, the lock counts as changed, because
    /// earlier changes caused no event.
    ///
    /// Cancel safe.
    pub(super) async fn changed(&mut self, context: &Context) {
        if let Some(subscription) = &mut self.subscription {
            if !subscription.changed().await {
                self.subscription = None;
            }
            return;
        }
        while self.subscription.is_none() {
            let attempt = self.attempt.get_or_insert_with(|| subscribe(context, &self.path, self.pause));
            self.subscription = attempt.await.ok().flatten();
            self.attempt = None;
            self.pause = (self.pause * 2).clamp(MIN_PAUSE, MAX_PAUSE);
        }
        self.pause = Duration::ZERO;
    }
}

/// Starts an attempt to set the watch. It runs on the client's own runtime, because the caller's runtime may have no
/// timer.
fn subscribe(context: &Context, path: &LockPath, pause: Duration) -> oneshot::Receiver<Option<Subscription>> {
    let (mut sender, receiver) = oneshot::channel();
    let (pool, path) = (context.pool(), path.clone());
    context.tasks().spawn(async move {
        let attempt = async {
            tokio::time::sleep(pause).await;
            pool.subscribe(path.as_str()).await
        };
        tokio::select! {
            // The view was dropped.
            () = sender.closed() => {}
            subscription = attempt => drop(sender.send(subscription)),
        }
    });
    receiver
}
