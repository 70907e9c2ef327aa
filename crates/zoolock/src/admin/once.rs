//! Work that is done once for each key, such as once for each night.
//!
//! The lock gives order: one holder at a time, and the next one waits. The [record] gives "once". It is the znode
//! `/locks/team/.once/nightly` for the lock `/locks/team/nightly`, with the access list of the lock's own znodes. Its place
//! depends on the path of the lock alone. See docs/design/once.md.

pub(crate) mod record;

use std::time::{Duration, SystemTime};

use serde::Serialize;
use zoolock_core::acquisition::{Previous, RequestFailure};

use crate::admin::snapshot::request_error;
use crate::base::clock::{deadline_after, monotonic};
use crate::base::error::Error;
use crate::base::path::ONCE;
use crate::base::unix_time::{self, time_at};
use crate::lock::context::Context;
use crate::lock::held::Held;
use crate::zk::directory::DirectoryCreation;
use crate::zk::session::{Op, ZkError, ZkSession, ZnodeStat};
use record::{AttemptRecord, DONE, Decision, OnceRecord};

/// Pause between two attempts to read or write the record.
const PAUSE: Duration = Duration::from_millis(200);
/// Maximum length of a key in bytes.
const MAX_KEY: usize = 64;

/// The key of the work, and the limits of its attempts.
#[derive(Debug, Clone)]
pub struct OncePlan {
    key: String,
    attempts: u32,
}

/// The answer to a holder that wants to begin.
pub enum OnceStart {
    /// The work may begin.
    Begun(Box<OnceAttempt>),
    /// The work is done already.
    Done,
    /// All attempts were used.
    GaveUp,
    /// This other program has used the key.
    OtherProgram(String),
    /// Another version of zoolock has written the record.
    Unreadable,
}

/// The reason why a record is not used.
pub(crate) const UNREADABLE: &str =
    "has a format that this version of zoolock does not know; use a newer one";

/// An attempt to do work once ([`Once`](crate::Once)). [`Admin::runs`](crate::Admin::runs) returns it. Times are those of the
/// server's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Run {
    /// The key of the work.
    pub key: String,
    /// The number of the attempt for its key, from 1.
    pub attempt: u32,
    /// The host of the program that does the work.
    pub host: Option<String>,
    /// Its process id.
    pub pid: Option<u32>,
    /// Its name.
    pub program: Option<String>,
    /// The begin of the attempt.
    #[serde(rename = "began_ms", serialize_with = "unix_time::serialize_option")]
    pub began: Option<SystemTime>,
    /// The end of the attempt. `None` if it is not known.
    #[serde(rename = "ended_ms", serialize_with = "unix_time::serialize_option")]
    pub ended: Option<SystemTime>,
    /// The end of the attempt: `done`, or another word such as `failed`. `None` if it has not ended, or its host has died.
    pub end: Option<String>,
}

impl From<AttemptRecord> for Run {
    fn from(attempt: AttemptRecord) -> Run {
        let AttemptRecord { key, number, host, pid, program, began_ms, ended_ms, end, .. } = attempt;
        let (began, ended) = (began_ms.map(time_at), ended_ms.map(time_at));
        Run { key, attempt: number, host, pid, program, began, ended, end }
    }
}

/// An attempt that has begun.
pub struct OnceAttempt {
    context: Context,
    path: String,
    id: String,
    number: u32,
    record: OnceRecord,
    /// The version of the record with this attempt.
    version: i32,
}

impl OncePlan {
    /// Creates a plan for a key, with at most this number of attempts.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless the key is 1 to 64 visible ASCII characters.
    pub fn new(key: &str, attempts: u32) -> Result<OncePlan, Error> {
        if (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(OncePlan { key: key.to_owned(), attempts });
        }
        Err(Error::invalid(
            format!("key {key:?}"),
            "is not 1 to 64 visible ASCII characters; use another key",
        ))
    }
}

/// Returns the path of the record of the lock in this directory.
fn record_path(lock: &str) -> String {
    let (parent, name) = lock.rsplit_once('/').unwrap_or(("", lock));
    format!("{parent}/{ONCE}/{name}")
}

/// Reads the record of the lock in this directory. Returns `None` for a record that this version cannot read.
async fn read(context: &Context, lock: &str) -> Result<Option<OnceRecord>, Error> {
    let zk = context.zk().await?;
    let path = record_path(lock);
    let record = read_record(&zk, &path).await.map_err(|error| {
        request_error(context.endpoints(), format!("record {}", context.without_chroot(&path)), error)
    });
    Ok(record?.map(|(record, _)| record))
}

