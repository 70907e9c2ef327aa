//! What is asked before anything is done to a lock.

use super::model::Key;

/// What may be done to whoever holds or waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Means {
    Revoke,
    Break,
}

/// Something to be done, to the one that was seen and to nobody else: the library goes by the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Deed {
    pub(super) means: Means,
    pub(super) path: String,
    pub(super) name: String,
    pub(super) token: String,
}

/// A deed that waits for a yes.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) deed: Deed,
    /// Whoever it is done to, as seen.
    pub(super) words: String,
    pub(super) holds: bool,
    pub(super) since_ms: Option<u64>,
    pub(super) typed: String,
}

/// The word to type before a lock is taken away: no key that is hit by mistake says it.
pub(super) const WORD: &str = "break";
/// Nobody types more by mistake.
const LONGEST: usize = 16;

/// What a key made of a question.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Not decided yet.
    Open,
    Yes,
    No,
}

impl Question {
    /// Takes one key.
    pub(super) fn key(&mut self, key: Key) -> Answer {
        match (self.deed.means, key) {
            (Means::Revoke, Key::Char('y' | 'Y')) => Answer::Yes,
            (Means::Revoke, _) => Answer::No,
            (Means::Break, Key::Enter) if self.typed == WORD => Answer::Yes,
            (Means::Break, Key::Enter | Key::Esc) => Answer::No,
            (Means::Break, Key::Backspace) => {
                self.typed.pop();
                Answer::Open
            }
            (Means::Break, Key::Char(c)) => {
                if self.typed.len() < LONGEST && c.is_ascii_graphic() {
                    self.typed.push(c);
                }
                Answer::Open
            }
            (Means::Break, _) => Answer::Open,
        }
    }
}
