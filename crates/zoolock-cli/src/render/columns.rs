//! Fits text into a number of columns, even if other clients wrote unusual characters into the text.

use unicode_width::UnicodeWidthChar;

use crate::base::reporter::escape_unprintable;

/// Maximum number of combining marks on a letter. More marks could be drawn over other lines.
const MARKS: usize = 2;

/// Cuts `text` at its end to at most `width` columns. A `…` marks the cut.
pub(crate) fn cut_end(text: &str, width: usize) -> String {
    let letters = letters(text);
    match fitting(letters.iter(), width) {
        Some(count) => letters[..count].concat() + mark(width),
        None => letters.concat(),
    }
}

/// Cuts `text` at its beginning to at most `width` columns, because the end of a path matters most.
/// A `…` marks the cut.
pub(crate) fn cut_beginning(text: &str, width: usize) -> String {
    let letters = letters(text);
    match fitting(letters.iter().rev(), width) {
        Some(count) => mark(width).to_owned() + &letters[letters.len() - count..].concat(),
        None => letters.concat(),
    }
}

/// Returns how many of the letters fit into `columns` columns beside the mark of a cut; `None` if all fit without a cut.
fn fitting<'a>(letters: impl Iterator<Item = &'a String>, columns: usize) -> Option<usize> {
    let ends = letters.scan(0, |end, letter| {
        *end += width(letter);
        Some(*end)
    });
    let ends: Vec<usize> = ends.collect();
    (ends.last() > Some(&columns)).then(|| ends.iter().filter(|end| **end < columns).count())
}

fn mark(columns: usize) -> &'static str {
    if columns > 0 { "…" } else { "" }
}

/// Wraps `text` between words into at most `lines` lines of at most `width` columns. Cuts a word
/// that is longer than a line, and cuts the last line if more text follows.
pub(crate) fn wrap(text: &str, width: usize, lines: usize) -> Vec<String> {
    let mut wrapped: Vec<String> = Vec::new();
    for word in escape_unprintable(text).split(' ') {
        let full = wrapped.len() == lines;
        match wrapped.last_mut() {
            Some(line) if full || self::width(line) + 1 + self::width(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => wrapped.push(word.to_owned()),
        }
    }
    wrapped.into_iter().map(|line| cut_end(&line, width)).collect()
}

/// Makes `text` safe to print and splits it into letters. Characters of width 0 stay with the letter before them.
fn letters(text: &str) -> Vec<String> {
    let mut letters: Vec<String> = Vec::with_capacity(text.len());
    let mut marks = 0;
    for c in escape_unprintable(text).chars() {
        match (c.width().unwrap_or(0), letters.last_mut()) {
            (0, Some(letter)) if marks < MARKS => {
                marks += 1;
                letter.push(c);
            }
            // Drops marks beyond `MARKS`. Drops a mark without a letter, because it would change
            // the character before the text.
            (0, _) => {}
            _ => {
                marks = 0;
                letters.push(c.to_string());
            }
        }
    }
    letters
}

/// Returns the width in columns of a text that [`cut_end`] or [`cut_beginning`] returned.
pub(crate) fn width(fitting: &str) -> usize {
    fitting.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Formats a rate, or `-` if it is unknown. The text of a rate up to 999,999 has at most six
/// columns.
pub(crate) fn format_rate(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(rate) if rate < 0.005 => "0".to_owned(),
        Some(rate) if rate < 9.995 => format!("{rate:.2}"),
        Some(rate) if rate < 99.95 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_at_either_end() {
        assert_eq!(cut_end("nightly", 7), "nightly");
        assert_eq!(cut_end("nightly", 6), "night…");
        assert_eq!(cut_beginning("db/main", 7), "db/main");
        assert_eq!(cut_beginning("db/main", 5), "…main");
        assert_eq!((cut_end("x", 0), cut_beginning("x", 0)), (String::new(), String::new()));
    }

    #[test]
    fn wide_letters_take_two_columns() {
        assert_eq!(cut_end("夜間処理", 8), "夜間処理");
        assert_eq!(cut_end("夜間処理", 7), "夜間処…");
        assert_eq!(cut_end("夜間処理", 6), "夜間…");
        assert_eq!(cut_beginning("夜間処理", 6), "…処理");
        for columns in 0..9 {
            assert!(width(&cut_end("夜間処理", columns)) <= columns);
            assert!(width(&cut_beginning("夜間処理", columns)) <= columns);
        }
    }

    #[test]
    fn combining_marks_take_no_column_and_are_limited() {
        assert_eq!(cut_end("pru\u{308}fung", 7), "pru\u{308}fung");
        let tower = format!("a{}b", "\u{301}".repeat(50));
        assert_eq!(cut_end(&tower, 5), "a\u{301}\u{301}b");
        assert_eq!(cut_end("\u{301}a", 5), "a");
    }

    #[test]
    fn control_characters_are_escaped() {
        for text in ["\x1b[2J", "\u{9b}2J", "\u{202e}", "\r", "\t", "\u{200b}", "\u{fe0f}", "\x7f"] {
            let shown = cut_end(text, 40);
            assert!(shown.starts_with('\\') && shown.chars().all(|c| c.is_ascii_graphic()), "{shown:?}");
        }
    }

    #[test]
    fn long_text_is_wrapped_between_words() {
        assert_eq!(wrap("one two three four", 9, 3), ["one two", "three", "four"]);
        assert_eq!(wrap("one two three four", 9, 2), ["one two", "three fo…"]);
        assert_eq!(wrap("a-word-too-long b", 6, 3), ["a-wor…", "b"]);
        assert_eq!(wrap("", 6, 3), [""]);
    }

    #[test]
    fn large_rates_have_fewer_decimals() {
        let rates = [
            (None, "-"),
            (Some(0.0), "0"),
            (Some(0.1), "0.10"),
            (Some(9.999), "10.0"),
            (Some(1234.5), "1234"),
        ];
        for (value, text) in rates {
            assert_eq!(format_rate(value), text);
        }
    }
}
