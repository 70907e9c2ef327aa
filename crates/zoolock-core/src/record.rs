//! The record of a lock directory, kept in the directory's own data: a release marker, or the size
//! of a semaphore.
//!
//! The record is one short line of text, so that a person with a ZooKeeper shell can read it:
//!
//! ```text
//! zoolock/1 lock 0x100000002 released 0000000017
//! zoolock/1 lock 0x100000002 held 0000000018 tracked by=web-3:4711
//! zoolock/1 semaphore 0x100000002 5
//! ```
//!
//! The fields are: format, kind of lock, and czxid of the directory that the record was written
//! for. Then follow the state and the sequence number of a holder, or the size of the semaphore.
//! `tracked` means that crashes are tracked: every holder from then on writes a `held` marker
//! before its grant. `by=` names the holder for people; no decision depends on it. Other data,
//! unless it is empty, counts as no record and is not overwritten.

use std::fmt::Write as _;

use crate::ids::{Sequence, Zxid};

const FORMAT: &str = "zoolock/1";
const LOCK: &str = "lock";
const SEMAPHORE: &str = "semaphore";
const TRACKED: &str = "tracked";
const BY: &str = "by=";

/// The content of a lock directory's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Record {
    /// The data is empty.
    Empty,
    /// The marker of a holder.
    Marker(Marker),
    /// The size of a semaphore.
    Semaphore(Size),
    /// A number, which may be the size of a kazoo semaphore.
    KazooSize(u32),
    /// Data of another program. It is not overwritten.
    Foreign,
}

/// The size record of a semaphore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Size {
    /// The transaction that created the directory for which the record was written.
    pub directory: Zxid,
    /// Number of permits.
    pub permits: u32,
}

/// The release marker: a holder writes it in the transaction that deletes its znode. If crashes are
/// tracked, the holder also writes a marker before its grant ([`HolderState::Held`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Marker {
    /// The transaction that created the directory for which the marker was written.
    pub directory: Zxid,
    /// The state of the holder when the marker was written.
    pub state: HolderState,
    /// Sequence number of the holder.
    pub sequence: Sequence,
    /// Set if crashes are tracked: every later holder writes a marker before its grant.
    pub tracked: bool,
}

/// The state of a holder, as a marker records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HolderState {
    /// The holder released the lock.
    Released,
    /// The holder's guard was dropped while its thread unwound from a panic.
    Panicked,
    /// The holder wrote this marker before its grant. The holder has held the lock since then, or
    /// it has ended without a release.
    Held,
    /// The holder did not release cleanly, but is not known to have crashed. For example, another client took
    /// the lock away from it.
    Broken,
    /// The holder has finished its writes, and holds as a reader now.
    Downgraded,
}

impl HolderState {
    /// All values.
    pub const ALL: [HolderState; 5] = [
        HolderState::Released,
        HolderState::Panicked,
        HolderState::Held,
        HolderState::Broken,
        HolderState::Downgraded,
    ];

    /// Returns whether a marker with this state grants the lock to the successor. The holder wrote
    /// such a marker in the transaction that released the lock.
    pub(crate) fn is_release(self) -> bool {
        matches!(self, HolderState::Released | HolderState::Panicked)
    }

    fn word(self) -> &'static str {
        match self {
            HolderState::Released => "released",
            HolderState::Panicked => "panicked",
            HolderState::Held => "held",
            HolderState::Broken => "broken",
            HolderState::Downgraded => "downgraded",
        }
    }
}

impl Marker {
    /// Returns the text to store.
    pub fn encode(&self) -> String {
        // Reserve room for the whole text, so that it is allocated once: every release encodes a
        // marker.
        let mut text = String::with_capacity(72);
        let (directory, state, sequence) = (self.directory, self.state.word(), self.sequence);
        let written = match self.tracked {
            true => write!(text, "{FORMAT} {LOCK} {directory} {state} {sequence} {TRACKED}"),
            false => write!(text, "{FORMAT} {LOCK} {directory} {state} {sequence}"),
        };
        written.expect("writing to a string succeeds");
        text
    }

