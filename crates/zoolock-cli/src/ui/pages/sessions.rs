//! Who is there, with what he holds and waits for.

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use zoolock::Entry;

use super::Page;
use super::locks::{PATIENCE, as_of, reading};
use super::parts::{Part, ago, cell, count, counted, figure, heads, host, lock_href, quoted, title};
use crate::talk::printable;
use crate::ui::Site;
use crate::ui::board::{Board, MANY};
use crate::ui::owners::{Owner, owners};

/// Locks that are named for each of them.
const NAMED: usize = 5;

/// What is asked for in the address.
#[derive(Debug, Default, Deserialize)]
pub(in crate::ui) struct Asked {
    #[serde(default)]
    q: String,
    page: Option<usize>,
}

/// `/sessions`
pub(in crate::ui) async fn sessions(
    State(site): State<Site>,
    headers: HeaderMap,
    Query(asked): Query<Asked>,
) -> Response {
    let board = site.boards.look(true, PATIENCE).await;
    let viewer = site.viewer(&headers);
    let main = html! {
        h1 { "Sessions" }
        (list(&board, &asked))
    };
    let news = Some(("/events?deep=true".to_owned(), board.number));
    Page { title: "Sessions", here: "/sessions", viewer: &viewer, news, main }.answer(StatusCode::OK)
}

fn list(board: &Board, asked: &Asked) -> Markup {
    let Some(listed) = &board.locks else { return reading(board) };
    let all = owners(&listed.locks);
    let total = all.len();
    let wanted = asked.q.trim().to_lowercase();
    let mut found: Vec<Owner<'_>> = all.into_iter().filter(|owner| matches(owner, &wanted)).collect();
    // Whoever holds something and waits for something is why somebody looks here.
    found.sort_by_key(|owner| (owner.holds.is_empty() || owner.waits.is_empty(), owner.waits.is_empty()));
    let part = Part::of(found.len(), asked.page);
    let href = |page: usize| format!("/sessions?q={}&page={page}", quoted(&asked.q));
    html! {
        p.summary #summary role="status" { (counted(total, "owner", "owners")) " of places in queues" }
        (as_of(board))
        (read_in_part(board))
        form.filter role="search" method="get" action="/sessions" {
            label for="q" { "Filter" }
            input #q type="search" name="q" value=(asked.q) placeholder="owner, host, program, note or lock"
                autocomplete="off" spellcheck="false";
            button type="submit" { "Filter" }
            @if !asked.q.is_empty() { a href="/sessions" { "All" } }
        }
        @if found.is_empty() {
            p.empty { @if total == 0 { "Nobody holds or waits." } @else { "Nobody matches “" (printable(&asked.q)) "”." } }
        } @else {
            div.scroll role="region" aria-label="List of sessions" tabindex="0" {
                table.reflow role="table" {
                    caption { "Whoever holds and waits first" }
                    (heads(&["Who", "Host · process", "Known by", "Holds", "Waits for", "Oldest"]))
                    tbody role="rowgroup" { @for owner in &found[part.first..part.end] { (line(owner)) } }
                }
            }
            (part.links(href))
        }
    }
}

/// That not everybody was read.
pub(super) fn read_in_part(board: &Board) -> Markup {
    html! {
        @if !board.deep {
            p.alert role="status" { "The queues are being read; until then only the first few of each are here." }
        } @else if board.locks.iter().flat_map(|listed| &listed.locks).any(|lock| lock.waiting > MANY) {
            p.alert { "Of long queues the first " (count(MANY)) " waiters are here." }
        }
    }
}

fn matches(owner: &Owner<'_>, wanted: &str) -> bool {
    let Entry { host, program, note, identifier, .. } = owner.entry;
    let has = |text: &str| text.to_lowercase().contains(wanted);
    [&owner.entry.owner, host, program, note, identifier].into_iter().flatten().any(|text| has(text))
        || owner.holds.iter().chain(&owner.waits).any(|(path, _)| has(path))
}

fn line(owner: &Owner<'_>) -> Markup {
    let oldest = owner.holds.iter().chain(&owner.waits).filter_map(|(_, entry)| entry.since_ms).min();
    let key = owner
        .holds
        .first()
        .or(owner.waits.first())
        .map(|(path, entry)| printable(&format!("{path}/{}", entry.node)));
    html! {
        tr role="row" data-key=[key] {
            th scope="row" role="rowheader" data-label="Who" { div { (title(owner.entry)) } }
            (cell("Host · process", host(owner.entry)))
            (cell("Known by", html! {
                @match &owner.entry.owner {
                    Some(name) => { (owner.entry.owner_kind) " " code.node { (printable(name)) } }
                    None => span.quiet { "nothing" },
                }
            }))
            (cell("Holds", places(&owner.holds)))
            (cell("Waits for", places(&owner.waits)))
            (figure("Oldest", ago(oldest)))
        }
    }
}

fn places(places: &[(&str, &Entry)]) -> Markup {
    html! {
        @if places.is_empty() { span.quiet { "–" } }
        @for (at, (path, _)) in places.iter().take(NAMED).enumerate() {
            @if at > 0 { ", " }
            a href=(lock_href(path)) { (printable(path)) }
        }
        @if places.len() > NAMED { " and " (count(places.len() - NAMED)) " more" }
    }
}
