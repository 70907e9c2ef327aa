//! The referee: an SQLite file that refuses an older token after a newer one, and records all attempts to hold a lock.
//!
//! One thread writes to the file, in the order in which it receives messages. The thread answers a
//! write after the SQLite transaction with the write was committed. Workers send messages over a
//! socket, and do not open the file: a stopped worker must not lock the others out of the file.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;

use rusqlite::{Connection, params};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use zoolock_tests::lock;

use crate::Outcome;
use crate::clock::now;
use crate::messages::{CriticalSection, TaskId, TaskMessage};

/// Maximum number of further messages that are stored in the SQLite transaction of a message.
const BATCH: usize = 256;

/// The referee. It listens until it is dropped.
pub(crate) struct Referee {
    live: Arc<Mutex<LiveState>>,
    notes: Option<mpsc::SyncSender<RefereeOrder>>,
    listening: tokio::task::JoinHandle<()>,
    writing: Option<JoinHandle<rusqlite::Result<()>>>,
}

/// The current state, which can be read without the file.
#[derive(Default)]
pub(crate) struct LiveState {
    /// Tasks that wait for locks or hold them, each with the time of its request and the names of its locks.
    pub(crate) busy: HashMap<TaskId, (i64, Vec<String>)>,
    /// Tasks between the check of their guard and their write, each with the time of the write.
    pub(crate) before_write: HashMap<TaskId, i64>,
    /// Tickets whose release the server has confirmed. The znodes of shared holds stay for the next task, so their
    /// tickets are left out.
    pub(crate) released: HashSet<String>,
    pub(crate) sections: u64,
    pub(crate) refused: u64,
}

enum RefereeOrder {
    Note(TaskMessage, Option<oneshot::Sender<bool>>),
    Fault { kind: String, target: String, struck: i64, healed: i64, settled: i64 },
}

impl Referee {
    /// Creates the file, and listens at `socket`. If `fenced` is false, every write is accepted, which the judge must find.
    pub(crate) fn start(file: &Path, socket: &Path, fenced: bool) -> Outcome<Self> {
        let db = Connection::open(file)?;
        db.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
             CREATE TABLE fence (lock TEXT PRIMARY KEY, token TEXT NOT NULL, writes INTEGER NOT NULL);
             CREATE TABLE writes (n INTEGER PRIMARY KEY, at INTEGER, who TEXT, lock TEXT, token TEXT, done INTEGER);
             CREATE TABLE sections (n INTEGER PRIMARY KEY, kind TEXT, granted INTEGER, section TEXT);
             CREATE TABLE faults (n INTEGER PRIMARY KEY, kind TEXT, target TEXT, struck INTEGER, healed INTEGER,
                                  settled INTEGER);",
        )?;
        let (sender, receiver) = mpsc::sync_channel(4096);
        let live = Arc::new(Mutex::new(LiveState::default()));
        let listener = UnixListener::bind(socket)?;
        let listening = tokio::spawn(listen(listener, sender.clone(), live.clone()));
        let writing = std::thread::Builder::new()
            .name("referee".to_owned())
            .spawn(move || RefereeWriter { db, fenced }.run(&receiver))?;
        Ok(Referee { live, notes: Some(sender), listening, writing: Some(writing) })
    }

    pub(crate) fn live(&self) -> MutexGuard<'_, LiveState> {
        lock(&self.live)
    }

    /// Removes the current state of a worker's tasks from before its start number `before`.
    pub(crate) fn remove_tasks_of_worker(&self, worker: usize, before: u32) {
        let mut live = self.live();
        live.busy.retain(|who, _| who.worker != worker || who.life >= before);
        live.before_write.retain(|who, _| who.worker != worker || who.life >= before);
    }

    /// Records a fault that has ended.
    pub(crate) fn record_fault(&self, kind: &str, target: &str, struck: i64, healed: i64, settled: i64) {
        let order =
            RefereeOrder::Fault { kind: kind.to_owned(), target: target.to_owned(), struck, healed, settled };
        if let Some(notes) = &self.notes {
            let _ = notes.send(order);
        }
    }

    /// Writes the remaining messages and closes the file.
    pub(crate) async fn close(mut self) -> Outcome<()> {
        self.listening.abort();
        let _ = (&mut self.listening).await;
        self.notes = None;
        let Some(writing) = self.writing.take() else { return Ok(()) };
        let ended = tokio::task::spawn_blocking(move || writing.join()).await?;
        Ok(ended.map_err(|_| "the referee panicked")??)
    }
}

impl Drop for Referee {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn listen(listener: UnixListener, notes: mpsc::SyncSender<RefereeOrder>, live: Arc<Mutex<LiveState>>) {
    let mut workers = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    workers.spawn(handle_messages(stream, notes.clone(), live.clone()));
                }
            }
            Some(_) = workers.join_next() => {}
        }
    }
}

