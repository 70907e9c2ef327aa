//! Keyboard input, read on a thread of its own so that neither the network nor drawing delays it.

use std::io;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use super::model::Key;

/// Terminal input.
#[derive(Debug)]
pub(super) enum Input {
    Keys(Vec<Key>),
    /// The terminal has a new size.
    Resized,
    /// The terminal cannot be read.
    Gone(io::Error),
}

/// Starts the thread, which reads until the receiver is dropped. Only a key wakes it, so it may last until the process
/// ends.
pub(super) fn listen() -> io::Result<mpsc::Receiver<Input>> {
    // Keys typed during drawing stay in the channel, or in the terminal if the channel is full.
    let (sender, receiver) = mpsc::channel(64);
    std::thread::Builder::new().name("zoolock-keys".to_owned()).spawn(move || {
        loop {
            let typed = match event::read() {
                Ok(Event::Key(key)) => Input::Keys(translate(key)),
                Ok(Event::Resize(..)) => Input::Resized,
                Ok(_) => continue,
                Err(error) => {
                    let _ = sender.blocking_send(Input::Gone(error));
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

fn translate(KeyEvent { code, modifiers, kind, .. }: KeyEvent) -> Vec<Key> {
    if kind == KeyEventKind::Release {
        return Vec::new();
    }
    let key =
        if modifiers.contains(KeyModifiers::CONTROL) { with_control(code) } else { without_control(code) };
    // A slow connection may deliver Esc together with the next key, which looks like Alt. No key here uses Alt.
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

fn without_control(code: KeyCode) -> Option<Key> {
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
        translate(KeyEvent::new(code, modifiers))
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
    fn key_release_is_ignored() {
        let mut event = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
        assert_eq!(translate(event), [Key::Enter]);
        event.kind = KeyEventKind::Release;
        assert_eq!(translate(event), []);
    }
}
