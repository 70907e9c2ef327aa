//! Draws the model on the screen. Red text also has a sign (`!` or `?`), because the terminal may
//! show no colors.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Block, Clear, Widget};

use super::confirmation::{BREAK_WORD, Confirmation};
use super::lock::{ContenderRow, LockRow};
use super::model::{LastRead, MIN_HEIGHT, MIN_WIDTH, QueuePane, ScreenModel};
use super::order::SortOrder;
use super::text::{cut_beginning, cut_end, format_age, format_rate, width, wrap};
use crate::base::duration::format_duration;
use crate::verbs::operate::AdminAction;

/// Width of the list without the columns name and holder, in columns of the terminal.
const FIXED: usize = 34;

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, model: &ScreenModel, color: bool) {
    let area = frame.area();
    let mut screen = Canvas { buffer: frame.buffer_mut(), area, color };
    if model.is_too_small() {
        let text = format!("terminal too small: {}×{}", area.width, area.height);
        screen.line(0, &text, Style::new());
        screen.line(1, &format!("needs {MIN_WIDTH}×{MIN_HEIGHT}; q quits"), Style::new());
        return;
    }
    screen.draw_header(model);
    match &model.queue {
        Some(queue) => screen.draw_queue(model, queue),
        None => screen.draw_locks(model),
    }
    screen.draw_footer(model);
    match &model.confirmation {
        Some(confirmation) => screen.draw_confirmation(model, confirmation),
        None if model.help => screen.draw_help(model.setting.read_only),
        None => {}
    }
}

struct Canvas<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    color: bool,
}

