//! Text of commands that a user copies into a shell.

use crate::base::reporter::escape_unprintable;

/// Quotes a word, so that a shell reads it as one word.
pub(crate) fn quote_for_shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    let word = escape_unprintable(word).replace('\'', "'\\''");
    format!("'{word}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_one_shell_word() {
        assert_eq!(quote_for_shell("db/main-7"), "db/main-7");
        assert_eq!(quote_for_shell("two words"), "'two words'");
        assert_eq!(quote_for_shell("it's; rm"), "'it'\\''s; rm'");
        assert_eq!(quote_for_shell("a\u{202e}b"), "'a\\u{202e}b'");
        assert_eq!(quote_for_shell(""), "''");
    }
}
