use bytes::Bytes;

use crate::{Acl, Hidden, Reader, WireError, Writer, multi, op};

/// The header of every request after the connect request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// A number that the client chooses and the reply repeats.
    pub xid: i32,
    /// The operation code, one of [`op`].
    pub op: i32,
}

impl RequestHeader {
    /// Decodes the record.
    ///
    /// # Errors
    /// The frame ends inside the record.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(RequestHeader { xid: reader.int("xid")?, op: reader.int("type")? })
    }

    /// Encodes the record.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        writer.int(self.xid);
        writer.int(self.op);
    }
}

/// The body of `create`, `create2`, `createContainer` and `createTTL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateRequest {
    /// The operation code of one of these four requests.
    pub op: i32,
    /// The path, without the number of a sequential znode.
    pub path: String,
    /// The data. Null is not the same as empty.
    pub data: Option<Bytes>,
    /// The access list.
    pub acl: Vec<Acl>,
    /// The create mode as a number.
    pub flags: i32,
    /// The time to live in milliseconds. Only `createTTL` sends it.
    pub ttl: i64,
}

/// The body of `setWatches` and `setWatches2`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetWatches {
    /// The newest zxid that the client has seen. A watch fires at once if its znode has changed after this
    /// zxid.
    pub relative_zxid: i64,
    /// Data watches.
    pub data: Vec<String>,
    /// Watches on znodes that did not exist.
    pub exist: Vec<String>,
    /// Child watches.
    pub child: Vec<String>,
    /// Persistent watches. `None` in `setWatches`.
    pub persistent: Option<Vec<String>>,
    /// Persistent recursive watches. `None` in `setWatches`.
    pub recursive: Option<Vec<String>>,
}

/// The body of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the wire records, under the names they have there")]
pub enum Request {
    Create(CreateRequest),
    Delete {
        path: String,
        version: i32,
    },
    Exists {
        path: String,
        watch: bool,
    },
    GetData {
        path: String,
        watch: bool,
    },
    SetData {
        path: String,
        data: Option<Bytes>,
        version: i32,
    },
    GetAcl {
        path: String,
    },
    SetAcl {
        path: String,
        acl: Vec<Acl>,
        version: i32,
    },
    GetChildren {
        path: String,
        watch: bool,
    },
    GetChildren2 {
        path: String,
        watch: bool,
    },
    Sync {
        path: String,
    },
    Ping,
    Check {
        path: String,
        version: i32,
    },
    Multi(Vec<Request>),
    MultiRead(Vec<Request>),
    CheckWatches {
        path: String,
        kind: i32,
    },
    RemoveWatches {
        path: String,
        kind: i32,
    },
    AddWatch {
        path: String,
        mode: i32,
    },
    SetWatches(SetWatches),
    Auth {
        kind: i32,
        scheme: String,
        credentials: Hidden,
    },
    GetEphemerals {
        prefix: String,
    },
    GetAllChildrenNumber {
        path: String,
    },
    WhoAmI,
    CloseSession,
    /// The removal of an empty container. Only servers send it. Its body is not decoded.
    DeleteContainer,
    /// A change of the members of the ensemble. Its fields are decoded, but not kept.
    Reconfig,
    /// The client's next SASL token.
    Sasl {
        token: Option<Bytes>,
    },
    /// An operation that this crate does not know. Its body is not decoded.
    Unknown {
        op: i32,
    },
}

impl Request {
    /// Decodes the body of a request, to the end of the frame.
    ///
    /// # Errors
    /// The bytes are not the body of this operation. An unknown operation becomes
    /// [`Request::Unknown`] and is not an error.
    pub fn decode(code: i32, reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let request = match code {
            op::MULTI => Request::Multi(Request::decode_all(false, reader)?),
            op::MULTI_READ => Request::MultiRead(Request::decode_all(true, reader)?),
            _ => Request::decode_single(code, reader)?,
        };
        match request {
            Request::Unknown { .. } | Request::DeleteContainer => {}
            _ => reader.check_end()?,
        }
        Ok(request)
    }

