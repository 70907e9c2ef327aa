//! What is typed, read on a thread of its own: neither the network nor drawing keeps it waiting.

use std::io;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use super::model::Key;

/// What came from the terminal.
#[derive(Debug)]
pub(super) enum Typed {
    Keys(Vec<Key>),
    /// It has another size.
    Resized,
    /// It cannot be read any more.
    Gone(io::Error),
}

/// Reads until nobody listens. The thread ends with the process: nothing wakes it but a key.
pub(super) fn listen() -> io::Result<mpsc::Receiver<Typed>> {
    // Who types ahead while we draw is read later; nothing typed is lost.
    let (sender, receiver) = mpsc::channel(64);
    std::thread::Builder::new().name("zoolock-keys".to_owned()).spawn(move || {
        loop {
            let typed = match event::read() {
                Ok(Event::Key(key)) => Typed::Keys(meant(key)),
                Ok(Event::Resize(..)) => Typed::Resized,
                Ok(_) => continue,
                Err(error) => {
                    let _ = sender.blocking_send(Typed::Gone(error));
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

fn meant(KeyEvent { code, modifiers, kind, .. }: KeyEvent) -> Vec<Key> {
    if kind == KeyEventKind::Release {
        return Vec::new();
    }
    let key = if modifiers.contains(KeyModifiers::CONTROL) { with_control(code) } else { plain(code) };
    // An Esc that a slow line brought together with the next key; nothing here has a meaning with Alt.
    let esc = modifiers.contains(KeyModifiers::ALT).then_some(Key::Esc);
    esc.into_iter().chain(key).collect()
}

fn with_control(code: KeyCode) -> Option<Key> {
    Some(match code {
        KeyCode::Char('c') => Key::Interrupt,
        KeyCode::Char('z') => Key::Stop,
        KeyCode::Char('l') => Key::Redraw,
        KeyCode::Char('h') => Key::Backspace,
        KeyCode::Char('f') => Key::PageDown,
        KeyCode::Char('b') => Key::PageUp,
        _ => return None,
    })
}

fn plain(code: KeyCode) -> Option<Key> {
    Some(match code {
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Esc,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Char(c) => Key::Char(c),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: KeyCode, modifiers: KeyModifiers) -> Vec<Key> {
        meant(KeyEvent::new(code, modifiers))
    }

    #[test]
    fn a_letter_means_something_else_with_control_and_itself_after_an_esc() {
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), [Key::Char('c')]);
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), [Key::Interrupt]);
        assert_eq!(key(KeyCode::Char('b'), KeyModifiers::CONTROL), [Key::PageUp]);
        assert_eq!(key(KeyCode::Char('r'), KeyModifiers::CONTROL), []);
        assert_eq!(key(KeyCode::Char('j'), KeyModifiers::ALT), [Key::Esc, Key::Char('j')]);
        assert_eq!(key(KeyCode::Char('G'), KeyModifiers::SHIFT), [Key::Char('G')]);
    }

    #[test]
    fn a_key_that_is_let_go_is_not_typed_twice() {
        let mut event = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
        assert_eq!(meant(event), [Key::Enter]);
        event.kind = KeyEventKind::Release;
        assert_eq!(meant(event), []);
    }
}
