//! The page of the wait-for graph and its deadlocks.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use zoolock::{Deadlock, QueueEntry};

use super::Page;
use super::elements::{
    capitalize, cell, column_headers, format_count, format_counted, lock_href, number_cell, render_age,
    render_asked, render_command,
};
use super::graph_picture::{self, DrawnGraph};
use super::locks::{READ_TIMEOUT, outage_prefix, render_read_time, render_unread};
use crate::base::reporter::escape_unprintable;
use crate::plan::ConnectionSettings;
use crate::render::status::describe_contender;
use crate::ui::Site;
use crate::ui::overview::{DEEP_WAITERS, Overview, ReadDepth, SeenDeadlock};
use crate::verbs::deadlocks::{describe_deadlock, describe_others, is_certain};
use crate::verbs::operate::{AdminAction, command_line};

/// Maximum number of edges in the table.
const MAX_LISTED: usize = 200;
/// Maximum number of deadlocks that are described above the table.
const MAX_DESCRIBED: usize = 20;

/// Serves `/graph`.
pub(in crate::ui) async fn graph(State(site): State<Site>) -> Response {
    let overview = site.overview.recent_overview(ReadDepth::Deep, READ_TIMEOUT).await;
    let main = html! {
        h1 { "Wait-for graph" }
        (render_body(&overview, &site.service))
    };
    let news = Some(("/events?deep=true".to_owned(), overview.number));
    Page { title: "Wait-for graph", here: "/graph", news, main }.answer(StatusCode::OK)
}

/// Renders the graph and its deadlocks, if the last successful read was deep.
fn render_body(overview: &Overview, service: &ConnectionSettings) -> Markup {
    let Some(waits) = &overview.waits else { return render_unread(overview) };
    let permits = |path: &str| overview.locks.as_ref()?.lock(path)?.permits;
    let web = DrawnGraph::of(&waits.graph.owners, waits.deadlocks.iter().map(|seen| &seen.deadlock), permits);
    let (is_partial, stopped_ms) = (overview.is_partial(), overview.stopped_ms());
    let waiting = waits.graph.owners.iter().filter(|party| !party.waits.is_empty()).count();
    html! {
        p.summary #summary role="status" aria-live="polite" {
            (outage_prefix(overview))
            @if waits.deadlocks.is_empty() { (describe_no_deadlock(overview)) }
            @else { strong.bad { "⚠ " (count_deadlocks(&waits.deadlocks)) } }
            " · " @if is_partial { "at least " } (format_counted(waiting, "owner waits", "owners wait"))
        }
        (render_read_time(overview))
        (partial_notice(overview))
        @for (at, seen) in waits.deadlocks.iter().take(MAX_DESCRIBED).enumerate() {
            (render_deadlock(at + 1, seen, &web, (is_partial, stopped_ms), service))
        }
        @if waits.deadlocks.len() > MAX_DESCRIBED {
            p.alert {
                (format_count(waits.deadlocks.len() - MAX_DESCRIBED)) " more cycles are only in the table."
            }
        }
        @if web.edges.is_empty() {
            p.empty {
                @if is_partial { "No owner that was read waits for another." }
                @else { "No owner waits for another." }
            }
        } @else {
            (web.omission_warnings())
            (graph_picture::draw_graph(&web))
            (table(&web, stopped_ms))
        }
    }
}

