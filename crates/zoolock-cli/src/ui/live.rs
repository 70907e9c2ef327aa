//! Announces changes to open pages by server-sent events. An open page then fetches itself again.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;
use tokio::sync::watch;

use super::http::PageConnection;
use super::{Site, wait_until_stopped};

/// Interval of keep-alive messages, since proxies close silent connections.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Query of `/events`, which names the open page.
#[derive(Debug, Deserialize)]
pub(super) struct EventsParams {
    /// The lock, if the page shows one lock.
    name: Option<String>,
}

/// Serves `/events`, the event stream of a page.
pub(super) async fn events(
    State(site): State<Site>,
    Extension(connection): Extension<PageConnection>,
    Query(params): Query<EventsParams>,
) -> Response {
    // After this response, the script of the page polls.
    let full = || {
        let text = "too many pages are open; reload to update\n";
        (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "5")], text).into_response()
    };
    let Some(permit) = site.streams.try_acquire(connection.network) else { return full() };
    let stop = site.stop.clone();
    match params.name {
        Some(name) => {
            let Ok(path) = site.path(&name) else {
                return (StatusCode::BAD_REQUEST, "invalid lock name\n").into_response();
            };
            match site.lock_pollers.watch(&path) {
                Some(reads) => {
                    connection.count_as_stream(permit);
                    stream_response(reads, |read| read.number, stop)
                }
                None => full(),
            }
        }
        None => {
            connection.count_as_stream(permit);
            stream_response(site.overview.watch(), |overview| overview.number, stop)
        }
    }
}

/// Returns an event stream of the current number of a result and every new one. `number_of` returns the number, which
/// rises when the result changes.
fn stream_response<T: Send + Sync + 'static>(
    mut news: watch::Receiver<Arc<T>>,
    number_of: fn(&T) -> u64,
    stop: watch::Receiver<bool>,
) -> Response {
    news.mark_changed();
    let stream = stream::unfold((news, stop, None), move |(mut news, mut stop, last)| async move {
        loop {
            tokio::select! {
                () = wait_until_stopped(&mut stop) => return None,
                changed = news.changed() => changed.ok()?,
            }
            let number = number_of(&news.borrow_and_update());
            if number > 0 && last != Some(number) {
                let event = Event::default().event("news").data(number.to_string());
                return Some((Ok::<_, Infallible>(event), (news, stop, Some(number))));
            }
        }
    });
    Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL)).into_response()
}
