//! The page of one lock: its queue, its history, its tokens.

use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use zoolock::{Entry, Snapshot};

use super::elements::{
    cell, column_headers, describe_entry, format_count, format_counted, host, lock_href, number_cell,
    percent_encode, rate, render_age, render_ending, render_time, role,
};
use super::locks::format_read_time;
use super::{Page, message_page, pictures};
use crate::base::reporter::escape_unprintable;
use crate::render::status::describe_contender;
use crate::ui::Site;
use crate::ui::admin_actions::{ActionOutcome, confirm_href};
use crate::ui::clock::{format_span, now_ms};
use crate::ui::history::PastHold;
use crate::ui::lock_poller::LockRead;
use crate::ui::login::Viewer;
use crate::verbs::operate::AdminAction;

/// Maximum time to wait for a new read of the lock.
const READ_TIMEOUT: Duration = Duration::from_millis(900);
/// Maximum number of waiters in the table. Its caption shows the total number.
const MAX_WAITERS: usize = 100;
/// Maximum number of holds in the table of the history.
const MAX_HOLDS: usize = 50;

/// Query of `/lock`.
#[derive(Debug, Deserialize)]
pub(in crate::ui) struct LockParams {
    name: String,
    /// Result of the action that led to this page.
    done: Option<ActionOutcome>,
}

/// Serves `/lock`, the page of one lock.
pub(in crate::ui) async fn lock(
    State(site): State<Site>,
    headers: HeaderMap,
    Query(params): Query<LockParams>,
) -> Response {
    let viewer = site.viewer(&headers);
    let path = match site.path(&params.name) {
        Ok(path) => path,
        Err(error) => {
            return message_page(
                &viewer,
                StatusCode::BAD_REQUEST,
                "No such lock",
                &error.to_string(),
                ("/", "All locks"),
            );
        }
    };
    let seen = site.lock_pollers.new_read(&path, READ_TIMEOUT).await;
    let (holds, rate) = {
        let history = site.history.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        (history.holds(&path), history.rate(&path, now_ms()))
    };
    let main = html! {
        p.crumbs { a href="/" { "Locks" } }
        h1 { code { (escape_unprintable(&path)) } }
        @if let Some(done) = params.done { p.alert.good role="status" { (done.message()) } }
        (render_body(&viewer, &path, &seen, &holds, rate))
    };
    let news = Some((format!("/events?name={}", percent_encode(&path)), seen.number));
    Page { title: &path, here: "", viewer: &viewer, news, main }.answer(StatusCode::OK)
}

fn render_body(
    viewer: &Viewer,
    path: &str,
    seen: &LockRead,
    holds: &[PastHold],
    rate_per_second: Option<f64>,
) -> Markup {
    html! {
        @if let Some(trouble) = &seen.trouble {
            p.alert.bad role="alert" { strong { "This lock cannot be read. " } (escape_unprintable(trouble)) }
        }
        @match &seen.lock {
            None if seen.trouble.is_none() => {
                p #summary role="status" { "Reading the lock…" }
                p.noscript { a href="" { "Look again" } }
            }
            None => {}
            Some(lock) => {
                p.summary #summary role="status" aria-live="polite" { (summary(lock)) }
                (warnings(lock))
                (queue(viewer, path, lock))
                (facts(lock, seen, rate_per_second))
            }
        }
        (history(holds))
    }
}

/// Returns the summary. Screen readers announce its changes, so it contains no times.
fn summary(lock: &Snapshot) -> String {
    let waiting = lock.waiting;
    let waits = if waiting == 1 { "waits" } else { "wait" };
    let held = match (&lock.holder, lock.beside.len(), &lock.foreign_semaphore) {
        (None, _, Some(foreign)) => foreign.to_string(),
        (None, _, None) if lock.unread.is_empty() => "Free".to_owned(),
        (None, _, None) => "Free, but parts of the lock cannot be read".to_owned(),
        (Some(holder), 0, _) => format!("Held by {}", describe_contender(holder)),
        (Some(holder), more, _) => {
            format!("Held by {} and {} more", describe_contender(holder), format_count(more))
        }
    };
    if waiting == 0 {
        format!("{held} · no waiters")
    } else {
        format!("{held} · {} {waits}", format_count(waiting))
    }
}

