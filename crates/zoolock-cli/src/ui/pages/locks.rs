//! The page with all locks.

use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use zoolock::admin::Deadlock;

use super::Page;
use super::elements::{
    PageSlice, capitalize, cell, describe_entry, describe_free, format_count, format_counted, host,
    lock_href, number_cell, percent_encode, render_age, render_asked, render_bad_end, render_count,
    render_failure, render_held, render_time,
};
use crate::args::ListOrder;
use crate::base::duration::format_duration;
use crate::base::reporter::escape_unprintable;
use crate::observe::{ListedLock, arrange, has_text, longest_holder, longest_wait};
use crate::render::columns::format_rate;
use crate::render::deadlock::{circle, describe_deadlock, describe_others, is_certain};
use crate::render::text::lock_name;
use crate::ui::Site;
use crate::ui::overview::Overview;

/// Maximum time to wait for the first read.
pub(super) const READ_TIMEOUT: Duration = Duration::from_millis(900);

/// Maximum number of deadlocks in the banner.
const MAX_DEADLOCKS: usize = 3;

/// Order of the list if the query names none: an operator opens the list because something is stuck.
const DEFAULT_ORDER: ListOrder = ListOrder::Longest;

fn default_order() -> ListOrder {
    DEFAULT_ORDER
}

/// Query of `/`.
#[derive(Debug, Deserialize)]
pub(in crate::ui) struct LocksParams {
    #[serde(default)]
    q: String,
    #[serde(default = "default_order")]
    sort: ListOrder,
    page: Option<usize>,
}

/// Serves `/`, the page with all locks.
pub(in crate::ui) async fn locks(State(site): State<Site>, Query(params): Query<LocksParams>) -> Response {
    let overview = site.overview.recent_overview(READ_TIMEOUT).await;
    let main = html! {
        h1 { "Locks" }
        (list(&overview, &params, &site.service.root))
    };
    let news = Some(overview.news());
    Page { title: "Locks", ensemble: &site.ensemble, here: "/", news, main }.answer(StatusCode::OK)
}

fn list(overview: &Overview, params: &LocksParams, root: &str) -> Markup {
    let Some(list) = &overview.list else { return render_unread(overview) };
    let (rows, wanted) = (&list.locks, params.q.trim().to_lowercase());
    let found =
        arrange(rows, params.sort, false, |lock| has_text(lock, lock_name(&lock.path, root), &wanted));
    let slice = PageSlice::of(found.len(), params.page);
    let at_least = if overview.unread_locks() > 0 { "at least " } else { "" };
    html! {
        p.summary #summary role="status" {
            (outage_prefix(overview)) (format_counted(rows.len(), "lock", "locks")) " · "
            (at_least) (format_count(list.held())) " held · " (at_least) (format_count(list.waiting())) " waiting"
        }
        (render_read_time(overview))
        (render_deadlocks(overview, &list.deadlocks, root))
        form.filter role="search" method="get" action="/" {
            label for="q" { "Filter" }
            input #q type="search" name="q" value=(params.q) placeholder="name, host, program or note"
                autocomplete="off" spellcheck="false";
            @if params.sort != DEFAULT_ORDER { input type="hidden" name="sort" value=(word(params.sort)); }
            button type="submit" { "Filter" }
            @if !params.q.is_empty() { a href=(href("", params.sort, 1)) { "All" } }
        }
        @if found.is_empty() {
            p.empty {
                @if rows.is_empty() { "There are no locks below " code { (escape_unprintable(root)) } "." }
                @else { "Nothing matches “" (escape_unprintable(&params.q)) "”." }
            }
        } @else {
            div.scroll role="region" aria-label="List of locks" tabindex="0" {
                table.lines.locks role="table" {
                    caption {
                        @if found.len() == rows.len() { "All locks" } @else { (format_counted(found.len(), "match", "matches")) }
                        @if found.len() > slice.end - slice.first {
                            ", " (format_count(slice.first + 1)) " to " (format_count(slice.end))
                        }
                    }
                    (header(params))
                    tbody role="rowgroup" {
                        @for place in &found[slice.first..slice.end] {
                            (render_row(&rows[*place], root, overview.stopped_ms()))
                        }
                    }
                }
            }
            (slice.links(|page| href(&params.q, params.sort, page)))
        }
    }
}

