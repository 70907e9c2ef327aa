//! The page of sessions and other owners, with the locks that they hold and wait for.

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use zoolock::Entry;

use super::Page;
use super::elements::{
    PageSlice, cell, column_headers, describe_entry, format_count, format_counted, host, lock_href,
    number_cell, percent_encode, render_age,
};
use super::locks::{READ_TIMEOUT, outage_prefix, render_read_time, render_unread};
use crate::base::reporter::escape_unprintable;
use crate::ui::Site;
use crate::ui::overview::{DEEP_WAITERS, Overview, ReadDepth};
use crate::ui::owners::{OwnerRow, owners};

/// Maximum number of locks that are named for each owner.
const MAX_NAMED: usize = 5;

/// Query of `/sessions`.
#[derive(Debug, Default, Deserialize)]
pub(in crate::ui) struct SessionsParams {
    /// Text to filter by.
    #[serde(default)]
    q: String,
    page: Option<usize>,
}

/// Serves `/sessions`.
pub(in crate::ui) async fn sessions(
    State(site): State<Site>,
    Query(params): Query<SessionsParams>,
) -> Response {
    let overview = site.overview.recent_overview(ReadDepth::Deep, READ_TIMEOUT).await;
    let main = html! {
        h1 { "Sessions" }
        (list(&overview, &params))
    };
    let news = Some(("/events?deep=true".to_owned(), overview.number));
    Page { title: "Sessions", here: "/sessions", news, main }.answer(StatusCode::OK)
}

/// Returns the table of owners.
fn list(overview: &Overview, params: &SessionsParams) -> Markup {
    let Some(list) = &overview.locks else { return render_unread(overview) };
    let all = owners(&list.locks);
    let total = all.len();
    let wanted = params.q.trim().to_lowercase();
    let mut found: Vec<OwnerRow<'_>> = all.into_iter().filter(|owner| matches(owner, &wanted)).collect();
    // Owners that both hold and wait come first, because they can be part of a deadlock.
    found.sort_by_key(|owner| (owner.holds.is_empty() || owner.waits.is_empty(), owner.waits.is_empty()));
    let slice = PageSlice::of(found.len(), params.page);
    let (is_partial, stopped_ms) = (overview.is_partial(), overview.stopped_ms());
    let href = |page: usize| format!("/sessions?q={}&page={page}", percent_encode(&params.q));
    html! {
        p.summary #summary role="status" {
            (outage_prefix(overview)) @if is_partial { "at least " }
            (format_counted(total, "owner", "owners")) " in queues"
        }
        (render_read_time(overview))
        (partial_notice(overview))
        form.filter role="search" method="get" action="/sessions" {
            label for="q" { "Filter" }
            input #q type="search" name="q" value=(params.q) placeholder="owner, host, program, note or lock"
                autocomplete="off" spellcheck="false";
            button type="submit" { "Filter" }
            @if !params.q.is_empty() { a href="/sessions" { "All" } }
        }
        @if found.is_empty() {
            p.empty {
                @if total == 0 && is_partial { "No owner that can be read holds or waits for a lock." }
                @else if total == 0 { "No owner holds or waits for a lock." }
                @else { "No owner matches “" (escape_unprintable(&params.q)) "”." }
            }
        } @else {
            div.scroll role="region" aria-label="List of sessions" tabindex="0" {
                table.reflow role="table" {
                    caption { "Owners that hold and wait come first" }
                    (column_headers(&["Owner", "Host · process", "Identified by", "Holds", "Waits for", "Oldest"]))
                    tbody role="rowgroup" {
                        @for owner in &found[slice.first..slice.end] { (render_owner_row(owner, stopped_ms)) }
                    }
                }
            }
            (slice.links(href))
        }
    }
}

/// Returns a notice if only a part of the queues was read, or can be read.
pub(super) fn partial_notice(overview: &Overview) -> Markup {
    let unread = overview.unread_locks();
    let mut locks = overview.locks.iter().flat_map(|list| &list.locks);
    let has_foreign = locks.any(|lock| lock.foreign_semaphore.is_some());
    html! {
        @if overview.depth < ReadDepth::Deep {
            p.alert role="status" { "The queues are being read. Until then, only the first few contenders of each are shown." }
        } @else if overview.cut_at().is_some() {
            p.alert { "Of long queues, only the first " (format_count(DEEP_WAITERS)) " waiters are shown." }
        }
        @if unread > 0 {
            p.alert {
                (format_counted(unread, "lock", "locks"))
                " cannot be read completely. Some contenders may be missing."
            }
        }
        @if has_foreign {
            p.quiet { "Holders and waiters of semaphores of other client libraries are not shown." }
        }
    }
}

/// Returns whether an owner or one of its locks matches the filter.
fn matches(owner: &OwnerRow<'_>, wanted: &str) -> bool {
    let Entry { host, program, note, identifier, .. } = owner.entry;
    let has = |text: &str| text.to_lowercase().contains(wanted);
    [&owner.entry.owner, host, program, note, identifier].into_iter().flatten().any(|text| has(text))
        || owner.holds.iter().chain(&owner.waits).any(|(path, _)| has(path))
}

/// Returns the table row of an owner. For `stopped_ms` see [`render_age`].
fn render_owner_row(owner: &OwnerRow<'_>, stopped_ms: Option<u64>) -> Markup {
    let oldest = owner.holds.iter().chain(&owner.waits).filter_map(|(_, entry)| entry.since_ms).min();
    let key = owner
        .holds
        .first()
        .or(owner.waits.first())
        .map(|(path, entry)| escape_unprintable(&format!("{path}/{}", entry.node)));
    html! {
        tr role="row" data-key=[key] {
            th scope="row" role="rowheader" data-label="Owner" { div { (describe_entry(owner.entry)) } }
            (cell("Host · process", host(owner.entry)))
            (cell("Identified by", html! {
                @match &owner.entry.owner {
                    Some(name) => { (owner.entry.owner_kind) " " code.node { (escape_unprintable(name)) } }
                    None => span.quiet { "nothing" },
                }
            }))
            (cell("Holds", locks(&owner.holds)))
            (cell("Waits for", locks(&owner.waits)))
            (number_cell("Oldest", render_age(oldest, stopped_ms)))
        }
    }
}

/// Returns links to locks.
fn locks(locks: &[(&str, &Entry)]) -> Markup {
    html! {
        @if locks.is_empty() { span.quiet { "–" } }
        @for (at, (path, _)) in locks.iter().take(MAX_NAMED).enumerate() {
            @if at > 0 { ", " }
            a href=(lock_href(path)) { (escape_unprintable(path)) }
        }
        @if locks.len() > MAX_NAMED { " and " (format_count(locks.len() - MAX_NAMED)) " more" }
    }
}
