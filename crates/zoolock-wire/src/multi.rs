//! The list of operations inside `multi` and `multiRead`, and the list of their results.

use bytes::Bytes;

use crate::{Reader, Request, Stat, WireError, Writer, op};

/// The result of one operation of a `multi`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the wire records, under the names they have there")]
pub enum OpResult {
    Create { path: String },
    Create2 { path: String, stat: Stat },
    Delete,
    SetData(Stat),
    Check,
    GetData { data: Option<Bytes>, stat: Stat },
    GetChildren(Vec<String>),
    Error(i32),
}

const ERROR: i32 = -1;

/// Decodes the operations. A `multi` has only writes and a `multiRead` only reads.
pub(super) fn decode_ops(reads: bool, reader: &mut Reader<'_>) -> Result<Vec<Request>, WireError> {
    let mut ops = Vec::new();
    loop {
        let code = reader.int("multi type")?;
        let done = reader.bool("multi done")?;
        reader.int("multi err")?;
        if done {
            return Ok(ops);
        }
        match code {
            op::GET_DATA | op::GET_CHILDREN if reads => {}
            op::CREATE | op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL if !reads => {}
            op::DELETE | op::SET_DATA | op::CHECK if !reads => {}
            value => return Err(WireError::Invalid { field: "multi type", value }),
        }
        ops.push(Request::decode_single(code, reader)?);
    }
}

pub(super) fn encode_ops(ops: &[Request], writer: &mut Writer<'_>) {
    for request in ops {
        header(request.op(), false, -1, writer);
        request.encode(writer);
    }
    header(-1, true, -1, writer);
}

pub(super) fn decode_results(reader: &mut Reader<'_>) -> Result<Vec<OpResult>, WireError> {
    let mut results = Vec::new();
    loop {
        let code = reader.int("multi type")?;
        let done = reader.bool("multi done")?;
        reader.int("multi err")?;
        if done {
            return Ok(results);
        }
        results.push(match code {
            op::CREATE => OpResult::Create { path: reader.string("path")? },
            op::CREATE2 => OpResult::Create2 { path: reader.string("path")?, stat: Stat::decode(reader)? },
            op::DELETE => OpResult::Delete,
            op::SET_DATA => OpResult::SetData(Stat::decode(reader)?),
            op::CHECK => OpResult::Check,
            op::GET_DATA => OpResult::GetData {
                data: reader.buffer("data")?.map(Bytes::copy_from_slice),
                stat: Stat::decode(reader)?,
            },
            op::GET_CHILDREN => OpResult::GetChildren(reader.strings("children")?),
            ERROR => OpResult::Error(reader.int("err")?),
            value => return Err(WireError::Invalid { field: "multi type", value }),
        });
    }
}

pub(super) fn encode_results(results: &[OpResult], writer: &mut Writer<'_>) {
    for result in results {
        match result {
            OpResult::Create { path } => {
                header(op::CREATE, false, 0, writer);
                writer.string(path);
            }
            OpResult::Create2 { path, stat } => {
                header(op::CREATE2, false, 0, writer);
                writer.string(path);
                stat.encode(writer);
            }
            OpResult::Delete => header(op::DELETE, false, 0, writer),
            OpResult::SetData(stat) => {
                header(op::SET_DATA, false, 0, writer);
                stat.encode(writer);
            }
            OpResult::Check => header(op::CHECK, false, 0, writer),
            OpResult::GetData { data, stat } => {
                header(op::GET_DATA, false, 0, writer);
                writer.buffer(data.as_deref());
                stat.encode(writer);
            }
            OpResult::GetChildren(children) => {
                header(op::GET_CHILDREN, false, 0, writer);
                writer.strings(children);
            }
            OpResult::Error(err) => {
                header(ERROR, false, *err, writer);
                writer.int(*err);
            }
        }
    }
    header(-1, true, -1, writer);
}

fn header(code: i32, done: bool, err: i32, writer: &mut Writer<'_>) {
    writer.int(code);
    writer.bool(done);
    writer.int(err);
}
