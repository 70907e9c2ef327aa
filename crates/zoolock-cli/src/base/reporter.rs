//! Messages for people: on standard error, with the prefix `zoolock:`.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcgetwinsize};

use crate::args::{ColorWhen, Global};

/// Prints messages: errors always, notes unless `--quiet`, details only with `--verbose`.
#[derive(Debug)]
pub(crate) struct Reporter {
    quiet: bool,
    verbose: bool,
    color: bool,
    terminal: bool,
    status_shown: Mutex<bool>,
    writer: StderrWriter,
}

impl Reporter {
    /// Creates a reporter with the flags of the command line.
    pub(crate) fn new(global: &Global) -> Self {
        let stderr = std::io::stderr();
        Self {
            quiet: global.quiet,
            verbose: global.verbose,
            color: use_color(global.color, stderr.is_terminal()),
            terminal: stderr.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
            status_shown: Mutex::new(false),
            writer: StderrWriter::new(),
        }
    }

    /// Creates a reporter for an internal process of zoolock, which has no flags.
    pub(crate) fn plain() -> Self {
        Self {
            quiet: false,
            verbose: false,
            color: use_color(ColorWhen::Auto, std::io::stderr().is_terminal()),
            terminal: false,
            status_shown: Mutex::new(false),
            writer: StderrWriter::new(),
        }
    }

    /// Prints an error.
    pub(crate) fn error(&self, message: impl Display) {
        self.print_line(if self.color { "\x1b[1;31mzoolock:\x1b[0m" } else { "zoolock:" }, message);
    }

    /// Prints a note, unless `--quiet` is set.
    pub(crate) fn note(&self, message: impl Display) {
        if !self.quiet {
            self.print_line("zoolock:", message);
        }
    }

    /// Prints a detail if `--verbose` is set.
    pub(crate) fn detail(&self, message: impl Display) {
        if self.verbose {
            self.print_line("zoolock:", message);
        }
    }

    /// Returns whether a status line can be shown and rewritten.
    pub(crate) fn can_show_status(&self) -> bool {
        self.terminal && !self.quiet
    }

    /// Replaces the status line. Cuts the text at the width of the terminal. Prints nothing from
    /// the background, where the line would disturb the foreground job.
    pub(crate) fn show_status(&self, text: &str) {
        if !self.can_show_status() || !in_foreground() {
            return;
        }
        let mut shown = self.lock_status_shown();
        let width = terminal_width(std::io::stderr()).unwrap_or(80).saturating_sub(1);
        let text: String = text.chars().take(width).collect();
        self.writer.write(format!("\r\x1b[2K{text}"));
        *shown = true;
    }

    /// Removes the status line.
    pub(crate) fn clear_status(&self) {
        let mut shown = self.lock_status_shown();
        if *shown && in_foreground() {
            self.writer.write("\r\x1b[2K".to_owned());
        }
        *shown = false;
    }

    fn lock_status_shown(&self) -> MutexGuard<'_, bool> {
        self.status_shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn print_line(&self, prefix: &str, message: impl Display) {
        self.clear_status();
        // The message may contain text from other clients.
        let message: Vec<String> = message.to_string().lines().map(escape_unprintable).collect();
        self.writer.write(format!("{prefix} {}\n", message.join("\n")));
    }
}

/// Maximum time for which the sender of a message waits until the message is written. After the
/// first timeout, senders do not wait any more.
const WRITE_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum number of messages that are queued while nothing reads standard error.
const MAX_QUEUED: usize = 256;

/// A writer to standard error with a thread of its own. A full pipe, or a terminal stopped with ^S, must not delay
/// killing a command whose lock is lost.
#[derive(Debug)]
struct StderrWriter {
    queue: Option<SyncSender<(String, SyncSender<()>)>>,
    stuck: AtomicBool,
}

impl StderrWriter {
    fn new() -> Self {
        let (queue, queued) = sync_channel::<(String, SyncSender<()>)>(MAX_QUEUED);
        // The thread ends with the process.
        let thread = std::thread::Builder::new().name("zoolock-stderr".to_owned()).spawn(move || {
            for (text, written) in queued {
                // One write, so that lines of several processes do not mix. Errors are ignored: the reader may have
                // closed the pipe.
                let _ = std::io::stderr().write_all(text.as_bytes());
                let _ = written.try_send(());
            }
        });
        Self { queue: thread.is_ok().then_some(queue), stuck: AtomicBool::new(false) }
    }

