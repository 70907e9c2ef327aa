//! What the screen shows and what a key does, without a clock and without a network: keys and news in, wishes out.

use std::time::Duration;

use jiff::tz::TimeZone;

use super::lock::{Lock, Person};
use super::order::{Order, arranged};
use super::question::{ActionRequest, Answer, Question};
use crate::operate::AdminAction;

/// The smallest screen that shows everything that matters.
pub(super) const LEAST_WIDTH: u16 = 60;
pub(super) const LEAST_HEIGHT: u16 = 16;
/// Lines of the list that are no rows: four above, two below.
const AROUND_LOCKS: u16 = 6;
/// The same of a queue: five above, five with the details, two below.
const AROUND_QUEUE: u16 = 12;
/// How long something that was said stays.
const SAID: Duration = Duration::from_secs(30);
/// A filter longer than this finds nothing.
const LONGEST_FILTER: usize = 60;

/// What was typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Esc,
    Backspace,
    Char(char),
    /// ^C
    Interrupt,
    /// ^Z
    Stop,
    /// ^L
    Redraw,
}

/// What is to be done about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Quit,
    Stop,
    /// The screen is in a mess.
    Redraw,
    /// Read again now.
    Read,
    Do(ActionRequest),
}

/// What is to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    All,
    One(String),
}

/// The time, by the clock that does not jump and by the one on the wall.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Now {
    pub(super) running: Duration,
    pub(super) unix_ms: u64,
}

/// How reading goes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    pub(super) took: Duration,
    /// From one beginning to the next.
    pub(super) every: Duration,
}

/// What comes from the service.
#[derive(Debug)]
pub(super) enum News {
    /// Every lock, by path.
    Locks(Vec<Lock>, Pace),
    /// The lock whose queue is shown.
    Queue(Box<Lock>, Pace),
    /// What is read takes long, and the service is there.
    Alive,
    /// There is no answer.
    Silence(String),
    /// The answer is no.
    Refused(String),
}

/// When something was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Read {
    pub(super) at: Now,
    pub(super) pace: Pace,
}

/// Since when nothing was read.
#[derive(Debug, Clone)]
pub(super) struct Trouble {
    pub(super) since: Now,
    /// Somebody answers, but does not tell us.
    pub(super) refused: bool,
    pub(super) why: String,
}

/// A line that goes away by itself.
#[derive(Debug, Clone)]
pub(super) struct Said {
    pub(super) text: String,
    pub(super) bad: bool,
    until: Duration,
}

/// A place in a list, and the first row that is shown of it.
#[derive(Debug, Default, Clone)]
pub(super) struct Cursor {
    pub(super) at: usize,
    pub(super) first: usize,
    /// What it stands on, once it was put there: it stays on that when rows move.
    on: Option<String>,
}

/// The queue that is shown.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) lock: Lock,
    pub(super) cursor: Cursor,
    read: Option<Read>,
}

/// What was said on the command line.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    /// Which service, as the first line names it.
    pub(super) place: String,
    pub(super) read_only: bool,
    pub(super) zone: TimeZone,
}

/// Everything that is shown.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) setting: Setting,
    pub(super) locks: Vec<Lock>,
    /// Places in `locks`: what passes the filter, in order.
    pub(super) rows: Vec<usize>,
    pub(super) order: Order,
    pub(super) filter: String,
    /// The filter is being typed; what it was before.
    pub(super) editing: Option<String>,
    pub(super) cursor: Cursor,
    pub(super) queue: Option<Queue>,
    pub(super) question: Option<Question>,
    pub(super) help: bool,
    pub(super) said: Option<Said>,
    pub(super) trouble: Option<Trouble>,
    /// When the service was last heard.
    heard: Now,
    /// When the list was read; `None` before the first time.
    read: Option<Read>,
    pub(super) now: Now,
    pub(super) width: u16,
    pub(super) height: u16,
    pub(super) held: usize,
    pub(super) waiting: usize,
}

