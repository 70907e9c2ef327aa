use super::{Reader, WireError, Writer};

/// What happened to a watched path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The znode came into being.
    Created,
    /// The znode is gone.
    Deleted,
    /// Its data changed.
    DataChanged,
    /// A child came or went.
    ChildrenChanged,
}

impl EventKind {
    /// The number on the wire.
    pub fn code(self) -> i32 {
        match self {
            EventKind::Created => 1,
            EventKind::Deleted => 2,
            EventKind::DataChanged => 3,
            EventKind::ChildrenChanged => 4,
        }
    }

    fn from_code(code: i32) -> Option<Self> {
        [EventKind::Created, EventKind::Deleted, EventKind::DataChanged, EventKind::ChildrenChanged]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// Tells a client that a watch fired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchEvent {
    /// What happened.
    pub kind: EventKind,
    /// Where.
    pub path: String,
}

impl WatchEvent {
    /// `KeeperState.SyncConnected`, the state every event of a live server carries.
    const STATE: i32 = 3;

    /// Decodes the record.
    ///
    /// # Errors
    /// The record is cut, or of an unknown kind.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let code = reader.int("type")?;
        let kind = EventKind::from_code(code).ok_or(WireError::Invalid { field: "type", value: code })?;
        reader.int("state")?;
        Ok(WatchEvent { kind, path: reader.string("path")? })
    }

    /// Appends the record.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        encode_event(self.kind, &self.path, writer);
    }
}

pub(crate) fn encode_event(kind: EventKind, path: &str, writer: &mut Writer<'_>) {
    writer.int(kind.code());
    writer.int(WatchEvent::STATE);
    writer.string(path);
}
