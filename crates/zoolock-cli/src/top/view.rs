//! Draws the model on the screen. Red text also has a sign (`!` or `?`), because the terminal may
//! show no colors.

mod list;
mod windows;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use zoolock::admin::{Deadlock, Entry, Snapshot};

use super::contender::{fit_contender, fit_holders};
use super::model::{LastRead, MIN_HEIGHT, MIN_WIDTH, Outage, QueuePane, ScreenModel};
use crate::base::duration::{format_duration, format_milliseconds};
use crate::base::unix_time::UnixTime as _;
use crate::observe::{ListedLock, ReadFailure, earliest_grant};
use crate::render::columns::{cut_beginning, cut_end, format_rate, width, wrap};
use crate::render::deadlock::{format_circle, is_certain};
use crate::render::status::{describe_program, note};
use crate::render::text::describe_role;
use crate::render::text::token_or;

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
        None => {
            if let Some(window) = &model.why {
                screen.draw_why(model, window);
            }
        }
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

    /// Draws the first two lines: server, time, and state of reading. Then draws the banners.
    fn draw_header(&mut self, model: &ScreenModel) {
        let zone = &model.setting.zone;
        let clock = format_clock(model.now.unix_ms, zone);
        let columns = self.columns() - clock.len() - 1;
        self.write_cut(0, 0, columns, &format!("zoolock top · {}", model.setting.title), BOLD);
        self.put_right(columns + 1, 0, clock.len(), &clock, Style::new());
        let y = self.draw_outage(model);
        self.draw_deadlocks(model, y);
        let Some(LastRead { at, pace }) = model.last_read() else {
            return self.line(1, "reading …", Style::new());
        };
        let time = self::format_clock(at.unix_ms, zone);
        let read = if model.has_old_rows() {
            let ago = model.now.unix_ms.saturating_sub(at.unix_ms);
            format!("old rows, read {time}, {} ago", format_milliseconds(ago))
        } else {
            format!("read {time} in {}, every {}", format_duration(pace.took), format_duration(pace.every))
        };
        let counts = [(model.list.locks.len(), "locks"), (model.held, "held"), (model.waiting, "waiting")];
        let text = match model.queue {
            None => format!("{} · {read}", counts.map(|(count, what)| format!("{count} {what}")).join(", ")),
            Some(_) => read,
        };
        let style = if model.has_old_rows() { BOLD } else { Style::new() };
        self.line(1, &text, style);
    }

    /// Draws the banner of an outage, if there is one. Returns the line below it.
    fn draw_outage(&mut self, model: &ScreenModel) -> u16 {
        let Some(Outage { since, failure }) = &model.outage else { return 2 };
        let gone = model.now.running.saturating_sub(since.running);
        let (what, why) = match failure {
            ReadFailure::Unreachable(why) => ("no answer", why),
            ReadFailure::Refused(why) => ("not read", why),
        };
        let address = &model.setting.address;
        // Most reasons begin with the address.
        let address = if why.contains(address.as_str()) { String::new() } else { format!("{address}: ") };
        let text = format!(
            "! {what} since {}, for {}: {address}{why}",
            format_clock(since.unix_ms, &model.setting.zone),
            format_milliseconds(u64::try_from(gone.as_millis()).unwrap_or(u64::MAX)),
        );
        self.line(2, &text, self.alert_style());
        3
    }

    /// Draws the banner of the deadlocks, if there are any: their number, and the locks of each circle.
    fn draw_deadlocks(&mut self, model: &ScreenModel, y: u16) {
        let deadlocks = &model.list.deadlocks;
        if deadlocks.is_empty() {
            return;
        }
        let possible = if deadlocks.iter().any(is_certain) { "" } else { "possible " };
        let s = if deadlocks.len() == 1 { "" } else { "s" };
        let time = model.old_deadlocks_at().map(|at| format_clock(at.unix_ms, &model.setting.zone));
        let time = time.map_or(String::new(), |time| format!(" at {time}"));
        let begin = format!("! {} {possible}deadlock{s}{time}: ", deadlocks.len());
        let end = "; see zoolock deadlocks";
        let circles = fit_circles(
            deadlocks,
            &model.setting.root,
            self.columns().saturating_sub(width(&begin) + width(end)),
        );
        self.line(y, &format!("{begin}{circles}{end}"), self.alert_style());
    }

    /// Returns the first line below the header and the banners.
    fn top(model: &ScreenModel) -> u16 {
        2 + model.banner_lines()
    }

    /// Returns the style of rows: dim if the rows are old.
    fn row_style(model: &ScreenModel) -> Style {
        if model.has_old_rows() { Style::new().add_modifier(Modifier::DIM) } else { Style::new() }
    }

    fn draw_queue(&mut self, model: &ScreenModel, queue: &QueuePane) {
        let QueuePane { lock: ListedLock { lock, rate }, last_event, cursor, .. } = queue;
        let holders = lock.holders().count();
        let mut about = match &lock.foreign_semaphore {
            Some(foreign) => format!(": {} leases, {} wait", foreign.leases, lock.waiting),
            None => format!(": {holders} hold, {} wait", lock.waiting),
        };
        if let Some(permits) = lock.permits {
            about.push_str(&format!(", {permits} permits"));
        }
        if rate.is_some() {
            about.push_str(&format!(", {} hand-overs/s", format_rate(*rate)));
        }
        about.push_str(&format!(", last recorded end: {}", lock.previous));
        let (columns, top) = (self.columns(), Self::top(model));
        let path = cut_beginning(&lock.path, columns.saturating_sub(width(&about)).max(20));
        self.write_fitting(0, top, columns, &path, BOLD);
        let after = width(&path);
        self.write_cut(after, top, columns.saturating_sub(after), &about, Style::new());
        match (find_trouble(lock), lock.unread.as_slice()) {
            (Some(clash), _) => self.line(top + 1, &format!("! {clash}"), self.alert_style()),
            (None, []) => {
                let last = last_event.as_ref().map_or(String::new(), |event| format!("last: {event}"));
                self.line(top + 1, &last, Style::new());
            }
            (None, parts) => {
                let text = format!("? no permission to read, contenders not shown: {}", parts.join(", "));
                self.line(top + 1, &text, self.alert_style());
            }
        }
        let token =
            lock.queue().map(|contender| shorten_token(contender).len()).max().unwrap_or(0).clamp(5, 24);
        let place = QueueColumns { token };
        place.row(self, top + 2, ["", "#", "FOR", "TOKEN", "CONTENDER"], BOLD);
        let count = lock.queue().count();
        if count == 0 {
            let text = lock.foreign_semaphore.as_ref().map_or_else(
                || match lock.unread.is_empty() {
                    true => "free, no waiters".to_owned(),
                    false => "no contender in the part that can be read".to_owned(),
                },
                |foreign| format!("{foreign}: its holders and waiters are not shown"),
            );
            self.write_cut(2, top + 3, columns - 2, &text, Style::new());
        }
        let shown = lock.queue().enumerate().skip(cursor.first).take(model.visible_rows());
        for (y, (index, contender)) in (top + 3..).zip(shown) {
            let number = match index.checked_sub(holders) {
                None => "holds".to_owned(),
                Some(position) => (position + 1).to_string(),
            };
            let time = match index < holders {
                true => format_held(model, contender),
                false => {
                    format_time_since(model, contender.since.unix_ms()).unwrap_or_else(|| "-".to_owned())
                }
            };
            let mark = if index == cursor.at { ">" } else { "" };
            let token = shorten_token(contender);
            let contender = fit_contender(contender, "", place.contender(columns));
            place.row(self, y, [mark, &number, &time, &token, &contender], Self::row_style(model));
            if index == cursor.at {
                self.invert(y);
            }
        }
        if let Some(contender) = lock.queue().nth(cursor.at) {
            let positions = cursor.positions(model.visible_rows(), count);
            self.draw_details(model, lock, contender, positions);
        }
    }

    /// Draws a rule and the details of a contender, in the five lines above the last two lines.
    /// `positions` are those of the visible rows, if there are more.
    fn draw_details(
        &mut self,
        model: &ScreenModel,
        lock: &Snapshot,
        contender: &Entry,
        positions: Option<String>,
    ) {
        let y = self.area.height - 7;
        let unread = lock.waiting.saturating_sub(lock.waiters.len());
        let unread = (unread > 0).then(|| format!("and {unread} more waiters, not read"));
        let more: String = positions.into_iter().chain(unread).map(|text| format!(" {text} ")).collect();
        let rule = "─".repeat(self.columns().saturating_sub(width(&more)));
        self.line(y, &format!("{rule}{more}"), Style::new());
        let or = |text: Option<&str>| text.unwrap_or("unknown").to_owned();
        let pid = contender.pid.map_or("unknown".to_owned(), |pid| pid.to_string());
        let program = contender.program.as_ref().map_or(String::new(), |program| {
            format!(" ({})", describe_program(program, contender.runs_program))
        });
        let zone = &model.setting.zone;
        let holds = lock.holders().any(|holder| holder.node == contender.node);
        let since = match (holds, contender.held_since.unix_ms(), contender.since.unix_ms()) {
            (true, Some(since), _) | (false, _, Some(since)) => format_date_time(since, zone),
            (true, None, Some(since)) => format!("after {}", format_date_time(since, zone)),
            (_, _, None) => "unknown".to_owned(),
        };
        let asked = format_time_since(model, contender.asked_at.unix_ms())
            .map_or(String::new(), |time| format!(" {time} ago"));
        let revoked = if contender.revoked { format!(", asked to release{asked}") } else { String::new() };
        let half = self.columns() / 2;
        let rows = [
            (
                ("host", or(contender.host.as_deref())),
                ("mode", format!("{}{revoked}", describe_role(contender))),
            ),
            (("process", format!("{pid}{program}")), ("since", since)),
        ];
        for (y, ((left, this), (right, that))) in (y + 1..).zip(rows) {
            self.draw_field(0, y, half - 1, left, &this);
            self.draw_field(half, y, self.columns() - half, right, &that);
        }
        self.draw_field(0, y + 3, self.columns(), "token", &token_or("unknown", contender));
        match note(contender) {
            Some(note) => self.draw_field(0, y + 4, self.columns(), "note", note),
            None => self.draw_field(0, y + 4, self.columns(), "znode", &contender.node),
        }
    }

    fn draw_field(&mut self, x: usize, y: u16, columns: usize, name: &str, value: &str) {
        self.write_cut(x, y, columns, name, BOLD);
        self.write_cut(x + 8, y, columns.saturating_sub(8), value, Style::new());
    }

    /// Draws the last two lines: the message, or the holder of the selected lock if its row is cut, and the keys.
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
        } else if let (None, Some(ListedLock { lock, .. })) = (&model.queue, model.selected_lock()) {
            let row = list::Columns::of(self.columns(), model).holder();
            if width(&fit_holders(lock, usize::MAX)) > row {
                let text = format!("> {}", fit_holders(lock, self.columns() - 2));
                self.line(y, &text, Self::row_style(model));
            }
        }
        let keys = if model.editing.is_some() {
            "type a filter; enter keeps it, esc restores the old one".to_owned()
        } else {
            format_keys(model, self.columns())
        };
        self.line(y + 1, &keys, Style::new().add_modifier(Modifier::DIM));
    }
}

