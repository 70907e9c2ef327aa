//! The page of the deadlocks. It shows each cycle as a list: each contender waits for the next one, the last for the first.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use zoolock::admin::Deadlock;

use super::Page;
use super::elements::{
    capitalize, format_count, format_counted, lock_href, render_age, render_asked, render_command,
    render_remedy,
};
use super::locks::{READ_TIMEOUT, outage_prefix, render_read_time, render_unread};
use crate::base::reporter::escape_unprintable;
use crate::base::unix_time::UnixTime as _;
use crate::plan::ConnectionSettings;
use crate::render::deadlock::{SESSIONS, describe_deadlock, describe_ending, describe_others, is_certain};
use crate::render::remedy::STOP_FIRST;
use crate::render::status::describe_contender;
use crate::render::text::lock_name;
use crate::ui::Site;
use crate::ui::overview::Overview;

/// Maximum number of deadlocks on the page.
const MAX_LISTED: usize = 20;

/// Serves `/deadlocks`.
pub(in crate::ui) async fn deadlocks(State(site): State<Site>) -> Response {
    let overview = site.overview.recent_overview(READ_TIMEOUT).await;
    let main = html! {
        h1 { "Deadlocks" }
        (render_body(&overview, &site.service))
    };
    let news = Some(overview.news());
    Page { title: "Deadlocks", ensemble: &site.ensemble, here: "/deadlocks", news, main }
        .answer(StatusCode::OK)
}

/// Renders the deadlocks of the last successful read.
fn render_body(overview: &Overview, service: &ConnectionSettings) -> Markup {
    let Some(list) = &overview.list else { return render_unread(overview) };
    let deadlocks = &list.deadlocks;
    html! {
        p.summary #summary role="status" aria-live="polite" {
            (outage_prefix(overview))
            @if deadlocks.is_empty() { (describe_no_deadlock(overview)) }
            @else { strong.bad { "⚠ " (count_deadlocks(deadlocks)) } }
        }
        (render_read_time(overview))
        (partial_notice(overview, service))
        @for (at, deadlock) in deadlocks.iter().take(MAX_LISTED).enumerate() {
            (render_deadlock(at + 1, deadlock, overview, service))
        }
        @if deadlocks.len() > MAX_LISTED {
            p.alert {
                (format_count(deadlocks.len() - MAX_LISTED)) " more deadlocks are not listed. To list them, run: "
                (render_command(&service.command_to_copy("deadlocks")))
            }
        }
    }
}