impl Canvas<'_> {
    /// Writes `text` at column `x`, and cuts it to `width` columns.
    fn write_cut(&mut self, x: usize, y: u16, width: usize, text: &str, style: Style) {
        self.write_fitting(x, y, width, &cut_end(text, width), style);
    }

    /// Writes `fitting` at column `x`. The text has at most `width` columns already.
    fn write_fitting(&mut self, x: usize, y: u16, width: usize, fitting: &str, style: Style) {
        let x = u16::try_from(x).unwrap_or(u16::MAX);
        if x < self.area.width && y < self.area.height {
            self.buffer.set_stringn(x, y, fitting, width, style);
        }
    }

    /// Writes `text` right-aligned into `columns` columns.
    fn put_right(&mut self, x: usize, y: u16, columns: usize, text: &str, style: Style) {
        let text = cut_end(text, columns);
        self.write_fitting(x + columns - width(&text).min(columns), y, columns, &text, style);
    }

    fn line(&mut self, y: u16, text: &str, style: Style) {
        self.write_cut(0, y, self.columns(), text, style);
    }

    fn columns(&self) -> usize {
        usize::from(self.area.width)
    }

    fn alert_style(&self) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if self.color { style.fg(Color::Red) } else { style }
    }

    fn invert(&mut self, y: u16) {
        let row = Rect { x: 0, y, width: self.area.width, height: 1 };
        self.buffer.set_style(row, Style::new().add_modifier(Modifier::REVERSED));
    }

    /// Draws the first two lines: server, time, and state of reading.
    fn draw_header(&mut self, model: &ScreenModel) {
        let clock = format_clock(model.now.unix_ms, &model.setting.zone);
        let columns = self.columns() - clock.len() - 1;
        self.write_cut(0, 0, columns, &format!("zoolock top · {}", model.setting.title), BOLD);
        self.put_right(columns + 1, 0, clock.len(), &clock, Style::new());
        let zone = &model.setting.zone;
        if let Some(failure) = &model.failure {
            let gone = model.now.running.saturating_sub(failure.since.running);
            let what = if failure.refused { "not read" } else { "disconnected" };
            let text = format!(
                "! {what} since {}, for {}: {}",
                self::format_clock(failure.since.unix_ms, zone),
                format_age(u64::try_from(gone.as_millis()).unwrap_or(u64::MAX)),
                failure.why
            );
            self.line(1, &text, self.alert_style());
            return;
        }
        let Some(LastRead { at, pace }) = model.last_read() else {
            return self.line(1, "reading …", Style::new());
        };
        let mut text = format!(
            "read {} in {}, every {}",
            self::format_clock(at.unix_ms, zone),
            format_duration(pace.took),
            format_duration(pace.every)
        );
        if model.queue.is_none() {
            let counts = [(model.locks.len(), "locks"), (model.held, "held"), (model.waiting, "waiting")];
            text = format!("{} · {text}", counts.map(|(count, what)| format!("{count} {what}")).join(", "));
        }
        self.line(1, &text, Style::new());
    }

    fn draw_locks(&mut self, model: &ScreenModel) {
        let mut x = 0;
        let orders = ["1 waiters", "2 longest wait", "3 hand-overs/s"];
        for (order, name) in SortOrder::ALL.into_iter().zip(orders) {
            let selected = order == model.order;
            let name = if selected { format!("[{name}]") } else { format!(" {name} ") };
            let style = if selected { BOLD } else { Style::new() };
            self.write_cut(x, 2, name.len(), &name, style);
            x += name.len() + 1;
        }
        if model.editing.is_some() || !model.filter.is_empty() {
            let end = if model.editing.is_some() { "_" } else { "" };
            let text = format!("/{}{end} ({})", model.filter, model.rows.len());
            self.write_cut(x + 2, 2, self.columns().saturating_sub(x + 2), &text, BOLD);
        }
        let columns = Columns::of(self.columns());
        columns.row(self, 3, ["", "LOCK", "WAITING", "LONGEST", "RATE/S", "HELD", "HOLDER"], BOLD);
        if model.rows.is_empty() && model.last_read().is_some() {
            let text =
                if model.locks.is_empty() { "no locks" } else { "no lock has this in its name or holder" };
            self.write_cut(2, 4, self.columns() - 2, text, Style::new());
        }
        let shown = model.rows.iter().enumerate().skip(model.cursor.first).take(model.visible_rows());
        for (y, (index, place)) in (4..).zip(shown) {
            let lock = &model.locks[*place];
            let ago = |since: Option<u64>| {
                since.map_or("-".to_owned(), |since| {
                    format_age(model.age_reference_ms().saturating_sub(since))
                })
            };
            let holder = match lock.holders.as_slice() {
                [] => lock.foreign.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
                [holder] => holder.description.clone(),
                [holder, others @ ..] => format!("{} and {} more", holder.description, others.len()),
            };
            let selected = index == model.cursor.at;
            let cells: [&str; 7] = [
                marks(lock, selected),
                &lock.name,
                &lock.waiting.to_string(),
                &ago(lock.longest_since()),
                &format_rate(lock.rate),
                &ago(lock.holders.first().and_then(|holder| holder.since_ms)),
                &holder,
            ];
            let style = if lock.clash.is_some() { self.alert_style() } else { Style::new() };
            columns.row(self, y, cells, style);
            if selected {
                self.invert(y);
            }
        }
    }

    fn draw_queue(&mut self, model: &ScreenModel, queue: &QueuePane) {
        let QueuePane { lock, cursor, .. } = queue;
        let mut about = format!(": {} hold, {} wait", lock.holders.len(), lock.waiting);
        if let Some(permits) = lock.permits {
            about.push_str(&format!(", {permits} permits"));
        }
        if let Some(rate) = lock.rate {
            about.push_str(&format!(", {} hand-overs/s", self::format_rate(Some(rate))));
        }
        about.push_str(&format!(", previous release: {}", lock.previous));
        let columns = self.columns();
        let path = cut_beginning(&lock.path, columns.saturating_sub(width(&about)).max(20));
        self.write_fitting(0, 2, columns, &path, BOLD);
        let after = width(&path);
        self.write_cut(after, 2, columns.saturating_sub(after), &about, Style::new());
        match (&lock.clash, lock.unread.as_slice()) {
            (Some(clash), _) => self.line(3, &format!("! {clash}"), self.alert_style()),
            (None, []) => {}
            (None, parts) => {
                let text = format!("? no permission to read, contenders not shown: {}", parts.join(", "));
                self.line(3, &text, self.alert_style());
            }
        }
        let token = lock
            .queue()
            .map(|contender| shorten_token(contender.token.as_deref()).len())
            .max()
            .unwrap_or(0)
            .clamp(5, 24);
        let place = QueueColumns { token };
        place.row(self, 4, ["", "#", "SINCE", "TOKEN", "CONTENDER"], BOLD);
        let count = lock.holders.len() + lock.waiters.len();
        if count == 0 {
            let text = lock.foreign.as_ref().map_or_else(
                || "free, no waiters".to_owned(),
                |foreign| format!("{foreign}: its holders and waiters are not shown"),
            );
            self.write_cut(2, 5, columns - 2, &text, Style::new());
        }
        let shown = lock.queue().enumerate().skip(cursor.first).take(model.visible_rows());
        for (y, (index, contender)) in (5..).zip(shown) {
            let number = match (index.checked_sub(lock.holders.len()), contender.revoked) {
                // This holder was asked to release the lock.
                (None, true) => "asked".to_owned(),
                (None, false) => "holds".to_owned(),
                (Some(position), _) => (position + 1).to_string(),
            };
            let since = contender
                .since_ms
                .map_or("-".to_owned(), |since| format_age(model.age_reference_ms().saturating_sub(since)));
            let mark = if index == cursor.at { ">" } else { "" };
            let cells: [&str; 5] =
                [mark, &number, &since, &shorten_token(contender.token.as_deref()), &contender.description];
            place.row(self, y, cells, Style::new());
            if index == cursor.at {
                self.invert(y);
            }
        }
        if let Some(contender) = lock.at(cursor.at) {
            self.draw_details(model, lock, contender);
        }
    }

    /// Draws a rule and the details of a contender, in the five lines above the last two lines.
    fn draw_details(&mut self, model: &ScreenModel, lock: &LockRow, contender: &ContenderRow) {
        let y = self.area.height - 7;
        let unread = lock.waiting.saturating_sub(lock.waiters.len());
        let more = if unread == 0 { String::new() } else { format!(" and {unread} more waiters, not read ") };
        let rule = "─".repeat(self.columns().saturating_sub(width(&more)));
        self.line(y, &format!("{rule}{more}"), Style::new());
        let or = |text: Option<&str>| text.unwrap_or("unknown").to_owned();
        let pid = contender.pid.map_or("unknown".to_owned(), |pid| pid.to_string());
        let since = match contender.since_ms {
            Some(since) => format_date_time(since, &model.setting.zone),
            None => "unknown".to_owned(),
        };
        let revoked = if contender.revoked { ", asked to release" } else { "" };
        let half = self.columns() / 2;
        let rows = [
            (("host", or(contender.host.as_deref())), ("mode", format!("{}{revoked}", contender.role))),
            (("program", format!("{}, pid {pid}", or(contender.program.as_deref()))), ("since", since)),
        ];
        for (y, ((left, this), (right, that))) in (y + 1..).zip(rows) {
            self.draw_field(0, y, half - 1, left, &this);
            self.draw_field(half, y, self.columns() - half, right, &that);
        }
        self.draw_field(0, y + 3, self.columns(), "token", &or(contender.token.as_deref()));
        match &contender.note {
            Some(note) => self.draw_field(0, y + 4, self.columns(), "note", note),
            None => self.draw_field(0, y + 4, self.columns(), "znode", &contender.node),
        }
    }

    fn draw_field(&mut self, x: usize, y: u16, columns: usize, name: &str, value: &str) {
        self.write_cut(x, y, columns, name, BOLD);
        self.write_cut(x + 8, y, columns.saturating_sub(8), value, Style::new());
    }

    /// Draws the last two lines: the message and the keys.
    fn draw_footer(&mut self, model: &ScreenModel) {
        let y = self.area.height - 2;
        if let Some(message) = &model.message {
            let (sign, style) = if message.bad { ("! ", self.alert_style()) } else { ("", Style::new()) };
            // A long message covers one or two lines above, until the next key.
            let lines = wrap(&format!("{sign}{}", message.text), self.columns(), 3);
            let blank = " ".repeat(self.columns());
            for (above, line) in (0..).zip(lines.iter().rev()) {
                self.line(y - above, &blank, Style::reset());
                self.line(y - above, line, style);
            }
        }
        let actions = if model.setting.read_only { "" } else { "r revoke  b break  " };
        let keys = if model.editing.is_some() {
            "type a filter; enter keeps it, esc restores the old one".to_owned()
        } else if model.queue.is_some() {
            format!("esc back  {actions}space read now  ? help  q quit")
        } else {
            format!("enter queue  s order  / filter  {actions}? help  q quit")
        };
        // On a narrow screen, the keys are separated by one space instead of two.
        let keys = if width(&keys) > self.columns() { keys.replace("  ", " ") } else { keys };
        self.line(y + 1, &keys, Style::new().add_modifier(Modifier::DIM));
    }

    fn draw_confirmation(&mut self, model: &ScreenModel, confirmation: &Confirmation) {
        let Confirmation { request, description, holds, since_ms, typed } = confirmation;
        let since = since_ms
            .map_or("unknown".to_owned(), |since| format_age(model.age_reference_ms().saturating_sub(since)));
        let question = match (request.action, holds) {
            (AdminAction::Revoke, true) => "Ask the holder to release?",
            (AdminAction::Revoke, false) => "Ask this waiter to give up?",
            (AdminAction::Break, true) => "Remove the holder from the queue?",
            (AdminAction::Break, false) => "Remove this waiter from the queue?",
        };
        let doing = if *holds { "held for" } else { "waits for" };
        let mut lines = vec![
            (question.to_owned(), BOLD),
            (format!("lock   {}", request.path), Style::new()),
            (format!("client {description}"), Style::new()),
            (format!("token  {}, {doing} {since}", request.token), Style::new()),
        ];
        if !model.is_still_queued(confirmation) {
            lines.push(("! it has left the queue: nothing would happen".to_owned(), self.alert_style()));
        } else if request.action == AdminAction::Break && *holds {
            lines.push((
                "! it may continue for a moment as if it held the lock".to_owned(),
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

    fn draw_help(&mut self, read_only: bool) {
        let actions = if read_only {
            "r b          (not with --read-only)"
        } else {
            "r b          revoke or break the selected holder or waiter"
        };
        let lines = [
            "↑ ↓ k j      one row        PgUp PgDn  one page    Home End g G  first, last",
            "enter  esc   the queue of the selected lock, and back",
            "1 2 3  s     order by waiters, longest wait, hand-overs; s: the next of them",
            "/            only locks with this in name or holder; esc shows all again",
            actions,
            "space        read now       ^L  draw again        ^Z  stop        q ^C  quit",
            "",
            "WAITING number of waiters    LONGEST longest wait",
            "HELD    for how long         RATE/S  hand-overs a second, over ten seconds",
            "! several may hold at once, the queue says why   ? partly unreadable",
            "Ages use the clocks of the contenders. Any key closes this.",
        ];
        self.draw_window("help", &lines.map(|line| (line.to_owned(), Style::new())));
    }

    /// Draws a window in the middle of the screen.
    fn draw_window(&mut self, title: &str, lines: &[(String, Style)]) {
        let columns = self.area.width.min(80);
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

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

/// Returns the marks of a row: selection, and problems of the lock.
fn marks(lock: &LockRow, selected: bool) -> &'static str {
    match (selected, &lock.clash, lock.unread.is_empty()) {
        (true, Some(_), _) => ">!",
        (false, Some(_), _) => " !",
        (true, None, false) => ">?",
        (false, None, false) => " ?",
        (true, None, true) => ">",
        (false, None, true) => "",
    }
}

/// Column widths of the list.
struct Columns {
    name: usize,
    holder: usize,
}

impl Columns {
    fn of(columns: usize) -> Self {
        let rest = columns.saturating_sub(FIXED);
        let name = rest / 2;
        Self { name, holder: rest - name }
    }

    fn row(&self, screen: &mut Canvas<'_>, y: u16, cells: [&str; 7], style: Style) {
        let [marks, name, waiting, longest, rate, held, holder] = cells;
        screen.write_cut(0, y, 2, marks, style);
        screen.write_fitting(3, y, self.name, &cut_beginning(name, self.name), style);
        let mut x = 3 + self.name + 1;
        for (text, columns) in [(waiting, 7), (longest, 7), (rate, 6), (held, 6)] {
            screen.put_right(x, y, columns, text, style);
            x += columns + 1;
        }
        screen.write_cut(x, y, self.holder, holder, style);
    }
}

/// Column widths of a queue.
struct QueueColumns {
    token: usize,
}

impl QueueColumns {
    fn row(&self, screen: &mut Canvas<'_>, y: u16, cells: [&str; 5], style: Style) {
        let [mark, number, since, token, contender] = cells;
        screen.write_cut(0, y, 1, mark, style);
        screen.put_right(2, y, 5, number, style);
        screen.put_right(8, y, 7, since, style);
        screen.write_cut(17, y, self.token, token, style);
        let x = 17 + self.token + 2;
        screen.write_cut(x, y, screen.columns().saturating_sub(x), contender, style);
    }
}

/// Shortens a token: drops leading zeros, an epoch of zero, and a last part of zero. A token whose
/// last part is not zero stays whole. The result identifies a contender within a queue. The details
/// of the selected contender show the whole token.
fn shorten_token(token: Option<&str>) -> String {
    let Some(token) = token else { return "-".to_owned() };
    let parts: Vec<_> = token.split('-').map(|part| part.trim_start_matches('0')).collect();
    match parts.as_slice() {
        ["", zxid, ""] => (*zxid).to_owned(),
        [epoch, zxid, ""] => format!("{epoch}-{zxid}"),
        _ => token.to_owned(),
    }
}

fn format_clock(unix_ms: u64, zone: &TimeZone) -> String {
    formatted_time(unix_ms, zone, "%H:%M:%S")
}

fn format_date_time(unix_ms: u64, zone: &TimeZone) -> String {
    formatted_time(unix_ms, zone, "%Y-%m-%d %H:%M:%S")
}

fn formatted_time(unix_ms: u64, zone: &TimeZone, how: &str) -> String {
    let moment = i64::try_from(unix_ms).ok().and_then(|unix_ms| Timestamp::from_millisecond(unix_ms).ok());
    moment.map_or_else(|| "?".to_owned(), |moment| moment.to_zoned(zone.clone()).strftime(how).to_string())
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
