//! Draws the list of locks.

use ratatui::style::Style;
use zoolock::admin::Snapshot;

use super::super::contender::fit_holders;
use super::super::model::{ORDERS, ScreenModel};
use super::{BOLD, Canvas, find_trouble, format_held, format_time_since};
use crate::args::ListOrder;
use crate::observe::{ListedLock, longest_holder, longest_wait};
use crate::render::columns::{cut_beginning, format_rate};

/// Minimum width of a screen that shows both the longest wait and the rate.
const WIDE: usize = 100;
/// Minimum width of the column of names.
const MIN_NAME: usize = 8;

impl Canvas<'_> {
    pub(super) fn draw_locks(&mut self, model: &ScreenModel) {
        let top = Self::top(model);
        self.draw_order(model, top);
        let columns = Columns::of(self.columns(), model);
        columns.row(self, top + 1, ["", "LOCK", "WAITING", "LONGEST", "RATE/S", "HELD", "HOLDER"], BOLD);
        if model.rows.is_empty() && model.last_read().is_some() {
            let text = if model.list.locks.is_empty() {
                "no locks"
            } else {
                "no lock has this in its name or holder"
            };
            self.write_cut(2, top + 2, self.columns() - 2, text, Style::new());
        }
        let shown = model.rows.iter().enumerate().skip(model.cursor.first).take(model.visible_rows());
        for (y, (index, place)) in (top + 2..).zip(shown) {
            let ListedLock { lock, rate } = &model.list.locks[*place];
            let selected = index == model.cursor.at;
            let longest = format_time_since(model, longest_wait(lock));
            let held = longest_holder(lock).map(|holder| format_held(model, holder));
            let cells: [&str; 7] = [
                marks(lock, selected),
                model.name(&lock.path),
                &lock.waiting.to_string(),
                longest.as_deref().unwrap_or("-"),
                &format_rate(*rate),
                held.as_deref().unwrap_or("-"),
                &fit_holders(lock, columns.holder()),
            ];
            let style =
                if find_trouble(lock).is_some() { self.alert_style() } else { Self::row_style(model) };
            columns.row(self, y, cells, style);
            if selected {
                self.invert(y);
            }
        }
    }

    /// Draws the line with the sort orders, the filter, and the positions of the visible rows.
    fn draw_order(&mut self, model: &ScreenModel, y: u16) {
        let mut x = 0;
        let orders = ["1 waiting", "2 longest", "3 rate", "4 held"];
        for (order, name) in ORDERS.into_iter().zip(orders) {
            let (name, style) = match (order == model.order, model.reversed) {
                (true, true) => (format!("[{name}, reversed]"), BOLD),
                (true, false) => (format!("[{name}]"), BOLD),
                (false, _) => (format!(" {name} "), Style::new()),
            };
            self.write_cut(x, y, name.len(), &name, style);
            x += name.len() + 1;
        }
        let positions = model.cursor.positions(model.visible_rows(), model.rows.len()).unwrap_or_default();
        let rest = self.columns().saturating_sub(x + 1);
        if model.editing.is_some() || !model.filter.is_empty() {
            let end = if model.editing.is_some() { "_" } else { "" };
            let text = format!("/{}{end} ({})", model.filter, model.rows.len());
            self.write_cut(x + 1, y, rest.saturating_sub(positions.len() + 1), &text, BOLD);
        }
        self.put_right(x + 1, y, rest, &positions, Style::new());
    }
}

/// Returns the marks of a row: selection, and problems of the lock.
fn marks(lock: &Snapshot, selected: bool) -> &'static str {
    match (selected, find_trouble(lock), lock.unread.is_empty()) {
        (true, Some(_), _) => ">!",
        (false, Some(_), _) => " !",
        (true, None, false) => ">?",
        (false, None, false) => " ?",
        (true, None, true) => ">",
        (false, None, true) => "",
    }
}

/// Column widths of the list. On a narrow screen, the rate gives way to the holder and its note. If the rate is the sort
/// key, the longest wait gives way instead.
pub(super) struct Columns {
    name: usize,
    has_longest: bool,
    has_rate: bool,
    holder: usize,
}

impl Columns {
    pub(super) fn of(screen: usize, model: &ScreenModel) -> Self {
        let is_wide = screen >= WIDE;
        let has_rate = is_wide || model.order == ListOrder::Rate;
        let has_longest = is_wide || model.order != ListOrder::Rate;
        // Two marks and the columns WAITING and HELD, with the spaces between columns.
        let fixed = 21 + if has_longest { 8 } else { 0 } + if has_rate { 7 } else { 0 };
        let rest = screen.saturating_sub(fixed);
        let name = model.name_width.max(MIN_NAME).min(rest * 2 / 5);
        Self { name, has_longest, has_rate, holder: rest - name }
    }

    /// Returns the width of the column of holders.
    pub(super) fn holder(&self) -> usize {
        self.holder
    }

    fn row(&self, screen: &mut Canvas<'_>, y: u16, cells: [&str; 7], style: Style) {
        let [marks, name, waiting, longest, rate, held, holder] = cells;
        screen.write_cut(0, y, 2, marks, style);
        screen.write_fitting(3, y, self.name, &cut_beginning(name, self.name), style);
        let mut x = 3 + self.name + 1;
        let numbers =
            [(waiting, 7, true), (longest, 7, self.has_longest), (rate, 6, self.has_rate), (held, 8, true)];
        for (text, columns, _) in numbers.into_iter().filter(|(_, _, is_shown)| *is_shown) {
            screen.put_right(x, y, columns, text, style);
            x += columns + 1;
        }
        screen.write_cut(x, y, self.holder, holder, style);
    }
}
