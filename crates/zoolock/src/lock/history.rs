//! The history of locks, in the directory `.audit` of the root: what operators did, and the crashes that holders found.
//!
//! Each event is a znode. Its name has the kind of the event and a hash of the lock's path, so that the events of one lock
//! are found without reading those of the others. The server's clock tells the time of the event.

use std::hash::Hasher as _;
use std::sync::Arc;
use std::time::SystemTime;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use siphasher::sip::SipHasher24;
use zoolock_core::acquisition::RequestFailure;
use zoolock_core::record::HolderState;

use crate::base::path::AUDIT;
use crate::base::telemetry::log_event;
use crate::base::text_enum::text_enum;
use crate::base::ticket::Ticket;
use crate::base::unix_time;
use crate::engine::crashes::FoundCrash;
use crate::engine::data::ClientInfo;
use crate::lock::context::Context;
use crate::zk::directory;
use crate::zk::session::{Created, Op, ZkError, ZkSession};

/// Number of requests and crashes that are kept below a root. Older ones are deleted. Breaks are kept.
const MAX_EVENTS: usize = 1000;
/// Maximum number of characters of each text in an event.
const MAX_TEXT: usize = 512;
/// The writer of a request or a crash whose number this divides deletes old ones.
const PRUNE_EVERY: u32 = 16;

text_enum! {
    /// A kind of event in the history of a lock.
    HistoryKind {
        /// An operator asked the contender to release.
        Asked = "asked",
        /// An operator deleted the contender's znode.
        Broken = "broken",
        /// The holder ended without a release. The next holder found this, see
        /// [`crash_detection`](crate::Mutex::crash_detection).
        Crashed = "crashed",
        /// The holder released while its thread unwound from a panic.
        Panicked = "panicked",
    }
}

impl<'de> Deserialize<'de> for HistoryKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HistoryKind, D::Error> {
        let text = String::deserialize(deserializer)?;
        let all = [HistoryKind::Asked, HistoryKind::Broken, HistoryKind::Crashed, HistoryKind::Panicked];
        let found = all.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| D::Error::custom(format!("unknown event {text:?}")))
    }
}

/// An event in the history of a lock.
///
/// A client that may acquire locks may write any event, so do not trust its texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HistoryEvent {
    /// The kind of the event.
    pub event: HistoryKind,
    /// Path of the lock directory.
    #[serde(rename = "path")]
    pub lock: String,
    /// Time of the event, by the server's clock. For a crash, the time at which it was found. `None` if that clock was not
    /// set.
    #[serde(rename = "at_ms", default, skip_deserializing, serialize_with = "unix_time::serialize_option")]
    pub at: Option<SystemTime>,
    /// Sequence number of the contender, from the end of its znode's name.
    #[serde(default)]
    pub number: Option<u32>,
    /// Token of the contender. `None` for a crash.
    #[serde(default, deserialize_with = "token_if_valid")]
    pub token: Option<Ticket>,
    /// `true` if the contender held the lock, `false` if it waited. `None` if this is not known, as for readers and permits
    /// that are not first in the queue.
    #[serde(default)]
    pub held: Option<bool>,
    /// The contender, as far as its znode or its marker describes it.
    #[serde(default)]
    pub contender: Party,
    /// The operator who asked or broke; the holder that found a crash.
    #[serde(default)]
    pub by: Party,
}

/// Every client may write any text.
fn token_if_valid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Ticket>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.and_then(|text| text.parse().ok()))
}

/// A process in the history of a lock. An unknown field is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Party {
    /// The user: `SUDO_USER` or `USER` of the process, else its user ID. Only known of operators.
    #[serde(default)]
    pub user: Option<String>,
    /// The host.
    #[serde(default)]
    pub host: Option<String>,
    /// The process ID.
    #[serde(default)]
    pub pid: Option<u32>,
    /// The program.
    #[serde(default)]
    pub program: Option<String>,
    /// Set if the process is not `program` itself, but runs it.
    #[serde(default)]
    pub runs_program: bool,
    /// The client library of a contender whose znode does not have zoolock's data. `None` for other processes.
    #[serde(default)]
    pub library: Option<String>,
    /// The command line, if the client is the `zoolock` command.
    #[serde(default)]
    pub command: Option<String>,
    /// The note of the client; of an operator, the reason.
    #[serde(default)]
    pub note: Option<String>,
}

impl Party {
    /// Returns this process.
    pub(crate) fn this_process(client: &ClientInfo) -> Party {
        let variable = |name| std::env::var(name).ok().filter(|user: &String| !user.is_empty());
        let ClientInfo { host, program, runs_program, note, command } = client.clone();
        Party {
            user: variable("SUDO_USER")
                .or_else(|| variable("USER"))
                .or_else(|| Some(format!("uid {}", rustix::process::getuid().as_raw()))),
            host,
            pid: Some(std::process::id()),
            program,
            runs_program,
            library: None,
            command,
            note,
        }
    }

    /// Returns the same process with short texts. Other clients write some of them, and a server refuses a long znode, so
    /// that a break would fail.
    fn shortened(&self) -> Party {
        let short = |text: &Option<String>| text.as_ref().map(|text| text.chars().take(MAX_TEXT).collect());
        Party {
            user: short(&self.user),
            host: short(&self.host),
            pid: self.pid,
            program: short(&self.program),
            runs_program: self.runs_program,
            library: short(&self.library),
            command: short(&self.command),
            note: short(&self.note),
        }
    }

