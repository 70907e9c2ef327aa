//! The page of one lock: its queue, its history, its tokens.

use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use zoolock::{Entry, Snapshot};

use super::locks::cost;
use super::parts::{
    ago, at, cell, count, counted, figure, heads, host, left, lock_href, quoted, rate, role, title,
};
use super::{Page, message, pictures};
use crate::base::talk::printable;
use crate::render::status::who;
use crate::ui::Site;
use crate::ui::admin_actions::{Outcome, confirm_href};
use crate::ui::clock::{now_ms, span};
use crate::ui::eye::Seen;
use crate::ui::history::Tenure;
use crate::ui::login::Viewer;
use crate::verbs::operate::AdminAction;

/// Maximum time to wait for a first read of the lock.
const READ_TIMEOUT: Duration = Duration::from_millis(900);
/// Maximum number of waiters listed. The total is shown.
const WAITERS: usize = 100;
/// Maximum number of entries listed of the history.
const TENURES: usize = 50;

/// Query of the URL.
#[derive(Debug, Deserialize)]
pub(in crate::ui) struct LockParams {
    name: String,
    /// Result of the action that led to this page.
    done: Option<Outcome>,
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
            return message(
                &viewer,
                StatusCode::BAD_REQUEST,
                "No such lock",
                &error.to_string(),
                ("/", "All locks"),
            );
        }
    };
    let seen = site.eyes.look(&path, READ_TIMEOUT).await;
    let (tenures, rate) = {
        let history = site.history.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        (history.tenures(&path), history.rate(&path, now_ms()))
    };
    let main = html! {
        p.crumbs { a href="/" { "Locks" } }
        h1 { code { (printable(&path)) } }
        @if let Some(done) = params.done { p.alert.good role="status" { (done.words()) } }
        (shown(&viewer, &path, &seen, &tenures, rate))
    };
    let news = Some((format!("/events?name={}", quoted(&path)), seen.number));
    Page { title: &path, here: "", viewer: &viewer, news, main }.answer(StatusCode::OK)
}

fn shown(viewer: &Viewer, path: &str, seen: &Seen, tenures: &[Tenure], turns: Option<f64>) -> Markup {
    html! {
        @if let Some(trouble) = &seen.trouble {
            p.alert.bad role="alert" { strong { "This lock cannot be read. " } (printable(trouble)) }
        }
        @match &seen.lock {
            None if seen.trouble.is_none() => {
                p #summary role="status" { "Reading the lock…" }
                p.noscript { a href="" { "Look again" } }
            }
            None => {}
            Some(lock) => {
                p.summary #summary role="status" aria-live="polite" { (summary(lock)) }
                (dangers(lock))
                (queue(viewer, path, lock))
                (facts(lock, seen, turns))
            }
        }
        (history(tenures))
    }
}

/// Returns a summary that screen readers announce when it changes. It contains no times, which change constantly.
fn summary(lock: &Snapshot) -> String {
    let waiting = lock.waiting;
    let waits = if waiting == 1 { "waits" } else { "wait" };
    let held = match (&lock.holder, lock.beside.len(), &lock.foreign_semaphore) {
        (None, _, Some(foreign)) => foreign.to_string(),
        (None, _, None) if lock.unread.is_empty() => "Free".to_owned(),
        (None, _, None) => "Free, as far as it may be read".to_owned(),
        (Some(holder), 0, _) => format!("Held by {}", who(holder)),
        (Some(holder), more, _) => format!("Held by {} and {} more", who(holder), count(more)),
    };
    if waiting == 0 {
        format!("{held} · nobody waits")
    } else {
        format!("{held} · {} {waits}", count(waiting))
    }
}

fn dangers(lock: &Snapshot) -> Markup {
    html! {
        @if let Some(clash) = &lock.clash {
            p.alert.bad { strong { "Several may hold this lock. " } (printable(clash)) }
        }
        @for part in &lock.unread {
            p.alert { code { (printable(part)) } ": no permission to read it. Its contenders are not shown." }
        }
        @if lock.foreign_record {
            p.alert { "The data of this directory belongs to something else, so nothing is noted there when a holder leaves." }
        }
    }
}

