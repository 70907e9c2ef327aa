//! `zoolock deadlocks`: lists deadlocks, and the command that breaks each one.

use std::fmt::Write as _;

use serde::Serialize;
use zoolock::{Deadlock, Place};

use crate::args::ColorWhen;
use crate::base::exit::{Exit, Failure};
use crate::base::talk::{Talk, printable};
use crate::plan::Service;
use crate::render::status::who;
use crate::render::text::{Look, document, name as short, print, role, wrapped};
use crate::service::connect::{close, connect};
use crate::verbs::why::since;

#[derive(Serialize)]
struct Deadlocks {
    deadlocks: Vec<Deadlock>,
}

/// Prints the deadlocks among the locks at and below `prefix`.
pub(crate) async fn deadlocks(
    service: &Service,
    prefix: Option<&str>,
    json: bool,
    color: ColorWhen,
    talk: &Talk,
) -> Result<Exit, Failure> {
    let zoolock = connect(service, talk).await?;
    let looked = zoolock.deadlocks(prefix).await;
    close(zoolock).await;
    let deadlocks = looked?;
    if json {
        return print(&document(&Deadlocks { deadlocks }));
    }
    if deadlocks.is_empty() {
        match prefix {
            Some(prefix) => talk.note(format_args!("no deadlocks at or below {prefix}")),
            None => talk.note("no deadlocks"),
        }
        return Ok(Exit::OK);
    }
    let look = Look::of_stdout(color);
    let told: Vec<_> = deadlocks.iter().map(|deadlock| told(deadlock, &service.root, &look)).collect();
    let printed = print(&told.join("\n"));
    if deadlocks.iter().flat_map(|deadlock| &deadlock.edges).any(|edge| edge.owner_kind == "session") {
        talk.note(
            "of clients of other makes only the session is known: threads of one that do not wait for each other look as if \
             they did",
        );
    }
    printed
}

/// Formats a deadlock, and the command that breaks it.
fn told(deadlock: &Deadlock, root: &str, look: &Look) -> String {
    let head = match deadlock.edges.len() {
        1 => "one waits for itself, for ever".to_owned(),
        count => format!("{count} wait for each other, for ever"),
    };
    let mut text = format!("{}\n", look.bold(&head));
    let mut line = |told: &str, indent: usize| _ = writeln!(text, "  {}", wrapped(told, indent, look.width));
    let lock = |place: &Place| printable(short(&place.lock, root));
    for edge in &deadlock.edges {
        let (holds, wants) = (&edge.holds, &edge.waits_for);
        let (holder, waiter) = (who(&holds.entry), who(&wants.entry));
        line(&waiter, 4);
        let verb = if holds.granted { "holds" } else { "is before the others at" };
        // Several processes may be one owner.
        let by = if holder == waiter { String::new() } else { format!(" as {holder}") };
        let token = holds.entry.token.as_deref().unwrap_or("unknown");
        line(&format!("  {verb} {}{by}{}, token {token}", lock(holds), since(holds)), 6);
        line(&format!("  waits for {} ({}){}", lock(wants), role(&wants.entry), since(wants)), 6);
    }
    let others = deadlock.owners - deadlock.edges.len();
    if others > 0 {
        line(&format!("{others} more wait in circles with them"), 4);
    }
    if deadlock.behind > 0 {
        line(&format!("{} more wait behind them", deadlock.behind), 4);
    }
    match &deadlock.to_break {
        // Not wrapped, so that it can be copied.
        Some(cut) => {
            let name = Some(short(&cut.lock, root)).filter(|name| !name.starts_with('-'));
            let name = quoted(name.unwrap_or(&cut.lock));
            _ = writeln!(text, "  next: zoolock break {name} --token {}", cut.token)
        }
        None => line("next: end one of them; none of their nodes can be read", 4),
    }
    text
}

/// Quotes a name, so that a shell reads it as one word.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if name.chars().all(plain) {
        return name.to_owned();
    }
    let name = printable(name).replace('\'', "'\\''");
    format!("'{name}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_word_of_a_shell() {
        assert_eq!(quoted("db/main-7"), "db/main-7");
        assert_eq!(quoted("two words"), "'two words'");
        assert_eq!(quoted("it's; rm"), "'it'\\''s; rm'");
        assert_eq!(quoted("a\u{202e}b"), "'a\\u{202e}b'");
    }
}
