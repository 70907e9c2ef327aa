//! The page of one lock: its queue, its history, and the commands that change it.

use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tokio::time::timeout;
use zoolock::admin::{Entry, HistoryEvent, PreviousEnd, Snapshot};

use super::elements::{
    capitalize, cell, column_headers, describe_entry, describe_free, format_count, format_counted, host,
    number_cell, percent_encode, render_age, render_asked, render_failure, render_held, render_recorded_end,
    render_remedy, render_time,
};
use super::locks::render_deadlock;
use super::{Page, message_page, pictures};
use crate::base::duration::format_duration;
use crate::base::reporter::escape_unprintable;
use crate::base::unix_time::UnixTime as _;
use crate::observe::longest_holder;
use crate::plan::ConnectionSettings;
use crate::render::history::{
    complete_previous, describe_contender as describe_event_contender, describe_origin,
};
use crate::render::remedy::STOP_FIRST;
use crate::render::status::describe_contender;
use crate::render::text::describe_role;
use crate::render::text::token_or;
use crate::ui::Site;
use crate::ui::clock::date_and_time;
use crate::ui::lock_poller::{LockRead, MAX_WAITERS};
use crate::ui::news::News;

/// Maximum time to wait for a new read of the lock.
const READ_TIMEOUT: Duration = Duration::from_millis(900);
/// Maximum time to wait for a read of all locks, which shows a deadlock. A slow read must not delay the page of one lock. The
/// next update of the page then shows the deadlock.
const DEADLOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// Number of waiters that are shown at once. The others are listed on a click.
const FIRST_WAITERS: usize = 5;
/// Maximum number of holders whose commands are shown.
const MAX_COMMANDS: usize = 3;
/// Maximum number of events in the table of the history.
const MAX_EVENTS: usize = 20;

/// Query of `/lock`.
#[derive(Debug, Deserialize)]
pub(in crate::ui) struct LockParams {
    name: String,
}

/// Serves `/lock`, the page of one lock.
pub(in crate::ui) async fn lock(State(site): State<Site>, Query(params): Query<LockParams>) -> Response {
    let path = match site.path(&params.name) {
        Ok(path) => path,
        Err(error) => {
            return message_page(&site, StatusCode::BAD_REQUEST, "No such lock", &error.to_string());
        }
    };
    let seen = site.lock_pollers.new_read(&path, READ_TIMEOUT).await;
    let history = match seen.trouble {
        None => read_events(&site, &path).await,
        Some(_) => Ok(Vec::new()),
    };
    let mut lock = seen.lock.clone();
    if let (Some(lock), Ok(history)) = (&mut lock, &history) {
        complete_previous(lock, history);
    }
    let main = html! {
        p.crumbs { a href="/" { "Locks" } }
        h1 { code { (escape_unprintable(&path)) } }
        (find_deadlock(&site, lock.as_ref()).await)
        (render_body(&path, &site.service, &seen, lock.as_ref()))
        (render_events(&history))
    };
    let events = format!("/events?name={}", percent_encode(&path));
    let news = Some(News { events, number: seen.number, is_outage: seen.trouble.is_some() });
    Page { title: &path, ensemble: &site.ensemble, here: "", news, main }.answer(StatusCode::OK)
}

/// Renders a link to the deadlock that the lock is part of, if the last read of all locks shows one.
async fn find_deadlock(site: &Site, lock: Option<&Snapshot>) -> Markup {
    // A lock without waiters is part of no deadlock, so all locks need not be read for it.
    let Some(lock) = lock.filter(|lock| lock.waiting > 0) else { return html! {} };
    let overview = site.overview.recent_overview(DEADLOCK_TIMEOUT).await;
    let list = overview.list.as_ref().filter(|_| overview.is_fresh());
    let found = list.and_then(|list| Some((list, list.deadlock_at(&lock.path)?)));
    html! {
        @if let Some((list, at)) = found {
            p.alert.bad role="alert" { (render_deadlock(at + 1, &list.deadlocks[at], &site.service.root)) }
        }
    }
}

/// Reads the last events in the history of the lock. Returns the reason if they cannot be read.
async fn read_events(site: &Site, path: &str) -> Result<Vec<HistoryEvent>, String> {
    match timeout(READ_TIMEOUT, site.zoolock.admin().history(Some(path), MAX_EVENTS)).await {
        Ok(events) => events.map_err(|error| error.to_string()),
        Err(_) => Err("the servers do not answer".to_owned()),
    }
}

