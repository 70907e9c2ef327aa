//! The state of the screen, without clock and network. The inputs are keys and read results. The outputs are commands.

use std::time::Duration;

use jiff::tz::TimeZone;
use ratatui::crossterm::event::KeyCode;
use zoolock::admin::Entry;

use super::confirmation::{ActionRequest, Confirmation, KeyEffect};
use super::cursor::Cursor;
use super::keys::{INTERRUPT, REDRAW, STOP};
use super::why_window::{WhyAnswer, WhyWindow, window_columns, window_lines};
use crate::args::ListOrder;
use crate::base::unix_time::UnixTime as _;
use crate::observe::{ListedLock, LockList, ReadFailure, arrange, has_text};
use crate::render::columns::{cut_end, width};
use crate::render::remedy::AdminAction;
use crate::render::status::describe_contender;
use crate::render::text::lock_name;

/// Minimum size of the terminal.
pub(super) const MIN_WIDTH: u16 = 60;
pub(super) const MIN_HEIGHT: u16 = 16;
/// Number of screen lines around the rows of the list: four above, two below. Banners take more lines.
const AROUND_LOCKS: u16 = 6;
/// Number of screen lines around the rows of a queue: five above, five with details and two below.
const AROUND_QUEUE: u16 = 12;
/// Time for which a message is shown.
const MESSAGE_TIME: Duration = Duration::from_secs(30);
/// Maximum length of a filter.
const MAX_FILTER: usize = 60;
/// Time after which a read that is due makes the rows old.
const OVERDUE: Duration = Duration::from_secs(1);

/// A command from the user to the event loop.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TopCommand {
    Quit,
    Stop,
    /// Redraw the whole screen.
    Redraw,
    /// Read again now.
    Read,
    /// Carry out a confirmed action.
    Do(ActionRequest),
    /// Find out why the lock at this path is not free.
    Explain(String),
}

/// The subject of reads: all locks, or the lock at this path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReadScope {
    All,
    One(String),
}

/// The time, by a monotonic clock and by the wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ScreenTime {
    pub(super) running: Duration,
    pub(super) unix_ms: u64,
}

/// Duration and interval of reads.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReadPace {
    pub(super) took: Duration,
    /// Time from the start of a read to the start of the next one.
    pub(super) every: Duration,
}

/// A report of the reader.
#[derive(Debug)]
pub(super) enum ReadResult {
    /// All locks.
    Locks(LockList, ReadPace),
    /// The lock whose queue is shown, and the last event in its history.
    Queue(Box<ListedLock>, Option<String>, ReadPace),
    /// Reading takes long, but the server answers.
    Alive,
    Failed(ReadFailure),
}

/// The time of a read, with its duration and the interval of reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastRead {
    pub(super) at: ScreenTime,
    pub(super) pace: ReadPace,
}

/// An ongoing failure to read.
#[derive(Debug, Clone)]
pub(super) struct Outage {
    /// Time of the last answer.
    pub(super) since: ScreenTime,
    pub(super) failure: ReadFailure,
}

/// A message that disappears after some time.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) text: String,
    pub(super) bad: bool,
    until: Duration,
}

/// The shown queue.
#[derive(Debug)]
pub(super) struct QueuePane {
    pub(super) lock: ListedLock,
    /// The last event in the history of the lock.
    pub(super) last_event: Option<String>,
    pub(super) cursor: Cursor,
    read: Option<LastRead>,
}

/// Settings from the command line.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    /// Text of the first line: the server and the path.
    pub(super) title: String,
    pub(super) root: String,
    /// Addresses of the servers.
    pub(super) address: String,
    pub(super) read_only: bool,
    pub(super) zone: TimeZone,
}