fn warnings(lock: &Snapshot) -> Markup {
    html! {
        @if let Some(clash) = &lock.clash {
            p.alert.bad { strong { "Several contenders may hold this lock at once. " } (escape_unprintable(clash)) }
        }
        @for part in &lock.unread {
            p.alert { code { (escape_unprintable(part)) } ": no permission to read it. Its contenders are not shown." }
        }
        @if lock.foreign_record {
            p.alert { "Another program uses the data of this directory, so holders write no release marker." }
        }
    }
}

fn queue(viewer: &Viewer, path: &str, lock: &Snapshot) -> Markup {
    let holders: Vec<&Entry> = lock.holders().collect();
    let waiters = &lock.waiters[..lock.waiters.len().min(MAX_WAITERS)];
    let operator = matches!(viewer, Viewer::Operator(_) | Viewer::LoggedOut);
    let mut columns = vec!["Position", "Contender", "Host · process", "Mode", "Since", "Token", "Znode"];
    if operator {
        columns.push("Action");
    }
    html! {
        section aria-labelledby="queue" {
            h2 #queue { "Queue" }
            @if holders.is_empty() && waiters.is_empty() {
                @match &lock.foreign_semaphore {
                    Some(foreign) => p.empty {
                        "This is a semaphore of " (foreign.library) ". Its holders and waiters are not shown."
                    },
                    None => p.empty { "No contenders." },
                }
            } @else {
                (pictures::queue(lock))
                div.scroll role="region" aria-label="Table of the queue" tabindex="0" {
                    table.reflow role="table" {
                        caption {
                            (format_counted(holders.len(), "holder", "holders")) ", "
                            (format_counted(lock.waiting, "waiter", "waiters"))
                            @if waiters.len() < lock.waiting {
                                ", the first " (format_count(waiters.len())) " of them listed"
                            }
                        }
                        (column_headers(&columns))
                        tbody role="rowgroup" {
                            @for holder in holders { (render_row(path, holder, None, operator)) }
                            @for (position, waiter) in waiters.iter().enumerate() {
                                (render_row(path, waiter, Some(position + 1), operator))
                            }
                        }
                    }
                }
            }
            @if matches!(viewer, Viewer::LoggedOut) { p.quiet { a href="/login" { "Log in" } " to revoke or break." } }
        }
    }
}

fn render_row(path: &str, entry: &Entry, position: Option<usize>, operator: bool) -> Markup {
    let token = entry.token.as_deref();
    html! {
        tr role="row" data-key=(escape_unprintable(&entry.node)) {
            th scope="row" role="rowheader" data-label="Position" {
                div { @match position { Some(position) => (format_count(position)), None => span.badge.holds { "holds" } } }
            }
            (cell("Contender", html! {
                (describe_entry(entry))
                @if entry.revoked { " " span.badge { "asked to release" } }
            }))
            (cell("Host · process", host(entry)))
            (cell("Mode", role(entry)))
            (number_cell("Since", render_age(entry.since_ms)))
            (cell("Token", html! { code { (token.unwrap_or("unread")) } }))
            (cell("Znode", html! { code.node { (escape_unprintable(&entry.node)) } }))
            @if operator {
                (cell("Action", html! {
                    @if let Some(token) = token {
                        span.actions {
                            @if !entry.revoked {
                                a.button href=(confirm_href(AdminAction::Revoke, path, token))
                                    aria-label={ "Revoke " (token) } { "Revoke" }
                            }
                            a.button.danger href=(confirm_href(AdminAction::Break, path, token))
                                aria-label={ "Break " (token) } { "Break" }
                        }
                    }
                }))
            }
        }
    }
}

fn facts(lock: &Snapshot, seen: &LockRead, rate_per_second: Option<f64>) -> Markup {
    let held: u64 = lock.holders().map(|holder| u64::from(holder.weight)).sum();
    html! {
        dl.facts {
            div { dt { "Previous release" } dd { (render_ending(lock.previous)) } }
            div { dt { "Acquisitions per second" } dd title="over the last minute" { (rate(rate_per_second)) } }
            @match (lock.permits, &lock.foreign_semaphore) {
                (Some(permits), Some(foreign)) => div { dt { "Permits" } dd { (foreign.leases) " of " (permits) } },
                (Some(permits), None) => div { dt { "Permits" } dd { (held) " of " (permits) } },
                (None, _) => {}
            }
            div { dt { "Read" } dd { (render_time(seen.begun_ms)) " in " (format_read_time(seen.cost)) } }
        }
    }
}

