//! Formats names, roles, tables and JSON documents, and prints them.

use std::io::{ErrorKind, IsTerminal, Write as _};
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use zoolock::admin::{Entry, Role};

use crate::args::ColorWhen;
use crate::base::duration::format_milliseconds;
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::{escape_unprintable_json, terminal_width, use_color};
use crate::base::server_clock;
use crate::base::unix_time::UnixTime as _;
use crate::render::columns::{cut_beginning, cut_end, width};

/// Returns the name of a lock below the root, or its path if it lies elsewhere.
pub(crate) fn lock_name<'a>(path: &'a str, root: &str) -> &'a str {
    let below = path.strip_prefix(root).filter(|_| root != "/");
    below.and_then(|rest| rest.strip_prefix('/')).unwrap_or(path)
}

/// Describes the role of a contender.
pub(crate) fn describe_role(entry: &Entry) -> String {
    match entry.role {
        Role::Shared => "reader".to_owned(),
        Role::Upgradable => "upgradable reader".to_owned(),
        Role::Permit if entry.weight == 1 => "1 permit".to_owned(),
        Role::Permit => format!("{} permits", entry.weight),
        other => other.to_string(),
    }
}

/// Returns the token of a contender, or this word if its znode could not be read.
pub(crate) fn token_or(word: &str, entry: &Entry) -> String {
    entry.token.map_or_else(|| word.to_owned(), |token| token.to_string())
}

/// Formats the number of other holders or locks; empty if there are none.
pub(crate) fn and_more(others: usize) -> String {
    if others > 0 { format!(" and {others} more") } else { String::new() }
}

/// Schema name of the documents that `docs/JSON.md` describes.
const SCHEMA: &str = "zoolock/1";

/// A document with the name of its schema.
#[derive(Serialize)]
struct JsonDocument<'a, T> {
    schema: &'static str,
    #[serde(flatten)]
    content: &'a T,
}

/// Formats a value as an indented JSON document with the name of its schema. Escapes control characters and invisible
/// characters. `docs/JSON.md` describes the documents.
pub(crate) fn format_json(content: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(&JsonDocument { schema: SCHEMA, content });
    escape_unprintable_json(&text.expect("output serializes to JSON")) + "\n"
}

/// Formats a value like [`format_json`], but on one line.
pub(crate) fn format_json_line(content: &impl Serialize) -> String {
    let text = serde_json::to_string(&JsonDocument { schema: SCHEMA, content });
    escape_unprintable_json(&text.expect("output serializes to JSON")) + "\n"
}

/// Returns the time since a contender joined the queue. The contender's clock may differ from the clock of this machine.
pub(crate) fn format_age(entry: &Entry) -> Option<String> {
    format_time_since(entry.since.unix_ms()?)
}

/// Returns the time since a holder was granted the lock. If nothing tells the time of the grant, returns the time since
/// the holder joined the queue, which is the maximum, with the sign ≤.
pub(crate) fn format_held(holder: &Entry) -> Option<String> {
    match holder.held_since.unix_ms() {
        Some(since) => format_time_since(since),
        None => format_age(holder).map(|age| format!("≤{age}")),
    }
}

/// Returns that a contender was asked to release, and the time since then if it is known; `None` if it was not asked.
pub(crate) fn format_asked(entry: &Entry) -> Option<String> {
    if !entry.revoked {
        return None;
    }
    let time = entry.asked_at.unix_ms().and_then(format_time_since);
    Some(time.map_or_else(|| "asked to release".to_owned(), |time| format!("asked to release {time} ago")))
}

/// Returns the time since a point in time.
pub(crate) fn format_time_since(ms: u64) -> Option<String> {
    // A time that no calendar has was not written by a clock.
    UNIX_EPOCH.checked_add(Duration::from_millis(ms))?;
    Some(format_milliseconds(server_clock::now_ms().saturating_sub(ms)))
}

/// Style of the output.
pub(crate) struct TextStyle {
    color: bool,
    /// Number of columns of the terminal; `None` if the output is not a terminal.
    pub(crate) width: Option<usize>,
}

impl TextStyle {
    pub(crate) fn of_stdout(color: ColorWhen) -> Self {
        let stdout = std::io::stdout();
        Self { color: use_color(color, stdout.is_terminal()), width: terminal_width(&stdout) }
    }

    /// Returns the style of output that is not a terminal.
    pub(crate) fn plain() -> Self {
        Self { color: false, width: None }
    }

    /// Returns the same style for output whose lines are not cut.
    pub(crate) fn uncut(self) -> Self {
        Self { width: None, ..self }
    }

    /// Cuts a line at the edge of the terminal.
    pub(crate) fn cut(&self, line: &str) -> String {
        self.width.map_or_else(|| line.to_owned(), |width| cut_end(line, width))
    }

    pub(crate) fn bold(&self, text: &str) -> String {
        self.colorize("1", text)
    }

