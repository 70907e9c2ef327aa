//! The receiver of what happens to a session.

use std::time::Duration;

use zoolock_wire::{Reply, WatchEvent};

use crate::host::Endpoint;
use crate::hosts::DialError;
use crate::session::SessionState;
use crate::{Instant, RequestError, RequestNumber};

/// A part of the work of a [`Handler`]. The driver runs it without the mutex, so it may call the client.
pub type Work = Box<dyn FnOnce() + Send>;

/// The receiver of a session's replies, watch events and state changes, in order.
pub trait Handler: Send + 'static {
    /// Handles the result of a request. `sent` is the time at which the request was written, or
    /// zero if it was never written.
    fn handle_reply(&mut self, request: RequestNumber, sent: Instant, result: Result<Reply, RequestError>);
    /// Handles a watch event.
    fn handle_event(&mut self, event: WatchEvent);
    /// Handles a change of the session's state.
    fn handle_state_change(&mut self, state: SessionState);
    /// Handles a granted session timeout. `timeout` is the shortest timeout granted so far, and
    /// `sent` is the time at which the connect request was written.
    fn handle_granted_timeout(&mut self, timeout: Duration, sent: Instant) {
        let _ = (timeout, sent);
    }
    /// Handles a new connection to a server. The session is not attached yet.
    fn handle_dial(&mut self, endpoint: &Endpoint) {
        let _ = endpoint;
    }
    /// Handles a dial that reached no server. Another dial follows.
    fn handle_failed_dial(&mut self, errors: &[DialError]) {
        let _ = errors;
    }
    /// Returns whether the handler has work for the driver.
    fn has_work(&self) -> bool {
        false
    }
    /// Returns the time at which the handler will have work, if that is known.
    fn next_timer(&self) -> Option<Instant> {
        None
    }
    /// Takes the next part of the handler's work, if there is any now. The connection and other tasks wait for the end of a
    /// part, so it must be short.
    fn take_work(&mut self, now: Instant) -> Option<Work> {
        let _ = now;
        None
    }
}