impl Model {
    pub(super) fn new(setting: Setting, now: Now) -> Self {
        Self {
            setting,
            locks: Vec::new(),
            rows: Vec::new(),
            order: Order::Waiters,
            filter: String::new(),
            editing: None,
            cursor: Cursor::default(),
            queue: None,
            question: None,
            help: false,
            said: None,
            trouble: None,
            heard: now,
            read: None,
            now,
            width: 80,
            height: 24,
            held: 0,
            waiting: 0,
        }
    }

    /// Time passes.
    pub(super) fn tick(&mut self, now: Now) {
        self.now = now;
        if self.said.as_ref().is_some_and(|said| said.until <= now.running) {
            self.said = None;
        }
    }

    /// The screen has this size now.
    pub(super) fn resize(&mut self, width: u16, height: u16) {
        (self.width, self.height) = (width, height);
        self.scroll();
    }

    pub(super) fn too_small(&self) -> bool {
        self.width < LEAST_WIDTH || self.height < LEAST_HEIGHT
    }

    /// What is shown, and therefore to be read.
    pub(super) fn subject(&self) -> Subject {
        match &self.queue {
            Some(queue) => Subject::One(queue.lock.path.clone()),
            None => Subject::All,
        }
    }

    /// By which time ages are told: what was true when it was read is not told as if it went on.
    pub(super) fn as_of(&self) -> u64 {
        match (&self.trouble, self.read()) {
            (Some(_), Some(read)) => read.at.unix_ms,
            _ => self.now.unix_ms,
        }
    }

    /// When what is shown was read.
    pub(super) fn read(&self) -> Option<Read> {
        self.queue.as_ref().map_or(self.read, |queue| queue.read)
    }

    /// Takes in what the service says.
    pub(super) fn hear(&mut self, news: News) {
        let (why, refused) = match &news {
            News::Silence(why) => (Some(why), false),
            News::Refused(why) => (Some(why), true),
            _ => (None, false),
        };
        let before = self.trouble.take();
        match why {
            Some(why) => {
                let since = before.map_or(self.heard, |before| before.since);
                self.trouble = Some(Trouble { since, refused, why: why.clone() });
            }
            None => self.heard = self.now,
        }
        match news {
            News::Locks(locks, pace) => {
                self.held = locks.iter().filter(|lock| lock.is_held()).count();
                self.waiting = locks.iter().map(|lock| lock.waiting).sum();
                self.locks = locks;
                self.read = Some(Read { at: self.now, pace });
                self.arrange();
            }
            News::Queue(lock, pace) => {
                // It may come after the queue was left.
                let Some(queue) = self.queue.as_mut().filter(|queue| queue.lock.path == lock.path) else {
                    return;
                };
                queue.lock = *lock;
                queue.read = Some(Read { at: self.now, pace });
                let Queue { lock, cursor, .. } = queue;
                let count = lock.holders.len() + lock.waiters.len();
                let place = cursor.on.as_ref().and_then(|on| lock.queue().position(|who| who.node == *on));
                cursor.follow(place, count);
                self.scroll();
            }
            News::Alive | News::Silence(_) | News::Refused(_) => {}
        }
    }

    /// Takes in how a request ended.
    pub(super) fn done(&mut self, outcome: Result<String, String>) {
        match outcome {
            Ok(text) => self.say(text),
            Err(text) => self.warn(text),
        }
    }

