//! What a contender's node says about it, for people and tools. Nothing secret.

use serde::{Deserialize, Serialize};
use zoolock_core::ContenderId;

/// The data of a contender's node: small JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NodeData {
    /// The UUID of the acquisition, by which it finds its node again after a lost reply.
    pub(crate) id: String,
    pub(crate) kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) program: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// When it queued, in milliseconds of Unix time by its own clock. For display only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) since_ms: Option<u64>,
}

/// Who we are, as told to operators.
#[derive(Debug, Clone)]
pub(crate) struct Owner {
    pub(crate) host: Option<String>,
    pub(crate) program: Option<String>,
    pub(crate) note: Option<String>,
}

impl Owner {
    pub(crate) fn this_process() -> Owner {
        let host =
            rustix::system::uname().nodename().to_str().ok().filter(|h| !h.is_empty()).map(str::to_owned);
        let program = std::env::current_exe()
            .ok()
            .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
        Owner { host, program, note: None }
    }
}

/// The longest text of a note in a node's data: it is read by everybody who lists.
const MAX_NOTE: usize = 512;

impl NodeData {
    pub(crate) fn encode(id: ContenderId, owner: &Owner) -> Vec<u8> {
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .ok()
            .map(|d| d.as_millis() as u64);
        let short = |text: &Option<String>| text.as_ref().map(|t| t.chars().take(MAX_NOTE).collect());
        let data = NodeData {
            id: id.to_string(),
            kind: "mutex".to_owned(),
            host: owner.host.clone(),
            pid: Some(std::process::id()),
            program: owner.program.clone(),
            note: short(&owner.note),
            since_ms: since,
        };
        serde_json::to_vec(&data).expect("strings and numbers always become JSON")
    }

    pub(crate) fn parse(data: &[u8]) -> Option<NodeData> {
        serde_json::from_slice(data).ok()
    }
}
