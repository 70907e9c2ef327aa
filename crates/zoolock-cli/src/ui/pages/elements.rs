//! Small parts of pages.

use maud::{Markup, Render, html};
use zoolock::admin::{Entry, PreviousEnd, Snapshot};

use super::super::clock::{format_iso, now_ms, time_of_day};
use crate::base::duration::format_milliseconds;
use crate::base::reporter::escape_unprintable;
use crate::base::unix_time::UnixTime as _;
use crate::observe::ReadFailure;
use crate::plan::ConnectionSettings;
use crate::render::remedy::{Remedy, Request};
use crate::render::status::{describe_contender, describe_program, note};

/// Returns the URL of a lock's page.
pub(in crate::ui) fn lock_href(path: &str) -> String {
    format!("/lock?name={}", percent_encode(path))
}

/// Percent-encodes text for a URL.
pub(in crate::ui) fn percent_encode(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                quoted.push(char::from(byte))
            }
            _ => quoted.push_str(&format!("%{byte:02X}")),
        }
    }
    quoted
}

/// Renders the time since `since_ms`, until now. The script keeps that time up to date. `stopped_ms` is the
/// time of the last read if the locks cannot be read any more. The age then ends at that time.
pub(super) fn render_age(since_ms: Option<u64>, stopped_ms: Option<u64>) -> Markup {
    let Some(since) = since_ms else { return html! { span.quiet { "–" } } };
    let age = format_milliseconds(stopped_ms.unwrap_or_else(now_ms).saturating_sub(since));
    let growing = stopped_ms.is_none().then_some(since);
    html! { time datetime=[format_iso(since)] data-since=[growing] title=[format_iso(since)] { (age) } }
}

/// Renders the time for which a holder has held the lock, with the sign ≤ if only the maximum is known. For
/// `stopped_ms` see [`render_age`].
pub(super) fn render_held(holder: &Entry, stopped_ms: Option<u64>) -> Markup {
    match holder.held_since.unix_ms() {
        Some(since) => render_age(Some(since), stopped_ms),
        None if holder.since.unix_ms().is_none() => render_age(None, stopped_ms),
        None => html! {
            span title="The time of the grant is not recorded. This is the time since it joined the queue." { "≤ " }
            (render_age(holder.since.unix_ms(), stopped_ms))
        },
    }
}

/// Renders a point in time.
pub(super) fn render_time(ms: u64) -> Markup {
    html! { time datetime=[format_iso(ms)] title=[format_iso(ms)] { (time_of_day(ms)) } }
}

/// Formats a number with narrow spaces between groups of three digits, which people of all languages understand.
pub(super) fn format_count(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with the singular or plural of a noun.
pub(super) fn format_counted(number: usize, one: &str, more: &str) -> String {
    format!("{} {}", format_count(number), if number == 1 { one } else { more })
}

/// Returns the text with a capital first letter.
pub(super) fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

/// Renders how many of these contenders were asked to release the lock, and the time since then if it was one.
/// For `stopped_ms` see [`render_age`].
pub(super) fn render_asked<'a>(
    contenders: impl Iterator<Item = &'a Entry> + Clone,
    stopped_ms: Option<u64>,
) -> Markup {
    let (all, asked) = (contenders.clone().count(), contenders.clone().filter(|entry| entry.revoked).count());
    let since = contenders.filter_map(|entry| entry.asked_at.unix_ms()).min().filter(|_| asked == 1);
    html! {
        @if asked > 0 {
            " "
            span.badge.asked {
                @if all > 1 { (format_count(asked)) " " }
                "asked to release"
                @if since.is_some() { " " (render_age(since, stopped_ms)) " ago" }
            }
        }
    }
}

