//! The data of a contender's znode, for people and tools. It contains no secret.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use zoolock_core::ContenderId;
use zoolock_core::acquisition::NodeFlags;

use crate::base::owner_id::OwnerId;

/// The data of a contender's znode, as small JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NodeData {
    /// The UUID of the acquisition. After a lost reply, the acquisition finds its znode by this
    /// UUID.
    pub(crate) id: String,
    pub(crate) kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) program: Option<String>,
    /// Set if the process is not `program` itself, but runs it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) runs_program: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// Time at which the contender queued, in milliseconds of Unix time, by the clock of the
    /// contender's machine. For display only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) since_ms: Option<u64>,
    /// The owner, if the caller named one; see `owner_id.rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<Box<str>>,
    /// The task or thread that acquires, if there is no named owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) task: Option<Box<str>>,
    /// The UUID of the reader's acquisition. Set only in the znode of a writer that upgrades this
    /// reader.
    #[serde(rename = "of", default, skip_serializing_if = "Option::is_none")]
    pub(crate) reader_id: Option<String>,
    /// Set if the contender waited for permits, and has them now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) granted: bool,
    /// Set if another client asks the contender to release.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) revoked: bool,
    /// Set if the contender tracks crashes. Such a contender writes a marker to the lock directory
    /// when it begins to hold, even if the earlier holders have written none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) tracks: bool,
}

/// The data with which ZooKeeper's recipe and Curator ask a holder to release.
pub(crate) const REVOCATIONS: [&[u8]; 2] = [b"unlock", b"__REVOKE__"];

/// Returns the flags in the data of a contender's znode. Any client may have written that data.
pub(crate) fn parse_flags(data: &[u8]) -> NodeFlags {
    if REVOCATIONS.contains(&data) {
        return NodeFlags { revoked: true, ..NodeFlags::default() };
    }
    serde_json::from_slice(data).map_or(NodeFlags::default(), |data: FlagsJson<'_>| NodeFlags {
        granted: data.granted,
        revoked: data.revoked,
        untracked: !data.tracks,
    })
}

/// The fields of [`NodeData`] that other contenders use. Contenders parse this struct at every
/// hand-over of a lock, so its strings are borrowed from the data.
#[derive(Deserialize)]
struct FlagsJson<'a> {
    /// Data without `id` or `kind` is not parsed, because only data that this library has written
    /// has both.
    #[serde(borrow, rename = "id")]
    _id: Cow<'a, str>,
    #[serde(borrow, rename = "kind")]
    _kind: Cow<'a, str>,
    #[serde(default)]
    granted: bool,
    #[serde(default)]
    revoked: bool,
    #[serde(default)]
    tracks: bool,
}

/// The identity of this client, as operators see it.
#[derive(Debug, Clone)]
pub(crate) struct ClientInfo {
    pub(crate) host: Option<String>,
    pub(crate) program: Option<String>,
    /// Set if the process is not `program` itself, but runs it.
    pub(crate) runs_program: bool,
    pub(crate) note: Option<String>,
    /// The command line, for the history of operator actions.
    pub(crate) command: Option<String>,
}

impl ClientInfo {
    pub(crate) fn this_process() -> ClientInfo {
        let host =
            rustix::system::uname().nodename().to_str().ok().filter(|h| !h.is_empty()).map(str::to_owned);
        let program = std::env::current_exe()
            .ok()
            .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
        ClientInfo { host, program, runs_program: false, note: None, command: None }
    }
}

/// The maximum length of a note in characters. The limit is small, because every client that lists
/// the lock reads the note.
const MAX_NOTE: usize = 512;

/// Returns the note, cut to the longest one.
pub(crate) fn short_note(note: &str) -> String {
    note.chars().take(MAX_NOTE).collect()
}

impl NodeData {
    pub(crate) fn new(id: ContenderId, kind: &str, client: &ClientInfo, owner: OwnerId) -> NodeData {
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .ok()
            .map(|d| d.as_millis() as u64);
        NodeData {
            id: id.to_string(),
            kind: kind.to_owned(),
            host: client.host.clone(),
            pid: Some(std::process::id()),
            program: client.program.clone(),
            runs_program: client.runs_program,
            note: client.note.as_deref().map(short_note),
            since_ms: since,
            owner: owner.owner,
            task: owner.task,
            reader_id: None,
            granted: false,
            revoked: false,
            tracks: false,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(256);
        serde_json::to_writer(&mut text, self).expect("strings and numbers always become JSON");
        text
    }

    /// Returns the owner, to be written into another znode of the same owner.
    pub(crate) fn owner_id(&self) -> OwnerId {
        OwnerId { owner: self.owner.clone(), task: self.task.clone() }
    }

    /// Returns the same data with `granted` set, and with this value of `revoked`.
    pub(crate) fn with_granted(&self, revoked: bool) -> NodeData {
        NodeData { granted: true, revoked, ..self.clone() }
    }

    /// Returns the same data for a znode of another kind.
    pub(crate) fn with_kind(&self, kind: &str) -> NodeData {
        NodeData { kind: kind.to_owned(), ..self.clone() }
    }

    /// Returns whether the acquisition with this id wrote the data.
    pub(crate) fn is_written_by(&self, id: ContenderId) -> bool {
        self.id == id.to_string()
    }

    pub(crate) fn parse(data: &[u8]) -> Option<NodeData> {
        serde_json::from_slice(data).ok()
    }
}