/// Returns a notice if only a part of the queues was read, or can be read.
fn partial_notice(overview: &Overview, service: &ConnectionSettings) -> Markup {
    let unread = overview.unread_locks();
    html! {
        @if let Some(read) = overview.cut_at() {
            p.alert {
                "Only the first " (format_count(read)) " waiters of each lock were read. To search all waiters, run: "
                (render_command(&service.command_to_copy("deadlocks")))
            }
        }
        @if unread > 0 {
            p.alert {
                (format_counted(unread, "lock", "locks"))
                " cannot be read completely. Some contenders may be missing."
            }
        }
        @if overview.has_foreign_semaphore() {
            p.quiet { "Holders and waiters of semaphores of other client libraries are not read." }
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

/// Counts the certain and the possible deadlocks.
fn count_deadlocks(deadlocks: &[Deadlock]) -> String {
    let sure = deadlocks.iter().filter(|deadlock| is_certain(deadlock)).count();
    let known = format_counted(sure, "deadlock", "deadlocks");
    let possible = format_counted(deadlocks.len() - sure, "possible deadlock", "possible deadlocks");
    match (sure, deadlocks.len() - sure) {
        (_, 0) => known,
        (0, _) => possible,
        _ => format!("{known}, {possible}"),
    }
}

/// Renders a deadlock, in the words of `zoolock deadlocks`. The last read may lack contenders.
fn render_deadlock(
    number: usize,
    deadlock: &Deadlock,
    overview: &Overview,
    service: &ConnectionSettings,
) -> Markup {
    let (edges, stopped_ms) = (&deadlock.edges, overview.stopped_ms());
    let id = format!("deadlock-{number}");
    html! {
        section.alert.bad aria-labelledby=(id) data-key=(id) {
            h2 id=(id) { "⚠ " (capitalize(&describe_deadlock(deadlock))) }
            @if !is_certain(deadlock) {
                p { (capitalize(SESSIONS)) ", so this may not be a deadlock." }
            }
            ol {
                @for (edge, next) in edges.iter().zip(edges.iter().cycle().skip(1)) {
                    @let (waiter, lock) = (&edge.waits_for.entry, &edge.waits_for.lock);
                    // One process of an owner may hold a lock while another process of that owner waits.
                    @let (owner, holder) =
                        (describe_contender(&next.waits_for.entry), describe_contender(&next.holds.entry));
                    li {
                        strong { (describe_contender(waiter)) }
                        " waits for " a href=(lock_href(lock)) { (escape_unprintable(lock_name(lock, &service.root))) }
                        @if waiter.since.unix_ms().is_some() { " (" (render_age(waiter.since.unix_ms(), stopped_ms)) ")" }
                        ", where " strong { (owner) }
                        @if next.holds.granted { " holds" } @else { " is ahead in the queue" }
                        @if owner != holder { " as " (holder) }
                        (render_asked(std::iter::once(&next.holds.entry), stopped_ms))
                    }
                }
            }
            @for other in describe_others(deadlock) {
                p { (capitalize(&other)) @if overview.is_partial() { " or more" } }
            }
            p { (capitalize(&describe_ending(deadlock.to_break.as_ref(), service))) "." }
            @if let Some(target) = &deadlock.to_break {
                (render_remedy(service, &target.lock, &target.entry))
                p { (capitalize(STOP_FIRST)) "." }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zoolock::admin::{Entry, OwnerKind, Snapshot, WaitGraph};

    use super::*;
    use crate::base::test_snapshots::{entry, lock as lock_of, ticket};
    use crate::observe::LockList;
    use crate::plan::test_lines::local_service;

    /// Returns a contender of an owner. Its process has the number of the contender.
    fn contender(owner: &str, number: u32) -> Entry {
        let mut entry = entry(&format!("lock-{number:010}"), &format!("0.{number}.0"));
        (entry.owner, entry.pid) = (Some(owner.to_owned()), Some(number));
        entry.note = Some(format!("{owner} in process {number}"));
        entry
    }

    fn page(locks: Vec<Snapshot>) -> String {
        let deadlocks = WaitGraph::of(&locks).deadlocks().into();
        let list = LockList { deadlocks, ..LockList::of(locks) };
        let overview = Overview { number: 1, list: Some(Arc::new(list)), ..Overview::default() };
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
    fn cycle_is_a_chain_of_contenders_and_locks() {
        let text = page(deadlock());
        for name in ["host pid 2: bob in process 2", "host pid 5: ada in process 5"] {
            assert!(text.contains(&format!("<li><strong>{name}</strong> waits for <a ")), "{name}: {text}");
        }
        for lock in ["a", "b"] {
            assert!(text.contains(&format!("<a href=\"/lock?name=/locks/{lock}\">{lock}</a>")), "{text}");
        }
        // The list also names the process that holds, as the command does.
        assert!(text.contains(" holds as host pid 1: ada in process 1"), "{text}");
    }

    #[test]
    fn counts_are_those_of_the_command() {
        let mut locks = deadlock();
        let text = page(locks.clone());
        assert!(text.contains(">⚠ Deadlock of 2 owners<"), "{text}");
        assert!(text.contains("<p>Owners that wait behind it: 1</p>"), "{text}");
        locks[0].waiting += 1;
        let text = page(locks);
        assert!(text.contains("behind it: 1 or more"), "{text}");
    }

    #[test]
    fn cycle_through_sessions_is_only_possible() {
        let mut locks = deadlock();
        for lock in &mut locks {
            for entry in lock.holder.iter_mut().chain(&mut lock.waiters) {
                entry.owner_kind = OwnerKind::Session;
            }
        }
        let text = page(locks);
        for words in [
            ">⚠ 1 possible deadlock<",
            ">⚠ Possible deadlock of 2 owners<",
            ", so this may not be a deadlock.</p>",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let text = page(deadlock());
        assert!(text.contains(">⚠ 1 deadlock<") && text.contains("<p>To end it, take b from "), "{text}");
    }

    #[test]
    fn missing_deadlock_is_limited_to_the_read() {
        let mut locks = vec![lock_of("/locks/a", Some(contender("ada", 1)), vec![])];
        let text = page(locks.clone());
        assert!(text.contains(">No deadlock<"), "{text}");
        locks[0].unread.push("leases".to_owned());
        let text = page(locks.clone());
        assert!(text.contains(">No deadlock among the contenders that were read<"), "{text}");
        (locks[0].waiters, locks[0].waiting) = (vec![contender("bob", 2)], 2);
        let text = page(locks);
        assert!(text.contains("that were read (the first 1 waiters of each lock)<"), "{text}");
    }

    #[test]
    fn holder_is_asked_before_its_lock_is_broken() {
        let text = page(deadlock());
        let (revoke, broken) = ["revoke", "break"]
            .map(|action| format!("<code>zoolock {action} b --token {}</code>", ticket("0.4.0")))
            .into();
        let at = |command: &str| text.find(command).unwrap_or_else(|| panic!("{command}: {text}"));
        assert!(at(&revoke) < at(&broken), "{text}");
        let mut locks = deadlock();
        locks[1].holder.as_mut().expect("a holder").unrevocable = Some("its client library is not known");
        let text = page(locks);
        assert!(
            text.contains("It cannot be asked to release: ") && !text.contains("zoolock revoke"),
            "{text}"
        );
    }

    #[test]
    fn cut_read_names_the_command_that_reads_all() {
        let mut locks = deadlock();
        locks[0].waiting = 9;
        let text = page(locks);
        assert!(
            text.contains("Only the first 2 waiters") && text.contains("<code>zoolock deadlocks</code>"),
            "{text}"
        );
    }
}
