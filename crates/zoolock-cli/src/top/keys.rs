//! Keyboard input, read on a thread of its own so that neither the network nor drawing delays it.

use std::io;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

/// ^C, ^Z and ^L, as the characters that they are.
pub(super) const INTERRUPT: KeyCode = KeyCode::Char('\u{3}');
pub(super) const STOP: KeyCode = KeyCode::Char('\u{1a}');
pub(super) const REDRAW: KeyCode = KeyCode::Char('\u{c}');

/// Starts the thread, which reads until the receiver is dropped. The thread notices the drop only
/// at the next input, so it may run until the process ends. A new size of the terminal gives no keys. After an error, the
/// terminal cannot be read.
pub(super) fn start_key_thread() -> io::Result<mpsc::Receiver<io::Result<Vec<KeyCode>>>> {
    // Keys that are typed during drawing wait in the channel, or in the terminal if the channel is full.
    let (sender, receiver) = mpsc::channel(64);
    std::thread::Builder::new().name("zoolock-keys".to_owned()).spawn(move || {
        loop {
            let typed = match event::read() {
                Ok(Event::Key(key)) => Ok(translate(key)),
                Ok(Event::Resize(..)) => Ok(Vec::new()),
                Ok(_) => continue,
                Err(error) => Err(error),
            };
            let is_last = typed.is_err();
            if sender.blocking_send(typed).is_err() || is_last {
                return;
            }
        }
    })?;
    Ok(receiver)
}

fn translate(KeyEvent { code, modifiers, kind, .. }: KeyEvent) -> Vec<KeyCode> {
    if kind == KeyEventKind::Release {
        return Vec::new();
    }
    let key = if modifiers.contains(KeyModifiers::CONTROL) { with_control(code) } else { Some(code) };
    // A slow connection may deliver Esc together with the next key, which looks like the key with Alt. `top` has no keys
    // with Alt, so both keys are taken as typed.
    let esc = modifiers.contains(KeyModifiers::ALT).then_some(KeyCode::Esc);
    esc.into_iter().chain(key).collect()
}

fn with_control(code: KeyCode) -> Option<KeyCode> {
    Some(match code {
        KeyCode::Char('c') => INTERRUPT,
        KeyCode::Char('z') => STOP,
        KeyCode::Char('l') => REDRAW,
        KeyCode::Char('h') => KeyCode::Backspace,
        KeyCode::Char('f') => KeyCode::PageDown,
        KeyCode::Char('b') => KeyCode::PageUp,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: KeyCode, modifiers: KeyModifiers) -> Vec<KeyCode> {
        translate(KeyEvent::new(code, modifiers))
    }

    #[test]
    fn control_and_escape_are_translated() {
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), [KeyCode::Char('c')]);
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), [INTERRUPT]);
        assert_eq!(key(KeyCode::Char('b'), KeyModifiers::CONTROL), [KeyCode::PageUp]);
        assert_eq!(key(KeyCode::Char('r'), KeyModifiers::CONTROL), []);
        assert_eq!(key(KeyCode::Char('j'), KeyModifiers::ALT), [KeyCode::Esc, KeyCode::Char('j')]);
        assert_eq!(key(KeyCode::Char('G'), KeyModifiers::SHIFT), [KeyCode::Char('G')]);
    }

    #[test]
    fn key_release_is_ignored() {
        let mut event = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
        assert_eq!(translate(event), [KeyCode::Enter]);
        event.kind = KeyEventKind::Release;
        assert_eq!(translate(event), []);
    }
}
