//! Announces changes to open pages by server-sent events. A page then fetches itself again.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use serde::Deserialize;
use tokio::sync::watch;

use super::board::{Board, Looking};
use super::eye::Seen;
use super::http::GoesOn;
use super::{Site, stopped};

/// Maximum number of event streams.
const MOST: usize = 128;
/// Interval of keep-alive messages, since proxies close silent connections.
const STILL_HERE: Duration = Duration::from_secs(15);

/// Query of the URL, which names the page.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    /// The lock, if the page shows one lock.
    name: Option<String>,
    #[serde(default)]
    deep: bool,
}

/// A result with a number that rises when the result changes.
trait Numbered: Send + Sync + 'static {
    fn number(&self) -> u64;
}

impl Numbered for Board {
    fn number(&self) -> u64 {
        self.number
    }
}

impl Numbered for Seen {
    fn number(&self) -> u64 {
        self.number
    }
}

/// One of [`MOST`] slots for event streams. Dropping it frees the slot.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let free = |count: usize| (count < MOST).then_some(count + 1);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok()?;
        Some(Self(Arc::clone(taken)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves `/events`, the event stream of a page.
pub(super) async fn events(
    State(site): State<Site>,
    Extension(goes_on): Extension<GoesOn>,
    Query(asked): Query<Asked>,
) -> Response {
    let full =
        || (StatusCode::SERVICE_UNAVAILABLE, "too many pages are open: reload for news\n").into_response();
    let Some(place) = Place::take(&site.places) else { return full() };
    goes_on.tell();
    let stop = site.stop.clone();
    match asked.name {
        Some(name) => {
            let Ok(path) = site.path(&name) else {
                return (StatusCode::BAD_REQUEST, "no lock\n").into_response();
            };
            match site.eyes.watch(&path) {
                Some(sight) => told(sight, stop, (place, None)),
                None => full(),
            }
        }
        None => {
            let (board, looking) = site.boards.watch(asked.deep);
            told(board, stop, (place, Some(looking)))
        }
    }
}

/// Returns an event stream of the current number and every new one.
fn told<T: Numbered>(
    mut news: watch::Receiver<Arc<T>>,
    stop: watch::Receiver<bool>,
    kept: (Place, Option<Looking>),
) -> Response {
    news.mark_changed();
    let stream = numbers(news, stop, kept);
    Sse::new(stream).keep_alive(KeepAlive::new().interval(STILL_HERE)).into_response()
}

fn numbers<T: Numbered>(
    news: watch::Receiver<Arc<T>>,
    stop: watch::Receiver<bool>,
    kept: (Place, Option<Looking>),
) -> impl Stream<Item = Result<Event, Infallible>> + Send {
    stream::unfold((news, stop, kept, None), |(mut news, mut stop, kept, last)| async move {
        loop {
            tokio::select! {
                () = stopped(&mut stop) => return None,
                changed = news.changed() => changed.ok()?,
            }
            let number = news.borrow_and_update().number();
            if number > 0 && last != Some(number) {
                let event = Event::default().event("news").data(number.to_string());
                return Some((Ok(event), (news, stop, kept, Some(number))));
            }
        }
    })
}
