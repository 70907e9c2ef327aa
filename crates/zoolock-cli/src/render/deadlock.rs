//! The words for deadlocks. `deadlocks`, `why`, `ls`, `top`, `ui` and `doctor` use the same.

use std::fmt::Write as _;

use zoolock::admin::{BreakTarget, Deadlock, OwnerKind, QueueEntry};

use super::remedy::Remedy;
use super::status::describe_contender;
use super::text::{
    TextStyle, and_more, describe_role, format_age, format_asked, format_held, lock_name, wrap_text,
};
use crate::base::reporter::escape_unprintable;
use crate::plan::ConnectionSettings;
use crate::render::text::token_or;

/// Maximum number of locks of a circle that a list names.
const MAX_NAMED: usize = 8;

/// The reason why a circle through sessions of other client libraries is only a possible deadlock.
pub(crate) const SESSIONS: &str = "other client libraries show only their session, and threads of one session need not wait \
                                   for each other";

/// Returns whether each owner in the circle is one task or program. Threads that share a session of another client library
/// need not wait for each other.
pub(crate) fn is_certain(deadlock: &Deadlock) -> bool {
    deadlock.edges.iter().all(|edge| edge.owner_kind != OwnerKind::Session)
}

/// Describes a deadlock by the number of its owners.
pub(crate) fn describe_deadlock(deadlock: &Deadlock) -> String {
    let what = if is_certain(deadlock) { "deadlock" } else { "possible deadlock" };
    match deadlock.owners {
        1 => format!("{what}: one owner waits for itself"),
        count => format!("{what} of {count} owners"),
    }
}

/// Describes the owners that are not in the shortest cycle of a deadlock, and the owners that wait behind it.
pub(crate) fn describe_others(deadlock: &Deadlock) -> Vec<String> {
    let others = deadlock.owners.saturating_sub(deadlock.edges.len());
    let counted = |what: &str, count: usize| (count > 0).then(|| format!("{what}: {count}"));
    [counted("more owners in this deadlock", others), counted("owners that wait behind it", deadlock.behind)]
        .into_iter()
        .flatten()
        .collect()
}

/// Formats a deadlock as lines: each contender, the lock that it holds and the lock that it waits for, and the commands that
/// end the deadlock.
pub(crate) fn format_deadlock(
    deadlock: &Deadlock,
    service: &ConnectionSettings,
    style: &TextStyle,
) -> String {
    let mut text = format!("{}\n", style.bold(&describe_deadlock(deadlock)));
    let mut line =
        |line: &str, indent: usize| _ = writeln!(text, "  {}", wrap_text(line, indent, style.width));
    let lock = |place: &QueueEntry| escape_unprintable(lock_name(&place.lock, &service.root));
    for edge in &deadlock.edges {
        let (holds, wants) = (&edge.holds, &edge.waits_for);
        let (holder, waiter) = (describe_contender(&holds.entry), describe_contender(&wants.entry));
        line(&waiter, 4);
        let verb = if holds.granted { "holds" } else { "is ahead in the queue of" };
        // One process of an owner may hold a lock while another process of that owner waits.
        let by = if holder == waiter { String::new() } else { format!(" as {holder}") };
        let token = token_or("unknown", &holds.entry);
        line(&format!("  {verb} {}{by}{}, token {token}", lock(holds), format_since(holds)), 6);
        line(
            &format!("  waits for {} ({}){}", lock(wants), describe_role(&wants.entry), format_since(wants)),
            6,
        );
    }
    for other in describe_others(deadlock) {
        line(&other, 4);
    }
    text + &format_ending(deadlock.to_break.as_ref(), service, style)
}

/// Formats how to end a deadlock: which lock to take from which contender, and the commands for it.
pub(crate) fn format_ending(
    target: Option<&BreakTarget>,
    service: &ConnectionSettings,
    style: &TextStyle,
) -> String {
    let ending = wrap_text(&describe_ending(target, service), 4, style.width);
    let remedy = target.and_then(|target| Remedy::of(service, &target.lock, &target.entry));
    format!("  {ending}\n{}", remedy.map_or_else(String::new, |remedy| remedy.lines(style)))
}

/// Says which lock to take from which contender to end a deadlock.
pub(crate) fn describe_ending(target: Option<&BreakTarget>, service: &ConnectionSettings) -> String {
    match target {
        Some(BreakTarget { lock, entry, .. }) => {
            let lock = escape_unprintable(lock_name(lock, &service.root));
            format!("to end it, take {lock} from {}", describe_contender(entry))
        }
        None => "to end it, stop one of these processes; none of their znodes can be read".to_owned(),
    }
}

/// Returns the locks of the circle, at most [`MAX_NAMED`], and the number of the others. The holder of each lock waits for
/// the next one.
pub(crate) fn circle(deadlock: &Deadlock) -> (Vec<&str>, usize) {
    let mut locks: Vec<&str> = deadlock.edges.iter().map(|edge| edge.waits_for.lock.as_str()).collect();
    locks.dedup();
    let more = locks.len().saturating_sub(MAX_NAMED);
    locks.truncate(MAX_NAMED);
    (locks, more)
}

/// Formats the circle of a deadlock by its locks, such as `a → b → a`.
pub(crate) fn format_circle(deadlock: &Deadlock, root: &str) -> String {
    let (locks, more) = circle(deadlock);
    let mut names: Vec<&str> = locks.iter().map(|path| lock_name(path, root)).collect();
    if more == 0 {
        names.extend(names.first().copied());
    }
    escape_unprintable(&(names.join(" → ") + &and_more(more)))
}

/// Formats the time for which a contender has held the lock or waited for it, and whether it was asked to release.
/// Returns an empty string if nothing is known.
pub(crate) fn format_since(place: &QueueEntry) -> String {
    let time = if place.granted { format_held(&place.entry) } else { format_age(&place.entry) };
    let asked = format_asked(&place.entry).map_or(String::new(), |asked| format!(", {asked}"));
    time.map_or_else(String::new, |time| format!(", for {time}")) + &asked
}