    /// Queues the text and waits until it is written. Does not wait if an earlier write timed out.
    /// Drops the text if the queue is full.
    fn write(&self, text: String) {
        let Some(queue) = &self.queue else {
            let _ = std::io::stderr().write_all(text.as_bytes());
            return;
        };
        let (written, done) = sync_channel(1);
        if queue.try_send((text, written)).is_err() || self.stuck.load(Ordering::Relaxed) {
            return;
        }
        if done.recv_timeout(WRITE_TIMEOUT).is_err() {
            self.stuck.store(true, Ordering::Relaxed);
        }
    }
}

/// Returns whether this process is in the foreground of the terminal of standard error.
fn in_foreground() -> bool {
    tcgetpgrp(std::io::stderr()).is_ok_and(|group| group == getpgrp())
}

/// Returns whether to use colors on a stream. `terminal` tells whether the stream is a terminal.
pub(crate) fn use_color(when: ColorWhen, terminal: bool) -> bool {
    match when {
        ColorWhen::Always => true,
        ColorWhen::Never => false,
        ColorWhen::Auto => {
            terminal
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
                && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
        }
    }
}

/// Returns the number of columns of a stream, if it is a terminal.
pub(crate) fn terminal_width(stream: impl std::os::fd::AsFd) -> Option<usize> {
    let columns = tcgetwinsize(stream).ok()?.ws_col;
    (columns > 0).then_some(usize::from(columns))
}

/// Makes text from other clients safe to print. Escapes characters that move the cursor, reverse the direction of text, or
/// are invisible.
pub(crate) fn escape_unprintable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_invisible(c) { safe.extend(c.escape_default()) } else { safe.push(c) }
    }
    safe
}

/// Escapes the characters in JSON that [`escape_unprintable`] escapes, except line feeds. JSON may be
/// printed on a terminal, too. The result encodes the same values.
pub(crate) fn escape_unprintable_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        // A line feed only occurs between values, never inside a JSON string.
        if c != '\n' && (c.is_control() || is_invisible(c)) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                safe.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Returns whether a character is invisible or separates lines: Unicode's default ignorable characters (fillers, tags,
/// variation selectors), format characters (Cf) without a glyph, and blank characters that are no spaces. Two names that
/// differ only in such a character look the same. This includes the variation selectors in emoji.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{13430}'..='\u{1343f}' | '\u{16fe4}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d159}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_equal_after_escaping() {
        let texts = ["\u{1b}[2J\u{9b}m", "\u{202e}exe.jpg", "\u{e0041}\u{1d173}", "schön \"quoted\"\n"];
        let json = serde_json::to_string_pretty(&texts).expect("JSON");
        let safe = escape_unprintable_json(&json);
        assert!(!safe.contains(|c: char| c != '\n' && (c.is_control() || is_invisible(c))), "{safe:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&safe).expect("JSON"), texts);
    }

    #[test]
    fn invisible_characters_are_escaped() {
        assert_eq!(escape_unprintable("\x1b[2J\x07gone\n\u{9b}m"), "\\u{1b}[2J\\u{7}gone\\n\\u{9b}m");
        // A terminal would show the unescaped text as: gpj.exe
        assert_eq!(escape_unprintable("\u{202e}exe.jpg"), "\\u{202e}exe.jpg");
        let ranges = [
            '\u{180b}'..='\u{180f}',
            '\u{200b}'..='\u{200f}',
            '\u{2028}'..='\u{202e}',
            '\u{2060}'..='\u{206f}',
            '\u{fe00}'..='\u{fe0f}',
            '\u{fff0}'..='\u{fffb}',
            '\u{1d173}'..='\u{1d17a}',
            '\u{e0000}'..='\u{e0fff}',
        ];
        let single = "\u{ad}\u{34f}\u{61c}\u{115f}\u{1160}\u{17b4}\u{17b5}\u{2800}\u{3164}\u{feff}\u{ffa0}";
        for c in ranges.into_iter().flatten().chain(single.chars()) {
            assert_eq!(escape_unprintable(&format!("a{c}b")), format!("a\\u{{{:x}}}b", u32::from(c)));
        }
    }

    #[test]
    fn visible_characters_are_kept() {
        for text in [r#"C:\jobs "night" 'x'"#, "prü\u{308}fung – 夜\u{3000}間 ✓", "תור 7", "🔒"] {
            assert_eq!(escape_unprintable(text), text);
        }
    }
}