/// Renders a page for which no read has succeeded yet.
pub(super) fn render_unread(overview: &Overview) -> Markup {
    html! {
        @match &overview.trouble {
            Some(failure) => p.alert.bad role="alert" { (render_failure(failure)) },
            None => p #summary role="status" { "Reading the locks for the first time…" },
        }
        p.noscript { a href="" { "Look again" } }
    }
}

/// Returns the first words of a summary if the last read failed.
pub(super) fn outage_prefix(overview: &Overview) -> &'static str {
    if overview.trouble.is_some() { "When last read: " } else { "" }
}

/// Renders the time and duration of the last successful read, and the failure since then, if any.
pub(super) fn render_read_time(overview: &Overview) -> Markup {
    html! {
        p.quiet.asof {
            "Read at " (render_time(overview.seen_ms)) " in " (format_duration(overview.cost)) "."
        }
        @if let Some(failure) = &overview.trouble {
            p.alert.bad role="alert" {
                (render_failure(failure)) ". The locks may have changed since " (render_time(overview.seen_ms)) "."
            }
        }
    }
}

/// Renders a banner with the locks of each deadlock. Without a deadlock, says if some waiters were not searched.
fn render_deadlocks(overview: &Overview, deadlocks: &[Deadlock], root: &str) -> Markup {
    html! {
        @if !deadlocks.is_empty() {
            div.alert.bad role="alert" data-key="deadlocks" {
                @for (at, deadlock) in deadlocks.iter().take(MAX_DEADLOCKS).enumerate() {
                    p { (render_deadlock(at + 1, deadlock, root)) }
                }
                @if deadlocks.len() > MAX_DEADLOCKS {
                    p {
                        a href="/deadlocks" { (format_count(deadlocks.len() - MAX_DEADLOCKS)) " more deadlocks" }
                    }
                }
            }
        } @else if let Some(read) = overview.cut_at() {
            p.quiet data-key="deadlocks" {
                "No deadlock among the first " (format_count(read)) " waiters of each lock. "
                a href="/deadlocks" { "Search all waiters" }
            }
        }
    }
}

/// Renders one deadlock in a line, with a link to its description.
pub(super) fn render_deadlock(number: usize, deadlock: &Deadlock, root: &str) -> Markup {
    let (locks, more) = circle(deadlock);
    html! {
        strong { "⚠ " a href={ "/deadlocks#deadlock-" (number) } { (capitalize(&describe_deadlock(deadlock))) } }
        ": "
        @for (at, path) in locks.iter().enumerate() {
            @if at > 0 { " → " }
            a href=(lock_href(path)) { (escape_unprintable(lock_name(path, root))) }
        }
        @if more > 0 { " and " (format_count(more)) " more" }
        @for other in describe_others(deadlock) { " · " (other) }
        @if !is_certain(deadlock) {
            " · through sessions of other client libraries, so it may not exist"
        }
    }
}

/// Returns the word for an order in the query.
fn word(order: ListOrder) -> &'static str {
    match order {
        ListOrder::Name => "name",
        ListOrder::Waiting => "waiting",
        ListOrder::Longest => "longest",
        ListOrder::Rate => "rate",
        ListOrder::Held => "held",
    }
}

fn href(q: &str, sort: ListOrder, page: usize) -> String {
    let mut parts = Vec::new();
    if !q.is_empty() {
        parts.push(format!("q={}", percent_encode(q)));
    }
    if sort != DEFAULT_ORDER {
        parts.push(format!("sort={}", word(sort)));
    }
    if page > 1 {
        parts.push(format!("page={page}"));
    }
    if parts.is_empty() { "/".to_owned() } else { format!("/?{}", parts.join("&")) }
}