/// Renders the commands that take the lock at `path` from a contender: first the request, if it can be asked.
pub(super) fn render_remedy(service: &ConnectionSettings, path: &str, entry: &Entry) -> Markup {
    let Some(remedy) = Remedy::of(service, path, entry) else { return html! {} };
    html! {
        div.commands {
            p { strong { (describe_contender(entry)) } }
            @match &remedy.request {
                Request::Impossible(reason) => p { "It cannot be asked to release: " (reason) "." },
                Request::Sent(asked) => p { "It was " (asked) "." },
                Request::Command(command) => p { "Ask it to release: " (render_command(command)) },
            }
            p { "Take the lock away from it: " (render_command(&remedy.break_command)) }
        }
    }
}

/// Renders the reason why a read failed.
pub(super) fn render_failure(failure: &ReadFailure) -> Markup {
    let (title, why) = match failure {
        ReadFailure::Unreachable(why) => ("The servers do not answer.", why),
        ReadFailure::Refused(why) => ("The read failed.", why),
    };
    html! { strong { (title) } " " (escape_unprintable(why)) }
}

/// Renders a command line, with a button that copies it. The style sheet hides the button if the script cannot copy.
pub(super) fn render_command(line: &str) -> Markup {
    html! {
        span.command {
            code { (line) }
            " "
            button.copy type="button" data-copy=(line) aria-label={ "Copy " (line) } { "Copy" }
        }
    }
}

/// Formats the host and process of a contender.
pub(super) fn host(entry: &Entry) -> String {
    match (&entry.host, entry.pid) {
        (Some(host), Some(pid)) => escape_unprintable(&format!("{host} · {pid}")),
        (Some(host), None) => escape_unprintable(host),
        (None, Some(pid)) => format!("pid {pid}"),
        (None, None) => "–".to_owned(),
    }
}

/// Formats the title of a contender: its note or identifier and its program, or else its client library.
pub(super) fn describe_entry(entry: &Entry) -> String {
    let program = entry.program.as_ref().map(|program| describe_program(program, entry.runs_program));
    match (note(entry), program) {
        (Some(said), Some(program)) => escape_unprintable(&format!("{said} ({program})")),
        (Some(said), None) => escape_unprintable(said),
        (None, Some(program)) => escape_unprintable(&program),
        (None, None) => entry.library().to_owned(),
    }
}

/// Describes a lock without a known holder. It is free only if no part of it is unreadable.
pub(super) fn describe_free(lock: &Snapshot) -> &'static str {
    if lock.unread.is_empty() { "free" } else { "no holder in the part that can be read" }
}

/// Renders the last end of a hold that the lock records, with the sequence number of its holder. Later
/// holders may have recorded no end: readers, holders of permits, and other client libraries.
pub(super) fn render_recorded_end(lock: &Snapshot) -> Markup {
    html! {
        (render_ending(lock.previous))
        @if let Some(number) = lock.previous_number { " (number " (number) ")" }
    }
}

/// Renders a mark if the last recorded holder did not release the lock.
pub(super) fn render_bad_end(lock: &Snapshot) -> Markup {
    html! {
        @if matches!(lock.previous, PreviousEnd::Crashed | PreviousEnd::Panicked | PreviousEnd::Broken) {
            " " span title="Last recorded end of a hold" { (render_ending(lock.previous)) }
        }
    }
}

/// Renders how a hold ended, as a coloured word.
fn render_ending(ending: PreviousEnd) -> Markup {
    html! {
        @match ending {
            PreviousEnd::Clean => span.badge.good { "released" },
            PreviousEnd::Crashed | PreviousEnd::Panicked | PreviousEnd::Broken => span.badge.bad { (ending) },
            _ => span.quiet { (ending) },
        }
    }
}

/// Renders a table cell. On a narrow screen, the style sheet turns the table into a list. Because
/// of the roles, screen readers still treat it as a table.
pub(super) fn cell(label: &str, content: impl Render) -> Markup {
    html! { td role="cell" data-label=(label) { div { (content) } } }
}

