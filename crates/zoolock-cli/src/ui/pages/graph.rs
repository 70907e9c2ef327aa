//! Who waits for whom.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use zoolock::{Deadlock, Place};

use super::Page;
use super::locks::{PATIENCE, as_of, reading};
use super::parts::{ago, cell, count, counted, figure, heads, lock_href};
use super::sessions::read_in_part;
use super::web::{self, Web};
use crate::status::who;
use crate::talk::printable;
use crate::ui::Site;
use crate::ui::board::{Board, Known};
use crate::ui::deeds::{Deed, ask_href};
use crate::ui::login::Viewer;

/// Edges in the table.
const LISTED: usize = 200;
/// Deadlocks that are told in words.
const TOLD: usize = 20;

/// `/graph`
pub(in crate::ui) async fn graph(State(site): State<Site>, headers: HeaderMap) -> Response {
    let board = site.boards.look(true, PATIENCE).await;
    let viewer = site.viewer(&headers);
    let main = html! {
        h1 { "Wait-for graph" }
        (shown(&viewer, &board))
    };
    let news = Some(("/events?deep=true".to_owned(), board.number));
    Page { title: "Wait-for graph", here: "/graph", viewer: &viewer, news, main }.answer(StatusCode::OK)
}

fn shown(viewer: &Viewer, board: &Board) -> Markup {
    let Some(waits) = &board.waits else { return reading(board) };
    let web = Web::of(&waits.graph.owners, waits.deadlocks.iter().map(|known| &known.deadlock));
    let operator = matches!(viewer, Viewer::Operator(_) | Viewer::Stranger);
    let waiting = waits.graph.owners.iter().filter(|party| !party.waits.is_empty()).count();
    html! {
        p.summary #summary role="status" aria-live="polite" {
            @match waits.deadlocks.len() {
                0 => "No deadlock",
                deadlocks => strong.bad { "⚠ " (counted(deadlocks, "deadlock", "deadlocks")) },
            }
            " · " (counted(waiting, "owner waits", "owners wait"))
        }
        (as_of(board))
        (read_in_part(board))
        @for (at, known) in waits.deadlocks.iter().take(TOLD).enumerate() { (deadlock(at + 1, known, operator)) }
        @if waits.deadlocks.len() > TOLD {
            p.alert { (count(waits.deadlocks.len() - TOLD)) " more deadlocks are in the table alone." }
        }
        @if web.edges.is_empty() {
            p.empty { "Nobody waits for anybody." }
        } @else {
            (web.what_is_left_out())
            (web::picture(&web))
            (table(&web, operator))
        }
        @if matches!(viewer, Viewer::Stranger) && !web.edges.is_empty() {
            p.quiet { a href="/login" { "Log in" } " to break a place." }
        }
    }
}

fn deadlock(number: usize, known: &Known, operator: bool) -> Markup {
    let Known { deadlock, seen_twice } = known;
    let Deadlock { edges, owners, behind, to_break, .. } = deadlock;
    let is_advised = |place: &Place| {
        to_break
            .as_ref()
            .is_some_and(|cut| cut.lock == place.lock && Some(&cut.token) == place.entry.token.as_ref())
    };
    let id = format!("deadlock-{number}");
    html! {
        section.alert.bad aria-labelledby=(id) data-key=(id) {
            h2 id=(id) { "⚠ Deadlock of " (counted(*owners, "owner", "owners")) }
            @if !seen_twice {
                p { "Seen once: locks are read one after the other, and this may pass. The next reading tells." }
            }
            ol {
                @for (edge, next) in edges.iter().zip(edges.iter().cycle().skip(1)) {
                    li {
                        strong { (who(&edge.waits_for.entry)) }
                        " waits for " (lock(&edge.waits_for.lock)) ", where "
                        strong { (who(&next.holds.entry)) }
                        @if next.holds.granted { " holds" } @else { " stands before it" }
                        @if operator { (cut(&next.holds, is_advised(&next.holds))) }
                    }
                }
            }
            @if owners > &edges.len() { p { "The shortest circle of several; " (owners - edges.len()) " more owners are in it." } }
            @if *behind > 0 { p { (counted(*behind, "more waits", "more wait")) " behind it." } }
        }
    }
}

fn cut(place: &Place, advised: bool) -> Markup {
    html! {
        @if let Some(token) = &place.entry.token {
            " "
            a.button.danger href=(ask_href(Deed::Break, &place.lock, token)) aria-label={ "Break " (token) } { "Break" }
            @if advised { " " span.badge { "least is lost here" } }
        }
    }
}

fn lock(path: &str) -> Markup {
    html! { a href=(lock_href(path)) { (printable(path)) } }
}

fn table(web: &Web<'_>, operator: bool) -> Markup {
    let mut columns = vec!["Who waits", "Since", "For", "Where stands", "Circle"];
    if operator {
        columns.push("Do");
    }
    let mut edges: Vec<_> = web.edges.iter().collect();
    edges.sort_by_key(|edge| !edge.in_circle);
    html! {
        div.scroll role="region" aria-label="Table of who waits for whom" tabindex="0" {
            table.reflow role="table" {
                caption {
                    "Who waits for whom"
                    @if edges.len() > LISTED {
                        ", the first " (count(LISTED)) " of " (count(edges.len()))
                        @if web.is_cut() { " and more" }
                    }
                }
                (heads(&columns))
                tbody role="rowgroup" {
                    @for edge in edges.iter().take(LISTED) {
                        tr role="row" data-key=(printable(&format!("{} {} {}", edge.waits.lock, edge.waits.entry.node, edge.behind.entry.node))) {
                            th scope="row" role="rowheader" data-label="Who waits" { div { (who(&edge.waits.entry)) } }
                            (figure("Since", ago(edge.waits.entry.since_ms)))
                            (cell("For", lock(&edge.waits.lock)))
                            (cell("Where stands", who(&edge.behind.entry)))
                            (cell("Circle", html! {
                                @if edge.in_circle { span.badge.bad { "⚠ circle" } } @else { span.quiet { "–" } }
                            }))
                            @if operator { (cell("Do", cut(edge.behind, false))) }
                        }
                    }
                }
            }
        }
    }
}