/// Renders the history of the lock as the servers keep it: requests, breaks and crashes, the newest first.
fn render_events(events: &Result<Vec<HistoryEvent>, String>) -> Markup {
    let events = match events {
        Ok(events) if events.is_empty() => return html! {},
        Ok(events) => events,
        Err(reason) => return html! { p.quiet { "The history cannot be read: " (reason) } },
    };
    html! {
        section aria-labelledby="history" {
            h2 #history { "History" }
            div.scroll role="region" aria-label="Table of the history" tabindex="0" {
                table.reflow role="table" {
                    caption {
                        "The last requests, breaks and crashes, newest first, as " code { "zoolock history" } " shows them"
                    }
                    (column_headers(&["Event", "Time", "Contender", "By"], &[]))
                    tbody role="rowgroup" {
                        @for event in events.iter().rev() {
                            tr role="row" {
                                th scope="row" role="rowheader" data-label="Event" {
                                    div { (event.event) }
                                }
                                (cell("Time", html! { (event.at.unix_ms().map_or_else(|| "unknown".to_owned(), date_and_time)) }))
                                (cell("Contender", html! { (describe_event_contender(event)) }))
                                (cell("By", html! { (describe_origin(event)) }))
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Renders the page of the lock at a path. `lock` is the lock as `seen` shows it, with the end of its previous holder from
/// the history.
fn render_body(path: &str, service: &ConnectionSettings, seen: &LockRead, lock: Option<&Snapshot>) -> Markup {
    html! {
        @if let Some(failure) = &seen.trouble {
            p.alert.bad role="alert" { (render_failure(failure)) ". The state of this lock is not known." }
        }
        @match lock {
            None if seen.trouble.is_none() => {
                p #summary role="status" { "Reading the lock…" }
                p.noscript { a href="" { "Look again" } }
            }
            None => {}
            Some(lock) => {
                p.summary #summary role="status" aria-live="polite" { (summary(lock)) }
                (warnings(lock))
                (queue(lock))
                (facts(lock, seen))
                (render_commands(path, service, lock))
            }
        }
    }
}

/// Renders the commands that change the first holders, to copy.
fn render_commands(path: &str, service: &ConnectionSettings, lock: &Snapshot) -> Markup {
    let mut holders = lock.holders().filter(|holder| holder.token.is_some()).peekable();
    if holders.peek().is_none() {
        return html! {};
    }
    html! {
        section aria-labelledby="commands" {
            h2 #commands { "Commands" }
            @for holder in holders.take(MAX_COMMANDS) { (render_remedy(service, path, holder)) }
            p.quiet {
                (capitalize(STOP_FIRST)) ". For another contender, write its token into the command. Run the commands where "
                code { "zoolock" } " has credentials that may change the lock."
            }
        }
    }
}

/// Returns the summary. Screen readers announce its changes, so it contains no times.
fn summary(lock: &Snapshot) -> String {
    let waiting = lock.waiting;
    let waits = if waiting == 1 { "waits" } else { "wait" };
    let at_least = if lock.unread.is_empty() { "" } else { "at least " };
    let asked = match lock.holders().filter(|holder| holder.revoked).count() {
        0 => String::new(),
        1 if lock.beside.is_empty() => ", asked to release".to_owned(),
        asked => format!(", {} asked to release", format_count(asked)),
    };
    let held = match (longest_holder(lock), lock.beside.len(), &lock.foreign_semaphore) {
        (None, _, Some(foreign)) => foreign.to_string(),
        (None, _, None) => capitalize(describe_free(lock)),
        (Some(holder), 0, _) => format!("Held by {}{asked}", describe_contender(holder)),
        (Some(holder), more, _) => {
            let more = format_count(more);
            format!("Held by {} and {at_least}{more} more{asked}", describe_contender(holder))
        }
    };
    match waiting {
        0 if lock.unread.is_empty() => format!("{held} · no waiters"),
        0 => format!("{held} · no waiters seen"),
        _ => format!("{held} · {at_least}{} {waits}", format_count(waiting)),
    }
}

fn warnings(lock: &Snapshot) -> Markup {
    html! {
        @if let Some(clash) = &lock.clash {
            p.alert.bad { strong { "Several contenders may hold this lock at once. " } (escape_unprintable(clash)) }
        }
        @if let Some(unusable) = &lock.unusable {
            p.alert.bad { strong { "No client can acquire this lock: " } (escape_unprintable(unusable)) }
        }
        @for part in &lock.unread {
            p.alert { code { (escape_unprintable(part)) } ": no permission to read it. Its contenders are not shown." }
        }
        @if lock.foreign_record {
            p.alert { "Another program uses the data of this directory, so holders write no release marker." }
        }
    }
}

fn queue(lock: &Snapshot) -> Markup {
    let holders: Vec<&Entry> = lock.holders().collect();
    let waiters = &lock.waiters[..lock.waiters.len().min(MAX_WAITERS)];
    let (first, rest) = waiters.split_at(waiters.len().min(FIRST_WAITERS));
    let first_rows = html! {
        @for holder in &holders { (render_row(holder, None)) }
        @for (index, waiter) in first.iter().enumerate() { (render_row(waiter, Some(index + 1))) }
    };
    let rest_rows = html! {
        @for (index, waiter) in rest.iter().enumerate() { (render_row(waiter, Some(first.len() + index + 1))) }
    };
    html! {
        section aria-labelledby="queue" {
            h2 #queue { "Queue" }
            @if holders.is_empty() && waiters.is_empty() {
                @match &lock.foreign_semaphore {
                    Some(foreign) => p.empty {
                        "This is a semaphore of " (foreign.library) ". Its holders and waiters are not shown."
                    },
                    None if lock.unread.is_empty() => p.empty { "No contenders." },
                    None => p.empty { "No contender in the part that can be read." },
                }
            } @else {
                (pictures::queue(lock))
                (render_table("Table of the queue", first_rows, html! {
                    (format_counted(holders.len(), "holder", "holders")) ", "
                    (format_counted(lock.waiting, "waiter", "waiters"))
                    @if !lock.unread.is_empty() { ", in the part that can be read" }
                }))
                @if !rest.is_empty() {
                    details data-key="more-waiters" {
                        summary { (format_count(lock.waiting - first.len())) " more wait" }
                        (render_table("Table of the other waiters", rest_rows, html! {
                            "Waiters " (format_count(first.len() + 1)) " to " (format_count(waiters.len()))
                            @if waiters.len() < lock.waiting { " of " (format_count(lock.waiting)) }
                        }))
                    }
                }
            }
        }
    }
}

/// Renders a table of contenders.
fn render_table(label: &str, rows: Markup, caption: Markup) -> Markup {
    let columns = ["Position", "Contender", "Host · process", "Mode", "For", "Token", "Znode"];
    html! {
        div.scroll role="region" aria-label=(label) tabindex="0" {
            table.lines.queue role="table" {
                caption { (caption) }
                (column_headers(&columns, &["For"]))
                tbody role="rowgroup" { (rows) }
            }
        }
    }
}

fn render_row(entry: &Entry, position: Option<usize>) -> Markup {
    html! {
        tr role="row" data-key=(escape_unprintable(&entry.node)) {
            th scope="row" role="rowheader" data-label="Position" {
                div { @match position { Some(position) => (format_count(position)), None => span.badge.holds { "holds" } } }
            }
            (cell("Contender", html! {
                (describe_entry(entry))
                (render_asked(std::iter::once(entry), None))
                @if entry.is_superseded { " " span.badge { "another session of the same process" } }
            }))
            (cell("Host · process", host(entry)))
            (cell("Mode", describe_role(entry)))
            (number_cell("For", match position {
                Some(_) => render_age(entry.since.unix_ms(), None),
                None => render_held(entry, None),
            }))
            (cell("Token", html! { code { (token_or("unread", entry)) } }))
            (cell("Znode", html! { code.node { (escape_unprintable(&entry.node)) } }))
        }
    }
}

fn facts(lock: &Snapshot, seen: &LockRead) -> Markup {
    let held: u64 = lock.holders().map(|holder| u64::from(holder.weight)).sum();
    let at_least = if lock.unread.is_empty() { "" } else { "at least " };
    html! {
        dl.facts {
            @if lock.previous != PreviousEnd::Unknown {
                div { dt { "Last recorded end" } dd { (render_recorded_end(lock)) } }
            }
            @match (lock.permits, &lock.foreign_semaphore) {
                (Some(permits), Some(foreign)) => div { dt { "Permits" } dd { (foreign.leases) " of " (permits) } },
                (Some(permits), None) => div { dt { "Permits" } dd { (at_least) (held) " of " (permits) } },
                (None, _) => {}
            }
            div { dt { "Read" } dd { (render_time(seen.begun_ms)) " in " (format_duration(seen.cost)) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_snapshots::{entry, lock, ticket};
    use crate::observe::ReadFailure;
    use crate::plan::test_lines::local_service;

    fn seen(lock: Snapshot) -> LockRead {
        LockRead { number: 1, lock: Some(lock), ..LockRead::default() }
    }

    fn body(seen: &LockRead) -> String {
        render_body("/locks/x", &local_service(), seen, seen.lock.as_ref()).into_string()
    }

    #[test]
    fn page_has_the_commands_of_the_holder() {
        let mut lock = lock(
            "/locks/x",
            Some(entry("lock-0000000000", "0.5.0")),
            vec![entry("lock-0000000001", "0.6.0"), entry("lock-0000000002", "0.7.0")],
        );
        let text = body(&seen(lock.clone()));
        let token = ticket("0.5.0");
        for command in [format!("revoke x --token {token}"), format!("break x --token {token}")] {
            assert_eq!(
                text.matches(&format!("<code>zoolock {command}</code>")).count(),
                1,
                "{command}: {text}"
            );
        }
        assert_eq!(text.matches("<code>zoolock ").count(), 2, "waiters have no commands: {text}");
        let holder = lock.holder.as_mut().expect("a holder");
        holder.revoked = true;
        assert!(!body(&seen(lock.clone())).contains("zoolock revoke"), "it was asked already");
        let holder = lock.holder.as_mut().expect("a holder");
        (holder.revoked, holder.unrevocable) = (false, Some("its client library is not known"));
        let text = body(&seen(lock));
        assert!(!text.contains("zoolock revoke"), "{text}");
        assert!(text.contains("It cannot be asked to release: its client library is not known."), "{text}");
    }

    #[test]
    fn asked_contenders_are_marked() {
        let mut waiter = entry("lock-0000000001", "0.6.0");
        let (mut holder, mut beside) = (entry("lock-0000000000", "0.5.0"), entry("lock-0000000002", "0.7.0"));
        (holder.revoked, waiter.revoked, beside.revoked) = (true, true, true);
        let mut lock = lock("/locks/x", Some(holder), vec![waiter]);
        assert!(summary(&lock).ends_with(", asked to release · 1 waits"), "{}", summary(&lock));
        lock.beside.push(beside);
        assert!(summary(&lock).contains(" and 1 more, 2 asked to release"), "{}", summary(&lock));
        let text = body(&seen(lock));
        assert_eq!(text.matches("<span class=\"badge asked\">asked to release</span>").count(), 3, "{text}");
    }

    #[test]
    fn outage_hides_the_state() {
        let trouble = Some(ReadFailure::Unreachable("no answer".to_owned()));
        let text = body(&LockRead { number: 2, trouble, ..LockRead::default() });
        assert!(text.contains("The servers do not answer.</strong> no answer"), "{text}");
        assert!(!text.contains("summary") && !text.contains("data-since"), "{text}");
    }

    #[test]
    fn unreadable_lock_is_not_called_free() {
        let mut hidden = lock("/locks/x", None, vec![]);
        assert_eq!(summary(&hidden), "Free · no waiters");
        hidden.unread.push("/locks/x".to_owned());
        assert_eq!(summary(&hidden), "No holder in the part that can be read · no waiters seen");
        let text = body(&seen(hidden));
        assert!(text.contains("No contender in the part that can be read."), "{text}");
    }

    #[test]
    fn page_lists_hundred_waiters_and_counts_all() {
        let waiters = (1..=10_000).map(|at| entry(&format!("lock-{at:010}"), &format!("0.{at}.0"))).collect();
        let seen = seen(lock("/locks/x", Some(entry("lock-0000000000", "0.0.0")), waiters));
        let text = body(&seen);
        let (first, rest) = text.split_once("<details").expect("the other waiters");
        assert_eq!(
            (first.matches("data-key").count(), rest.matches("<tr role=\"row\" data-key").count()),
            (6, 95)
        );
        assert!(rest.contains("<summary>9\u{202f}995 more wait</summary>"), "{rest}");
        assert!(text.contains("10\u{202f}000 wait") && text.len() < 200_000, "{}", text.len());
    }

    #[test]
    fn foreign_text_is_escaped() {
        let mut hostile = entry("lock-<script>alert(1)</script>", "0.1.0");
        hostile.note = Some("\"><svg onload=alert(1)>\u{202e}\x1b[2J".to_owned());
        hostile.host = Some("</text><script>".to_owned());
        let text = body(&seen(lock("/locks/x", Some(hostile.clone()), vec![hostile])));
        for bad in ["<script", "<svg onload", "</text><script", "\u{202e}", "\x1b"] {
            assert!(!text.contains(bad), "{bad:?} in {text}");
        }
    }
}