/// Returns the attempts in the record of the lock in this directory, newest first.
///
/// # Errors
/// [`Error::Protocol`] for a record that this version cannot read; [`Error::Unavailable`]; [`Error::Denied`].
pub(crate) async fn runs(context: &Context, lock: &str) -> Result<Vec<Run>, Error> {
    let record = read(context, lock).await?.ok_or_else(|| Error::Protocol {
        subject: format!("record {}", context.without_chroot(&record_path(lock))),
        message: UNREADABLE.to_owned(),
    })?;
    Ok(record.attempts.into_iter().map(Run::from).collect())
}

/// Reads the record, and returns the answer that a holder would get, unless an attempt would begin. The answer may be old.
pub(crate) async fn look(context: &Context, lock: &str, plan: &OncePlan) -> Result<Option<OnceStart>, Error> {
    let program = context.client_info().program.as_deref();
    Ok(match read(context, lock).await? {
        Some(record) => answer_of(record.decide(&plan.key, program, plan.attempts)).err(),
        None => Some(OnceStart::Unreadable),
    })
}

/// Returns the number of the attempt to begin, or the answer for another decision.
fn answer_of(decision: Decision) -> Result<u32, OnceStart> {
    match decision {
        Decision::Begin(number) => Ok(number),
        Decision::Done => Err(OnceStart::Done),
        Decision::GaveUp => Err(OnceStart::GaveUp),
        Decision::OtherProgram(program) => Err(OnceStart::OtherProgram(program)),
    }
}

/// Reads the record, and its stat if it exists. Returns `None` for a record that this version cannot read.
async fn read_record(zk: &ZkSession, path: &str) -> Result<Option<(OnceRecord, Option<ZnodeStat>)>, ZkError> {
    Ok(match zk.read(path).await {
        Ok((data, stat)) => {
            let written = milliseconds(stat.modified_ms);
            OnceRecord::parse(&data).map(|record| (record.with_times(written), Some(stat)))
        }
        Err(ZkError { failure: RequestFailure::NoNode, .. }) => Some((OnceRecord::default(), None)),
        Err(error) => return Err(error),
    })
}

/// Returns a time of the server, which is never before 1970.
fn milliseconds(time: i64) -> u64 {
    u64::try_from(time).unwrap_or_default()
}

/// Begins an attempt under the lock.
///
/// The transaction that begins it checks the holder's znode, so a holder that has lost the lock begins none. It names the
/// version of the record, so a stale read does no harm. If its outcome is not known, the next read shows it, and a late
/// write fails because of its version.
///
/// If nothing is to be done, [`leave`] releases the lock.
///
/// # Errors
/// [`Error::Lost`] if the lock is lost; [`Error::Denied`] if the server refuses.
///
/// # Cancel safety
/// After a drop of the future, an attempt may have begun.
pub(crate) async fn begin(held: &Held, plan: &OncePlan) -> Result<OnceStart, Error> {
    let mut begin = Begin {
        held,
        plan,
        path: record_path(held.acquisition().directories()[0].as_str()),
        id: held.acquisition().id().to_string(),
        has_made_directory: false,
    };
    let lost = |reason| Error::Lost { path: held.path().to_owned(), reason };
    loop {
        let step = async {
            match held.acquisition().session().zk() {
                Some(zk) => begin.step(&zk).await,
                None => Ok(None),
            }
        };
        let outcome = tokio::select! {
            biased;
            reason = held.lost() => return Err(lost(reason)),
            outcome = step => outcome,
        };
        match outcome {
            Ok(Some(start)) => return Ok(start),
            Err(error) if matches!(error.failure, RequestFailure::Refused(_)) => {
                let subject = format!("record {}", held.context().without_chroot(&begin.path));
                return Err(request_error(held.context().endpoints(), subject, error));
            }
            // Another holder's late write has changed the record, or an outcome is not known. The next read shows it.
            Ok(None) | Err(_) => {}
        }
        tokio::select! {
            biased;
            reason = held.lost() => return Err(lost(reason)),
            () = held.context().alarm(deadline_after(PAUSE)) => {}
        }
    }
}

/// Releases the lock of a holder that has done nothing. If the holder before it has crashed, it leaves as if it had not held,
/// so that the next one learns of the crash, too.
///
/// # Errors
/// As [`Guard::release`](crate::Guard::release).
pub(crate) async fn leave(held: Held) -> Result<(), Error> {
    if held.previous() == Previous::Crashed {
        held.release_untouched();
        return Ok(());
    }
    held.release().await
}

/// The steps to the begin of an attempt.
struct Begin<'a> {
    held: &'a Held,
    plan: &'a OncePlan,
    path: String,
    /// The id of the attempt, which is that of the acquisition.
    id: String,
    has_made_directory: bool,
}