fn history(holds: &[PastHold]) -> Markup {
    let now = now_ms();
    html! {
        section aria-labelledby="history" {
            h2 #history { "History" }
            @if holds.is_empty() {
                p.empty { "No holder seen yet." }
            } @else {
                (pictures::timeline(holds, now))
                div.scroll role="region" aria-label="Table of the history" tabindex="0" {
                    table.reflow role="table" {
                        caption { "Holders seen so far, newest first" }
                        (column_headers(&["Holder", "From", "For", "Token", "Ended"]))
                        tbody role="rowgroup" {
                            @for hold in holds.iter().take(MAX_HOLDS) { (render_hold(hold, now)) }
                        }
                    }
                }
                p.quiet { "Holds between two reads are not shown. The history is kept in memory until zoolock ui ends." }
            }
        }
    }
}

fn render_hold(hold: &PastHold, now: u64) -> Markup {
    let time = format_span(hold.until_ms.unwrap_or(now).saturating_sub(hold.from_ms));
    html! {
        tr role="row" data-key={ "t" (escape_unprintable(&hold.node)) (hold.from_ms) } {
            th scope="row" role="rowheader" data-label="Holder" { div { (hold.who) } }
            (cell("From", html! { @if hold.began_before { "before " } (render_time(hold.from_ms)) }))
            (number_cell("For", html! {
                @if hold.began_before { "> " }
                @match hold.until_ms { Some(_) => (time), None => (render_age(Some(hold.from_ms))) }
            }))
            (cell("Token", html! { code { (hold.token.as_deref().unwrap_or("unread")) } }))
            (cell("Ended", html! {
                @match hold.until_ms { Some(_) => (render_ending(hold.ending)), None => span.badge.holds { "holds" } }
            }))
        }
    }
}

/// Returns the URL of the lock's page that shows the result of an action.
pub(in crate::ui) fn href_after(path: &str, outcome: ActionOutcome) -> String {
    format!("{}&done={}", lock_href(path), outcome.word())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_snapshots::{entry, lock};
    use crate::ui::login::Operator;

    fn seen(lock: Snapshot) -> LockRead {
        LockRead { number: 1, lock: Some(lock), ..LockRead::default() }
    }

    fn operator() -> Viewer {
        Viewer::Operator(Operator { csrf: "c".to_owned() })
    }

    #[test]
    fn actions_require_operator() {
        let seen = seen(lock("/locks/x", Some(entry("lock-0000000000", "0.5.0")), vec![]));
        let text = |viewer: &Viewer| render_body(viewer, "/locks/x", &seen, &[], None).into_string();
        assert!(!text(&Viewer::ReadOnly).contains("/confirm?"));
        assert!(
            text(&operator()).contains("/confirm?action=break&amp;name=/locks/x&amp;token=0.5.0"),
            "{}",
            text(&operator())
        );
    }

    #[test]
    fn page_lists_hundred_waiters_and_counts_all() {
        let waiters = (1..=10_000).map(|at| entry(&format!("lock-{at:010}"), &format!("0.{at}.0"))).collect();
        let seen = seen(lock("/locks/x", Some(entry("lock-0000000000", "0.0.0")), waiters));
        let text = render_body(&Viewer::ReadOnly, "/locks/x", &seen, &[], None).into_string();
        assert_eq!(text.matches("data-key").count(), 101);
        assert!(text.contains("10\u{202f}000 wait") && text.len() < 200_000, "{}", text.len());
    }

    #[test]
    fn foreign_text_is_escaped() {
        let mut hostile = entry("lock-<script>alert(1)</script>", "0.1.0");
        hostile.note = Some("\"><svg onload=alert(1)>\u{202e}\x1b[2J".to_owned());
        hostile.host = Some("</text><script>".to_owned());
        let mut history = crate::ui::history::HoldHistory::default();
        let lock = lock("/locks/x", Some(hostile.clone()), vec![hostile]);
        history.record(&lock, 1, 1);
        let holds = history.holds("/locks/x");
        let text = render_body(&operator(), "/locks/x", &seen(lock), &holds, Some(1.0)).into_string();
        for bad in ["<script", "<svg onload", "</text><script", "\u{202e}", "\x1b"] {
            assert!(!text.contains(bad), "{bad:?} in {text}");
        }
    }
}