    /// Adds the color if colors are enabled. `color` is the parameter of the escape sequence.
    pub(crate) fn colorize(&self, color: &str, text: &str) -> String {
        if self.color { format!("\x1b[{color}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Formats a table. Each column is as wide as its widest cell. On a terminal, lines are cut at its edge. If the table is
/// wider, the cells of the first column are shortened to half of the terminal, or to the space that the other columns
/// leave.
pub(crate) fn format_table<const N: usize>(
    header: &[String; N],
    rows: &[[String; N]],
    style: &TextStyle,
) -> String {
    let mut widths = header.each_ref().map(|cell| width(cell));
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(width(cell));
        }
    }
    if let Some(terminal) = style.width {
        let others: usize = widths.iter().skip(1).map(|width| width + 2).sum();
        widths[0] = widths[0].min(terminal.saturating_sub(others).max(terminal / 2));
    }
    let line = |row: &[String; N]| {
        let mut line = String::new();
        for (index, (cell, columns)) in row.iter().zip(widths).enumerate() {
            let cell = if index == 0 { &shorten_middle(cell, columns) } else { cell };
            let padding = columns.saturating_sub(width(cell)) + 2;
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', padding));
        }
        style.cut(line.trim_end())
    };
    let mut text = format!("{}\n", style.bold(&line(header)));
    for row in rows {
        text.push_str(&line(row));
        text.push('\n');
    }
    text
}

/// Shortens text in its middle to at most this number of columns. The end of a name usually tells locks apart.
fn shorten_middle(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let end = cut_beginning(text, columns / 2 + 1);
    let start = cut_end(text, (columns + 1).saturating_sub(width(&end)));
    start.trim_end_matches('…').to_owned() + &end
}

/// Wraps text at the width of the terminal, and indents all lines but the first.
pub(crate) fn wrap_text(text: &str, indent: usize, columns: Option<usize>) -> String {
    let Some(columns) = columns.filter(|columns| *columns > 2 * indent) else { return text.to_owned() };
    let mut lines = String::new();
    // The caller prints two columns before the first line.
    let mut column = 2;
    for word in text.split_inclusive(' ') {
        if column + width(word.trim_end()) > columns && column > indent {
            lines.truncate(lines.trim_end().len());
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        }
        lines.push_str(word);
        column += width(word);
    }
    lines
}

/// Prints to standard output. A closed pipe is not an error.
pub(crate) fn print(text: &str) -> Result<Exit, Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Exit::OK),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Exit::OK),
        Err(error) => Err(Failure::new(Exit::OUTPUT, format!("cannot write the output: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_name_is_relative_to_the_root() {
        assert_eq!(lock_name("/locks/db/main", "/locks"), "db/main");
        assert_eq!(lock_name("/lockstep", "/locks"), "/lockstep");
        assert_eq!(lock_name("/locks", "/locks"), "/locks");
        assert_eq!(lock_name("/x", "/"), "/x");
    }

    #[test]
    fn table_is_cut_at_terminal_width() {
        let header = ["A", "B", "C", "D"].map(str::to_owned);
        let rows = [["long name", "1", "2", "somebody far away"].map(str::to_owned)];
        let text = format_table(&header, &rows, &TextStyle { color: false, width: Some(20) });
        assert_eq!(text, "A          B  C  D\nlong name  1  2  so…\n");
        let text = format_table(&header, &rows, &TextStyle { color: false, width: None });
        assert!(text.contains("somebody far away"), "{text}");
    }

    #[test]
    fn wide_letters_take_two_columns_of_a_table() {
        let header = ["LOCK", "HELD"].map(str::to_owned);
        let rows = [["夜間処理", "3s"], ["nightly", "4s"]].map(|row| row.map(str::to_owned));
        let table = format_table(&header, &rows, &TextStyle::plain());
        assert_eq!(table, "LOCK      HELD\n夜間処理  3s\nnightly   4s\n");
        let narrow = format_table(&header, &rows, &TextStyle { color: false, width: Some(11) });
        assert_eq!(narrow, "LOCK   HELD\n夜…理  3s\nni…ly  4s\n");
        assert_eq!(wrap_text("夜間 処理 夜間", 2, Some(11)), "夜間 処理\n  夜間");
    }

    #[test]
    fn long_names_keep_their_ends_on_a_terminal() {
        let header = ["LOCK", "HELD", "HOLDER"].map(str::to_owned);
        let names = ["blue", "green"].map(|end| format!("{}-{end}", "x".repeat(1000)));
        let rows = names.map(|name| [name, "3s".to_owned(), "n".repeat(1000)]);
        let table = format_table(&header, &rows, &TextStyle { color: false, width: Some(40) });
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1], format!("xxxxxxxxx…xxxxx-blue  3s    {}…", "n".repeat(11)));
        assert_eq!(lines[2], format!("xxxxxxxxx…xxxx-green  3s    {}…", "n".repeat(11)));
        let plain = format_table(&header, &rows, &TextStyle::plain());
        assert!(rows.iter().flatten().all(|cell| plain.contains(cell)), "{plain}");
        // A name is not shortened for columns that need less space.
        let rows = [["a-name-of-26-characters-end", "3s", "me"].map(str::to_owned)];
        let table = format_table(&header, &rows, &TextStyle { color: false, width: Some(41) });
        assert!(table.contains("a-name-of-26-characters-end  3s    me"), "{table}");
        for width in 0..9 {
            assert!(shorten_middle("nightly-7", width).chars().count() <= width.max(1), "{width}");
        }
    }

    #[test]
    fn text_is_wrapped_between_words() {
        let text = "danger    one two three four";
        assert_eq!(wrap_text(text, 12, None), text);
        assert_eq!(wrap_text(text, 12, Some(25)), "danger    one two three\n            four");
        assert_eq!(wrap_text(text, 12, Some(26)), "danger    one two three\n            four");
        assert_eq!(
            wrap_text("danger    a-word-longer-than-the-line b", 4, Some(12)),
            "danger\n    a-word-longer-than-the-line\n    b"
        );
    }
}
