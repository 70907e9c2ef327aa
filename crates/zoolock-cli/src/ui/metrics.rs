//! `/metrics`: the locks for Prometheus.

use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::Site;
use super::clock::now_ms;

/// A monitor waits for ten seconds, as a rule.
const PATIENCE: Duration = Duration::from_secs(8);
/// Older than this, and than a few readings take, is not shown.
const STALE: Duration = Duration::from_secs(30);

/// The newest reading; a new one where the last is old.
pub(super) async fn metrics(State(site): State<Site>) -> Response {
    let board = site.boards.look(false, PATIENCE).await;
    // What hangs has no answer and no error: figures of last night are none of now.
    let oldest = STALE + board.cost * 6;
    let is_new = Duration::from_millis(now_ms().saturating_sub(board.seen_ms)) <= oldest;
    let (Some(listed), None, true) = (&board.locks, &board.trouble, is_new) else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the locks cannot be read\n").into_response();
    };
    let text = crate::metrics::of_locks(&listed.locks);
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (StatusCode::OK, kind, text).into_response()
}
