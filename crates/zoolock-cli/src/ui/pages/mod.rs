//! The pages, and their common frame: header, menu and footer.

pub(super) mod deadlocks;
pub(super) mod elements;
pub(super) mod lock;
pub(super) mod locks;
mod pictures;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use super::Site;
use super::clock::now_ms;
use super::news::News;
use crate::base::reporter::escape_unprintable;

/// Content of a page, without the common frame.
pub(super) struct Page<'a> {
    pub(super) title: &'a str,
    /// The servers and the root, safe to print.
    pub(super) ensemble: &'a str,
    /// Address of the menu entry to mark as current.
    pub(super) here: &'a str,
    /// `None` if the page is not updated.
    pub(super) news: Option<News>,
    pub(super) main: Markup,
}

/// Menu entries: address and label.
const MENU: [(&str, &str); 2] = [("/", "Locks"), ("/deadlocks", "Deadlocks")];

impl Page<'_> {
    /// Returns the page as a response.
    pub(super) fn answer(self, status: StatusCode) -> Response {
        let html = HeaderValue::from_static("text/html; charset=utf-8");
        (status, [(header::CONTENT_TYPE, html)], self.markup().into_string()).into_response()
    }

    fn markup(self) -> Markup {
        let Self { title, ensemble, here, news, main } = self;
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (escape_unprintable(title)) " · " (ensemble) " · zoolock" }
                    link rel="stylesheet" href="/style.css";
                    link rel="icon" href="/icon.svg" type="image/svg+xml";
                    script src="/script.js" defer {}
                }
                body {
                    a.skip href="#main" { "Skip to content" }
                    header {
                        a.brand href="/" { "zoolock" }
                        nav aria-label="Pages" {
                            ul {
                                @for (href, label) in MENU {
                                    li { a href=(href) aria-current=[(href == here).then_some("page")] { (label) } }
                                }
                            }
                        }
                        span.ensemble { (ensemble) }
                        @if news.is_some() { span #live .live hidden {} }
                    }
                    main #main tabindex="-1" data-now=(now_ms())
                        data-events=[news.as_ref().map(|news| &news.events)]
                        data-number=[news.as_ref().map(|news| news.number)]
                        data-outage=[news.as_ref().filter(|news| news.is_outage).map(|_| "true")]
                    { (main) }
                    footer {
                        p {
                            "Times are UTC, by the clocks of the clients. "
                            a href="/metrics" { "Metrics" }
                        }
                    }
                }
            }
        }
    }
}

/// Returns a page with a message, and a link to all locks.
pub(super) fn message_page(site: &Site, status: StatusCode, title: &str, words: &str) -> Response {
    let main = html! {
        h1 { (escape_unprintable(title)) }
        p { (escape_unprintable(words)) }
        p { a href="/" { "All locks" } }
    };
    Page { title, ensemble: &site.ensemble, here: "", news: None, main }.answer(status)
}

/// Responds to an unknown address.
pub(super) async fn not_found(State(site): State<Site>) -> Response {
    message_page(&site, StatusCode::NOT_FOUND, "No such page", "This address does not exist.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_escaped() {
        let hostile = "/locks/<script>alert('1')</script>\"onload=\"x\u{202e}\x1b[31m";
        let page = Page {
            title: hostile,
            ensemble: "zk1:2181 · /locks",
            here: "/",
            news: Some(News {
                events: format!("/events?name={}", elements::percent_encode(hostile)),
                number: 1,
                is_outage: false,
            }),
            main: html! { p title=(escape_unprintable(hostile)) { (escape_unprintable(hostile)) } },
        };
        let text = page.markup().into_string();
        assert!(!text.contains("<script>alert") && !text.contains("\"onload"), "{text}");
        assert!(!text.contains('\u{202e}') && !text.contains('\x1b'), "{text}");
        assert!(text.contains("\\u{202e}\\u{1b}[31m"), "{text}");
    }

    #[test]
    fn page_has_no_inline_style_or_handler() {
        // The content security policy would block inline styles and handlers.
        let page = Page { title: "x", ensemble: "zk1:2181", here: "/", news: None, main: html! {} };
        let text = page.markup().into_string();
        assert!(!text.contains("style=") && !text.contains(" on") && !text.contains("<style"), "{text}");
    }
}
