//! The window with the answer to the question why a lock is not free.

use ratatui::crossterm::event::KeyCode;

/// Maximum width of a window.
pub(super) const MAX_WINDOW: u16 = 120;

/// The window that the key `w` opens.
#[derive(Debug, Clone)]
pub(super) struct WhyWindow {
    /// Path of the lock.
    pub(super) path: String,
    /// Name of the lock.
    pub(super) name: String,
    /// `None` while the locks are read.
    pub(super) answer: Option<WhyAnswer>,
    /// Number of lines that are scrolled out of the window at its top.
    pub(super) first: usize,
}

/// The chain of holders as text, or an error, and the time of the answer.
#[derive(Debug, Clone)]
pub(super) struct WhyAnswer {
    pub(super) text: Result<String, String>,
    pub(super) unix_ms: u64,
}

impl WhyWindow {
    pub(super) fn new(path: String, name: String) -> Self {
        Self { path, name, answer: None, first: 0 }
    }

    /// Handles a key. Returns whether the window stays open. `count`: the number of lines of the answer; `page`: the
    /// number of lines of the window.
    pub(super) fn handle_key(&mut self, key: KeyCode, count: usize, page: usize) -> bool {
        let first = match key {
            KeyCode::Up | KeyCode::Char('k') => self.first.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.first + 1,
            KeyCode::PageUp => self.first.saturating_sub(page),
            KeyCode::PageDown => self.first + page,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => count,
            _ => return false,
        };
        self.first = first.min(count.saturating_sub(page));
        true
    }

    /// Returns the answer in lines of at most `columns` columns. Lines after the first of a sentence are indented.
    pub(super) fn lines(&self, columns: usize) -> Vec<String> {
        let text = match &self.answer {
            None => return vec!["reading all locks …".to_owned()],
            Some(WhyAnswer { text: Err(error), .. }) => &format!("! {error}"),
            Some(WhyAnswer { text: Ok(text), .. }) => text,
        };
        let wrap = |line: &str| crate::render::text::wrap_text(line, 4, Some(columns));
        text.lines().flat_map(|line| wrap(line).lines().map(str::to_owned).collect::<Vec<_>>()).collect()
    }
}

/// Returns the number of columns of text in a window on a screen of this width.
pub(super) fn window_columns(screen: u16) -> usize {
    usize::from(screen.min(MAX_WINDOW)).saturating_sub(4)
}

/// Returns the number of lines of an answer in a window on a screen of this height. The window has a border, and a line
/// that names its keys.
pub(super) fn window_lines(screen: u16) -> usize {
    usize::from(screen).saturating_sub(5).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_answer_is_wrapped_and_scrolled() {
        let mut window = WhyWindow::new("/locks/a".to_owned(), "a".to_owned());
        assert_eq!(window.lines(20), ["reading all locks …"]);
        let text = "a is held by one\n  who waits for two words more than fit\n".to_owned();
        window.answer = Some(WhyAnswer { text: Ok(text), unix_ms: 0 });
        let lines = window.lines(20);
        assert_eq!(lines, ["a is held by one", "  who waits for", "    two words more", "    than fit"]);
        for (key, first) in [
            (KeyCode::Down, 1),
            (KeyCode::Down, 2),
            (KeyCode::Down, 2),
            (KeyCode::Up, 1),
            (KeyCode::End, 2),
            (KeyCode::Home, 0),
            (KeyCode::PageDown, 2),
        ] {
            assert!(window.handle_key(key, lines.len(), 2));
            assert_eq!(window.first, first, "{key:?}");
        }
        assert!(!window.handle_key(KeyCode::Esc, lines.len(), 2));
        window.answer = Some(WhyAnswer { text: Err("zk1: no answer".to_owned()), unix_ms: 0 });
        assert_eq!(window.lines(20), ["! zk1: no answer"]);
    }
}
