//! The confirmation of an operator action.

use super::model::Key;
use crate::verbs::operate::AdminAction;

/// An operator action on one contender. The token identifies the contender, so no other contender is affected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ActionRequest {
    pub(super) action: AdminAction,
    pub(super) path: String,
    pub(super) name: String,
    pub(super) token: String,
}

/// An action that waits for confirmation.
#[derive(Debug, Clone)]
pub(super) struct Confirmation {
    pub(super) request: ActionRequest,
    /// Description of the contender.
    pub(super) description: String,
    pub(super) holds: bool,
    pub(super) since_ms: Option<u64>,
    pub(super) typed: String,
}

/// Word to type before a lock is broken, so that no single mistyped key breaks one.
pub(super) const BREAK_WORD: &str = "break";
/// Maximum length of the typed text.
const MAX_TYPED: usize = 16;

/// Effect of a key on the confirmation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Not confirmed or cancelled yet.
    Pending,
    Yes,
    No,
}

impl Confirmation {
    /// Handles a key.
    pub(super) fn key(&mut self, key: Key) -> Answer {
        match (self.request.action, key) {
            (AdminAction::Revoke, Key::Char('y' | 'Y')) => Answer::Yes,
            (AdminAction::Revoke, _) => Answer::No,
            (AdminAction::Break, Key::Enter) if self.typed == BREAK_WORD => Answer::Yes,
            (AdminAction::Break, Key::Enter | Key::Esc) => Answer::No,
            (AdminAction::Break, Key::Backspace) => {
                self.typed.pop();
                Answer::Pending
            }
            (AdminAction::Break, Key::Char(c)) => {
                if self.typed.len() < MAX_TYPED && c.is_ascii_graphic() {
                    self.typed.push(c);
                }
                Answer::Pending
            }
            (AdminAction::Break, _) => Answer::Pending,
        }
    }
}
