//! Draws the windows over the screen: a confirmation, the help, and why a lock is not free.

use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Block, Clear, Widget};

use super::super::confirmation::{BREAK_WORD, Confirmation};
use super::super::model::ScreenModel;
use super::super::why_window::{MAX_WINDOW, WhyWindow, window_columns, window_lines};
use super::{BOLD, Canvas, format_clock, format_time_since};
use crate::render::columns::cut_beginning;
use crate::render::remedy::AdminAction;

impl Canvas<'_> {
    pub(super) fn draw_confirmation(&mut self, model: &ScreenModel, confirmation: &Confirmation) {
        let Confirmation { request, description, holds, since_ms, held_since_ms, typed } = confirmation;
        let (doing, time) = match (holds, held_since_ms) {
            (true, Some(since)) => ("held for", Some(*since)),
            (true, None) => ("held for at most", *since_ms),
            (false, _) => ("waits for", *since_ms),
        };
        let time = format_time_since(model, time).unwrap_or_else(|| "an unknown time".to_owned());
        let question = match (request.action, holds) {
            (AdminAction::Revoke, true) => "Ask the holder to release?",
            (AdminAction::Revoke, false) => "Ask this waiter to give up?",
            (AdminAction::Break, true) => "Remove the holder from the queue?",
            (AdminAction::Break, false) => "Remove this waiter from the queue?",
        };
        let mut lines = vec![
            (question.to_owned(), BOLD),
            (format!("lock   {}", request.path), Style::new()),
            (format!("client {description}"), Style::new()),
            (format!("token  {}, {doing} {time}", request.token), Style::new()),
        ];
        if !model.is_still_queued(confirmation) {
            lines.push(("! it has left the queue: nothing would happen".to_owned(), self.alert_style()));
        } else if request.action == AdminAction::Break && *holds {
            lines.push((
                "! it may not notice at once, and continue as if it held the lock".to_owned(),
                self.alert_style(),
            ));
        } else {
            lines.push((String::new(), Style::new()));
        }
        lines.push(match request.action {
            AdminAction::Revoke => ("y: ask it; any other key: cancel".to_owned(), Style::new()),
            AdminAction::Break => (format!("type {BREAK_WORD} and enter, or esc: {typed}_"), Style::new()),
        });
        self.draw_window(request.action.word(), &lines);
    }

    pub(super) fn draw_help(&mut self, read_only: bool) {
        let actions = if read_only {
            "r b          (not with --read-only)"
        } else {
            "r b          revoke or break the selected holder or waiter"
        };
        let lines = [
            "↑ ↓ k j      one row        PgUp PgDn  one page    Home End g G  first, last",
            "enter  esc   the queue of the selected lock, and back",
            "w            why the selected lock is not free: the chain of holders",
            "1 2 3 4  s   order by waiters, longest wait, hand-overs, time held; s: next",
            "R            the same order reversed, or not",
            "/            only locks with this in name, holder or note; esc shows all",
            actions,
            "space        read now       ^L  draw again        ^Z  stop        q ^C  quit",
            "",
            "WAITING number of waiters    LONGEST longest wait",
            "HELD    time since the grant; if it is unknown, the maximum, with the sign ≤",
            "RATE/S  hand-overs a second, over ten seconds; on narrow screens with key 3",
            "! several may hold at once, the queue says why   ? partly unreadable",
            "Rows are old while the servers are unreachable. Between sessions of other",
            "client libraries, a deadlock is only possible. zoolock deadlocks ends one.",
            "LONGEST uses the contenders' clocks, HELD the server's. Any key closes this.",
        ];
        self.draw_window("help", &lines.map(|line| (line.to_owned(), Style::new())));
    }

    /// Draws the window that says why a lock is not free.
    pub(super) fn draw_why(&mut self, model: &ScreenModel, window: &WhyWindow) {
        let (columns, page) = (window_columns(self.area.width), window_lines(self.area.height));
        let lines = window.lines(columns);
        let first = window.first.min(lines.len().saturating_sub(page));
        let failed = matches!(&window.answer, Some(answer) if answer.text.is_err());
        let style = if failed { self.alert_style() } else { Style::new() };
        let shown = lines.iter().skip(first).take(page);
        let mut shown: Vec<_> = shown.map(|line| (line.clone(), style)).collect();
        let time = window.answer.as_ref().map(|answer| format_clock(answer.unix_ms, &model.setting.zone));
        let keys = match (lines.len() > page, time) {
            (_, None) => "any key closes this".to_owned(),
            (false, Some(time)) => format!("as of {time}; any key closes this"),
            (true, Some(time)) => {
                let last = first + shown.len();
                format!(
                    "as of {time}; lines {}–{last} of {}, ↑ ↓ scroll; esc closes this",
                    first + 1,
                    lines.len()
                )
            }
        };
        shown.push((keys, Style::new().add_modifier(Modifier::DIM)));
        self.draw_window(&format!("why {}", cut_beginning(&window.name, columns.saturating_sub(8))), &shown);
    }

    /// Draws a window in the middle of the screen.
    fn draw_window(&mut self, title: &str, lines: &[(String, Style)]) {
        let columns = self.area.width.min(MAX_WINDOW);
        let height = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_add(2).min(self.area.height);
        let place = Rect {
            x: (self.area.width - columns) / 2,
            y: (self.area.height - height) / 2,
            width: columns,
            height,
        };
        Clear.render(place, self.buffer);
        Block::bordered().title(format!(" {title} ")).render(place, self.buffer);
        for (y, (text, style)) in (place.y + 1..place.bottom() - 1).zip(lines) {
            self.write_cut(usize::from(place.x) + 2, y, usize::from(columns) - 4, text, *style);
        }
    }
}
