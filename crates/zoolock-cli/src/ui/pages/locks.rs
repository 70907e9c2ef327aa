//! The page with all locks.

use std::cmp::{Ordering, Reverse};
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use zoolock::{Entry, Snapshot};

use super::Page;
use super::elements::{
    PageSlice, cell, describe_entry, format_count, format_counted, host, lock_href, number_cell,
    percent_encode, rate, render_age, render_ending, render_time,
};
use crate::base::reporter::escape_unprintable;
use crate::ui::Site;
use crate::ui::overview::{LockList, LockListRow, Overview};

/// Maximum time to wait for the first read.
pub(super) const READ_TIMEOUT: Duration = Duration::from_millis(900);

/// Sort key of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LockListSort {
    #[default]
    Name,
    Waiting,
    Longest,
    Rate,
    Since,
}

/// Query of `/`.
#[derive(Debug, Default, Deserialize)]
pub(in crate::ui) struct LocksParams {
    #[serde(default)]
    q: String,
    #[serde(default)]
    sort: LockListSort,
    page: Option<usize>,
}

/// Serves `/`, the page with all locks.
pub(in crate::ui) async fn locks(
    State(site): State<Site>,
    headers: HeaderMap,
    Query(params): Query<LocksParams>,
) -> Response {
    let overview = site.overview.recent_overview(false, READ_TIMEOUT).await;
    let viewer = site.viewer(&headers);
    let main = html! {
        h1 { "Locks" }
        (list(&overview, &params, &site.service.root))
    };
    let news = Some(("/events".to_owned(), overview.number));
    Page { title: "Locks", here: "/", viewer: &viewer, news, main }.answer(StatusCode::OK)
}

fn list(overview: &Overview, params: &LocksParams, root: &str) -> Markup {
    let Some(lock_list) = &overview.locks else { return render_unread(overview) };
    let rows = &lock_list.locks;
    let found = filter_and_sort(lock_list, params);
    let slice = PageSlice::of(found.len(), params.page);
    let held = rows.iter().filter(|lock| lock.is_held()).count();
    let waiting: usize = rows.iter().map(|lock| lock.waiting).sum();
    html! {
        p.summary #summary role="status" {
            (format_counted(rows.len(), "lock", "locks")) " · " (format_count(held)) " held · " (format_count(waiting)) " waiting"
        }
        (render_read_time(overview))
        form.filter role="search" method="get" action="/" {
            label for="q" { "Filter" }
            input #q type="search" name="q" value=(params.q) placeholder="name, host, program or note"
                autocomplete="off" spellcheck="false";
            @if params.sort != LockListSort::Name { input type="hidden" name="sort" value=(params.sort.word()); }
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
                table.reflow role="table" {
                    caption {
                        @if found.len() == rows.len() { "All locks" } @else { (format_counted(found.len(), "match", "matches")) }
                        @if found.len() > slice.end - slice.first {
                            ", " (format_count(slice.first + 1)) " to " (format_count(slice.end))
                        }
                    }
                    (header(params))
                    tbody role="rowgroup" {
                        @for row in &found[slice.first..slice.end] { (render_row(row, root)) }
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
            Some(trouble) => {
                p.alert.bad role="alert" { strong { "The locks cannot be read. " } (escape_unprintable(trouble)) }
            }
            None => p #summary role="status" { "Reading the locks for the first time…" },
        }
        p.noscript { a href="" { "Look again" } }
    }
}

/// Renders the time and duration of the last successful read, and the failure since then, if any.
pub(super) fn render_read_time(overview: &Overview) -> Markup {
    html! {
        p.quiet.asof {
            "Read at " (render_time(overview.seen_ms)) " in " (format_read_time(overview.cost)) "."
        }
        @if let Some(trouble) = &overview.trouble {
            p.alert.bad role="alert" { strong { "Outdated: the locks cannot be read. " } (escape_unprintable(trouble)) }
        }
    }
}

pub(super) fn format_read_time(cost: Duration) -> String {
    match cost.as_millis() {
        0 => "less than 1 ms".to_owned(),
        ms @ 1..1_000 => format!("{ms} ms"),
        ms => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
    }
}

impl LockListSort {
    fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Waiting => "waiting",
            Self::Longest => "longest",
            Self::Rate => "rate",
            Self::Since => "since",
        }
    }

    fn compare(self, a: &LockListRow<'_>, b: &LockListRow<'_>) -> Ordering {
        let none_last = |at: Option<u64>| at.unwrap_or(u64::MAX);
        match self {
            // The list is already sorted by name.
            Self::Name => Ordering::Equal,
            Self::Waiting => Reverse(a.lock.waiting).cmp(&Reverse(b.lock.waiting)),
            Self::Longest => none_last(a.waits_since_ms).cmp(&none_last(b.waits_since_ms)),
            Self::Rate => b.rate.unwrap_or(-1.0).total_cmp(&a.rate.unwrap_or(-1.0)),
            Self::Since => {
                let since = |row: &LockListRow| {
                    none_last(row.lock.holder.as_ref().and_then(|holder| holder.since_ms))
                };
                since(a).cmp(&since(b))
            }
        }
    }
}

