use crate::{Reader, WireError, Writer};

/// The kind of a watch event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The znode was created.
    Created,
    /// The znode was deleted.
    Deleted,
    /// The znode's data was written.
    DataChanged,
    /// A child was created or deleted.
    ChildrenChanged,
}

impl EventKind {
    /// Returns the number on the wire.
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

/// A watch event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchEvent {
    /// The kind.
    pub kind: EventKind,
    /// The path of the watched znode.
    pub path: String,
}

impl WatchEvent {
    /// `KeeperState.SyncConnected`, the state in every event that a server sends.
    const STATE: i32 = 3;

    /// Decodes the record.
    ///
    /// # Errors
    /// The frame ends inside the record, the kind is unknown, or the path is null or not UTF-8.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let code = reader.int("type")?;
        let kind = EventKind::from_code(code).ok_or(WireError::Invalid { field: "type", value: code })?;
        reader.int("state")?;
        Ok(WatchEvent { kind, path: reader.string("path")? })
    }

    /// Encodes the record.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        encode_event(self.kind, &self.path, writer);
    }
}

/// Encodes the record of a [`WatchEvent`], without a copy of its path.
pub fn encode_event(kind: EventKind, path: &str, writer: &mut Writer<'_>) {
    writer.int(kind.code());
    writer.int(WatchEvent::STATE);
    writer.string(path);
}
