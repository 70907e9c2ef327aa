//! The record of a lock directory: the release marker, kept in the directory's own data.
//!
//! One short line of text, so that a person with a ZooKeeper shell can read it:
//!
//! ```text
//! zoolock/1 lock 0x100000002 released 0000000017
//! ```
//!
//! that is: format, kind of lock, czxid of the directory the record was written for, what happened, and to which
//! contender. Anything else counts as no marker and is left alone.

use crate::ids::{Sequence, Zxid};

const FORMAT: &str = "zoolock/1";
const KIND: &str = "lock";

/// What the data of a lock directory says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Record {
    /// Nothing was ever written.
    Empty,
    /// Ours, and readable.
    Marker(Marker),
    /// A lock of another kind lives here (a semaphore).
    OtherKind,
    /// Not ours to understand, and so not ours to overwrite.
    Foreign,
}

/// The mark a holder leaves in the transaction that deletes its znode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Marker {
    /// The creation of the directory that the marker was written for.
    pub directory: Zxid,
    /// How the holder left.
    pub left: Left,
    /// The holder that left.
    pub sequence: Sequence,
}

/// How the last holder left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Left {
    /// It released the lock.
    Released,
    /// Its guard was dropped while its thread unwound from a panic.
    Panicked,
}

impl Left {
    fn word(self) -> &'static str {
        match self {
            Left::Released => "released",
            Left::Panicked => "panicked",
        }
    }
}

impl Marker {
    /// The text to store.
    pub fn encode(&self) -> String {
        format!("{FORMAT} {KIND} {} {} {}", self.directory, self.left.word(), self.sequence)
    }
}

impl Record {
    /// Reads the data of a directory. Never fails: what is not ours is [`Record::Foreign`].
    pub fn parse(data: &[u8]) -> Record {
        if data.is_empty() {
            return Record::Empty;
        }
        std::str::from_utf8(data).ok().and_then(parse_text).unwrap_or(Record::Foreign)
    }

    /// Whether a holder may write its marker over this.
    pub fn is_writable(&self) -> bool {
        matches!(self, Record::Empty | Record::Marker(_))
    }
}

fn parse_text(text: &str) -> Option<Record> {
    let mut words = text.split(' ');
    if words.next()? != FORMAT {
        return None;
    }
    if words.next()? != KIND {
        return Some(Record::OtherKind);
    }
    let directory = i64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    let left = match words.next()? {
        "released" => Left::Released,
        "panicked" => Left::Panicked,
        _ => return None,
    };
    let sequence = Sequence::parse(words.next()?)?;
    words.next().is_none().then_some(Record::Marker(Marker { directory: Zxid(directory), left, sequence }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_round_trips() {
        for left in [Left::Released, Left::Panicked] {
            for sequence in [0, 7, i32::MAX] {
                let marker = Marker { directory: Zxid(0x1_0000_0002), left, sequence: Sequence(sequence) };
                assert_eq!(Record::parse(marker.encode().as_bytes()), Record::Marker(marker));
            }
        }
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        assert_eq!(Record::parse(b""), Record::Empty);
        let foreign: [&[u8]; 7] = [
            b"127.0.0.1",
            b"\xff\xfe",
            b"zoolock/2 lock 0x1 released 0000000001",
            b"zoolock/1 lock 0x1 released 1",
            b"zoolock/1 lock 0x1 vanished 0000000001",
            b"zoolock/1 lock 0x1 released 0000000001 more",
            b"zoolock/1 lock 1 released 0000000001",
        ];
        for data in foreign {
            let record = Record::parse(data);
            assert_eq!(record, Record::Foreign, "{}", String::from_utf8_lossy(data));
            assert!(!record.is_writable());
        }
        assert_eq!(Record::parse(b"zoolock/1 semaphore 5"), Record::OtherKind);
    }
}