fn filter_and_sort<'a>(lock_list: &'a LockList, params: &LocksParams) -> Vec<LockListRow<'a>> {
    let wanted = params.q.trim().to_lowercase();
    let mut found: Vec<LockListRow<'_>> =
        lock_list.rows().filter(|row| wanted.is_empty() || matches(row.lock, &wanted)).collect();
    found.sort_by(|a, b| params.sort.compare(a, b));
    found
}

fn matches(lock: &Snapshot, wanted: &str) -> bool {
    let has = |text: &String| text.to_lowercase().contains(wanted);
    let has_text = |entry: &Entry| {
        [&entry.host, &entry.program, &entry.note, &entry.identifier].into_iter().flatten().any(has)
    };
    has(&lock.path) || lock.holders().any(has_text)
}

fn href(q: &str, sort: LockListSort, page: usize) -> String {
    let mut parts = Vec::new();
    if !q.is_empty() {
        parts.push(format!("q={}", percent_encode(q)));
    }
    if sort != LockListSort::Name {
        parts.push(format!("sort={}", sort.word()));
    }
    if page > 1 {
        parts.push(format!("page={page}"));
    }
    if parts.is_empty() { "/".to_owned() } else { format!("/?{}", parts.join("&")) }
}

fn header(params: &LocksParams) -> Markup {
    let head = |word: &str, sort: Option<LockListSort>, direction: &str| {
        let sorted = sort == Some(params.sort);
        html! {
            th scope="col" role="columnheader" aria-sort=[sorted.then_some(direction)] {
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
                (head("Lock", Some(LockListSort::Name), "ascending"))
                (head("Holder", None, ""))
                (head("Host · process", None, ""))
                (head("Since", Some(LockListSort::Since), "ascending"))
                (head("Waiting", Some(LockListSort::Waiting), "descending"))
                (head("Longest", Some(LockListSort::Longest), "descending"))
                (head("Acquisitions/s", Some(LockListSort::Rate), "descending"))
                (head("Previous release", None, ""))
            }
        }
    }
}

