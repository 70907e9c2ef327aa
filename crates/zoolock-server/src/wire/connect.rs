use super::{Reader, WireError, Writer};
use crate::secret::Hidden;

/// The first frame of a connection: asks for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Always 0 so far.
    pub protocol: i32,
    /// The newest zxid the client has seen; a server that is behind must not serve it.
    pub last_zxid_seen: i64,
    /// The session timeout wanted, in milliseconds.
    pub timeout_ms: i32,
    /// The session to re-attach to, or 0.
    pub session: i64,
    /// The password of that session.
    pub password: Hidden,
    /// Whether a read-only server will do; `None` from clients older than 3.4, which leave the byte out.
    pub read_only: Option<bool>,
}

impl ConnectRequest {
    /// Decodes a whole frame.
    ///
    /// # Errors
    /// The frame is not a connect request.
    pub fn decode(frame: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(frame);
        let protocol = reader.int("protocolVersion")?;
        let last_zxid_seen = reader.long("lastZxidSeen")?;
        let timeout_ms = reader.int("timeOut")?;
        let session = reader.long("sessionId")?;
        let password = Hidden(reader.buffer("passwd")?.unwrap_or_default().to_vec());
        let read_only = if reader.is_empty() { None } else { Some(reader.bool("readOnly")?) };
        reader.end()?;
        Ok(ConnectRequest { protocol, last_zxid_seen, timeout_ms, session, password, read_only })
    }

    /// Appends the record.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        writer.int(self.protocol);
        writer.long(self.last_zxid_seen);
        writer.int(self.timeout_ms);
        writer.long(self.session);
        writer.buffer(Some(&self.password.0));
        if let Some(read_only) = self.read_only {
            writer.bool(read_only);
        }
    }
}

/// The answer to a [`ConnectRequest`]; a timeout of 0 says that the session is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectResponse {
    /// Always 0 so far.
    pub protocol: i32,
    /// The timeout granted, in milliseconds; 0 refuses the session.
    pub timeout_ms: i32,
    /// The session.
    pub session: i64,
    /// The password that re-attaches to it.
    pub password: Hidden,
    /// Present when the request had the byte.
    pub read_only: Option<bool>,
}

impl ConnectResponse {
    /// Decodes a whole frame.
    ///
    /// # Errors
    /// The frame is not a connect response.
    pub fn decode(frame: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(frame);
        let protocol = reader.int("protocolVersion")?;
        let timeout_ms = reader.int("timeOut")?;
        let session = reader.long("sessionId")?;
        let password = Hidden(reader.buffer("passwd")?.unwrap_or_default().to_vec());
        let read_only = if reader.is_empty() { None } else { Some(reader.bool("readOnly")?) };
        reader.end()?;
        Ok(ConnectResponse { protocol, timeout_ms, session, password, read_only })
    }

    /// Appends the record.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        writer.int(self.protocol);
        writer.int(self.timeout_ms);
        writer.long(self.session);
        writer.buffer(Some(&self.password.0));
        if let Some(read_only) = self.read_only {
            writer.bool(read_only);
        }
    }
}
