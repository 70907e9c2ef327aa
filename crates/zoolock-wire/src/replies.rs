use bytes::Bytes;

use crate::{Acl, OpResult, Reader, Stat, WireError, Writer, multi, op};

/// The header of every reply and every watch event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The xid of the request, or one of the special xids in [`op`].
    pub xid: i32,
    /// The newest zxid that the server had applied.
    pub zxid: i64,
    /// 0, or the number of a [`Code`](crate::Code).
    pub err: i32,
}

impl ReplyHeader {
    /// Decodes the record.
    ///
    /// # Errors
    /// The frame ends inside the record.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(ReplyHeader { xid: reader.int("xid")?, zxid: reader.long("zxid")?, err: reader.int("err")? })
    }

    /// Encodes the record.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        writer.int(self.xid);
        writer.long(self.zxid);
        writer.int(self.err);
    }
}

/// The body of a reply without an error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the wire records, under the names they have there")]
pub enum Reply {
    /// No body.
    Empty,
    Path(String),
    PathStat {
        path: String,
        stat: Stat,
    },
    Stat(Stat),
    Data {
        data: Option<Bytes>,
        stat: Stat,
    },
    Children(Vec<String>),
    ChildrenStat {
        children: Vec<String>,
        stat: Stat,
    },
    AclStat {
        acl: Vec<Acl>,
        stat: Stat,
    },
    /// The count of `getAllChildrenNumber`, or the error code of `addWatch`.
    Number(i32),
    Multi(Vec<OpResult>),
    /// The server's next SASL token.
    Token(Option<Bytes>),
    /// The identities of the connection: pairs of scheme and user.
    Identities(Vec<(String, String)>),
}

impl Reply {
    /// Decodes the body of the reply to an operation, to the end of the frame.
    ///
    /// # Errors
    /// The bytes are not the body of a reply to this operation.
    pub fn decode(code: i32, reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let reply = match code {
            op::CREATE | op::SYNC => Reply::Path(reader.string("path")?),
            op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL => {
                Reply::PathStat { path: reader.string("path")?, stat: Stat::decode(reader)? }
            }
            op::EXISTS | op::SET_DATA | op::SET_ACL => Reply::Stat(Stat::decode(reader)?),
            op::GET_DATA => Reply::Data {
                data: reader.buffer("data")?.map(Bytes::copy_from_slice),
                stat: Stat::decode(reader)?,
            },
            op::GET_CHILDREN | op::GET_EPHEMERALS => Reply::Children(reader.strings("children")?),
            op::GET_CHILDREN2 => {
                Reply::ChildrenStat { children: reader.strings("children")?, stat: Stat::decode(reader)? }
            }
            op::GET_ACL => Reply::AclStat { acl: Acl::decode_list(reader)?, stat: Stat::decode(reader)? },
            op::GET_ALL_CHILDREN_NUMBER | op::ADD_WATCH => Reply::Number(reader.int("number")?),
            op::MULTI | op::MULTI_READ => Reply::Multi(multi::decode_results(reader)?),
            op::SASL => Reply::Token(reader.buffer("token")?.map(Bytes::copy_from_slice)),
            op::WHO_AM_I => {
                let count = reader.count("clientInfo", 8)?;
                let pairs = (0..count).map(|_| Ok((reader.string("authScheme")?, reader.string("user")?)));
                Reply::Identities(pairs.collect::<Result<_, WireError>>()?)
            }
            _ => Reply::Empty,
        };
        reader.check_end()?;
        Ok(reply)
    }

    /// Encodes the body.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Reply::Empty => {}
            Reply::Path(path) => writer.string(path),
            Reply::PathStat { path, stat } => {
                writer.string(path);
                stat.encode(writer);
            }
            Reply::Stat(stat) => stat.encode(writer),
            Reply::Data { data, stat } => {
                writer.buffer(data.as_deref());
                stat.encode(writer);
            }
            Reply::Children(children) => writer.strings(children),
            Reply::ChildrenStat { children, stat } => {
                writer.strings(children);
                stat.encode(writer);
            }
            Reply::AclStat { acl, stat } => {
                Acl::encode_list(acl, writer);
                stat.encode(writer);
            }
            Reply::Number(number) => writer.int(*number),
            Reply::Multi(results) => multi::encode_results(results, writer),
            Reply::Token(token) => writer.buffer(token.as_deref()),
            Reply::Identities(clients) => {
                writer.count(clients.len());
                for (scheme, user) in clients {
                    writer.string(scheme);
                    writer.string(user);
                }
            }
        }
    }
}
