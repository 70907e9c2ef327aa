//! The record of the work that is done once for each key: which keys are done, and who tried.
//!
//! The record is the data of one znode beside the lock. Each write names the version that its writer has read, so all
//! writes are one chain. A write that begins an attempt contains `done` without the key, and a write that ends an attempt names
//! the version of the write that began it. So no attempt begins after the key is done, as long as the key is among
//! the last [`MAX_DONE`].

use serde::{Deserialize, Serialize};

/// The format of the record. A record with another format is neither used nor overwritten.
const FORMAT: &str = "zoolock/1 once";
/// Maximum number of keys that are known to be done.
const MAX_DONE: usize = 256;
/// Maximum number of attempts in the record.
const MAX_ATTEMPTS: usize = 32;

/// The end of an attempt that has done the work.
pub(crate) const DONE: &str = "done";

/// Fields that this version does not know. They are kept.
type OtherFields = serde_json::Map<String, serde_json::Value>;

/// The data of the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OnceRecord {
    format: String,
    /// The keys whose work is done, newest first.
    #[serde(default)]
    done: Vec<String>,
    /// The attempts, newest first.
    #[serde(default)]
    pub(crate) attempts: Vec<AttemptRecord>,
    #[serde(flatten)]
    other: OtherFields,
}

/// An attempt to do the work of a key. Times are those of the server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttemptRecord {
    pub(crate) key: String,
    /// The number of the attempt for its key, from 1.
    #[serde(rename = "n")]
    pub(crate) number: u32,
    /// The id of the acquisition.
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) host: Option<String>,
    #[serde(default)]
    pub(crate) pid: Option<u32>,
    #[serde(default)]
    pub(crate) program: Option<String>,
    #[serde(default)]
    pub(crate) token: Option<String>,
    #[serde(default)]
    pub(crate) began_ms: Option<u64>,
    #[serde(default)]
    pub(crate) ended_ms: Option<u64>,
    /// The end of the attempt: `done` or another word. `None` if that is not known.
    #[serde(default)]
    pub(crate) end: Option<String>,
    #[serde(flatten)]
    pub(crate) other: OtherFields,
}

/// The next step of a holder that wants to do the work of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The work is done.
    Done,
    /// All attempts were used.
    GaveUp,
    /// Another program, which this one is not, has used the key.
    OtherProgram(String),
    /// Begin the attempt with this number.
    Begin(u32),
}

impl Default for OnceRecord {
    fn default() -> Self {
        Self { format: FORMAT.to_owned(), done: Vec::new(), attempts: Vec::new(), other: OtherFields::new() }
    }
}

impl OnceRecord {
    /// Parses the data of the znode. Returns `None` for data that this version must not overwrite.
    pub(crate) fn parse(data: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(data).ok()?;
        (record.format == FORMAT).then_some(record)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("the record has string keys only")
    }

    /// Fills in the time of the last write, which the newest attempt could not know. `written_ms`: the time of that write.
    pub(crate) fn with_times(mut self, written_ms: u64) -> Self {
        if let Some(newest) = self.attempts.first_mut() {
            match newest.end {
                None => newest.began_ms.get_or_insert(written_ms),
                Some(_) => newest.ended_ms.get_or_insert(written_ms),
            };
        }
        self
    }

    /// Returns whether the work of the key is done.
    pub(crate) fn is_done(&self, key: &str) -> bool {
        self.done.iter().any(|done| done == key)
    }

    /// Returns the attempts for a key, newest first.
    pub(crate) fn attempts_for(&self, key: &str) -> impl Iterator<Item = &AttemptRecord> {
        self.attempts.iter().filter(move |attempt| attempt.key == key)
    }

    /// Decides what a holder must do that wants to do the work of `key`, with at most `limit` attempts. `program`: the
    /// program of the holder.
    pub(crate) fn decide(&self, key: &str, program: Option<&str>, limit: u32) -> Decision {
        let earlier = self.attempts_for(key).next();
        let other = earlier.and_then(|attempt| attempt.program.as_deref()).filter(|_| program.is_some());
        match other.filter(|other| Some(*other) != program) {
            Some(other) => Decision::OtherProgram(other.to_owned()),
            None if self.is_done(key) => Decision::Done,
            None => match earlier.map_or(0, |attempt| attempt.number) {
                used if used >= limit => Decision::GaveUp,
                used => Decision::Begin(used.saturating_add(1)),
            },
        }
    }

    /// Returns the record with a new attempt.
    pub(crate) fn begin(mut self, attempt: AttemptRecord) -> Self {
        self.attempts.insert(0, attempt);
        self.attempts.truncate(MAX_ATTEMPTS);
        self
    }

    /// Returns the record in which the newest attempt has ended.
    pub(crate) fn finish(mut self, end: &str) -> Self {
        if let Some(newest) = self.attempts.first_mut() {
            newest.end = Some(end.to_owned());
            if end == DONE {
                self.done.insert(0, newest.key.clone());
                self.done.truncate(MAX_DONE);
            }
        }
        self
    }

    /// Returns the newest attempt if it has this id.
    pub(crate) fn newest_of(&self, id: &str) -> Option<&AttemptRecord> {
        self.attempts.first().filter(|attempt| attempt.id == id)
    }
}

#[cfg(test)]
mod tests;