fn header(params: &LocksParams) -> Markup {
    let head = |word: &str, sort: Option<ListOrder>, direction: &str| {
        let sorted = sort == Some(params.sort);
        html! {
            th.number[direction == "descending"] scope="col" role="columnheader" aria-sort=[sorted.then_some(direction)] {
                @match sort {
                    Some(sort) => a href=(href(&params.q, sort, 1)) { (word) @if sorted { span aria-hidden="true" { " ▾" } } },
                    None => (word),
                }
            }
        }
    };
    html! {
        thead role="rowgroup" {
            tr role="row" {
                (head("Lock", Some(ListOrder::Name), "ascending"))
                (head("Holder", None, ""))
                (head("Host · process", None, ""))
                (head("Held", Some(ListOrder::Held), "descending"))
                (head("Waiting", Some(ListOrder::Waiting), "descending"))
                (head("Longest", Some(ListOrder::Longest), "descending"))
                (head("Acquisitions/s", Some(ListOrder::Rate), "descending"))
            }
        }
    }
}

fn render_row(ListedLock { lock, rate }: &ListedLock, root: &str, stopped_ms: Option<u64>) -> Markup {
    let name = lock_name(&lock.path, root);
    let holder = longest_holder(lock);
    let unread = if lock.unread.contains(&lock.path) { "unreadable" } else { "partly unreadable" };
    html! {
        tr role="row" data-key=(escape_unprintable(&lock.path)) {
            th scope="row" role="rowheader" data-label="Lock" {
                div {
                    a href=(lock_href(&lock.path)) { (escape_unprintable(name)) }
                    @if lock.clash.is_some() { " " span.badge.bad { "clash" } }
                    @if !lock.unread.is_empty() { " " span.badge { (unread) } }
                    (render_bad_end(lock))
                }
            }
            (cell("Holder", html! {
                @match holder {
                    Some(holder) => {
                        (describe_entry(holder))
                        @if !lock.beside.is_empty() { span.quiet { " and " (format_count(lock.beside.len())) " more" } }
                        (render_asked(lock.holders(), stopped_ms))
                    }
                    None => span.quiet {
                        @match &lock.foreign_semaphore {
                            Some(foreign) => (foreign),
                            None => (describe_free(lock)),
                        }
                    },
                }
            }))
            (cell("Host · process", html! { (holder.map_or_else(|| "–".to_owned(), host)) }))
            (number_cell("Held", html! {
                @match holder {
                    Some(holder) => (render_held(holder, stopped_ms)),
                    None => (render_age(None, stopped_ms)),
                }
            }))
            (number_cell("Waiting", html! {
                (render_count(lock.waiting))
                (render_asked(lock.waiters.iter(), stopped_ms))
            }))
            (number_cell("Longest", render_age(longest_wait(lock), stopped_ms)))
            (number_cell("Acquisitions/s", format_rate(*rate)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zoolock::admin::{OwnerKind, WaitGraph};

    use super::*;
    use crate::base::test_snapshots::{entry, least_cpu_time, lock};
    use crate::base::unix_time::time_at;
    use crate::observe::{LockList, ReadFailure};

    fn row(path: &str, waiters: usize, rate: Option<f64>) -> ListedLock {
        let waiters = (0..waiters).map(|at| entry(&format!("lock-{at:010}"), "0.1.0")).collect();
        ListedLock { lock: lock(path, Some(entry("lock-0000000000", "0.1.0")), waiters), rate }
    }

    /// Returns a row with a waiter that queued at `since_ms`.
    fn waited_for_since(path: &str, since_ms: Option<u64>) -> ListedLock {
        let mut row = row(path, 1, None);
        row.lock.waiters[0].since = since_ms.map(time_at);
        row
    }

    fn overview(locks: Vec<ListedLock>) -> Overview {
        overview_of(LockList { locks, deadlocks: Arc::default() })
    }

    fn overview_of(list: LockList) -> Overview {
        Overview { number: 1, list: Some(Arc::new(list)), ..Overview::default() }
    }

    fn params(q: &str) -> LocksParams {
        LocksParams { q: q.to_owned(), sort: DEFAULT_ORDER, page: None }
    }

    fn names(text: &str) -> Vec<&str> {
        text.split("data-key=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect()
    }

    #[test]
    fn query_sorts_and_filters() {
        let overview = overview(vec![
            row("/locks/a", 1, Some(0.5)),
            row("/locks/b", 3, None),
            row("/locks/c", 0, Some(7.0)),
        ]);
        let shown = |sort, q: &str| {
            let params = LocksParams { sort, q: q.to_owned(), page: None };
            list(&overview, &params, "/locks").into_string()
        };
        assert_eq!(names(&shown(ListOrder::Waiting, "")), ["/locks/b", "/locks/a", "/locks/c"]);
        assert_eq!(names(&shown(ListOrder::Rate, "")), ["/locks/c", "/locks/a", "/locks/b"]);
        // The longest waits of `a` and `b` are equal, so the number of waiters decides.
        assert_eq!(names(&shown(ListOrder::Longest, "")), ["/locks/b", "/locks/a", "/locks/c"]);
        assert_eq!(names(&shown(ListOrder::Name, "B")), ["/locks/b"]);
        assert_eq!(names(&shown(ListOrder::Name, "HOST")).len(), 3);
        assert!(shown(ListOrder::Name, "<zzz>").contains("&lt;zzz&gt;"));
    }

    #[test]
    fn longest_wait_is_first_by_default() {
        let overview = overview(vec![
            row("/locks/a", 0, None),
            waited_for_since("/locks/b", None),
            waited_for_since("/locks/c", Some(9_000)),
            row("/locks/d", 0, None),
            waited_for_since("/locks/e", Some(5_000)),
        ]);
        let text = list(&overview, &params(""), "/locks").into_string();
        assert_eq!(names(&text), ["/locks/e", "/locks/c", "/locks/b", "/locks/a", "/locks/d"]);
    }

    /// Returns the list with a deadlock of `/locks/a` and `/locks/b`.
    fn list_with_deadlock(owner_kind: OwnerKind) -> String {
        let of = |owner: &str, number: u32| {
            let mut entry = entry(&format!("lock-{number:010}"), &format!("0.{number}.0"));
            (entry.owner, entry.owner_kind) = (Some(owner.to_owned()), owner_kind);
            entry
        };
        let locks = [
            lock("/locks/a", Some(of("one", 1)), vec![of("two", 2), of("three", 3)]),
            lock("/locks/b", Some(of("two", 4)), vec![of("one", 5)]),
        ];
        let deadlocks = WaitGraph::of(&locks).deadlocks().into();
        let locks = locks.map(|lock| ListedLock { lock, rate: None }).into();
        list(&overview_of(LockList { locks, deadlocks }), &params(""), "/locks").into_string()
    }

    #[test]
    fn banner_names_the_locks_of_a_deadlock() {
        let text = list_with_deadlock(OwnerKind::Owner);
        assert!(text.contains("<a href=\"/deadlocks#deadlock-1\">Deadlock of 2 owners</a>"), "{text}");
        assert!(text.contains(">b</a> → <a href=\"/lock?name=/locks/a\">a</a>"), "{text}");
        assert!(text.contains(" · owners that wait behind it: 1"), "{text}");
        let of_sessions = list_with_deadlock(OwnerKind::Session);
        assert!(of_sessions.contains(">Possible deadlock of 2 owners</a>"), "{of_sessions}");
    }

    #[test]
    fn unreadable_lock_is_not_called_free() {
        let mut hidden = row("/locks/a", 0, None);
        hidden.lock.holder = None;
        let of = |row: &ListedLock| list(&overview(vec![row.clone()]), &params(""), "/locks").into_string();
        assert!(of(&hidden).contains(">free<") && of(&hidden).contains(" · 0 held"), "{}", of(&hidden));
        hidden.lock.unread.push("/locks/a".to_owned());
        let text = of(&hidden);
        assert!(
            text.contains(">no holder in the part that can be read<") && !text.contains(">free<"),
            "{text}"
        );
        assert!(text.contains(">unreadable<") && text.contains(" · at least 0 held"), "{text}");
    }

    #[test]
    fn unsearched_waiters_are_reported() {
        let mut long = row("/locks/x", 4, None);
        let of = |row: &ListedLock| list(&overview(vec![row.clone()]), &params(""), "/locks").into_string();
        assert!(!of(&long).contains("No deadlock among"), "{}", of(&long));
        long.lock.waiting = 5;
        assert!(of(&long).contains("No deadlock among the first 4 waiters"), "{}", of(&long));
    }

    #[test]
    fn outage_is_shown_and_stops_ages() {
        let failed = |read: Overview| Overview {
            trouble: Some(ReadFailure::Unreachable("timed out".to_owned())),
            ..read
        };
        for read in [overview(vec![row("/locks/a", 0, None)]), Overview::default()] {
            let text = list(&failed(read), &params(""), "/locks").into_string();
            assert!(text.contains("<strong>The servers do not answer.</strong> timed out"), "{text}");
            assert!(!text.contains("data-since"), "no age grows while the locks are not read: {text}");
        }
    }

    #[test]
    fn asked_holders_and_waiters_are_marked() {
        let mut asked = row("/locks/a", 2, None);
        let of = |row: &ListedLock| list(&overview(vec![row.clone()]), &params(""), "/locks").into_string();
        assert!(!of(&asked).contains("asked to release"), "{}", of(&asked));
        asked.lock.waiters[1].revoked = true;
        assert!(of(&asked).contains("1 asked to release"), "{}", of(&asked));
        asked.lock.beside.push(entry("lock-0000000009", "0.9.0"));
        asked.lock.beside[0].revoked = true;
        assert_eq!(of(&asked).matches("1 asked to release").count(), 2, "{}", of(&asked));
    }

    #[test]
    fn page_has_hundred_rows() {
        let overview = overview((0..250).map(|at| row(&format!("/locks/{at:04}"), 0, None)).collect());
        let params = LocksParams { page: Some(3), ..params("") };
        let text = list(&overview, &params, "/locks").into_string();
        assert_eq!(names(&text).len(), 50);
        assert!(text.contains("href=\"/?page=2\"") && text.contains("Page 3 of 3"), "{text}");
    }

    #[test]
    fn foreign_text_is_escaped() {
        let mut hostile = row("/locks/<script>alert(1)</script>\"'\u{202e}", 0, None);
        let holder = hostile.lock.holder.as_mut().expect("the lock is held");
        holder.note = Some("<img src=x onerror=alert(2)>\x1b]0;\u{202e}".to_owned());
        holder.host = Some("</td><b>".to_owned());
        let text = list(&overview(vec![hostile]), &params(""), "/locks").into_string();
        for bad in ["<script", "<img", "</td><b>", "\u{202e}<", "\x1b"] {
            assert!(!text.contains(bad), "{bad:?} in {text}");
        }
    }

    #[test]
    fn rendering_time_is_linear() {
        let shown = |count: usize| {
            let row = |at: usize| row(&format!("/locks/{at:06}"), at % 3, Some(0.1));
            let overview = overview((0..count).map(row).collect());
            let params = LocksParams { sort: ListOrder::Waiting, q: String::new(), page: Some(count / 200) };
            least_cpu_time(5, || {
                let text = list(&overview, &params, "/locks").into_string();
                assert_eq!(names(&text).len(), 100);
            })
        };
        let (few, many) = (shown(5_000), shown(100_000));
        assert!(many <= few * 60, "{few:?} for 5,000, {many:?} for 100,000");
    }
}
