//! Small things that pages are made of.

use maud::{Markup, Render, html};
use zoolock::Entry;

use super::super::clock::{iso, now_ms, span, time_of_day};
use crate::talk::printable;

/// The address of a lock's page.
pub(in crate::ui) fn lock_href(path: &str) -> String {
    format!("/lock?name={}", quoted(path))
}

/// Text as a part of an address.
pub(in crate::ui) fn quoted(text: &str) -> String {
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

/// How long ago something was, told on by the script.
pub(super) fn ago(since_ms: Option<u64>) -> Markup {
    let Some(since) = since_ms else { return html! { span.quiet { "–" } } };
    let age = span(now_ms().saturating_sub(since));
    html! { time datetime=[iso(since)] data-since=(since) title=[iso(since)] { (age) } }
}

/// When something was.
pub(super) fn at(ms: u64) -> Markup {
    html! { time datetime=[iso(ms)] title=[iso(ms)] { (time_of_day(ms)) } }
}

/// How many a second, with as many digits as mean something.
pub(super) fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "–".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(rate) if rate < 0.1 => "< 0.1".to_owned(),
        Some(rate) if rate < 10.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

/// A number with spaces between thousands, as all languages read it.
pub(super) fn count(number: usize) -> String {
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

/// So many of something.
pub(super) fn counted(number: usize, one: &str, more: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { more })
}

/// What a contender asks for.
pub(super) fn role(entry: &Entry) -> String {
    crate::list::role(entry)
}

/// Somebody's host and process, on one line.
pub(super) fn host(entry: &Entry) -> String {
    match (&entry.host, entry.pid) {
        (Some(host), Some(pid)) => printable(&format!("{host} · {pid}")),
        (Some(host), None) => printable(host),
        (None, Some(pid)) => format!("pid {pid}"),
        (None, None) => "–".to_owned(),
    }
}

/// What somebody calls himself: his note or identifier and his program, or his make.
pub(super) fn title(entry: &Entry) -> String {
    match (entry.note.as_ref().or(entry.identifier.as_ref()), &entry.program) {
        (Some(said), Some(program)) => printable(&format!("{said} ({program})")),
        (Some(one), None) | (None, Some(one)) => printable(one),
        (None, None) => crate::status::make(entry).to_owned(),
    }
}

/// How the one before left, as a word with a colour that does not carry the meaning alone.
pub(super) fn left(how: &str) -> Markup {
    html! {
        @match how {
            "clean" => span.badge.good { "clean" },
            "crashed" | "panicked" | "broken" => span.badge.bad { (how) },
            "unseen" => span.quiet title="others were in between, or nobody says" { "not seen" },
            _ => span.quiet { (printable(how)) },
        }
    }
}

/// A cell of a table that becomes a list on a phone; the roles outlive that.
pub(super) fn cell(label: &str, content: impl Render) -> Markup {
    html! { td role="cell" data-label=(label) { div { (content) } } }
}

/// A cell of figures.
pub(super) fn figure(label: &str, content: impl Render) -> Markup {
    html! { td.number role="cell" data-label=(label) { div { (content) } } }
}

/// The heads of columns.
pub(super) fn heads(names: &[&str]) -> Markup {
    html! {
        thead role="rowgroup" {
            tr role="row" { @for name in names { th scope="col" role="columnheader" { (name) } } }
        }
    }
}

/// Which part of a long list is shown.
pub(super) struct Part {
    pub(super) first: usize,
    pub(super) end: usize,
    page: usize,
    pages: usize,
}

/// On one page.
const LENGTH: usize = 100;

impl Part {
    /// The page with this number, from 1; the last one if there are not so many.
    pub(super) fn of(total: usize, page: Option<usize>) -> Self {
        let pages = total.div_ceil(LENGTH).max(1);
        let page = page.unwrap_or(1).clamp(1, pages);
        let first = (page - 1) * LENGTH;
        Self { first, end: (first + LENGTH).min(total), page, pages }
    }

    /// Links to the others, where `href` makes the address of one.
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
                span { "Page " (count(self.page)) " of " (count(self.pages)) }
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
    fn an_address_is_made_of_harmless_characters() {
        assert_eq!(quoted("/locks/a b&c=\"<ä>"), "/locks/a%20b%26c%3D%22%3C%C3%A4%3E");
    }

    #[test]
    fn figures_have_the_digits_that_mean_something() {
        let rates = [None, Some(0.0), Some(0.017), Some(1.25), Some(123.4)];
        assert_eq!(rates.map(rate), ["–", "0", "< 0.1", "1.2", "123"]);
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(count),
            ["0", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]
        );
    }

    #[test]
    fn a_page_that_is_not_there_is_the_last_one() {
        let part = Part::of(250, Some(9));
        assert_eq!((part.first, part.end), (200, 250));
        let none = Part::of(0, Some(0));
        assert_eq!((none.first, none.end), (0, 0));
    }
}
