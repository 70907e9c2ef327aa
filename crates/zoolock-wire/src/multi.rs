//! The lists inside `multi` and `multiRead`: the header of each operation, and the results.

use bytes::Bytes;

use crate::{Reader, Stat, WireError, Writer, op};

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

/// Decodes the header of an operation or a result. Returns its code, or `None` at the end of the list.
pub(super) fn decode_header(reader: &mut Reader<'_>) -> Result<Option<i32>, WireError> {
    let code = reader.int("multi type")?;
    let done = reader.bool("multi done")?;
    reader.int("multi err")?;
    Ok((!done).then_some(code))
}

/// Encodes the header of an operation or a result.
pub(super) fn encode_header(code: i32, err: i32, writer: &mut Writer<'_>) {
    writer.int(code);
    writer.bool(false);
    writer.int(err);
}

/// Encodes the end of the list.
pub(super) fn encode_end(writer: &mut Writer<'_>) {
    writer.int(-1);
    writer.bool(true);
    writer.int(-1);
}

pub(super) fn decode_results(reader: &mut Reader<'_>) -> Result<Vec<OpResult>, WireError> {
    let mut results = Vec::new();
    while let Some(code) = decode_header(reader)? {
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
    Ok(results)
}

pub(super) fn encode_results(results: &[OpResult], writer: &mut Writer<'_>) {
    for result in results {
        match result {
            OpResult::Create { path } => {
                encode_header(op::CREATE, 0, writer);
                writer.string(path);
            }
            OpResult::Create2 { path, stat } => {
                encode_header(op::CREATE2, 0, writer);
                writer.string(path);
                stat.encode(writer);
            }
            OpResult::Delete => encode_header(op::DELETE, 0, writer),
            OpResult::SetData(stat) => {
                encode_header(op::SET_DATA, 0, writer);
                stat.encode(writer);
            }
            OpResult::Check => encode_header(op::CHECK, 0, writer),
            OpResult::GetData { data, stat } => {
                encode_header(op::GET_DATA, 0, writer);
                writer.buffer(data.as_deref());
                stat.encode(writer);
            }
            OpResult::GetChildren(children) => {
                encode_header(op::GET_CHILDREN, 0, writer);
                writer.strings(children);
            }
            OpResult::Error(err) => {
                encode_header(ERROR, *err, writer);
                writer.int(*err);
            }
        }
    }
    encode_end(writer);
}