/// Describes deadlocks in at most `columns` columns. Names the locks of as many deadlocks as possible, and only the number of
/// owners of the others.
fn fit_circles(deadlocks: &[Deadlock], root: &str, columns: usize) -> String {
    let count = |owners: usize| format!("{owners} {}", if owners == 1 { "owner" } else { "owners" });
    let describe = |named: usize| {
        let texts = deadlocks.iter().enumerate().map(|(at, deadlock)| match at < named {
            true => format_circle(deadlock, root),
            false => count(deadlock.owners),
        });
        texts.collect::<Vec<_>>().join(", ")
    };
    let mut texts = (0..=deadlocks.len()).rev().map(describe);
    let fitting = texts.find(|text| width(&cut_end(text, usize::MAX)) <= columns);
    fitting.unwrap_or_else(|| count(deadlocks.iter().map(|deadlock| deadlock.owners).sum()))
}

/// Returns why several may hold the lock at once, or why no client can acquire it.
fn find_trouble(lock: &Snapshot) -> Option<&String> {
    lock.clash.as_ref().or(lock.unusable.as_ref())
}

/// Formats the keys in at most `columns` columns. On a narrow screen, one space separates the keys instead of two, and
/// the list leaves out the keys for the order. The help shows all keys.
fn format_keys(model: &ScreenModel, columns: usize) -> String {
    let actions: &[_] = if model.setting.read_only { &[] } else { &["r revoke", "b break"] };
    let end = &["? help", "q quit"];
    let (start, order, middle): (&[_], &[_], &[_]) = match model.queue {
        Some(_) => (&["esc back", "w why"], &[], &["space read now"]),
        None => (&["enter queue", "w why"], &["s order", "R reverse"], &["/ filter"]),
    };
    let all = [start, order, middle, actions, end].concat();
    let short = [start, middle, actions, end].concat();
    let texts = [all.join("  "), all.join(" "), short.join(" ")];
    texts.iter().find(|keys| width(keys) <= columns).unwrap_or(&texts[2]).clone()
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

/// Column widths of a queue.
struct QueueColumns {
    token: usize,
}

impl QueueColumns {
    fn row(&self, screen: &mut Canvas<'_>, y: u16, cells: [&str; 5], style: Style) {
        let [mark, number, time, token, contender] = cells;
        screen.write_cut(0, y, 1, mark, style);
        screen.put_right(2, y, 5, number, style);
        screen.put_right(8, y, 8, time, style);
        screen.write_cut(18, y, self.token, token, style);
        let columns = self.contender(screen.columns());
        screen.write_cut(screen.columns() - columns, y, columns, contender, style);
    }

    /// Returns the width of the last column on a screen of this width.
    fn contender(&self, screen: usize) -> usize {
        screen.saturating_sub(18 + self.token + 2)
    }
}

/// Formats the time for which a holder has held the lock, with the sign ≤ if only the maximum is known.
fn format_held(model: &ScreenModel, holder: &Entry) -> String {
    match (holder.held_since.unix_ms(), format_time_since(model, earliest_grant(holder))) {
        (_, None) => "-".to_owned(),
        (Some(_), Some(time)) => time,
        (None, Some(time)) => format!("≤{time}"),
    }
}

/// Formats the time since a point in time, as of the newest read.
fn format_time_since(model: &ScreenModel, since_ms: Option<u64>) -> Option<String> {
    Some(format_milliseconds(model.age_reference_ms().saturating_sub(since_ms?)))
}

/// Shortens a token: drops leading zeros, an epoch of zero, and a last part of zero. A token whose
/// last part is not zero stays whole. The result identifies a contender within a queue. The details
/// of the selected contender show the whole token.
fn shorten_token(contender: &Entry) -> String {
    let token = token_or("-", contender);
    let parts: Vec<_> = token.split('-').map(|part| part.trim_start_matches('0')).collect();
    match parts.as_slice() {
        ["", zxid, ""] => (*zxid).to_owned(),
        [epoch, zxid, ""] => format!("{epoch}-{zxid}"),
        _ => token,
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
