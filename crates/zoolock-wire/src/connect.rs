use crate::{Hidden, Reader, WireError, Writer};

/// The first frame of a connection: requests a new session, or attaches to an existing one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The protocol version, always 0.
    pub protocol: i32,
    /// The newest zxid that the client has seen. A server that has not applied this zxid yet closes the
    /// connection.
    pub last_zxid_seen: i64,
    /// The requested session timeout, in milliseconds.
    pub timeout_ms: i32,
    /// The session to attach to, or 0 for a new one.
    pub session: i64,
    /// The password of the session. Ignored for a new session.
    pub password: Hidden,
    /// `Some(true)` if the client accepts a read-only server. `None` if the byte is missing, as
    /// before ZooKeeper 3.4.
    pub read_only: Option<bool>,
}

impl ConnectRequest {
    /// Creates a request for a new session with this timeout.
    pub fn new_session(timeout_ms: i32) -> Self {
        ConnectRequest {
            protocol: 0,
            last_zxid_seen: 0,
            timeout_ms,
            session: 0,
            password: Hidden(vec![0; 16]),
            read_only: Some(false),
        }
    }

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
        reader.check_end()?;
        Ok(ConnectRequest { protocol, last_zxid_seen, timeout_ms, session, password, read_only })
    }

    /// Encodes the record.
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

/// The reply to a [`ConnectRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The protocol version, always 0.
    pub protocol: i32,
    /// The negotiated session timeout, in milliseconds. 0 means that the session has expired.
    pub timeout_ms: i32,
    /// The session id.
    pub session: i64,
    /// The password with which a client attaches to the session.
    pub password: Hidden,
    /// `Some(true)` if the server is read-only. `None` if the byte is missing, as in the reply to a
    /// request without it.
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
        reader.check_end()?;
        Ok(ConnectResponse { protocol, timeout_ms, session, password, read_only })
    }

    /// Encodes the record.
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
