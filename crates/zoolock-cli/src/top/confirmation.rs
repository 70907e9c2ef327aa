//! The confirmation of an operator action.

use ratatui::crossterm::event::KeyCode;
use zoolock::Ticket;

use crate::render::remedy::AdminAction;

/// A request for an operator action on one contender. The token identifies the contender, so the
/// action affects no other contender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ActionRequest {
    pub(super) action: AdminAction,
    pub(super) path: String,
    pub(super) name: String,
    pub(super) token: Ticket,
}

/// An action that waits for the user's confirmation.
#[derive(Debug, Clone)]
pub(super) struct Confirmation {
    pub(super) request: ActionRequest,
    /// Description of the contender.
    pub(super) description: String,
    pub(super) holds: bool,
    pub(super) since_ms: Option<u64>,
    pub(super) held_since_ms: Option<u64>,
    pub(super) typed: String,
}

/// Word that the user types to break a lock, so that a single wrong key breaks no lock.
pub(super) const BREAK_WORD: &str = "break";
/// Maximum length of the typed text.
const MAX_TYPED: usize = 16;

/// Effect of a key on a confirmation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyEffect {
    /// The action is neither confirmed nor cancelled yet.
    Pending,
    /// The action is confirmed.
    Yes,
    /// The action is cancelled.
    No,
}

impl Confirmation {
    /// Handles a key that is pressed while the confirmation is shown.
    pub(super) fn handle_key(&mut self, key: KeyCode) -> KeyEffect {
        match (self.request.action, key) {
            (AdminAction::Revoke, KeyCode::Char('y' | 'Y')) => KeyEffect::Yes,
            (AdminAction::Revoke, _) => KeyEffect::No,
            (AdminAction::Break, KeyCode::Enter) if self.typed == BREAK_WORD => KeyEffect::Yes,
            (AdminAction::Break, KeyCode::Enter | KeyCode::Esc) => KeyEffect::No,
            (AdminAction::Break, KeyCode::Backspace) => {
                self.typed.pop();
                KeyEffect::Pending
            }
            (AdminAction::Break, KeyCode::Char(c)) => {
                if self.typed.len() < MAX_TYPED && c.is_ascii_graphic() {
                    self.typed.push(c);
                }
                KeyEffect::Pending
            }
            (AdminAction::Break, _) => KeyEffect::Pending,
        }
    }
}