/// State of the screen.
#[derive(Debug)]
pub(super) struct ScreenModel {
    pub(super) setting: Setting,
    pub(super) list: LockList,
    /// Indices into `list.locks` of the locks that match the filter, in the chosen order.
    pub(super) rows: Vec<usize>,
    pub(super) order: ListOrder,
    pub(super) reversed: bool,
    /// Width of the longest name of a lock.
    pub(super) name_width: usize,
    pub(super) filter: String,
    /// Previous filter while the user types a new one, and `None` otherwise.
    pub(super) editing: Option<String>,
    pub(super) cursor: Cursor,
    pub(super) queue: Option<QueuePane>,
    pub(super) confirmation: Option<Confirmation>,
    pub(super) why: Option<WhyWindow>,
    pub(super) help: bool,
    pub(super) message: Option<Message>,
    pub(super) outage: Option<Outage>,
    /// Time of the last answer of the server.
    last_answer: ScreenTime,
    /// Last read of the list; `None` before the first read of the list.
    read: Option<LastRead>,
    pub(super) now: ScreenTime,
    pub(super) width: u16,
    pub(super) height: u16,
    pub(super) held: usize,
    pub(super) waiting: usize,
}

impl ScreenModel {
    pub(super) fn new(setting: Setting, now: ScreenTime) -> Self {
        Self {
            setting,
            list: LockList::default(),
            rows: Vec::new(),
            order: ListOrder::Waiting,
            reversed: false,
            name_width: 0,
            filter: String::new(),
            editing: None,
            cursor: Cursor::default(),
            queue: None,
            confirmation: None,
            why: None,
            help: false,
            message: None,
            outage: None,
            last_answer: now,
            read: None,
            now,
            width: 80,
            height: 24,
            held: 0,
            waiting: 0,
        }
    }

    /// Sets the time, and removes a message that has expired.
    pub(super) fn tick(&mut self, now: ScreenTime) {
        self.now = now;
        if self.message.as_ref().is_some_and(|message| message.until <= now.running) {
            self.message = None;
        }
    }

    /// Sets the size of the terminal.
    pub(super) fn resize(&mut self, width: u16, height: u16) {
        (self.width, self.height) = (width, height);
        self.scroll();
    }

    pub(super) fn is_too_small(&self) -> bool {
        self.width < MIN_WIDTH || self.height < MIN_HEIGHT
    }

    /// Returns the subject that the screen shows, and that the reader has to read.
    pub(super) fn subject(&self) -> ReadScope {
        match &self.queue {
            Some(queue) => ReadScope::One(queue.lock.lock.path.clone()),
            None => ReadScope::All,
        }
    }

    /// Returns the time for which ages are computed: now, or the time of the last read if the rows are old.
    pub(super) fn age_reference_ms(&self) -> u64 {
        match self.last_read() {
            Some(read) if self.is_old(read) => read.at.unix_ms,
            _ => self.now.unix_ms,
        }
    }

    /// Returns whether the state of this read is old: reading fails, or the next read is overdue.
    fn is_old(&self, read: LastRead) -> bool {
        self.outage.is_some() || self.now.running > read.at.running + read.pace.every + OVERDUE
    }

    /// Returns whether the rows on the screen are old.
    pub(super) fn has_old_rows(&self) -> bool {
        self.last_read().is_some_and(|read| self.is_old(read))
    }

    /// Returns the time of the read that showed the deadlocks, if that read is old.
    pub(super) fn old_deadlocks_at(&self) -> Option<ScreenTime> {
        self.read.filter(|read| self.is_old(*read)).map(|read| read.at)
    }

    /// Returns the number of screen lines that the banners take.
    pub(super) fn banner_lines(&self) -> u16 {
        u16::from(self.outage.is_some()) + u16::from(!self.list.deadlocks.is_empty())
    }

    /// Returns the last read of the list or queue that is shown.
    pub(super) fn last_read(&self) -> Option<LastRead> {
        self.queue.as_ref().map_or(self.read, |queue| queue.read)
    }