fn queue(viewer: &Viewer, path: &str, lock: &Snapshot) -> Markup {
    let holders: Vec<&Entry> = lock.holder.iter().chain(&lock.beside).collect();
    let waiters = &lock.waiters[..lock.waiters.len().min(WAITERS)];
    let operator = matches!(viewer, Viewer::Operator(_) | Viewer::LoggedOut);
    let mut columns = vec!["Turn", "Who", "Host · process", "Asks for", "Since", "Token", "Node"];
    if operator {
        columns.push("Do");
    }
    html! {
        section aria-labelledby="queue" {
            h2 #queue { "Queue" }
            @if holders.is_empty() && waiters.is_empty() {
                @match &lock.foreign_semaphore {
                    Some(foreign) => p.empty {
                        "This is a semaphore of " (foreign.library) ". Its holders and waiters are not shown."
                    },
                    None => p.empty { "Nobody is here." },
                }
            } @else {
                (pictures::queue(lock))
                div.scroll role="region" aria-label="Table of the queue" tabindex="0" {
                    table.reflow role="table" {
                        caption {
                            (counted(holders.len(), "holder", "holders")) ", "
                            (counted(lock.waiting, "waiter", "waiters"))
                            @if waiters.len() < lock.waiting {
                                ", the first " (count(waiters.len())) " of them listed"
                            }
                        }
                        (heads(&columns))
                        tbody role="rowgroup" {
                            @for holder in holders { (line(path, holder, None, operator)) }
                            @for (turn, waiter) in waiters.iter().enumerate() {
                                (line(path, waiter, Some(turn + 1), operator))
                            }
                        }
                    }
                }
            }
            @if matches!(viewer, Viewer::LoggedOut) { p.quiet { a href="/login" { "Log in" } " to revoke or break." } }
        }
    }
}