    /// Takes one key.
    pub(super) fn key(&mut self, key: Key) -> Option<Wish> {
        match key {
            Key::Interrupt => return Some(Wish::Quit),
            Key::Stop => return Some(Wish::Stop),
            Key::Redraw => return Some(Wish::Redraw),
            _ => {}
        }
        if self.too_small() {
            // Nothing is done that cannot be seen.
            return (key == Key::Char('q')).then_some(Wish::Quit);
        }
        if let Some(question) = &mut self.question {
            let answer = question.key(key);
            return self.answered(answer);
        }
        if self.help {
            self.help = false;
            return None;
        }
        if self.editing.is_some() {
            self.edit(key);
            return None;
        }
        self.said = None;
        match key {
            Key::Char('q') => return Some(Wish::Quit),
            Key::Char('?' | 'h') => self.help = true,
            Key::Char('r') => self.ask(AdminAction::Revoke),
            Key::Char('b') => self.ask(AdminAction::Break),
            Key::Char(' ') => return Some(Wish::Read),
            Key::Up | Key::Char('k') => self.step(|at, _| at.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.step(|at, _| at.saturating_add(1)),
            Key::PageUp => self.step(usize::saturating_sub),
            Key::PageDown => self.step(usize::saturating_add),
            Key::Home | Key::Char('g') => self.step(|_, _| 0),
            Key::End | Key::Char('G') => self.step(|_, _| usize::MAX),
            Key::Esc | Key::Backspace if self.queue.is_some() => {
                self.queue = None;
                self.scroll();
            }
            _ if self.queue.is_some() => {}
            Key::Enter => {
                let (lock, read) = (self.lock().cloned(), self.read);
                self.queue = lock.map(|lock| Queue { lock, cursor: Cursor::default(), read });
            }
            Key::Char('s') => self.sort(self.order.next()),
            Key::Char('1') => self.sort(Order::Waiters),
            Key::Char('2') => self.sort(Order::Longest),
            Key::Char('3') => self.sort(Order::Rate),
            Key::Char('/') => self.editing = Some(self.filter.clone()),
            Key::Esc => self.filter_by(String::new()),
            _ => {}
        }
        None
    }

    /// The lock that keys mean.
    pub(super) fn lock(&self) -> Option<&Lock> {
        match &self.queue {
            Some(queue) => Some(&queue.lock),
            None => self.rows.get(self.cursor.at).and_then(|place| self.locks.get(*place)),
        }
    }

    /// How many rows there is room for.
    pub(super) fn room(&self) -> usize {
        let around = if self.queue.is_some() { AROUND_QUEUE } else { AROUND_LOCKS };
        usize::from(self.height.saturating_sub(around)).max(1)
    }

    fn sort(&mut self, order: Order) {
        self.order = order;
        self.arrange();
    }

    fn filter_by(&mut self, filter: String) {
        self.filter = filter;
        self.arrange();
    }

    fn edit(&mut self, key: Key) {
        match key {
            Key::Enter => self.editing = None,
            Key::Esc => {
                let before = self.editing.take().unwrap_or_default();
                self.filter_by(before);
            }
            Key::Backspace => {
                let mut filter = self.filter.clone();
                filter.pop();
                self.filter_by(filter);
            }
            Key::Char(c) if self.filter.chars().count() < LONGEST_FILTER => {
                self.filter_by(format!("{}{c}", self.filter));
            }
            // The list below is searched, and may be walked meanwhile.
            Key::Up => self.step(|at, _| at.saturating_sub(1)),
            Key::Down => self.step(|at, _| at.saturating_add(1)),
            _ => {}
        }
    }

    fn arrange(&mut self) {
        self.rows = arranged(&self.locks, self.order, &self.filter);
        let place = self
            .cursor
            .on
            .as_ref()
            .and_then(|on| self.rows.iter().position(|place| self.locks[*place].path == *on));
        self.cursor.follow(place, self.rows.len());
        self.scroll();
    }

    /// `to`: from the place and the length of a page to the next place.
    fn step(&mut self, to: impl Fn(usize, usize) -> usize) {
        let room = self.room();
        match &mut self.queue {
            Some(Queue { lock, cursor, .. }) => {
                let count = lock.holders.len() + lock.waiters.len();
                cursor.at = to(cursor.at, room).min(count.saturating_sub(1));
                cursor.on = lock.at(cursor.at).map(|who| who.node.clone());
            }
            None => {
                let cursor = &mut self.cursor;
                cursor.at = to(cursor.at, room).min(self.rows.len().saturating_sub(1));
                let lock = self.rows.get(cursor.at).and_then(|place| self.locks.get(*place));
                // At the very top it stays there, whoever comes first.
                cursor.on = if cursor.at == 0 { None } else { lock.map(|lock| lock.path.clone()) };
            }
        }
        self.scroll();
    }

    fn scroll(&mut self) {
        let room = self.room();
        match &mut self.queue {
            Some(Queue { lock, cursor, .. }) => cursor.scroll(room, lock.holders.len() + lock.waiters.len()),
            None => self.cursor.scroll(room, self.rows.len()),
        }
    }

    fn ask(&mut self, action: AdminAction) {
        if self.setting.read_only {
            return self.warn("this is --read-only: nothing is done to locks".to_owned());
        }
        let Some(lock) = self.lock() else { return };
        let chosen = match &self.queue {
            Some(queue) => lock.at(queue.cursor.at),
            None if lock.holders.len() > 1 => {
                let count = lock.holders.len();
                return self.say(format!("{count} hold {}: press enter, and choose one of them", lock.name));
            }
            None => lock.holders.first(),
        };
        let Some(who) = chosen else {
            return self.say(format!("{} is free: there is nobody to ask", lock.name));
        };
        let Some(token) = &who.token else {
            return self.warn(format!("{} cannot be read, and so has no token to go by", who.node));
        };
        let request =
            ActionRequest { action, path: lock.path.clone(), name: lock.name.clone(), token: token.clone() };
        self.question = Some(Question {
            request,
            words: who.words.clone(),
            holds: lock.holders.iter().any(|holder| holder.node == who.node),
            since_ms: who.since_ms,
            typed: String::new(),
        });
    }

    /// Whether whom the question is about is still what it was, as far as was seen.
    pub(super) fn still_there(&self, question: &Question) -> bool {
        let Question { request, holds, .. } = question;
        let lock = match &self.queue {
            Some(queue) => Some(&queue.lock),
            None => self.locks.iter().find(|lock| lock.path == request.path),
        };
        let has = |who: &Person| who.token.as_ref() == Some(&request.token);
        lock.is_some_and(|lock| {
            lock.holders.iter().any(has)
                || !holds && (lock.waiters.iter().any(has) || lock.waiters.len() < lock.waiting)
        })
    }

    fn answered(&mut self, answer: Answer) -> Option<Wish> {
        if answer == Answer::Open {
            return None;
        }
        let request = self.question.take()?.request;
        match (answer, request.action) {
            (Answer::Yes, action) => {
                let doing = if action == AdminAction::Revoke { "asking" } else { "breaking" };
                self.say(format!("{}: {doing} {} …", request.name, request.token));
                Some(Wish::Do(request))
            }
            (_, AdminAction::Revoke) => {
                self.say(format!("{}: nobody was asked", request.name));
                None
            }
            (_, AdminAction::Break) => {
                self.say(format!("{}: nothing was broken", request.name));
                None
            }
        }
    }

    pub(super) fn say(&mut self, text: String) {
        self.said = Some(Said { text, bad: false, until: self.now.running + SAID });
    }

    pub(super) fn warn(&mut self, text: String) {
        self.said = Some(Said { text, bad: true, until: self.now.running + SAID });
    }
}

impl Cursor {
    /// After rows have moved: what it stands on is at `place`, or is gone; there are `count` rows.
    fn follow(&mut self, place: Option<usize>, count: usize) {
        if place.is_none() {
            self.on = None;
        }
        self.at = place.unwrap_or(self.at).min(count.saturating_sub(1));
    }

    fn scroll(&mut self, room: usize, count: usize) {
        self.first = self.first.min(count.saturating_sub(room)).min(self.at);
        if self.at >= self.first + room {
            self.first = self.at + 1 - room;
        }
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