    /// Handles a report of the reader.
    pub(super) fn handle_read(&mut self, result: ReadResult) {
        let before = self.outage.take();
        match &result {
            ReadResult::Failed(failure) => {
                let since = before.map_or(self.last_answer, |before| before.since);
                self.outage = Some(Outage { since, failure: failure.clone() });
            }
            _ => self.last_answer = self.now,
        }
        match result {
            ReadResult::Locks(list, pace) => {
                (self.held, self.waiting) = (list.held(), list.waiting());
                let width_of = |name: &str| match name.is_ascii() {
                    true => name.len(),
                    false => width(&cut_end(name, usize::from(u16::MAX))),
                };
                let names = list.snapshots().map(|lock| lock_name(&lock.path, &self.setting.root));
                self.name_width = names.map(width_of).max().unwrap_or(0);
                self.list = list;
                self.read = Some(LastRead { at: self.now, pace });
                self.arrange();
            }
            ReadResult::Queue(lock, last_event, pace) => {
                // Ignores a result that comes after the user has left the queue.
                let path = &lock.lock.path;
                let Some(queue) = self.queue.as_mut().filter(|queue| queue.lock.lock.path == *path) else {
                    return;
                };
                (queue.lock, queue.last_event) = (*lock, last_event);
                queue.read = Some(LastRead { at: self.now, pace });
                let place = queue
                    .cursor
                    .on
                    .as_ref()
                    .and_then(|on| queue.lock.lock.queue().position(|contender| contender.node == *on));
                queue.cursor.follow(place, queue.lock.lock.queue().count());
                self.scroll();
            }
            // A banner leaves less room for rows.
            ReadResult::Failed(_) => self.scroll(),
            ReadResult::Alive => {}
        }
    }

    /// Shows why a lock is not free, or the error, if the window for this lock is still open.
    pub(super) fn show_why(&mut self, path: &str, text: Result<String, String>) {
        if let Some(window) = self.why.as_mut().filter(|window| window.path == path) {
            window.answer = Some(WhyAnswer { text, unix_ms: self.now.unix_ms });
        }
    }

    /// Shows the result of an action.
    pub(super) fn show_action_result(&mut self, outcome: Result<String, String>) {
        match outcome {
            Ok(text) => self.show_message(text),
            Err(text) => self.show_warning(text),
        }
    }

