//! `zoolock deadlocks`: lists deadlocks, and the command that breaks each one.

use std::fmt::Write as _;

use serde::Serialize;
use zoolock::{Deadlock, QueueEntry};

use crate::args::ColorWhen;
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::{Reporter, escape_unprintable};
use crate::plan::ConnectionSettings;
use crate::render::status::describe_contender;
use crate::render::text::{TextStyle, describe_role, format_json, lock_name, print, wrap_text};
use crate::service::connect::connect_and_request;
use crate::verbs::why::format_since;

#[derive(Serialize)]
struct Deadlocks {
    deadlocks: Vec<Deadlock>,
}

/// Prints the deadlocks among the locks at and below `prefix`.
pub(crate) async fn deadlocks(
    service: &ConnectionSettings,
    prefix: Option<&str>,
    json: bool,
    color: ColorWhen,
    reporter: &Reporter,
) -> Result<Exit, Failure> {
    let deadlocks =
        connect_and_request(service, reporter, async |zoolock| zoolock.deadlocks(prefix).await).await?;
    if json {
        return print(&format_json(&Deadlocks { deadlocks }));
    }
    if deadlocks.is_empty() {
        match prefix {
            Some(prefix) => reporter.note(format_args!("no deadlocks at or below {prefix}")),
            None => reporter.note("no deadlocks"),
        }
        return Ok(Exit::OK);
    }
    let style = TextStyle::of_stdout(color);
    let texts: Vec<_> =
        deadlocks.iter().map(|deadlock| format_deadlock(deadlock, &service.root, &style)).collect();
    let printed = print(&texts.join("\n"));
    if deadlocks.iter().flat_map(|deadlock| &deadlock.edges).any(|edge| edge.owner_kind == "session") {
        reporter.note(
            "other client libraries show only their session: threads of one session that do not wait for each other may be \
             reported as a deadlock",
        );
    }
    printed
}

/// Formats a deadlock, and the command that breaks it.
fn format_deadlock(deadlock: &Deadlock, root: &str, style: &TextStyle) -> String {
    let head = match deadlock.edges.len() {
        1 => "deadlock: one owner waits for itself".to_owned(),
        count => format!("deadlock of {count} owners"),
    };
    let mut text = format!("{}\n", style.bold(&head));
    let mut line =
        |line: &str, indent: usize| _ = writeln!(text, "  {}", wrap_text(line, indent, style.width));
    let lock = |place: &QueueEntry| escape_unprintable(lock_name(&place.lock, root));
    for edge in &deadlock.edges {
        let (holds, wants) = (&edge.holds, &edge.waits_for);
        let (holder, waiter) = (describe_contender(&holds.entry), describe_contender(&wants.entry));
        line(&waiter, 4);
        let verb = if holds.granted { "holds" } else { "is ahead in the queue of" };
        // One process of an owner may hold a lock while another process of that owner waits.
        let by = if holder == waiter { String::new() } else { format!(" as {holder}") };
        let token = holds.entry.token.as_deref().unwrap_or("unknown");
        line(&format!("  {verb} {}{by}{}, token {token}", lock(holds), format_since(holds)), 6);
        line(
            &format!("  waits for {} ({}){}", lock(wants), describe_role(&wants.entry), format_since(wants)),
            6,
        );
    }
    let others = deadlock.owners - deadlock.edges.len();
    if others > 0 {
        line(&format!("more owners in this deadlock: {others}"), 4);
    }
    if deadlock.behind > 0 {
        line(&format!("owners that wait behind it: {}", deadlock.behind), 4);
    }
    match &deadlock.to_break {
        // This line is not wrapped, so that the command can be copied.
        Some(cut) => {
            let name = Some(lock_name(&cut.lock, root)).filter(|name| !name.starts_with('-'));
            let name = quote_for_shell(name.unwrap_or(&cut.lock));
            _ = writeln!(text, "  next: zoolock break {name} --token {}", cut.token)
        }
        None => line("next: stop one of these processes; none of their znodes can be read", 4),
    }
    text
}

/// Quotes a name, so that a shell reads it as one word.
fn quote_for_shell(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if name.chars().all(plain) {
        return name.to_owned();
    }
    let name = escape_unprintable(name).replace('\'', "'\\''");
    format!("'{name}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_name_is_one_shell_word() {
        assert_eq!(quote_for_shell("db/main-7"), "db/main-7");
        assert_eq!(quote_for_shell("two words"), "'two words'");
        assert_eq!(quote_for_shell("it's; rm"), "'it'\\''s; rm'");
        assert_eq!(quote_for_shell("a\u{202e}b"), "'a\\u{202e}b'");
    }
}