    /// Returns the text to store, with a description of the holder for people. Leaves the description out if this is not
    /// the `held` marker of a tracked lock, or if the description is no single word.
    pub fn encode_with_holder(&self, holder: &str) -> String {
        let mut text = self.encode();
        let is_word = !holder.is_empty() && !holder.contains(char::is_whitespace);
        if self.state == HolderState::Held && self.tracked && is_word {
            text.push(' ');
            text.push_str(BY);
            text.push_str(holder);
        }
        text
    }
}

/// Returns the description of the holder in the data of a directory, if the data is the `held` marker of that holder.
pub fn holder_in(data: &[u8]) -> Option<&str> {
    let holder = std::str::from_utf8(data).ok()?.rsplit(' ').next()?.strip_prefix(BY)?;
    matches!(Record::parse(data), Record::Marker(_)).then_some(holder)
}

impl Size {
    /// Returns whether the record was written for the directory with this czxid.
    pub fn is_of(&self, directory: Zxid) -> bool {
        self.directory == directory
    }

    /// Returns the text to store.
    pub fn encode(&self) -> String {
        format!("{FORMAT} {SEMAPHORE} {} {}", self.directory, self.permits)
    }
}

impl Record {
    /// Parses the data of a directory. Data in another format is [`Record::Foreign`].
    pub fn parse(data: &[u8]) -> Record {
        if data.is_empty() {
            return Record::Empty;
        }
        let text = std::str::from_utf8(data).ok();
        text.and_then(|text| parse_kazoo_size(text).or_else(|| parse_own_record(text)))
            .unwrap_or(Record::Foreign)
    }

    /// Returns whether a holder may overwrite this record with its marker, in the directory with this czxid.
    pub fn is_writable(&self, directory: Zxid) -> bool {
        match self {
            Record::Empty | Record::Marker(_) => true,
            // This is the size of a semaphore in another directory. The data was copied from there,
            // or the write arrived after the directory had been created again.
            Record::Semaphore(size) => !size.is_of(directory),
            Record::KazooSize(_) | Record::Foreign => false,
        }
    }

    /// Returns the marker, if it was written for the directory with this czxid.
    pub fn marker_of(&self, directory: Zxid) -> Option<Marker> {
        match self {
            Record::Marker(marker) if marker.directory == directory => Some(*marker),
            _ => None,
        }
    }
}

/// Parses a decimal number as the size of a kazoo semaphore. kazoo also accepts the other texts
/// that Python's `int` parses, but programs write only decimal numbers.
fn parse_kazoo_size(text: &str) -> Option<Record> {
    let permits = text.trim_ascii().parse().ok().filter(|&permits| permits > 0)?;
    Some(Record::KazooSize(permits))
}

