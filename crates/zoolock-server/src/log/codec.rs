//! The binary format of transactions, and of the records in a snapshot.
//!
//! The encoders name each kind of change and each field, without wildcards and `..`. So the
//! compiler reports an error here if a kind or a field is added. The number of a removed kind is
//! never used for another kind.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use zoolock_wire::{Acl, Reader, WireError, Writer};

use crate::acl::{self, AclList};
use crate::ids::{SessionId, Zxid};
use crate::state::StoredSession;
use crate::tree::{NodeMeta, NodeRecord};
use crate::txn::{Change, Create, Password, Txn};

/// Maximum size of a transaction in bytes. All transactions of a server are smaller. A request has
/// at most 512 MiB. Access lists are limited when they are resolved. The end of a session is logged
/// without its ephemerals.
pub(super) const MAX_RECORD: usize = 1 << 30;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const SET_DATA: i32 = 3;
const SET_ACL: i32 = 4;
const CHECK: i32 = 5;
const MULTI: i32 = 6;
const CREATE_SESSION: i32 = 7;
const CLOSE_SESSION: i32 = 8;
const CLOSE_PART: i32 = 9;

/// The number that stands for the access list that gives every client all permissions. Almost every
/// znode has this list.
const OPEN_ACL: i32 = 0;
const LISTED_ACL: i32 = 1;

/// Appends a transaction.
///
/// # Errors
/// If the transaction is of a kind that is never logged, or is too large.
pub fn encode_txn(txn: &Txn, out: &mut BytesMut) -> Result<(), String> {
    let Txn { zxid, session, time, change } = txn;
    let start = out.len();
    let mut writer = Writer::new(out);
    writer.long(zxid.0);
    writer.long(session.0);
    writer.long(*time);
    match change {
        Change::Multi(changes) => {
            writer.int(MULTI);
            writer.count(changes.len());
            for change in changes {
                encode_change(change, true, out)?;
                if out.len() - start > MAX_RECORD {
                    break;
                }
            }
        }
        change => encode_change(change, false, out)?,
    }
    match out.len() - start {
        len if len > MAX_RECORD => Err(format!("it has more than {MAX_RECORD} bytes")),
        _ => Ok(()),
    }
}

/// Decodes a transaction.
///
/// # Errors
/// If the bytes are no transaction.
pub fn decode_txn(bytes: &[u8]) -> Result<Txn, WireError> {
    let mut reader = Reader::new(bytes);
    let reader = &mut reader;
    let zxid = decode_zxid(reader, "zxid")?;
    let session = SessionId(reader.long("session")?);
    let time = reader.long("time")?;
    let change = match reader.int("kind")? {
        MULTI => {
            let count = reader.count("changes", 4)?;
            let change = |_| {
                let kind = reader.int("kind")?;
                decode_change(kind, true, reader)
            };
            Change::Multi((0..count).map(change).collect::<Result<_, _>>()?)
        }
        kind => decode_change(kind, false, reader)?,
    };
    reader.check_end()?;
    Ok(Txn { zxid, session, time, change })
}

fn encode_change(change: &Change, in_multi: bool, out: &mut BytesMut) -> Result<(), String> {
    let mut writer = Writer::new(out);
    match change {
        Change::Create(create) => {
            let Create { path, data, acl, owner, parent_created, with_stat } = create;
            writer.int(CREATE);
            writer.string(path);
            writer.buffer(data.as_deref());
            encode_acl(acl, &mut writer);
            writer.long(*owner);
            writer.int(*parent_created);
            writer.bool(*with_stat);
        }
        Change::Delete { path } => {
            writer.int(DELETE);
            writer.string(path);
        }
        Change::SetData { path, data, version } => {
            writer.int(SET_DATA);
            writer.string(path);
            writer.buffer(data.as_deref());
            writer.int(*version);
        }
        Change::SetAcl { path, acl, version } => {
            writer.int(SET_ACL);
            writer.string(path);
            encode_acl(acl, &mut writer);
            writer.int(*version);
        }
        Change::Check => writer.int(CHECK),
        Change::Multi(_) => return Err("nested multi".to_owned()),
        Change::CreateSession { .. } | Change::CloseSession { .. } | Change::ClosePart { .. } if in_multi => {
            return Err("session change inside a multi".to_owned());
        }
        Change::CreateSession { timeout_ms, password: Password(password) } => {
            writer.int(CREATE_SESSION);
            encode_timeout(*timeout_ms, &mut writer);
            writer.buffer(Some(password));
        }
        // The ephemerals are not logged, because they might take too many bytes. Recovery finds
        // them in the state.
        Change::CloseSession { ephemerals: _ } => writer.int(CLOSE_SESSION),
        Change::ClosePart { ephemerals } => {
            writer.int(CLOSE_PART);
            writer.count(ephemerals.len());
            ephemerals.iter().for_each(|path| writer.string(path));
        }
        Change::Refused(_) => return Err("a refused write is never logged".to_owned()),
    }
    Ok(())
}

