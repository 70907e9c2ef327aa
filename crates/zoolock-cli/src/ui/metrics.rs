//! `/metrics`: the locks for Prometheus.

use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::Site;
use super::clock::now_ms;

/// Maximum time to wait for a read. A monitor usually waits ten seconds for its answer.
const READ_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum age of the metrics. The duration of a few reads is added to it.
const MAX_AGE: Duration = Duration::from_secs(30);

/// Serves `/metrics` from the last read, or from a new read if the last read is old.
pub(super) async fn metrics(State(site): State<Site>) -> Response {
    let overview = site.overview.recent_overview(READ_TIMEOUT).await;
    // A read that hangs returns neither an answer nor an error, so old metrics are refused by their age.
    let oldest = MAX_AGE + overview.cost * 6;
    let is_new = Duration::from_millis(now_ms().saturating_sub(overview.seen_ms)) <= oldest;
    let (Some(list), None, true) = (&overview.list, &overview.trouble, is_new) else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the locks cannot be read\n").into_response();
    };
    let text = crate::metrics::render_lock_metrics(list.snapshots());
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (StatusCode::OK, kind, text).into_response()
}