    /// Returns the process in a `held` marker: `HOST:PID`.
    fn in_marker(text: &str) -> Party {
        let (host, pid) = text.rsplit_once(':').unwrap_or((text, ""));
        let host = Some(host.to_owned()).filter(|host| !host.is_empty());
        Party { host, pid: pid.parse().ok(), ..Party::default() }
    }
}

/// Returns the path of the directory that contains the history of all locks of a root.
pub(crate) fn audit_directory(context: &Context) -> String {
    format!("{}/{AUDIT}", context.root().trim_end_matches('/'))
}

/// Returns the part of a znode's name that shows the lock.
pub(crate) fn lock_tag(lock: &str) -> String {
    // Uses no key, because all clients must compute the same tag.
    let mut hasher = SipHasher24::new();
    hasher.write(lock.as_bytes());
    format!("{:016x}", hasher.finish())
}

/// Returns the operation that adds an event to the history.
pub(crate) fn event_op(directory: &str, event: &HistoryEvent) -> Op {
    let prefix = format!("{directory}/{}-{}-", event.event, lock_tag(&event.lock));
    let event =
        HistoryEvent { contender: event.contender.shortened(), by: event.by.shortened(), ..event.clone() };
    let data = serde_json::to_vec(&event).expect("strings and numbers always become JSON");
    Op::CreatePersistentSequential { prefix, data }
}

/// Adds an event to the history. Creates its directory if there is none.
pub(crate) async fn add(zk: &Arc<ZkSession>, context: &Context, event: &HistoryEvent) -> Result<(), ZkError> {
    let directory = audit_directory(context);
    let mut outcome = zk.commit(vec![event_op(&directory, event)]).await;
    if let Err(ZkError { failure: RequestFailure::NoNode, .. }) = outcome {
        directory::create_with_parents(zk.clone(), directory.clone(), true).await?;
        outcome = zk.commit(vec![event_op(&directory, event)]).await;
    }
    match outcome?.first().and_then(number_of) {
        Some(number) if number % PRUNE_EVERY == 0 => delete_old_events(zk, &directory).await,
        _ => Ok(()),
    }
}

/// Adds the crashes that an acquisition has found, in the background. The holder does not wait for it. A failure is only
/// logged, because the history is for people.
pub(crate) fn add_crashes(context: &Context, path: impl Fn(usize) -> String, crashes: Vec<FoundCrash>) {
    let by = Party { user: None, ..Party::this_process(context.client_info()) };
    let event = |crash: &FoundCrash| HistoryEvent {
        event: match crash.marker.state {
            HolderState::Panicked => HistoryKind::Panicked,
            _ => HistoryKind::Crashed,
        },
        at: None,
        token: None,
        lock: path(crash.lock_index),
        number: u32::try_from(crash.marker.sequence.0).ok(),
        held: Some(true),
        contender: Party::in_marker(&crash.holder),
        by: by.clone(),
    };
    let events: Vec<HistoryEvent> = crashes.iter().map(event).collect();
    let context = context.clone();
    context.tasks().spawn(async move {
        let Ok(zk) = context.zk().await else { return };
        for event in events {
            if let Err(error) = add(&zk, &context, &event).await {
                log_event!(DEBUG, lock = event.lock, error = error.message, "cannot record a crash");
            }
        }
    });
}

/// Deletes the oldest requests and crashes if there are more than [`MAX_EVENTS`].
async fn delete_old_events(zk: &Arc<ZkSession>, directory: &str) -> Result<(), ZkError> {
    let (names, _) = zk.children(directory).await?;
    let mut events: Vec<&String> = names.iter().filter(|name| !name.starts_with("broken-")).collect();
    events.sort_by_key(|name| sequence_number(name));
    let old = &events[..events.len().saturating_sub(MAX_EVENTS)];
    let deletions = old.iter().map(|name| zk.commit(vec![Op::Delete(format!("{directory}/{name}"))]));
    for deletion in deletions.collect::<Vec<_>>() {
        // Ignores a failure, because another client may delete the event at the same time.
        let _ = deletion.await;
    }
    Ok(())
}

fn number_of(created: &Created) -> Option<u32> {
    sequence_number(&created.path)
}

/// Returns the number at the end of a znode's name.
pub(crate) fn sequence_number(name: &str) -> Option<u32> {
    name.rsplit('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_names_host_and_process() {
        let party =
            |host: Option<&str>, pid| Party { host: host.map(str::to_owned), pid, ..Party::default() };
        assert_eq!(Party::in_marker("web-3:4711"), party(Some("web-3"), Some(4711)));
        assert_eq!(Party::in_marker(":4711"), party(None, Some(4711)));
        assert_eq!(Party::in_marker("web-3:"), party(Some("web-3"), None));
        assert_eq!(Party::in_marker(""), Party::default());
    }

    #[test]
    fn long_texts_of_an_event_are_cut() {
        let long = Party { note: Some("ü".repeat(1_000_000)), ..Party::default() };
        let event: HistoryEvent =
            serde_json::from_str(r#"{"event":"asked","path":"/locks/x"}"#).expect("an event");
        let event = HistoryEvent { contender: long.clone(), by: long, ..event };
        let Op::CreatePersistentSequential { data, .. } = event_op("/locks/.audit", &event) else {
            panic!("an event is a znode")
        };
        assert!(data.len() < 4_096, "{}", data.len());
    }

    #[test]
    fn tag_of_a_lock_is_stable() {
        assert_eq!(lock_tag("/locks/nightly"), "416adfbd11e54341");
        assert_ne!(lock_tag("/locks/nightly"), lock_tag("/locks/nightly2"));
        assert_eq!(lock_tag("").len(), 16);
    }
}
