//! `/metrics`: the locks for Prometheus.

use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::Site;

/// A monitor waits for ten seconds, as a rule.
const PATIENCE: Duration = Duration::from_secs(8);

/// The newest reading; a new one where the last is old.
pub(super) async fn metrics(State(site): State<Site>) -> Response {
    let board = site.boards.look(false, PATIENCE).await;
    let (Some(listed), None) = (&board.locks, &board.trouble) else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the locks cannot be read\n").into_response();
    };
    let text = crate::metrics::of_locks(&listed.locks);
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (StatusCode::OK, kind, text).into_response()
}