/// Returns a notice if only a part of the queues was read, or can be read.
fn partial_notice(overview: &Overview) -> Markup {
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

/// Says that there is no deadlock, as far as the contenders were read.
fn describe_no_deadlock(overview: &Overview) -> String {
    let among = "no deadlock among the contenders that were read";
    let text = match (overview.cut_at(), overview.is_partial()) {
        (Some(read), _) => format!("{among} (the first {} waiters of each lock)", format_count(read)),
        (None, true) => among.to_owned(),
        (None, false) => "no deadlock".to_owned(),
    };
    // Other words come first if the last read failed.
    if overview.trouble.is_some() { text } else { capitalize(&text) }
}

/// Counts the deadlocks, and those that are only possible.
fn count_deadlocks(seen: &[SeenDeadlock]) -> String {
    let sure = seen.iter().filter(|seen| seen.is_sure()).count();
    let known = format_counted(sure, "deadlock", "deadlocks");
    let possible = format_counted(seen.len() - sure, "possible deadlock", "possible deadlocks");
    match (sure, seen.len() - sure) {
        (_, 0) => known,
        (0, _) => possible,
        _ => format!("{known}, {possible}"),
    }
}

/// Renders the description of a deadlock, in the words of `zoolock deadlocks`. `is_partial` is set if the
/// last read may lack contenders. For `stopped_ms` see [`render_age`].
fn render_deadlock(
    number: usize,
    seen: &SeenDeadlock,
    web: &DrawnGraph<'_>,
    (is_partial, stopped_ms): (bool, Option<u64>),
    service: &ConnectionSettings,
) -> Markup {
    let SeenDeadlock { deadlock, seen_twice } = seen;
    let Deadlock { edges, to_break, .. } = deadlock;
    let id = format!("deadlock-{number}");
    html! {
        section.alert.bad aria-labelledby=(id) data-key=(id) {
            h2 id=(id) { "⚠ " (capitalize(&describe_deadlock(deadlock))) }
            @if !seen_twice {
                p { "Seen once. Locks are read one after another, so this may not be a deadlock. The next reading will show." }
            }
            @if !is_certain(deadlock) {
                p {
                    "Other client libraries show only their session. Threads of one session need not wait \
                     for each other, so this may not be a deadlock."
                }
            }
            ol {
                @for (edge, next) in edges.iter().zip(edges.iter().cycle().skip(1)) {
                    @let (owner, holder) = (web.describe_owner(&next.holds), describe_contender(&next.holds.entry));
                    li {
                        strong { (web.describe_owner(&edge.waits_for)) }
                        " waits for " (lock(&edge.waits_for.lock)) ", where "
                        strong { (owner) }
                        @if next.holds.granted { " holds" } @else { " is ahead in the queue" }
                        // One process of an owner may hold a lock while another process of that owner waits.
                        @if owner != holder { " as " (holder) }
                        (render_asked(std::iter::once(&next.holds.entry), stopped_ms))
                    }
                }
            }
            @for other in describe_others(deadlock) {
                p { (capitalize(&other)) @if is_partial { " or more" } }
            }
            // A cycle that was seen once may not exist, so no command is offered.
            @if *seen_twice {
                p {
                    @match to_break {
                        Some(cut) => {
                            @if is_certain(deadlock) { "To break it: " }
                            @else { "To break it, if it is a deadlock: " }
                            (render_command(&command_line(service, AdminAction::Break, &cut.lock, &cut.token)))
                        }
                        None => "To break it, stop one of these processes: none of their znodes can be read."
                    }
                }
            }
        }
    }
}

/// Returns a link to a lock.
fn lock(path: &str) -> Markup {
    html! { a href=(lock_href(path)) { (escape_unprintable(path)) } }
}

/// Returns the table of edges. For `stopped_ms` see [`render_age`].
fn table(web: &DrawnGraph<'_>, stopped_ms: Option<u64>) -> Markup {
    // The edges from a semaphore to its holders belong to the edges of its waiters.
    let mut edges: Vec<_> = web.edges.iter().filter_map(|edge| Some((edge, edge.waiter?))).collect();
    edges.sort_by_key(|(edge, _)| !edge.in_cycle);
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
                (column_headers(&["Waiter", "For", "Lock", "Waits for", "Cycle"]))
                tbody role="rowgroup" {
                    @for (edge, waiter) in edges.iter().take(MAX_LISTED) {
                        @let holder = edge.holder.map_or("", |holder| &holder.entry.node);
                        tr role="row" data-key=(escape_unprintable(&format!("{} {} {holder}", waiter.lock, waiter.entry.node))) {
                            th scope="row" role="rowheader" data-label="Waiter" {
                                div {
                                    (web.describe_owner(waiter))
                                    (render_asked(std::iter::once(&waiter.entry), stopped_ms))
                                }
                            }
                            (number_cell("For", render_age(waiter.entry.since_ms, stopped_ms)))
                            (cell("Lock", lock(&waiter.lock)))
                            (cell("Waits for", html! {
                                (web.describe_target(edge))
                                @let holder = edge.holder.map(|holder| &holder.entry);
                                (render_asked(holder.into_iter(), stopped_ms))
                            }))
                            (cell("Cycle", html! {
                                @if edge.in_cycle { span.badge.bad { "⚠ cycle" } } @else { span.quiet { "–" } }
                            }))
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zoolock::{Entry, Snapshot};

    use super::*;
    use crate::base::test_snapshots::{entry, lock as lock_of};
    use crate::plan::test_plans::local_service;
    use crate::ui::overview::{LockList, WaitGraphRead};

    /// Returns a contender of an owner. Its process has the number of the contender.
    fn contender(owner: &str, number: u32) -> Entry {
        let mut entry = entry(&format!("lock-{number:010}"), &format!("0.{number}.0"));
        (entry.owner, entry.pid) = (Some(owner.to_owned()), Some(number));
        entry.note = Some(format!("{owner} in process {number}"));
        entry
    }

    fn page(locks: Vec<Snapshot>) -> String {
        let first_read = WaitGraphRead::of(&locks, None);
        let waits = WaitGraphRead::of(&locks, Some(&first_read));
        let rows = locks.into_iter().map(|lock| (lock, None)).collect();
        let overview = Overview {
            number: 1,
            locks: Some(Arc::new(LockList::of(rows))),
            depth: ReadDepth::Deep,
            waits: Some(Arc::new(waits)),
            ..Overview::default()
        };
        render_body(&overview, &local_service()).into_string()
    }

    /// Returns two locks whose owners, `ada` and `bob`, wait for each other. `eve` waits behind them.
    fn deadlock() -> Vec<Snapshot> {
        vec![
            lock_of("/locks/a", Some(contender("ada", 1)), vec![contender("bob", 2), contender("eve", 3)]),
            lock_of("/locks/b", Some(contender("bob", 4)), vec![contender("ada", 5)]),
        ]
    }

    #[test]
    fn list_and_picture_name_owners_alike() {
        let text = page(deadlock());
        let (list, rest) = text.split_once("<figure").expect("a picture");
        let (picture, table) = rest.split_once("</figure>").expect("a table");
        for name in ["host pid 2: bob in process 2", "host pid 5: ada in process 5"] {
            assert!(list.contains(&format!("<strong>{name}</strong> waits for")), "{list}");
            assert!(picture.contains(&format!("<title>{name}</title>")), "{picture}");
            assert!(table.contains(name), "{table}");
        }
        // The list also names the process that holds, as the command does.
        assert!(list.contains(" holds as host pid 1: ada in process 1"), "{list}");
        assert!(!picture.contains("process 1") && !picture.contains("process 4"), "{picture}");
    }

    #[test]
    fn counts_are_those_of_the_command() {
        let mut locks = deadlock();
        let text = page(locks.clone());
        assert!(text.contains(">⚠ Deadlock of 2 owners<"), "{text}");
        assert!(text.contains("<p>Owners that wait behind it: 1</p>"), "{text}");
        assert!(text.contains(" · 3 owners wait"), "{text}");
        locks[0].waiting += 1;
        let text = page(locks);
        assert!(text.contains("behind it: 1 or more") && text.contains("at least 3 owners wait"), "{text}");
    }

    #[test]
    fn cycle_through_sessions_is_only_possible() {
        let mut locks = deadlock();
        for lock in &mut locks {
            for entry in lock.holder.iter_mut().chain(&mut lock.waiters) {
                entry.owner_kind = "session";
            }
        }
        let text = page(locks);
        for words in [
            ">⚠ 1 possible deadlock<",
            ">⚠ Possible deadlock of 2 owners<",
            "To break it, if it is a deadlock: ",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let text = page(deadlock());
        assert!(text.contains(">⚠ 1 deadlock<") && text.contains("To break it: "), "{text}");
    }

    #[test]
    fn missing_deadlock_is_limited_to_the_read() {
        let mut locks = vec![lock_of("/locks/a", Some(contender("ada", 1)), vec![])];
        let text = page(locks.clone());
        assert!(text.contains(">No deadlock · 0 owners wait<"), "{text}");
        assert!(text.contains("No owner waits for another."), "{text}");
        locks[0].unread.push("leases".to_owned());
        let text = page(locks.clone());
        assert!(text.contains(">No deadlock among the contenders that were read · at least 0 "), "{text}");
        assert!(text.contains("No owner that was read waits for another."), "{text}");
        (locks[0].waiters, locks[0].waiting) = (vec![contender("bob", 2)], 2);
        let text = page(locks);
        assert!(text.contains("that were read (the first 1 waiters of each lock) · "), "{text}");
    }

    #[test]
    fn deadlock_has_break_command() {
        let text = page(deadlock());
        assert!(text.contains("<code>zoolock break b --token 0.4.0</code>"), "{text}");
    }
}