/// Handles the messages of a task, until its connection ends or a message is invalid.
async fn handle_messages(
    stream: UnixStream,
    notes: mpsc::SyncSender<RefereeOrder>,
    live: Arc<Mutex<LiveState>>,
) -> Outcome<()> {
    let (from, mut to) = stream.into_split();
    let mut lines = BufReader::new(from).lines();
    while let Some(line) = lines.next_line().await? {
        let note: TaskMessage = serde_json::from_str(&line)?;
        match note {
            TaskMessage::Asks { who, locks } => {
                lock(&live).busy.insert(who, (now(), locks));
            }
            TaskMessage::WillWrite { who, millis } => {
                let until = now() + i64::try_from(millis)? * 1_000_000;
                lock(&live).before_write.insert(who, until);
            }
            TaskMessage::Writes { .. } => {
                let (done, answer) = oneshot::channel();
                notes.send(RefereeOrder::Note(note, Some(done)))?;
                let done = answer.await?;
                if !done {
                    lock(&live).refused += 1;
                }
                to.write_all(if done { b"true\n" } else { b"false\n" }).await?;
            }
            TaskMessage::Done(section) => {
                lock(&live).record_end(&section);
                notes.send(RefereeOrder::Note(TaskMessage::Done(section), None))?;
            }
        }
    }
    Ok(())
}

impl LiveState {
    /// Returns a worker with a task that has checked its guard, and that will write in 50 ms or later.
    pub(crate) fn worker_before_write(&self) -> Option<usize> {
        let soon = now() + 50_000_000;
        self.before_write.iter().find(|(_, until)| **until > soon).map(|(who, _)| who.worker)
    }

    fn record_end(&mut self, section: &CriticalSection) {
        self.busy.remove(&section.who);
        self.sections += u64::from(section.last_valid.is_some());
        if section.released.is_some() && section.kind != "shared hold" {
            self.released.extend(section.ticket.clone());
        }
    }
}

struct RefereeWriter {
    db: Connection,
    fenced: bool,
}

impl RefereeWriter {
    fn run(mut self, notes: &mpsc::Receiver<RefereeOrder>) -> rusqlite::Result<()> {
        while let Ok(first) = notes.recv() {
            let transaction = self.db.transaction()?;
            let mut answers = Vec::new();
            for order in std::iter::once(first).chain(notes.try_iter().take(BATCH)) {
                match order {
                    RefereeOrder::Note(TaskMessage::Writes { who, locks, token }, answer) => {
                        let done = write_token(&transaction, self.fenced, who, &locks, &token)?;
                        answers.extend(answer.map(|answer| (answer, done)));
                    }
                    RefereeOrder::Note(TaskMessage::Done(section), _) => {
                        let text = serde_json::to_string(&section).unwrap_or_default();
                        let mut insert = transaction
                            .prepare("INSERT INTO sections (kind, granted, section) VALUES (?1, ?2, ?3)")?;
                        insert.execute(params![section.kind, section.granted, text])?;
                    }
                    RefereeOrder::Note(TaskMessage::Asks { .. } | TaskMessage::WillWrite { .. }, _) => {}
                    RefereeOrder::Fault { kind, target, struck, healed, settled } => {
                        transaction.execute(
                            "INSERT INTO faults (kind, target, struck, healed, settled) VALUES (?1, ?2, ?3, ?4, ?5)",
                            params![kind, target, struck, healed, settled],
                        )?;
                    }
                }
            }
            transaction.commit()?;
            for (answer, done) in answers {
                let _ = answer.send(done);
            }
        }
        Ok(())
    }
}

/// Writes the token to the rows of all locks, or of none. Returns whether the write was accepted.
fn write_token(
    db: &Connection,
    fenced: bool,
    who: TaskId,
    locks: &[String],
    token: &str,
) -> rusqlite::Result<bool> {
    // The fence does only what a user's own table would do.
    let fence = "INSERT INTO fence (lock, token, writes) VALUES (?1, ?2, 1) ON CONFLICT (lock) DO UPDATE
                 SET token = excluded.token, writes = writes + 1 WHERE token <= excluded.token";
    let no_fence = "INSERT INTO fence (lock, token, writes) VALUES (?1, ?2, 1) ON CONFLICT (lock) DO UPDATE
                    SET token = excluded.token, writes = writes + 1";
    db.execute_batch("SAVEPOINT one")?;
    let mut done = true;
    for lock in locks {
        let mut update = db.prepare(if fenced { fence } else { no_fence })?;
        done &= update.execute(params![lock, token])? == 1;
    }
    db.execute_batch(if done { "RELEASE one" } else { "ROLLBACK TO one; RELEASE one" })?;
    for lock in locks {
        let mut insert =
            db.prepare("INSERT INTO writes (at, who, lock, token, done) VALUES (?1, ?2, ?3, ?4, ?5)")?;
        let who = format!("{}.{}.{}", who.worker, who.life, who.task);
        insert.execute(params![now(), who, lock, token, done])?;
    }
    Ok(done)
}