    /// Handles a key.
    pub(super) fn handle_key(&mut self, key: KeyCode) -> Option<TopCommand> {
        match key {
            INTERRUPT => return Some(TopCommand::Quit),
            STOP => return Some(TopCommand::Stop),
            REDRAW => return Some(TopCommand::Redraw),
            _ => {}
        }
        if self.is_too_small() {
            // Other keys do nothing, because the small screen would not show their effect.
            return (key == KeyCode::Char('q')).then_some(TopCommand::Quit);
        }
        if let Some(confirmation) = &mut self.confirmation {
            let answer = confirmation.handle_key(key);
            return self.handle_answer(answer);
        }
        if let Some(window) = &mut self.why {
            let count = window.lines(window_columns(self.width)).len();
            if !window.handle_key(key, count, window_lines(self.height)) {
                self.why = None;
            }
            return None;
        }
        if self.help {
            self.help = false;
            return None;
        }
        if self.editing.is_some() {
            self.edit_filter(key);
            return None;
        }
        self.message = None;
        match key {
            KeyCode::Char('q') => return Some(TopCommand::Quit),
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('r') => self.ask_for_confirmation(AdminAction::Revoke),
            KeyCode::Char('b') => self.ask_for_confirmation(AdminAction::Break),
            KeyCode::Char('w') => {
                let path = self.selected_lock()?.lock.path.clone();
                let name = self.name(&path).to_owned();
                self.why = Some(WhyWindow::new(path.clone(), name));
                return Some(TopCommand::Explain(path));
            }
            KeyCode::Char(' ') => return Some(TopCommand::Read),
            KeyCode::Up | KeyCode::Char('k') => self.move_cursor(|at, _| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.move_cursor(|at, _| at.saturating_add(1)),
            KeyCode::PageUp => self.move_cursor(usize::saturating_sub),
            KeyCode::PageDown => self.move_cursor(usize::saturating_add),
            KeyCode::Home | KeyCode::Char('g') => self.move_cursor(|_, _| 0),
            KeyCode::End | KeyCode::Char('G') => self.move_cursor(|_, _| usize::MAX),
            KeyCode::Esc | KeyCode::Backspace if self.queue.is_some() => {
                self.queue = None;
                self.scroll();
            }
            _ if self.queue.is_some() => {}
            KeyCode::Enter => {
                let (lock, read) = (self.selected_lock().cloned(), self.read);
                self.queue =
                    lock.map(|lock| QueuePane { lock, last_event: None, cursor: Cursor::default(), read });
            }
            KeyCode::Char('s') => self.sort(next_order(self.order), self.reversed),
            KeyCode::Char('1') => self.sort(ListOrder::Waiting, self.reversed),
            KeyCode::Char('2') => self.sort(ListOrder::Longest, self.reversed),
            KeyCode::Char('3') => self.sort(ListOrder::Rate, self.reversed),
            KeyCode::Char('4') => self.sort(ListOrder::Held, self.reversed),
            KeyCode::Char('R') => self.sort(self.order, !self.reversed),
            KeyCode::Char('/') => self.editing = Some(self.filter.clone()),
            KeyCode::Esc => self.filter_by(String::new()),
            _ => {}
        }
        None
    }

    /// Returns the selected lock, or the lock whose queue is shown.
    pub(super) fn selected_lock(&self) -> Option<&ListedLock> {
        match &self.queue {
            Some(queue) => Some(&queue.lock),
            None => self.rows.get(self.cursor.at).and_then(|place| self.list.locks.get(*place)),
        }
    }

    /// Returns the name below the root of the lock at `path`.
    pub(super) fn name<'a>(&self, path: &'a str) -> &'a str {
        lock_name(path, &self.setting.root)
    }

    /// Returns the number of rows for which the screen has room.
    pub(super) fn visible_rows(&self) -> usize {
        let around = if self.queue.is_some() { AROUND_QUEUE } else { AROUND_LOCKS };
        usize::from(self.height.saturating_sub(around + self.banner_lines())).max(1)
    }

    /// Sorts the list, and shows its start, because the user looks for the first locks of the new order.
    fn sort(&mut self, order: ListOrder, reversed: bool) {
        (self.order, self.reversed, self.cursor) = (order, reversed, Cursor::default());
        self.arrange();
    }

    fn filter_by(&mut self, filter: String) {
        self.filter = filter;
        self.arrange();
    }

    fn edit_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.editing = None,
            KeyCode::Esc => {
                let before = self.editing.take().unwrap_or_default();
                self.filter_by(before);
            }
            KeyCode::Backspace => {
                let mut filter = self.filter.clone();
                filter.pop();
                self.filter_by(filter);
            }
            KeyCode::Char(c) if self.filter.chars().count() < MAX_FILTER => {
                self.filter_by(format!("{}{c}", self.filter));
            }
            // The cursor can move while the filter is typed.
            KeyCode::Up => self.move_cursor(|at, _| at.saturating_sub(1)),
            KeyCode::Down => self.move_cursor(|at, _| at.saturating_add(1)),
            _ => {}
        }
    }

    fn arrange(&mut self) {
        let (filter, root) = (self.filter.to_lowercase(), &self.setting.root);
        self.rows = arrange(&self.list.locks, self.order, self.reversed, |lock| {
            has_text(lock, lock_name(&lock.path, root), &filter)
        });
        let place = self
            .cursor
            .on
            .as_ref()
            .and_then(|on| self.rows.iter().position(|place| self.list.locks[*place].lock.path == *on));
        self.cursor.follow(place, self.rows.len());
        self.scroll();
    }

    /// Moves the cursor. `to` maps the index of the selected row and the length of a page to the new index.
    fn move_cursor(&mut self, to: impl Fn(usize, usize) -> usize) {
        let visible_rows = self.visible_rows();
        match &mut self.queue {
            Some(QueuePane { lock, cursor, .. }) => {
                let count = lock.lock.queue().count();
                cursor.at = to(cursor.at, visible_rows).min(count.saturating_sub(1));
                cursor.on = lock.lock.queue().nth(cursor.at).map(|contender| contender.node.clone());
            }
            None => {
                let cursor = &mut self.cursor;
                cursor.at = to(cursor.at, visible_rows).min(self.rows.len().saturating_sub(1));
                let lock = self.rows.get(cursor.at).and_then(|place| self.list.locks.get(*place));
                // A cursor on the first row stays on the first row, even if another lock moves there.
                cursor.on = if cursor.at == 0 { None } else { lock.map(|listed| listed.lock.path.clone()) };
            }
        }
        self.scroll();
    }

    fn scroll(&mut self) {
        let visible_rows = self.visible_rows();
        match &mut self.queue {
            Some(QueuePane { lock, cursor, .. }) => cursor.scroll(visible_rows, lock.lock.queue().count()),
            None => self.cursor.scroll(visible_rows, self.rows.len()),
        }
    }

    fn ask_for_confirmation(&mut self, action: AdminAction) {
        if self.setting.read_only {
            return self.show_warning("--read-only is set: revoke and break are disabled".to_owned());
        }
        let Some(ListedLock { lock, .. }) = self.selected_lock() else { return };
        let name = self.name(&lock.path).to_owned();
        let selected = match &self.queue {
            Some(queue) => lock.queue().nth(queue.cursor.at),
            None if !lock.beside.is_empty() => {
                let count = lock.holders().count();
                return self.show_message(format!("{count} hold {name}: press enter and select one"));
            }
            None => lock.holder.as_ref(),
        };
        let Some(contender) = selected else {
            return self.show_message(format!("{name}: no holder that can be read"));
        };
        let Some(token) = contender.token else {
            return self
                .show_warning(format!("znode {} cannot be read, so its token is unknown", contender.node));
        };
        let description = describe_contender(contender);
        if action == AdminAction::Revoke
            && let Some(reason) = contender.unrevocable
        {
            return self.show_warning(format!(
                "{name}: {description} cannot be asked to release: {reason}; b breaks the lock"
            ));
        }
        let request = ActionRequest { action, path: lock.path.clone(), name, token };
        let holds = lock.holders().any(|holder| holder.node == contender.node);
        self.confirmation = Some(Confirmation {
            request,
            description,
            holds,
            since_ms: contender.since.unix_ms(),
            held_since_ms: contender.held_since.unix_ms(),
            typed: String::new(),
        });
    }

    /// Returns whether the contender of the confirmation was still in the queue at the last read. A
    /// waiter may have become a holder, but a holder must still hold. If not all waiters were read,
    /// a waiter counts as still in the queue.
    pub(super) fn is_still_queued(&self, confirmation: &Confirmation) -> bool {
        let Confirmation { request, holds, .. } = confirmation;
        let lock = match &self.queue {
            Some(queue) => Some(&queue.lock.lock),
            None => self.list.snapshots().find(|lock| lock.path == request.path),
        };
        let has = |contender: &Entry| contender.token == Some(request.token);
        lock.is_some_and(|lock| {
            lock.holders().any(has)
                || !holds && (lock.waiters.iter().any(has) || lock.waiters.len() < lock.waiting)
        })
    }

    fn handle_answer(&mut self, answer: KeyEffect) -> Option<TopCommand> {
        if answer == KeyEffect::Pending {
            return None;
        }
        let request = self.confirmation.take()?.request;
        match (answer, request.action) {
            (KeyEffect::Yes, action) => {
                let doing = if action == AdminAction::Revoke { "asking" } else { "breaking" };
                self.show_message(format!("{}: {doing} {} …", request.name, request.token));
                Some(TopCommand::Do(request))
            }
            (_, AdminAction::Revoke) => {
                self.show_message(format!("{}: cancelled, no request sent", request.name));
                None
            }
            (_, AdminAction::Break) => {
                self.show_message(format!("{}: cancelled, nothing was broken", request.name));
                None
            }
        }
    }

    pub(super) fn show_message(&mut self, text: String) {
        self.message = Some(Message { text, bad: false, until: self.now.running + MESSAGE_TIME });
    }

    pub(super) fn show_warning(&mut self, text: String) {
        self.message = Some(Message { text, bad: true, until: self.now.running + MESSAGE_TIME });
    }
}

/// Orders of the list, in the order of their keys, and of the key `s`.
pub(super) const ORDERS: [ListOrder; 4] =
    [ListOrder::Waiting, ListOrder::Longest, ListOrder::Rate, ListOrder::Held];

fn next_order(order: ListOrder) -> ListOrder {
    let place = ORDERS.iter().position(|other| *other == order).unwrap_or(0);
    ORDERS[(place + 1) % ORDERS.len()]
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
