//! The watches with which observers (`zoolock::observe`) follow locks. The watches are on a session
//! of their own, so that many events do not delay the requests of locks.
//!
//! A persistent recursive watch, from ZooKeeper 3.6 on, covers a lock and everything in it. So each lock needs one
//! watch, for any number of contenders.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use zoolock_client::{Notice, Notices, RequestSession, SessionState};

use crate::base::sync::lock;

/// The session of all watches of observers. Dropping it closes the session.
pub(crate) struct ObserverSession {
    requests: RequestSession,
    /// Number of subscriptions of each path.
    subscribed: Mutex<HashMap<String, usize>>,
}

/// A subscription to the watch of one lock. Dropping the last subscription of a lock removes the watch.
pub(crate) struct Subscription {
    path: String,
    notices: Notices,
    session: Arc<ObserverSession>,
}

impl ObserverSession {
    pub(crate) fn new(requests: RequestSession) -> ObserverSession {
        ObserverSession { requests, subscribed: Mutex::default() }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.requests.is_over()
    }

    /// Closes the session, and waits for the server's answer.
    pub(crate) async fn close(&self) {
        self.requests.close().await;
    }
}

impl Subscription {
    /// Watches the lock at this path. Returns `None` if the request fails, for example on a server before ZooKeeper
    /// 3.6.
    pub(crate) async fn start(session: Arc<ObserverSession>, path: String) -> Option<Subscription> {
        *lock(&session.subscribed).entry(path.clone()).or_default() += 1;
        let subscription = Subscription { notices: session.requests.notices(), path, session };
        subscription.session.requests.watch_all_below(&subscription.path).await.ok()?;
        Some(subscription)
    }

    /// Waits until the lock has changed, or events may have been missed. Returns `false` if events
    /// may have been missed: the watch ended with its connection, or this receiver was too slow.
    ///
    /// Cancel safe.
    pub(crate) async fn changed(&mut self) -> bool {
        changed(&mut self.notices, &self.path).await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut subscribed = lock(&self.session.subscribed);
        let Some(count) = subscribed.get_mut(&self.path) else { return };
        *count -= 1;
        if *count == 0 {
            subscribed.remove(&self.path);
            // Removes the watch while the mutex is locked, because a later subscription to the same path must
            // set its watch after this removal.
            self.session.requests.remove_watches(&self.path);
        }
    }
}

async fn changed(notices: &mut Notices, path: &str) -> bool {
    loop {
        match notices.recv().await {
            Ok(Notice::Event(event)) if is_at_or_below(&event.path, path) => break,
            Ok(Notice::Event(_) | Notice::State(SessionState::Connected { .. })) => {}
            Ok(Notice::State(_)) | Err(RecvError::Lagged(_) | RecvError::Closed) => return false,
        }
    }
    // Takes all other events that have arrived, because one read of the lock covers them all.
    loop {
        match notices.try_recv() {
            Ok(Notice::Event(_) | Notice::State(SessionState::Connected { .. })) => {}
            Err(TryRecvError::Empty) => return true,
            Ok(Notice::State(_)) | Err(TryRecvError::Lagged(_) | TryRecvError::Closed) => return false,
        }
    }
}

fn is_at_or_below(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || top == "/")
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::broadcast;
    use zoolock_client::DisconnectReason;
    use zoolock_wire::{EventKind, WatchEvent};

    use super::*;

    #[test]
    fn many_events_are_one_change() {
        let sender = broadcast::Sender::new(64);
        let mut notices = sender.subscribe();
        let send = |notice: Notice| {
            sender.send(notice).expect("there is a receiver");
        };
        let event =
            |path: &str| Notice::Event(WatchEvent { kind: EventKind::DataChanged, path: path.to_owned() });
        send(event("/other"));
        assert_eq!(changed(&mut notices, "/x").now_or_never(), None);
        (0..50).for_each(|_| send(event("/x/lock-0000000000")));
        assert_eq!(changed(&mut notices, "/x").now_or_never(), Some(true));
        assert_eq!(changed(&mut notices, "/x").now_or_never(), None);
        send(event("/x"));
        send(Notice::State(SessionState::Disconnected(DisconnectReason::Closed)));
        assert_eq!(changed(&mut notices, "/x").now_or_never(), Some(false));
    }

    #[test]
    fn events_of_other_locks_are_ignored() {
        assert!(is_at_or_below("/a", "/a") && is_at_or_below("/a/b", "/a") && is_at_or_below("/a", "/"));
        assert!(!is_at_or_below("/ab", "/a") && !is_at_or_below("/", "/a"));
    }
}