impl Begin<'_> {
    /// Reads the record, and writes the attempt into it if it is not there. Returns `None` if the write must be repeated.
    async fn step(&mut self, zk: &ZkSession) -> Result<Option<OnceStart>, ZkError> {
        loop {
            let Some((record, stat)) = read_record(zk, &self.path).await? else {
                return Ok(Some(OnceStart::Unreadable));
            };
            if let Some(stat) = &stat
                && let Some(number) = record.newest_of(&self.id).map(|attempt| attempt.number)
            {
                return Ok(Some(OnceStart::Begun(Box::new(OnceAttempt {
                    context: self.held.context().clone(),
                    path: self.path.clone(),
                    id: self.id.clone(),
                    number,
                    version: stat.version,
                    record,
                }))));
            }
            let program = self.held.context().client_info().program.as_deref();
            let number = match answer_of(record.decide(&self.plan.key, program, self.plan.attempts)) {
                Ok(number) => number,
                Err(answer) => return Ok(Some(answer)),
            };
            let data = record.begin(self.attempt(number)).encode();
            let write = match &stat {
                Some(stat) => Op::Write { path: self.path.clone(), data, version: Some(stat.version) },
                None => Op::CreatePersistent { path: self.path.clone(), data },
            };
            match zk.commit(vec![Op::Check(self.held.holding_path()), write]).await {
                Ok(_) => {}
                // The directory of the records is missing, or the znode of the holder.
                Err(ZkError { failure: RequestFailure::NoNode, .. }) if !self.has_made_directory => {
                    let directory = self.path.rsplit_once('/').map_or("/", |(directory, _)| directory);
                    DirectoryCreation::new(directory.to_owned(), true).run(zk).await?;
                    self.has_made_directory = true;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn attempt(&self, number: u32) -> AttemptRecord {
        let client = self.held.context().client_info();
        AttemptRecord {
            key: self.plan.key.clone(),
            number,
            id: self.id.clone(),
            host: client.host.clone(),
            pid: Some(std::process::id()),
            program: client.program.clone(),
            token: self.held.exclusive_token().map(|token| token.to_string()),
            ..AttemptRecord::default()
        }
    }
}

impl OnceAttempt {
    /// Returns the number of the attempt for its key, from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Records that the work is done. Tries for `patience`, also after a loss of the lock and on a new session, because the
    /// version of the record shows whether another attempt has begun meanwhile.
    ///
    /// # Errors
    /// [`Error::Conflict`] if another attempt has begun, or the record was deleted; [`Error::Unavailable`] if no server
    /// has confirmed the write; [`Error::Denied`].
    ///
    /// # Cancel safety
    /// After a drop of the future, the write may be carried out.
    pub async fn finish_done(self, patience: Duration) -> Result<(), Error> {
        self.finish(DONE, patience).await
    }

    /// Records how the attempt has ended without success, such as `exit 3`; as [`OnceAttempt::finish_done`].
    pub async fn finish_failed(self, end: &str, patience: Duration) -> Result<(), Error> {
        self.finish(end, patience).await
    }

    async fn finish(self, end: &str, patience: Duration) -> Result<(), Error> {
        let data = self.record.clone().finish(end).encode();
        let subject = format!("record {}", self.context.without_chroot(&self.path));
        let limit = deadline_after(patience);
        let mut last = None;
        loop {
            let write = async {
                let zk = self.context.zk().await?;
                Ok::<_, Error>(match zk.write(&self.path, &data, Some(self.version)).await {
                    // An earlier write of this call may have been carried out.
                    Err(ZkError { failure: RequestFailure::BadVersion, .. }) => {
                        self.has_ended(&zk).await.map(Some)
                    }
                    Err(ZkError { failure: RequestFailure::NoNode, .. }) => Ok(Some(false)),
                    written => written.map(|_| None),
                })
            };
            let outcome = tokio::select! {
                biased;
                outcome = write => outcome?,
                () = self.context.alarm(limit) => break,
            };
            match outcome {
                Ok(None | Some(true)) => return Ok(()),
                Ok(Some(false)) => {
                    let message = "has another attempt, or was deleted".to_owned();
                    return Err(Error::Conflict { path: subject, message });
                }
                Err(error) if error.failure.is_answer() => {
                    return Err(request_error(self.context.endpoints(), subject, error));
                }
                Err(error) => last = Some(error),
            }
            if monotonic() >= limit {
                break;
            }
            self.context.alarm(deadline_after(PAUSE)).await;
        }
        let message = last.map_or_else(|| "no answer".to_owned(), |error| error.message.to_string());
        Err(Error::unavailable(self.context.endpoints(), format!("{subject}: {message}")))
    }

    /// Returns whether the record says that this attempt has ended.
    async fn has_ended(&self, zk: &ZkSession) -> Result<bool, ZkError> {
        let Some((record, _)) = read_record(zk, &self.path).await? else { return Ok(false) };
        Ok(record.attempts.iter().any(|attempt| attempt.id == self.id && attempt.end.is_some()))
    }
}