fn decode_change(kind: i32, in_multi: bool, reader: &mut Reader<'_>) -> Result<Change, WireError> {
    Ok(match kind {
        CREATE => Change::Create(Create {
            path: decode_path(reader)?,
            data: decode_data(reader)?,
            acl: decode_acl(reader)?,
            owner: reader.long("owner")?,
            parent_created: reader.int("parent created")?,
            with_stat: reader.bool("with stat")?,
        }),
        DELETE => Change::Delete { path: decode_path(reader)? },
        SET_DATA => Change::SetData {
            path: decode_path(reader)?,
            data: decode_data(reader)?,
            version: reader.int("version")?,
        },
        SET_ACL => Change::SetAcl {
            path: decode_path(reader)?,
            acl: decode_acl(reader)?,
            version: reader.int("version")?,
        },
        CHECK => Change::Check,
        CREATE_SESSION if !in_multi => {
            Change::CreateSession { timeout_ms: decode_timeout(reader)?, password: decode_password(reader)? }
        }
        CLOSE_SESSION if !in_multi => Change::CloseSession { ephemerals: Vec::new() },
        CLOSE_PART if !in_multi => {
            let count = reader.count("ephemerals", 4)?;
            Change::ClosePart {
                ephemerals: (0..count).map(|_| decode_path(reader)).collect::<Result<_, _>>()?,
            }
        }
        value => return Err(WireError::Invalid { field: "kind", value }),
    })
}

/// Appends a session.
pub fn encode_session(id: SessionId, session: &StoredSession, out: &mut BytesMut) {
    let StoredSession { timeout_ms, password: Password(password) } = session;
    let mut writer = Writer::new(out);
    writer.long(id.0);
    encode_timeout(*timeout_ms, &mut writer);
    writer.buffer(Some(password));
}

/// Decodes a session.
///
/// # Errors
/// If the bytes are no session.
pub fn decode_session(reader: &mut Reader<'_>) -> Result<(SessionId, StoredSession), WireError> {
    let id = SessionId(reader.long("session")?);
    Ok((id, StoredSession { timeout_ms: decode_timeout(reader)?, password: decode_password(reader)? }))
}

/// Appends a znode. `list` is the number of its access list.
pub fn encode_node(node: &NodeRecord, list: u32, out: &mut BytesMut) {
    let NodeRecord { path, data, acl: _, meta } = node;
    let NodeMeta { czxid, mzxid, pzxid, ctime, mtime, version, created, aversion, owner } = meta;
    let mut writer = Writer::new(out);
    writer.string(path);
    writer.buffer(data.as_deref());
    writer.int(list as i32);
    writer.long(czxid.0);
    writer.long(mzxid.0);
    writer.long(pzxid.0);
    writer.long(*ctime);
    writer.long(*mtime);
    writer.int(*version);
    writer.int(*created);
    writer.int(*aversion);
    writer.long(*owner);
}

/// Decodes a znode.
///
/// # Errors
/// If the bytes are no znode, or the number of its access list is not in `lists`.
pub fn decode_node(lists: &[AclList], reader: &mut Reader<'_>) -> Result<NodeRecord, WireError> {
    Ok(NodeRecord {
        path: reader.string("path")?,
        data: decode_data(reader)?,
        acl: {
            let value = reader.int("acl")?;
            let list = lists.get(value as u32 as usize);
            list.ok_or(WireError::Invalid { field: "acl", value })?.clone()
        },
        meta: NodeMeta {
            czxid: decode_zxid(reader, "czxid")?,
            mzxid: decode_zxid(reader, "mzxid")?,
            pzxid: decode_zxid(reader, "pzxid")?,
            ctime: reader.long("ctime")?,
            mtime: reader.long("mtime")?,
            version: reader.int("version")?,
            created: reader.int("created")?,
            aversion: reader.int("aversion")?,
            owner: reader.long("owner")?,
        },
    })
}

/// Appends an access list.
pub fn encode_acl(list: &AclList, writer: &mut Writer<'_>) {
    if *list == acl::open_list() {
        writer.int(OPEN_ACL);
    } else {
        writer.int(LISTED_ACL);
        Acl::encode_list(list, writer);
    }
}

/// Decodes an access list.
///
/// # Errors
/// If the bytes are no access list.
pub fn decode_acl(reader: &mut Reader<'_>) -> Result<AclList, WireError> {
    match reader.int("acl")? {
        OPEN_ACL => Ok(acl::open_list()),
        LISTED_ACL => Ok(Acl::decode_list(reader)?.into()),
        value => Err(WireError::Invalid { field: "acl", value }),
    }
}

fn decode_path(reader: &mut Reader<'_>) -> Result<Arc<str>, WireError> {
    Ok(reader.string("path")?.into())
}

fn decode_data(reader: &mut Reader<'_>) -> Result<Option<Bytes>, WireError> {
    // The data is copied: a slice would keep the whole batch in memory while the znode exists.
    Ok(reader.buffer("data")?.map(Bytes::copy_from_slice))
}

fn decode_zxid(reader: &mut Reader<'_>, field: &'static str) -> Result<Zxid, WireError> {
    Ok(Zxid(reader.long(field)?))
}

fn encode_timeout(timeout_ms: u32, writer: &mut Writer<'_>) {
    writer.int(timeout_ms as i32);
}

fn decode_timeout(reader: &mut Reader<'_>) -> Result<u32, WireError> {
    Ok(reader.int("timeout")? as u32)
}

fn decode_password(reader: &mut Reader<'_>) -> Result<Password, WireError> {
    let bytes = reader.buffer("password")?.unwrap_or_default();
    let invalid = |_| WireError::Invalid { field: "password length", value: bytes.len() as i32 };
    Ok(Password(bytes.try_into().map_err(invalid)?))
}
