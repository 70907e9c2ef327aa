//! What `/leader` and `/live` say of this process.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use zoolock::Lease;

/// Longest time between two rounds of the main loop of a process that `/live` calls live.
const LIVE_WITHIN: Duration = Duration::from_secs(10);

/// The lock that this process holds alone, or waits for.
#[derive(Debug)]
pub(crate) struct LeaderPage {
    name: String,
    /// The lease of the last grant, and the time before its end from which this process no longer counts as the leader.
    held: Mutex<Option<(Lease, Duration)>>,
}

impl LeaderPage {
    pub(crate) fn new(name: &str) -> Arc<LeaderPage> {
        Arc::new(LeaderPage { name: name.to_owned(), held: Mutex::default() })
    }

    /// Records a grant. The lease itself tells its end.
    pub(crate) fn begin(&self, lease: Lease, grace: Duration) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some((lease, grace));
    }

    /// Returns 200 while the process holds the lock for longer than the grace, and 503 otherwise.
    pub(super) fn answer(&self) -> Response {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some((lease, grace)) = held.filter(|(lease, _)| lease.is_valid()) else {
            return answer_json(StatusCode::SERVICE_UNAVAILABLE, &json!({ "state": "waiting" }));
        };
        let left = lease.valid_until().remaining();
        if left <= grace {
            return answer_json(StatusCode::SERVICE_UNAVAILABLE, &json!({ "state": "ending" }));
        }
        let token = lease.token().map(|token| token.to_string());
        let valid_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        answer_json(StatusCode::OK, &json!({ "name": self.name, "token": token, "valid_ms": valid_ms }))
    }
}

fn answer_json(status: StatusCode, body: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}

/// The time of the last round of the main loop.
#[derive(Debug)]
pub(super) struct LivePage(Mutex<Instant>);

impl LivePage {
    pub(super) fn new() -> Arc<LivePage> {
        Arc::new(LivePage(Mutex::new(Instant::now())))
    }

    pub(super) fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(super) fn answer(&self) -> StatusCode {
        let since = self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        if since <= LIVE_WITHIN { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_whose_main_loop_stands_still_is_not_live() {
        let live = LivePage(Mutex::new(Instant::now()));
        assert_eq!(live.answer(), StatusCode::OK);
        let long_ago = Instant::now().checked_sub(LIVE_WITHIN + Duration::from_secs(1));
        let late = LivePage(Mutex::new(long_ago.expect("the machine runs for longer")));
        assert_eq!(late.answer(), StatusCode::SERVICE_UNAVAILABLE);
        late.beat();
        assert_eq!(late.answer(), StatusCode::OK);
    }
}
