//! Small parts of pages.

use maud::{Markup, Render, html};
use zoolock::Entry;

use super::super::clock::{format_iso, format_span, now_ms, time_of_day};
use crate::base::reporter::escape_unprintable;

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

/// Renders the time since `since_ms`. The script keeps that time up to date.
pub(super) fn render_age(since_ms: Option<u64>) -> Markup {
    let Some(since) = since_ms else { return html! { span.quiet { "–" } } };
    let age = format_span(now_ms().saturating_sub(since));
    html! { time datetime=[format_iso(since)] data-since=(since) title=[format_iso(since)] { (age) } }
}

/// Renders a point in time.
pub(super) fn render_time(ms: u64) -> Markup {
    html! { time datetime=[format_iso(ms)] title=[format_iso(ms)] { (time_of_day(ms)) } }
}

/// Formats a rate per second, with one decimal below 10.
pub(super) fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "–".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(rate) if rate < 0.1 => "< 0.1".to_owned(),
        Some(rate) if rate < 10.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
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

/// Describes the role of a contender.
pub(super) fn role(entry: &Entry) -> String {
    crate::render::text::describe_role(entry)
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
    match (entry.note.as_ref().or(entry.identifier.as_ref()), &entry.program) {
        (Some(said), Some(program)) => escape_unprintable(&format!("{said} ({program})")),
        (Some(one), None) | (None, Some(one)) => escape_unprintable(one),
        (None, None) => crate::render::status::library_name(entry).to_owned(),
    }
}

/// Renders how a hold ended, as a coloured word.
pub(super) fn render_ending(how: &str) -> Markup {
    html! {
        @match how {
            "clean" => span.badge.good { "clean" },
            "crashed" | "panicked" | "broken" => span.badge.bad { (how) },
            "unseen" => span.quiet title="other holders in between, or no release marker" { "not seen" },
            _ => span.quiet { (escape_unprintable(how)) },
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

/// Renders the column headers.
pub(super) fn column_headers(names: &[&str]) -> Markup {
    html! {
        thead role="rowgroup" {
            tr role="row" { @for name in names { th scope="col" role="columnheader" { (name) } } }
        }
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
    fn rates_and_counts_are_formatted() {
        let rates = [None, Some(0.0), Some(0.017), Some(1.25), Some(123.4)];
        assert_eq!(rates.map(rate), ["–", "0", "< 0.1", "1.2", "123"]);
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(format_count),
            ["0", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]
        );
    }

    #[test]
    fn page_beyond_the_end_is_the_last_page() {
        let slice = PageSlice::of(250, Some(9));
        assert_eq!((slice.first, slice.end), (200, 250));
        let none = PageSlice::of(0, Some(0));
        assert_eq!((none.first, none.end), (0, 0));
    }
}
