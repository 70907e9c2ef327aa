//! The page of the wait-for graph and its deadlocks.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use zoolock::{Deadlock, QueueEntry};

use super::Page;
use super::elements::{
    cell, column_headers, format_count, format_counted, lock_href, number_cell, render_age,
};
use super::graph_picture::{self, DrawnGraph};
use super::locks::{READ_TIMEOUT, render_read_time, render_unread};
use super::sessions::partial_notice;
use crate::base::reporter::escape_unprintable;
use crate::render::status::describe_contender;
use crate::ui::Site;
use crate::ui::admin_actions::confirm_href;
use crate::ui::login::Viewer;
use crate::ui::overview::{Overview, SeenDeadlock};
use crate::verbs::operate::AdminAction;

/// Maximum number of edges in the table.
const MAX_LISTED: usize = 200;
/// Maximum number of deadlocks that are described above the table.
const MAX_DESCRIBED: usize = 20;

/// Serves `/graph`.
pub(in crate::ui) async fn graph(State(site): State<Site>, headers: HeaderMap) -> Response {
    let overview = site.overview.recent_overview(true, READ_TIMEOUT).await;
    let viewer = site.viewer(&headers);
    let main = html! {
        h1 { "Wait-for graph" }
        (render_body(&viewer, &overview))
    };
    let news = Some(("/events?deep=true".to_owned(), overview.number));
    Page { title: "Wait-for graph", here: "/graph", viewer: &viewer, news, main }.answer(StatusCode::OK)
}

/// Renders the graph and its deadlocks, if the last successful read was deep.
fn render_body(viewer: &Viewer, overview: &Overview) -> Markup {
    let Some(waits) = &overview.waits else { return render_unread(overview) };
    let web = DrawnGraph::of(&waits.graph.owners, waits.deadlocks.iter().map(|seen| &seen.deadlock));
    let operator = matches!(viewer, Viewer::Operator(_) | Viewer::LoggedOut);
    let waiting = waits.graph.owners.iter().filter(|party| !party.waits.is_empty()).count();
    html! {
        p.summary #summary role="status" aria-live="polite" {
            @match waits.deadlocks.len() {
                0 => "No deadlock",
                deadlocks => strong.bad { "⚠ " (format_counted(deadlocks, "deadlock", "deadlocks")) },
            }
            " · " (format_counted(waiting, "owner waits", "owners wait"))
        }
        (render_read_time(overview))
        (partial_notice(overview))
        @for (at, seen) in waits.deadlocks.iter().take(MAX_DESCRIBED).enumerate() { (deadlock(at + 1, seen, operator)) }
        @if waits.deadlocks.len() > MAX_DESCRIBED {
            p.alert { (format_count(waits.deadlocks.len() - MAX_DESCRIBED)) " more deadlocks are only in the table." }
        }
        @if web.edges.is_empty() {
            p.empty { "No owner waits for another." }
        } @else {
            (web.omission_warnings())
            (graph_picture::draw_graph(&web))
            (table(&web, operator))
        }
        @if matches!(viewer, Viewer::LoggedOut) && !web.edges.is_empty() {
            p.quiet { a href="/login" { "Log in" } " to break a lock." }
        }
    }
}

/// Returns the description of a deadlock.
fn deadlock(number: usize, seen: &SeenDeadlock, operator: bool) -> Markup {
    let SeenDeadlock { deadlock, seen_twice } = seen;
    let Deadlock { edges, owners, behind, to_break, .. } = deadlock;
    let is_advised = |place: &QueueEntry| {
        to_break.as_ref().is_some_and(|advice| {
            advice.lock == place.lock && Some(&advice.token) == place.entry.token.as_ref()
        })
    };
    let id = format!("deadlock-{number}");
    html! {
        section.alert.bad aria-labelledby=(id) data-key=(id) {
            h2 id=(id) { "⚠ Deadlock of " (format_counted(*owners, "owner", "owners")) }
            @if !seen_twice {
                p { "Seen once. Locks are read one after another, so this may not be a deadlock. The next reading will show." }
            }
            ol {
                @for (edge, next) in edges.iter().zip(edges.iter().cycle().skip(1)) {
                    li {
                        strong { (describe_contender(&edge.waits_for.entry)) }
                        " waits for " (lock(&edge.waits_for.lock)) ", where "
                        strong { (describe_contender(&next.holds.entry)) }
                        @if next.holds.granted { " holds" } @else { " is ahead in the queue" }
                        @if operator { (break_button(&next.holds, is_advised(&next.holds))) }
                    }
                }
            }
            @if owners > &edges.len() { p { "This is the shortest of several cycles. " (owners - edges.len()) " more owners are part of the deadlock." } }
            @if *behind > 0 { p { (format_counted(*behind, "more owner waits", "more owners wait")) " behind the deadlock." } }
        }
    }
}

/// Returns the button that breaks the lock of an owner.
fn break_button(place: &QueueEntry, advised: bool) -> Markup {
    html! {
        @if let Some(token) = &place.entry.token {
            " "
            a.button.danger href=(confirm_href(AdminAction::Break, &place.lock, token)) aria-label={ "Break " (token) } { "Break" }
            @if advised { " " span.badge { "recommended" } }
        }
    }
}

/// Returns a link to a lock.
fn lock(path: &str) -> Markup {
    html! { a href=(lock_href(path)) { (escape_unprintable(path)) } }
}

/// Returns the table of edges.
fn table(web: &DrawnGraph<'_>, operator: bool) -> Markup {
    let mut columns = vec!["Waiter", "Since", "Lock", "Waits for", "Cycle"];
    if operator {
        columns.push("Action");
    }
    let mut edges: Vec<_> = web.edges.iter().collect();
    edges.sort_by_key(|edge| !edge.in_cycle);
    html! {
        div.scroll role="region" aria-label="Table of the wait-for graph" tabindex="0" {
            table.reflow role="table" {
                caption {
                    "Wait-for graph"
                    @if edges.len() > MAX_LISTED {
                        ", the first " (format_count(MAX_LISTED)) " of " (format_count(edges.len()))
                        @if web.is_cut() { " and more" }
                    }
                }
                (column_headers(&columns))
                tbody role="rowgroup" {
                    @for edge in edges.iter().take(MAX_LISTED) {
                        tr role="row" data-key=(escape_unprintable(&format!("{} {} {}", edge.waiter.lock, edge.waiter.entry.node, edge.holder.entry.node))) {
                            th scope="row" role="rowheader" data-label="Waiter" { div { (describe_contender(&edge.waiter.entry)) } }
                            (number_cell("Since", render_age(edge.waiter.entry.since_ms)))
                            (cell("Lock", lock(&edge.waiter.lock)))
                            (cell("Waits for", describe_contender(&edge.holder.entry)))
                            (cell("Cycle", html! {
                                @if edge.in_cycle { span.badge.bad { "⚠ cycle" } } @else { span.quiet { "–" } }
                            }))
                            @if operator { (cell("Action", break_button(edge.holder, false))) }
                        }
                    }
                }
            }
        }
    }
}