fn line(path: &str, entry: &Entry, turn: Option<usize>, operator: bool) -> Markup {
    let token = entry.token.as_deref();
    html! {
        tr role="row" data-key=(printable(&entry.node)) {
            th scope="row" role="rowheader" data-label="Turn" {
                div { @match turn { Some(turn) => (count(turn)), None => span.badge.holds { "holds" } } }
            }
            (cell("Who", html! {
                (title(entry))
                @if entry.revoked { " " span.badge { "asked to let go" } }
            }))
            (cell("Host · process", host(entry)))
            (cell("Asks for", role(entry)))
            (figure("Since", ago(entry.since_ms)))
            (cell("Token", html! { code { (token.unwrap_or("unread")) } }))
            (cell("Node", html! { code.node { (printable(&entry.node)) } }))
            @if operator {
                (cell("Do", html! {
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

fn facts(lock: &Snapshot, seen: &Seen, turns: Option<f64>) -> Markup {
    let holders = || lock.holder.iter().chain(&lock.beside);
    let held: u64 = holders().map(|holder| u64::from(holder.weight)).sum();
    html! {
        dl.facts {
            div { dt { "Last one left" } dd { (left(lock.previous)) } }
            div { dt { "Turns a second" } dd title="over the last minute" { (rate(turns)) } }
            @match (lock.permits, &lock.foreign_semaphore) {
                (Some(permits), Some(foreign)) => div { dt { "Permits" } dd { (foreign.leases) " of " (permits) } },
                (Some(permits), None) => div { dt { "Permits" } dd { (held) " of " (permits) } },
                (None, _) => {}
            }
            div { dt { "Read" } dd { (at(seen.begun_ms)) " in " (cost(seen.cost)) } }
        }
    }
}

fn history(tenures: &[Tenure]) -> Markup {
    let now = now_ms();
    html! {
        section aria-labelledby="history" {
            h2 #history { "History" }
            @if tenures.is_empty() {
                p.empty { "Nobody was seen to hold it yet." }
            } @else {
                (pictures::timeline(tenures, now))
                div.scroll role="region" aria-label="Table of the history" tabindex="0" {
                    table.reflow role="table" {
                        caption { "Who was seen to hold it, the newest first" }
                        (heads(&["Who", "From", "For", "Token", "Left"]))
                        tbody role="rowgroup" {
                            @for tenure in tenures.iter().take(TENURES) { (held(tenure, now)) }
                        }
                    }
                }
                p.quiet { "What came and went between two looks is not here. It is kept in memory, until this process ends." }
            }
        }
    }
}

fn held(tenure: &Tenure, now: u64) -> Markup {
    let time = span(tenure.until_ms.unwrap_or(now).saturating_sub(tenure.from_ms));
    html! {
        tr role="row" data-key={ "t" (printable(&tenure.node)) (tenure.from_ms) } {
            th scope="row" role="rowheader" data-label="Who" { div { (tenure.who) } }
            (cell("From", html! { @if tenure.or_before { "before " } (at(tenure.from_ms)) }))
            (figure("For", html! {
                @if tenure.or_before { "> " }
                @match tenure.until_ms { Some(_) => (time), None => (ago(Some(tenure.from_ms))) }
            }))
            (cell("Token", html! { code { (tenure.token.as_deref().unwrap_or("unread")) } }))
            (cell("Left", html! {
                @match tenure.until_ms { Some(_) => (left(tenure.left)), None => span.badge.holds { "holds" } }
            }))
        }
    }
}

/// Returns the URL of the lock's page that shows the result of an action.
pub(in crate::ui) fn href_after(path: &str, outcome: Outcome) -> String {
    format!("{}&done={}", lock_href(path), outcome.word())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::sample::{entry, lock};
    use crate::ui::login::Operator;

    fn seen(lock: Snapshot) -> Seen {
        Seen { number: 1, lock: Some(lock), ..Seen::default() }
    }

    fn operator() -> Viewer {
        Viewer::Operator(Operator { csrf: "c".to_owned() })
    }

    #[test]
    fn only_who_may_is_offered_deeds() {
        let seen = seen(lock("/locks/x", Some(entry("lock-0000000000", "0.5.0")), vec![]));
        let text = |viewer: &Viewer| shown(viewer, "/locks/x", &seen, &[], None).into_string();
        assert!(!text(&Viewer::ReadOnly).contains("/confirm?"));
        assert!(
            text(&operator()).contains("/confirm?action=break&amp;name=/locks/x&amp;token=0.5.0"),
            "{}",
            text(&operator())
        );
    }

    #[test]
    fn ten_thousand_waiters_are_counted_and_a_hundred_shown() {
        let waiters = (1..=10_000).map(|at| entry(&format!("lock-{at:010}"), &format!("0.{at}.0"))).collect();
        let seen = seen(lock("/locks/x", Some(entry("lock-0000000000", "0.0.0")), waiters));
        let text = shown(&Viewer::ReadOnly, "/locks/x", &seen, &[], None).into_string();
        assert_eq!(text.matches("data-key").count(), 101);
        assert!(text.contains("10\u{202f}000 wait") && text.len() < 200_000, "{}", text.len());
    }

    #[test]
    fn what_others_wrote_is_text() {
        let mut hostile = entry("lock-<script>alert(1)</script>", "0.1.0");
        hostile.note = Some("\"><svg onload=alert(1)>\u{202e}\x1b[2J".to_owned());
        hostile.host = Some("</text><script>".to_owned());
        let mut history = crate::ui::history::History::default();
        let lock = lock("/locks/x", Some(hostile.clone()), vec![hostile]);
        history.note(&lock, 1, 1);
        let tenures = history.tenures("/locks/x");
        let text = shown(&operator(), "/locks/x", &seen(lock), &tenures, Some(1.0)).into_string();
        for bad in ["<script", "<svg onload", "</text><script", "\u{202e}", "\x1b"] {
            assert!(!text.contains(bad), "{bad:?} in {text}");
        }
    }
}
