//! Keyboard input, read on a thread of its own so that neither the network nor drawing delays it.

use std::io;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use super::model::KeyPress;

/// Terminal input.
#[derive(Debug)]
pub(super) enum TerminalInput {
    Keys(Vec<KeyPress>),
    /// The terminal has a new size.
    Resized,
    /// The terminal cannot be read.
    Gone(io::Error),
}

/// Starts the thread, which reads until the receiver is dropped. The thread notices the drop only
/// at the next input, so it may run until the process ends.
pub(super) fn start_key_thread() -> io::Result<mpsc::Receiver<TerminalInput>> {
    // Keys that are typed during drawing wait in the channel, or in the terminal if the channel is full.
    let (sender, receiver) = mpsc::channel(64);
    std::thread::Builder::new().name("zoolock-keys".to_owned()).spawn(move || {
        loop {
            let typed = match event::read() {
                Ok(Event::Key(key)) => TerminalInput::Keys(translate(key)),
                Ok(Event::Resize(..)) => TerminalInput::Resized,
                Ok(_) => continue,
                Err(error) => {
                    let _ = sender.blocking_send(TerminalInput::Gone(error));
                    return;
                }
            };
            if sender.blocking_send(typed).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

fn translate(KeyEvent { code, modifiers, kind, .. }: KeyEvent) -> Vec<KeyPress> {
    if kind == KeyEventKind::Release {
        return Vec::new();
    }
    let key =
        if modifiers.contains(KeyModifiers::CONTROL) { with_control(code) } else { without_control(code) };
    // A slow connection may deliver Esc together with the next key, which looks like the key with Alt. `top` has no keys
    // with Alt, so both keys are taken as typed.
    let esc = modifiers.contains(KeyModifiers::ALT).then_some(KeyPress::Esc);
    esc.into_iter().chain(key).collect()
}

fn with_control(code: KeyCode) -> Option<KeyPress> {
    Some(match code {
        KeyCode::Char('c') => KeyPress::Interrupt,
        KeyCode::Char('z') => KeyPress::Stop,
        KeyCode::Char('l') => KeyPress::Redraw,
        KeyCode::Char('h') => KeyPress::Backspace,
        KeyCode::Char('f') => KeyPress::PageDown,
        KeyCode::Char('b') => KeyPress::PageUp,
        _ => return None,
    })
}

fn without_control(code: KeyCode) -> Option<KeyPress> {
    Some(match code {
        KeyCode::Up => KeyPress::Up,
        KeyCode::Down => KeyPress::Down,
        KeyCode::PageUp => KeyPress::PageUp,
        KeyCode::PageDown => KeyPress::PageDown,
        KeyCode::Home => KeyPress::Home,
        KeyCode::End => KeyPress::End,
        KeyCode::Enter => KeyPress::Enter,
        KeyCode::Esc => KeyPress::Esc,
        KeyCode::Backspace => KeyPress::Backspace,
        KeyCode::Char(c) => KeyPress::Char(c),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: KeyCode, modifiers: KeyModifiers) -> Vec<KeyPress> {
        translate(KeyEvent::new(code, modifiers))
    }

    #[test]
    fn control_and_escape_are_translated() {
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), [KeyPress::Char('c')]);
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), [KeyPress::Interrupt]);
        assert_eq!(key(KeyCode::Char('b'), KeyModifiers::CONTROL), [KeyPress::PageUp]);
        assert_eq!(key(KeyCode::Char('r'), KeyModifiers::CONTROL), []);
        assert_eq!(key(KeyCode::Char('j'), KeyModifiers::ALT), [KeyPress::Esc, KeyPress::Char('j')]);
        assert_eq!(key(KeyCode::Char('G'), KeyModifiers::SHIFT), [KeyPress::Char('G')]);
    }

    #[test]
    fn key_release_is_ignored() {
        let mut event = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
        assert_eq!(translate(event), [KeyPress::Enter]);
        event.kind = KeyEventKind::Release;
        assert_eq!(translate(event), []);
    }
}