    /// Decodes the operations of a multi. A `multi` has only writes and a `multiRead` only reads.
    fn decode_all(reads: bool, reader: &mut Reader<'_>) -> Result<Vec<Request>, WireError> {
        let mut ops = Vec::new();
        while let Some(code) = multi::decode_header(reader)? {
            match code {
                op::GET_DATA | op::GET_CHILDREN if reads => {}
                op::CREATE | op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL if !reads => {}
                op::DELETE | op::SET_DATA | op::CHECK if !reads => {}
                value => return Err(WireError::Invalid { field: "multi type", value }),
            }
            ops.push(Request::decode_single(code, reader)?);
        }
        Ok(ops)
    }

    /// Decodes the body of an operation that is not a multi. `decode_all` uses this, so multis
    /// cannot nest.
    fn decode_single(code: i32, reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match code {
            op::CREATE | op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL => {
                Request::Create(CreateRequest::decode(code, reader)?)
            }
            op::DELETE => Request::Delete { path: reader.string("path")?, version: reader.int("version")? },
            op::EXISTS => Request::Exists { path: reader.string("path")?, watch: reader.bool("watch")? },
            op::GET_DATA => Request::GetData { path: reader.string("path")?, watch: reader.bool("watch")? },
            op::SET_DATA => Request::SetData {
                path: reader.string("path")?,
                data: reader.buffer("data")?.map(Bytes::copy_from_slice),
                version: reader.int("version")?,
            },
            op::GET_ACL => Request::GetAcl { path: reader.string("path")? },
            op::SET_ACL => Request::SetAcl {
                path: reader.string("path")?,
                acl: Acl::decode_list(reader)?,
                version: reader.int("version")?,
            },
            op::GET_CHILDREN => {
                Request::GetChildren { path: reader.string("path")?, watch: reader.bool("watch")? }
            }
            op::GET_CHILDREN2 => {
                Request::GetChildren2 { path: reader.string("path")?, watch: reader.bool("watch")? }
            }
            op::SYNC => Request::Sync { path: reader.string("path")? },
            op::PING => Request::Ping,
            op::CHECK => Request::Check { path: reader.string("path")?, version: reader.int("version")? },
            op::CHECK_WATCHES => {
                Request::CheckWatches { path: reader.string("path")?, kind: reader.int("type")? }
            }
            op::REMOVE_WATCHES => {
                Request::RemoveWatches { path: reader.string("path")?, kind: reader.int("type")? }
            }
            op::ADD_WATCH => Request::AddWatch { path: reader.string("path")?, mode: reader.int("mode")? },
            op::SET_WATCHES | op::SET_WATCHES2 => {
                let both = code == op::SET_WATCHES2;
                Request::SetWatches(SetWatches {
                    relative_zxid: reader.long("relativeZxid")?,
                    data: reader.strings("dataWatches")?,
                    exist: reader.strings("existWatches")?,
                    child: reader.strings("childWatches")?,
                    persistent: if both { Some(reader.strings("persistentWatches")?) } else { None },
                    recursive: if both { Some(reader.strings("persistentRecursiveWatches")?) } else { None },
                })
            }
            op::AUTH => Request::Auth {
                kind: reader.int("type")?,
                scheme: reader.string("scheme")?,
                credentials: Hidden(reader.buffer("auth")?.unwrap_or_default().to_vec()),
            },
            op::GET_EPHEMERALS => {
                Request::GetEphemerals { prefix: reader.opt_string("prefixPath")?.unwrap_or_default() }
            }
            op::GET_ALL_CHILDREN_NUMBER => Request::GetAllChildrenNumber { path: reader.string("path")? },
            op::WHO_AM_I => Request::WhoAmI,
            op::CLOSE_SESSION => Request::CloseSession,
            op::DELETE_CONTAINER => Request::DeleteContainer,
            op::RECONFIG => {
                for field in ["joiningServers", "leavingServers", "newMembers"] {
                    reader.opt_string(field)?;
                }
                reader.long("curConfigId")?;
                Request::Reconfig
            }
            op::SASL => Request::Sasl { token: reader.buffer("token")?.map(Bytes::copy_from_slice) },
            op => Request::Unknown { op },
        })
    }

    /// Returns the operation code.
    pub fn op(&self) -> i32 {
        match self {
            Request::Create(create) => create.op,
            Request::Delete { .. } => op::DELETE,
            Request::Exists { .. } => op::EXISTS,
            Request::GetData { .. } => op::GET_DATA,
            Request::SetData { .. } => op::SET_DATA,
            Request::GetAcl { .. } => op::GET_ACL,
            Request::SetAcl { .. } => op::SET_ACL,
            Request::GetChildren { .. } => op::GET_CHILDREN,
            Request::GetChildren2 { .. } => op::GET_CHILDREN2,
            Request::Sync { .. } => op::SYNC,
            Request::Ping => op::PING,
            Request::Check { .. } => op::CHECK,
            Request::Multi(_) => op::MULTI,
            Request::MultiRead(_) => op::MULTI_READ,
            Request::CheckWatches { .. } => op::CHECK_WATCHES,
            Request::RemoveWatches { .. } => op::REMOVE_WATCHES,
            Request::AddWatch { .. } => op::ADD_WATCH,
            Request::SetWatches(SetWatches { persistent: None, .. }) => op::SET_WATCHES,
            Request::SetWatches(_) => op::SET_WATCHES2,
            Request::Auth { .. } => op::AUTH,
            Request::GetEphemerals { .. } => op::GET_EPHEMERALS,
            Request::GetAllChildrenNumber { .. } => op::GET_ALL_CHILDREN_NUMBER,
            Request::WhoAmI => op::WHO_AM_I,
            Request::CloseSession => op::CLOSE_SESSION,
            Request::DeleteContainer => op::DELETE_CONTAINER,
            Request::Reconfig => op::RECONFIG,
            Request::Sasl { .. } => op::SASL,
            Request::Unknown { op } => *op,
        }
    }

    /// Encodes the body.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Request::Create(create) => create.encode(writer),
            Request::Delete { path, version } | Request::Check { path, version } => {
                writer.string(path);
                writer.int(*version);
            }
            Request::Exists { path, watch }
            | Request::GetData { path, watch }
            | Request::GetChildren { path, watch }
            | Request::GetChildren2 { path, watch } => {
                writer.string(path);
                writer.bool(*watch);
            }
            Request::SetData { path, data, version } => {
                writer.string(path);
                writer.buffer(data.as_deref());
                writer.int(*version);
            }
            Request::SetAcl { path, acl, version } => {
                writer.string(path);
                Acl::encode_list(acl, writer);
                writer.int(*version);
            }
            Request::GetAcl { path } | Request::Sync { path } | Request::GetAllChildrenNumber { path } => {
                writer.string(path);
            }
            Request::GetEphemerals { prefix } => writer.string(prefix),
            Request::Multi(ops) | Request::MultiRead(ops) => {
                for request in ops {
                    multi::encode_header(request.op(), -1, writer);
                    request.encode(writer);
                }
                multi::encode_end(writer);
            }
            Request::CheckWatches { path, kind } | Request::RemoveWatches { path, kind } => {
                writer.string(path);
                writer.int(*kind);
            }
            Request::AddWatch { path, mode } => {
                writer.string(path);
                writer.int(*mode);
            }
            Request::SetWatches(set) => {
                writer.long(set.relative_zxid);
                writer.strings(&set.data);
                writer.strings(&set.exist);
                writer.strings(&set.child);
                if let Some(persistent) = &set.persistent {
                    writer.strings(persistent);
                    writer.strings(set.recursive.as_deref().unwrap_or_default());
                }
            }
            Request::Auth { kind, scheme, credentials } => {
                writer.int(*kind);
                writer.string(scheme);
                writer.buffer(Some(&credentials.0));
            }
            Request::Reconfig => {
                for _ in 0..3 {
                    writer.buffer(None);
                }
                writer.long(-1);
            }
            Request::Sasl { token } => writer.buffer(token.as_deref()),
            Request::Ping
            | Request::WhoAmI
            | Request::CloseSession
            | Request::DeleteContainer
            | Request::Unknown { .. } => {}
        }
    }
}

impl CreateRequest {
    fn decode(op: i32, reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(CreateRequest {
            op,
            path: reader.string("path")?,
            data: reader.buffer("data")?.map(Bytes::copy_from_slice),
            acl: Acl::decode_list(reader)?,
            flags: reader.int("flags")?,
            ttl: if op == op::CREATE_TTL { reader.long("ttl")? } else { -1 },
        })
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        writer.string(&self.path);
        writer.buffer(self.data.as_deref());
        Acl::encode_list(&self.acl, writer);
        writer.int(self.flags);
        if self.op == op::CREATE_TTL {
            writer.long(self.ttl);
        }
    }
}