/// Renders a table cell with a number.
pub(super) fn number_cell(label: &str, content: impl Render) -> Markup {
    html! { td.number role="cell" data-label=(label) { div { (content) } } }
}

/// Renders the column headers. The columns in `numbers` are aligned to the right.
pub(super) fn column_headers(names: &[&str], numbers: &[&str]) -> Markup {
    html! {
        thead role="rowgroup" {
            tr role="row" {
                @for name in names {
                    th.number[numbers.contains(name)] scope="col" role="columnheader" { (name) }
                }
            }
        }
    }
}

/// Renders a count. The style sheet makes a zero quiet, because it needs no attention.
pub(super) fn render_count(count: usize) -> Markup {
    html! { span.count[count > 0].zero[count == 0] { (format_count(count)) } }
}

/// Formats the title of a contender for a picture, which has little room: its note or identifier, or else its program,
/// or else its client library.
pub(super) fn short_title(entry: &Entry) -> String {
    match note(entry).or(entry.program.as_ref()) {
        Some(said) => escape_unprintable(said),
        None => entry.library().to_owned(),
    }
}

/// One page of a long list.
pub(super) struct PageSlice {
    pub(super) first: usize,
    pub(super) end: usize,
    page: usize,
    pages: usize,
}

/// Number of rows on a page.
const PAGE_LENGTH: usize = 100;

impl PageSlice {
    /// Returns the page with this number. Pages count from 1. If the number is too large, returns the last page.
    pub(super) fn of(total: usize, page: Option<usize>) -> Self {
        let pages = total.div_ceil(PAGE_LENGTH).max(1);
        let page = page.unwrap_or(1).clamp(1, pages);
        let first = (page - 1) * PAGE_LENGTH;
        Self { first, end: (first + PAGE_LENGTH).min(total), page, pages }
    }

    /// Renders links to the other pages. `href` returns the URL of a page.
    pub(super) fn links(&self, href: impl Fn(usize) -> String) -> Markup {
        if self.pages == 1 {
            return html! {};
        }
        let to = |page: usize, word: &str| {
            html! {
                @if page != self.page && (1..=self.pages).contains(&page) { a href=(href(page)) { (word) } }
                @else { span.quiet { (word) } }
            }
        };
        html! {
            nav.pages aria-label="Parts of the list" {
                (to(1, "First"))
                (to(self.page - 1, "Previous"))
                span { "Page " (format_count(self.page)) " of " (format_count(self.pages)) }
                (to(self.page + 1, "Next"))
                (to(if self.page == self.pages { 0 } else { self.pages }, "Last"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_percent_encoded() {
        assert_eq!(percent_encode("/locks/a b&c=\"<ä>"), "/locks/a%20b%26c%3D%22%3C%C3%A4%3E");
    }

    #[test]
    fn counts_are_formatted() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(format_count),
            ["0", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]
        );
    }

    #[test]
    fn age_ends_with_the_last_read() {
        let stopped = render_age(Some(1_000), Some(4_000)).into_string();
        assert!(stopped.contains(">3s<") && !stopped.contains("data-since"), "{stopped}");
        let growing = render_age(Some(1_000), None).into_string();
        assert!(growing.contains("data-since=\"1000\""), "{growing}");
    }

    #[test]
    fn recorded_end_has_the_number_of_its_holder() {
        let mut lock = crate::base::test_snapshots::lock("/locks/x", None, vec![]);
        (lock.previous, lock.previous_number) = (PreviousEnd::Clean, Some(17));
        assert!(render_recorded_end(&lock).into_string().ends_with("released</span> (number 17)"));
    }

    #[test]
    fn page_beyond_the_end_is_the_last_page() {
        let slice = PageSlice::of(250, Some(9));
        assert_eq!((slice.first, slice.end), (200, 250));
        let none = PageSlice::of(0, Some(0));
        assert_eq!((none.first, none.end), (0, 0));
    }
}