fn render_row(row: &LockListRow<'_>, root: &str) -> Markup {
    let lock = row.lock;
    let name = lock.path.strip_prefix(root).and_then(|rest| rest.strip_prefix('/')).unwrap_or(&lock.path);
    let holder = lock.holder.as_ref();
    html! {
        tr role="row" data-key=(escape_unprintable(&lock.path)) {
            th scope="row" role="rowheader" data-label="Lock" {
                div {
                    a href=(lock_href(&lock.path)) { (escape_unprintable(name)) }
                    @if lock.clash.is_some() { " " span.badge.bad { "clash" } }
                    @if !lock.unread.is_empty() { " " span.badge { "partly unreadable" } }
                }
            }
            (cell("Holder", html! {
                @match holder {
                    Some(holder) => {
                        (describe_entry(holder))
                        @if !lock.beside.is_empty() { span.quiet { " and " (format_count(lock.beside.len())) " more" } }
                        @if holder.revoked { " " span.badge { "asked to release" } }
                    }
                    None => span.quiet {
                        @match &lock.foreign_semaphore { Some(foreign) => (foreign), None => "free" }
                    },
                }
            }))
            (cell("Host · process", html! { (holder.map_or_else(|| "–".to_owned(), host)) }))
            (number_cell("Since", render_age(holder.and_then(|holder| holder.since_ms))))
            (number_cell("Waiting", format_count(lock.waiting)))
            (number_cell("Longest", render_age(row.waits_since_ms)))
            (number_cell("Acquisitions/s", rate(row.rate)))
            (cell("Previous release", render_ending(lock.previous)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::test_snapshots::{entry, least_cpu_time, lock};

    fn row(path: &str, waiters: usize, rate: Option<f64>) -> (Snapshot, Option<f64>) {
        let waiters = (0..waiters).map(|at| entry(&format!("lock-{at:010}"), "0.1.0")).collect();
        (lock(path, Some(entry("lock-0000000000", "0.1.0")), waiters), rate)
    }

    fn overview(locks: Vec<(Snapshot, Option<f64>)>) -> Overview {
        Overview { number: 1, locks: Some(Arc::new(LockList::of(locks))), ..Overview::default() }
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
        assert_eq!(names(&shown(LockListSort::Waiting, "")), ["/locks/b", "/locks/a", "/locks/c"]);
        assert_eq!(names(&shown(LockListSort::Rate, "")), ["/locks/c", "/locks/a", "/locks/b"]);
        assert_eq!(names(&shown(LockListSort::Longest, "")), ["/locks/a", "/locks/b", "/locks/c"]);
        assert_eq!(names(&shown(LockListSort::Name, "S/B")), ["/locks/b"]);
        assert_eq!(names(&shown(LockListSort::Name, "HOST")).len(), 3);
        assert!(shown(LockListSort::Name, "<zzz>").contains("&lt;zzz&gt;"));
    }

    #[test]
    fn page_has_hundred_rows() {
        let overview = overview((0..250).map(|at| row(&format!("/locks/{at:04}"), 0, None)).collect());
        let params = LocksParams { page: Some(3), ..LocksParams::default() };
        let text = list(&overview, &params, "/locks").into_string();
        assert_eq!(names(&text).len(), 50);
        assert!(text.contains("href=\"/?page=2\"") && text.contains("Page 3 of 3"), "{text}");
    }

    #[test]
    fn foreign_text_is_escaped() {
        let mut hostile = row("/locks/<script>alert(1)</script>\"'\u{202e}", 0, None);
        let holder = hostile.0.holder.as_mut().expect("the lock is held");
        holder.note = Some("<img src=x onerror=alert(2)>\x1b]0;\u{202e}".to_owned());
        holder.host = Some("</td><b>".to_owned());
        let text = list(&overview(vec![hostile]), &LocksParams::default(), "/locks").into_string();
        for bad in ["<script", "<img", "</td><b>", "\u{202e}<", "\x1b"] {
            assert!(!text.contains(bad), "{bad:?} in {text}");
        }
    }

    #[test]
    fn rendering_time_is_linear() {
        let shown = |count: usize| {
            let row = |at: usize| row(&format!("/locks/{at:06}"), at % 3, Some(0.1));
            let overview = overview((0..count).map(row).collect());
            let params =
                LocksParams { sort: LockListSort::Waiting, q: String::new(), page: Some(count / 200) };
            least_cpu_time(5, || {
                let text = list(&overview, &params, "/locks").into_string();
                assert_eq!(names(&text).len(), 100);
            })
        };
        let (few, many) = (shown(5_000), shown(100_000));
        assert!(many <= few * 60, "{few:?} for 5,000, {many:?} for 100,000");
    }
}