fn parse_own_record(text: &str) -> Option<Record> {
    let mut words = text.split(' ');
    if words.next()? != FORMAT {
        return None;
    }
    let kind = words.next()?;
    let digits = words.next()?.strip_prefix("0x")?;
    let directory = Zxid(i64::from_str_radix(digits, 16).ok()?);
    let record = match kind {
        LOCK => {
            let word = words.next()?;
            let state = HolderState::ALL.into_iter().find(|state| state.word() == word)?;
            let sequence = Sequence::parse(words.next()?)?;
            let tracked = match words.next() {
                None => false,
                Some(TRACKED) => true,
                Some(_) => return None,
            };
            if tracked && state == HolderState::Held {
                match words.next() {
                    None => {}
                    Some(holder) if holder.len() > BY.len() && holder.starts_with(BY) => {}
                    Some(_) => return None,
                }
            }
            Record::Marker(Marker { directory, state, sequence, tracked })
        }
        SEMAPHORE => {
            let permits = words.next()?.parse().ok().filter(|&permits| permits > 0)?;
            Record::Semaphore(Size { directory, permits })
        }
        _ => return None,
    };
    words.next().is_none().then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_round_trips() {
        for state in HolderState::ALL {
            for sequence in [0, 7, i32::MAX] {
                for tracked in [false, true] {
                    let directory = Zxid(0x1_0000_0002);
                    let marker = Marker { directory, state, sequence: Sequence(sequence), tracked };
                    let record = Record::parse(marker.encode().as_bytes());
                    assert_eq!(record, Record::Marker(marker));
                    assert_eq!(record.marker_of(directory), Some(marker));
                    assert_eq!(record.marker_of(Zxid(3)), None);
                }
            }
        }
    }

    #[test]
    fn held_marker_names_its_holder() {
        let marker = |state, tracked| Marker { directory: Zxid(2), state, sequence: Sequence(7), tracked };
        let held = marker(HolderState::Held, true);
        let text = held.encode_with_holder("web-3:4711");
        assert_eq!(text, "zoolock/1 lock 0x2 held 0000000007 tracked by=web-3:4711");
        assert_eq!(Record::parse(text.as_bytes()), Record::Marker(held));
        assert_eq!(holder_in(text.as_bytes()), Some("web-3:4711"));
        assert_eq!(holder_in(held.encode().as_bytes()), None);
        for (marker, holder) in [
            (held, ""),
            (held, "two words"),
            (marker(HolderState::Held, false), "web-3:4711"),
            (marker(HolderState::Released, true), "web-3:4711"),
        ] {
            assert_eq!(marker.encode_with_holder(holder), marker.encode());
        }
    }

    #[test]
    fn size_round_trips() {
        for permits in [1, 5, u32::MAX] {
            let size = Size { directory: Zxid(0x1_0000_0002), permits };
            assert_eq!(Record::parse(size.encode().as_bytes()), Record::Semaphore(size));
        }
    }

    #[test]
    fn size_of_another_directory_is_writable() {
        let size = Size { directory: Zxid(8), permits: 5 };
        assert!(size.is_of(Zxid(8)) && !size.is_of(Zxid(7)));
        let record = Record::Semaphore(size);
        assert!(record.is_writable(Zxid(7)) && !record.is_writable(Zxid(8)));
    }

    #[test]
    fn number_is_the_size_of_a_kazoo_semaphore() {
        for (data, permits) in [("1", 1), ("5\n", 5), (" 12 ", 12), ("+3", 3), ("4294967295", u32::MAX)] {
            let record = Record::parse(data.as_bytes());
            assert_eq!(record, Record::KazooSize(permits), "{data:?}");
            assert!(!record.is_writable(Zxid(1)));
        }
        for data in ["0", "-1", "5.0", "five", "4294967296", " "] {
            assert_eq!(Record::parse(data.as_bytes()), Record::Foreign, "{data:?}");
        }
    }

    #[test]
    fn foreign_data_is_not_writable() {
        assert_eq!(Record::parse(b""), Record::Empty);
        let foreign: [&[u8]; 14] = [
            b"127.0.0.1",
            b"\xff\xfe",
            b"zoolock/2 lock 0x1 released 0000000001",
            b"zoolock/1 lock 0x1 released 1",
            b"zoolock/1 lock 0x1 vanished 0000000001",
            b"zoolock/1 lock 0x1 released 0000000001 more",
            b"zoolock/1 lock 0x1 released 0000000001 tracked more",
            b"zoolock/1 lock 0x1 held 0000000001 tracked by=",
            b"zoolock/1 lock 0x1 held 0000000001 by=web-3:4711",
            b"zoolock/1 lock 0x1 released 0000000001 tracked by=web-3:4711",
            b"zoolock/1 lock 1 released 0000000001",
            b"zoolock/1 semaphore 5",
            b"zoolock/1 semaphore 0x1 0",
            b"zoolock/1 barrier 0x1 5",
        ];
        for data in foreign {
            let record = Record::parse(data);
            assert_eq!(record, Record::Foreign, "{}", String::from_utf8_lossy(data));
            assert!(!record.is_writable(Zxid(1)));
        }
    }
}
