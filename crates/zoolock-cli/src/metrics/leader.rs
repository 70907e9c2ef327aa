//! What `/leader` and `/live` say of this process.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::time::Instant;
use zoolock::Lease;

/// Longest time between two rounds of the main loop of a process that `/live` calls live.
const LIVE_WITHIN: Duration = Duration::from_secs(10);

/// The page `/leader`: whether this process holds its lock, and its command may work.
#[derive(Debug)]
pub(crate) struct LeaderPage {
    name: String,
    /// Set if only one process can hold the lock.
    is_exclusive: bool,
    stage: Mutex<Stage>,
}

#[derive(Debug, Clone)]
enum Stage {
    Waiting,
    /// The lock is held. This process leads until only this grace is left of the lease.
    Leading(Lease, Duration),
    /// The lock is held, or was lost, and the work must end or has ended.
    Ending,
}

impl LeaderPage {
    pub(crate) fn new(name: &str, is_exclusive: bool) -> Arc<LeaderPage> {
        Arc::new(LeaderPage { name: name.to_owned(), is_exclusive, stage: Mutex::new(Stage::Waiting) })
    }

    /// Records that this process waits for the lock.
    pub(crate) fn wait(&self) {
        self.set(Stage::Waiting);
    }

    /// Records that this process leads until only `grace` is left of the lease.
    pub(crate) fn lead(&self, lease: Lease, grace: Duration) {
        self.set(Stage::Leading(lease, grace));
    }

    /// Changes the grace of this process, if it leads.
    pub(crate) fn set_grace(&self, grace: Duration) {
        if let Stage::Leading(_, before) = &mut *self.stage() {
            *before = grace;
        }
    }

    /// Records that the work must end or has ended. The lease may go on, and may even be renewed. Call this before the work
    /// is told, so that it does not end while the page says that it leads.
    pub(crate) fn end(&self) {
        self.set(Stage::Ending);
    }

    fn set(&self, stage: Stage) {
        *self.stage() = stage;
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns 200 while this process leads, 503 otherwise, and 404 if several can hold the lock together.
    pub(super) fn answer(&self) -> Response {
        if !self.is_exclusive {
            return StatusCode::NOT_FOUND.into_response();
        }
        let stage = self.stage().clone();
        let state = match stage {
            Stage::Waiting => "waiting",
            Stage::Leading(lease, grace) => match lease.valid_until().remaining() {
                left if lease.is_valid() && !lease.is_revoked() && left > grace => {
                    let token = lease.token().map(|token| token.to_string());
                    let valid_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                    let body = json!({ "name": self.name, "token": token, "valid_ms": valid_ms });
                    return answer_json(StatusCode::OK, &body);
                }
                _ => "ending",
            },
            Stage::Ending => "ending",
        };
        answer_json(StatusCode::SERVICE_UNAVAILABLE, &json!({ "state": state }))
    }
}

fn answer_json(status: StatusCode, body: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}

/// Interval between two rounds of the main loop.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);

/// The time of the last round of the main loop.
#[derive(Debug)]
pub(super) struct LivePage(Mutex<Instant>);

impl LivePage {
    pub(super) fn new() -> Arc<LivePage> {
        Arc::new(LivePage(Mutex::new(Instant::now())))
    }

    /// Runs `work`, and records each second that the loop that runs it goes on.
    pub(super) async fn beat_during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let mut beats = tokio::time::interval(BEAT_INTERVAL);
        loop {
            tokio::select! {
                biased;
                result = &mut work => return result,
                _ = beats.tick() => *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now(),
            }
        }
    }

    /// Returns 200 if the main loop has gone on within [`LIVE_WITHIN`].
    pub(super) async fn answer(&self) -> StatusCode {
        let is_live = || self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed() <= LIVE_WITHIN;
        if !is_live() {
            // A process that was stopped may answer before its main loop goes on. The kubelet waits for 1 s.
            tokio::time::sleep(BEAT_INTERVAL / 2).await;
        }
        if is_live() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{advance, sleep};

    #[tokio::test(start_paused = true)]
    async fn process_is_live_while_its_main_loop_goes_on() {
        let live = LivePage::new();
        let answer = live.beat_during(async {
            sleep(10 * LIVE_WITHIN).await;
            live.answer().await
        });
        assert_eq!(answer.await, StatusCode::OK);
        // Nothing runs the main loop now.
        advance(LIVE_WITHIN + BEAT_INTERVAL).await;
        assert_eq!(live.answer().await, StatusCode::SERVICE_UNAVAILABLE);
        // The process was stopped, and its main loop goes on after the question.
        let answer = live.beat_during(live.answer());
        assert_eq!(answer.await, StatusCode::OK);
    }
}
