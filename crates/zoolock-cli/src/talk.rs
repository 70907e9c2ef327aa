//! What the command says to people: always on standard error, always begun with its name.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcgetwinsize};

use crate::args::{ColorWhen, Global};

/// Who says it: errors always, notes unless quiet, details when asked for.
#[derive(Debug)]
pub(crate) struct Talk {
    quiet: bool,
    verbose: bool,
    color: bool,
    terminal: bool,
    status_shown: Mutex<bool>,
    voice: Voice,
}

impl Talk {
    /// As the flags have it.
    pub(crate) fn new(global: &Global) -> Self {
        let stderr = std::io::stderr();
        Self {
            quiet: global.quiet,
            verbose: global.verbose > 0,
            color: use_color(global.color, stderr.is_terminal()),
            terminal: stderr.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
            status_shown: Mutex::new(false),
            voice: Voice::new(),
        }
    }

    /// For a process of ours that has no flags.
    pub(crate) fn plain() -> Self {
        Self {
            quiet: false,
            verbose: false,
            color: use_color(ColorWhen::Auto, std::io::stderr().is_terminal()),
            terminal: false,
            status_shown: Mutex::new(false),
            voice: Voice::new(),
        }
    }

    /// Says what went wrong.
    pub(crate) fn error(&self, message: impl Display) {
        self.line(if self.color { "\x1b[1;31mzoolock:\x1b[0m" } else { "zoolock:" }, message);
    }

    /// Says what the user will want to know.
    pub(crate) fn note(&self, message: impl Display) {
        if !self.quiet {
            self.line("zoolock:", message);
        }
    }

    /// Says what only those want to know who asked for more.
    pub(crate) fn detail(&self, message: impl Display) {
        if self.verbose {
            self.line("zoolock:", message);
        }
    }

    /// Whether a line can be shown and rewritten.
    pub(crate) fn can_show_status(&self) -> bool {
        self.terminal && !self.quiet
    }

    /// Shows one line, in place of the one shown before; cut to the width of the terminal. In the background it
    /// would only be in the way.
    pub(crate) fn status(&self, text: &str) {
        if !self.can_show_status() || !in_foreground() {
            return;
        }
        let mut shown = self.shown();
        let width = terminal_width(std::io::stderr()).unwrap_or(80).saturating_sub(1);
        let text: String = text.chars().take(width).collect();
        self.voice.say(format!("\r\x1b[2K{text}"));
        *shown = true;
    }

    /// Takes the status line away.
    pub(crate) fn clear_status(&self) {
        let mut shown = self.shown();
        if *shown && in_foreground() {
            self.voice.say("\r\x1b[2K".to_owned());
        }
        *shown = false;
    }

    fn shown(&self) -> MutexGuard<'_, bool> {
        self.status_shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, whose: &str, message: impl Display) {
        self.clear_status();
        // It may name what others wrote.
        let message: Vec<String> = message.to_string().lines().map(printable).collect();
        self.voice.say(format!("{whose} {}\n", message.join("\n")));
    }
}

/// How long a reader may keep us from going on, once.
const PATIENCE: Duration = Duration::from_millis(200);
/// How much is kept for a reader that does not read.
const KEPT: usize = 256;

/// Writes to standard error on a thread of its own: a pipe that nobody empties, or a terminal that was stopped with
/// ^S, must not keep us from killing a command whose lock is lost.
#[derive(Debug)]
struct Voice {
    words: Option<SyncSender<(String, SyncSender<()>)>>,
    stuck: AtomicBool,
}

impl Voice {
    fn new() -> Self {
        let (words, heard) = sync_channel::<(String, SyncSender<()>)>(KEPT);
        // It ends with the process: there is nothing to say after that.
        let speaker = std::thread::Builder::new().name("zoolock-stderr".to_owned()).spawn(move || {
            for (text, said) in heard {
                // One write, so that lines of several processes do not mix; and nobody may be reading any more.
                let _ = std::io::stderr().write_all(text.as_bytes());
                let _ = said.try_send(());
            }
        });
        Self { words: speaker.is_ok().then_some(words), stuck: AtomicBool::new(false) }
    }

    /// Says it and waits until it is said, unless the reader has kept us waiting before.
    fn say(&self, text: String) {
        let Some(words) = &self.words else {
            let _ = std::io::stderr().write_all(text.as_bytes());
            return;
        };
        let (said, done) = sync_channel(1);
        if words.try_send((text, said)).is_err() || self.stuck.load(Ordering::Relaxed) {
            return;
        }
        if done.recv_timeout(PATIENCE).is_err() {
            self.stuck.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether the terminal of standard error is ours to write to just now.
fn in_foreground() -> bool {
    tcgetpgrp(std::io::stderr()).is_ok_and(|group| group == getpgrp())
}

/// Whether to use colours on a stream that is a terminal or is not.
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

/// How many columns a stream has, if it is a terminal.
pub(crate) fn terminal_width(stream: impl std::os::fd::AsFd) -> Option<usize> {
    let columns = tcgetwinsize(stream).ok()?.ws_col;
    (columns > 0).then_some(usize::from(columns))
}

/// Text from elsewhere, made safe to print: it may come from anyone who can write to the lock. What would move the
/// cursor, turn the direction of the text around or hide in it is escaped.
pub(crate) fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_unseen(c) { safe.extend(c.escape_default()) } else { safe.push(c) }
    }
    safe
}

/// The same for JSON, which goes to a terminal as often as to a program: the same text, in other words.
pub(crate) fn printable_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        // Others stand between the values, where there are no texts.
        if c != '\n' && (c.is_control() || is_unseen(c)) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                safe.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Whether it shows nothing by itself, as Unicode's format characters (Cf), fillers and the tags and variants of plane 14,
/// or separates lines. U+FE00 to U+FE0F stay, which belong to pictures; a rare form of a Chinese character is escaped.
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{13430}'..='\u{1343f}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e01ef}'
        | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{3164}' | '\u{ffa0}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_the_same_without_what_is_not_seen() {
        let texts = ["\u{1b}[2J\u{9b}m", "\u{202e}exe.jpg", "\u{e0041}\u{1d173}", "schön \"quoted\"\n"];
        let json = serde_json::to_string_pretty(&texts).expect("JSON");
        let safe = printable_json(&json);
        assert!(!safe.contains(|c: char| c != '\n' && (c.is_control() || is_unseen(c))), "{safe:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&safe).expect("JSON"), texts);
    }

    #[test]
    fn what_is_not_seen_is_escaped() {
        assert_eq!(printable("\x1b[2J\x07gone\n\u{9b}m"), "\\u{1b}[2J\\u{7}gone\\n\\u{9b}m");
        // Else it would read: gpj.exe
        assert_eq!(printable("\u{202e}exe.jpg"), "\\u{202e}exe.jpg");
        let bidi = ['\u{61c}', '\u{200e}', '\u{200f}'];
        let bidi = bidi.into_iter().chain('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}');
        let hidden = "\u{ad}\u{200b}\u{2028}\u{2029}\u{2060}\u{feff}\u{e0041}\u{e0100}\u{3164}".chars();
        for c in bidi.chain(hidden) {
            assert_eq!(printable(&format!("a{c}b")), format!("a\\u{{{:x}}}b", u32::from(c)));
        }
    }

    #[test]
    fn what_is_seen_stays_as_it_is() {
        for text in [r#"C:\jobs "night" 'x'"#, "prü\u{308}fung – 夜\u{3000}間 ✓", "תור 7", "🔒\u{fe0f}"]
        {
            assert_eq!(printable(text), text);
        }
    }
}
