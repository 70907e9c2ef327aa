//! The names of contenders, in the format of every client library that shares a ZooKeeper with zoolock.
//!
//! If zoolock overlooks a contender, two contenders may hold at once. So every child whose name
//! ends in a sequence number counts as a contender. [`Spelling`] lists the known formats (see
//! `docs/design/names.md`).

mod kind;
mod naming;

use crate::ids::Sequence;
use crate::layout::is_kazoo_lease;

pub use kind::{Kind, Node, Prefix, Role, Roles};
pub use naming::{Names, Naming, ParseNamingError};

/// Number of digits of a sequence number.
const DIGITS: usize = 10;

/// The client library that named a contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// zoolock, and .NET's mutex.
    Native,
    /// .NET DistributedLock's other locks.
    DotNet,
    /// Curator, go-zookeeper, the Rust crate `zookeeper-client`.
    Curator,
    /// kazoo.
    Kazoo,
    /// Java's WriteLock and C's `zoo_lock`.
    WriteLock,
    /// zk-ruby.
    Ruby,
    /// aiozk.
    Aiozk,
    /// A client library that is not known.
    Unknown,
}

/// The format of a name. It alone determines which other contenders see the name. In the formats, `S` is the sequence
/// number and `W` the number of permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Spelling {
    /// `lock-S`: zoolock's mutex, and .NET's.
    Lock,
    /// `__READ__S`, `__WRIT__S`: zoolock's readers and writers.
    Marked,
    /// `upgr-S`, `permit-W-S`: zoolock's other contenders. No other library looks for such names.
    Own,
    /// `_c_<uuid>-lock-S`.
    CuratorLock,
    /// `_c_<uuid>-__READ__S`, `_c_<uuid>-__WRIT__S`.
    CuratorMarked,
    /// `_c_<uuid>-lease-S`.
    CuratorLease,
    /// `_c_<uuid>-latch-S`: Curator's LeaderLatch.
    CuratorLatch,
    /// `<hex32>__lock__S`, `<hex32>__rlock__S`.
    Kazoo,
    /// `x-<session>-S`.
    WriteLock,
    /// `exS`, `shS`.
    Ruby,
    /// `read-S`, `write-S`.
    DotNet,
    /// `lock-<hex32>-S`: aiozk's Lock.
    Aiozk,
    /// `read-<hex32>-S`, `write-<hex32>-S`: aiozk's SharedLock.
    AiozkMarked,
    /// Any other name that ends in `lock-S`. Libraries that look for `lock-S` order it by its number.
    UnknownLock,
    /// A name of an unknown library with a dash before the number.
    UnknownDash,
    /// Any other name that ends in `S`.
    Unknown,
}

impl Spelling {
    /// Returns the client library that uses this format.
    pub fn family(self) -> Family {
        match self {
            Spelling::Lock | Spelling::Marked | Spelling::Own => Family::Native,
            Spelling::CuratorLock
            | Spelling::CuratorMarked
            | Spelling::CuratorLease
            | Spelling::CuratorLatch => Family::Curator,
            Spelling::Kazoo => Family::Kazoo,
            Spelling::WriteLock => Family::WriteLock,
            Spelling::Ruby => Family::Ruby,
            Spelling::DotNet => Family::DotNet,
            Spelling::Aiozk | Spelling::AiozkMarked => Family::Aiozk,
            Spelling::UnknownLock | Spelling::UnknownDash | Spelling::Unknown => Family::Unknown,
        }
    }
}

/// The parsed name of a contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name {
    /// Format of the name.
    pub spelling: Spelling,
    /// Kind of lock that the contender asks for.
    pub role: Role,
    /// Number of permits; 1 for all other kinds of lock.
    pub weight: u32,
    /// Sequence number.
    pub sequence: Sequence,
}

impl Name {
    /// Parses the name of a child; `None` if the child is no contender. A contender with a name of unknown format is
    /// exclusive.
    pub fn parse(name: &str) -> Option<Name> {
        parse_native(name)
            .or_else(|| parse_dot_net(name))
            .or_else(|| parse_curator(name))
            .or_else(|| parse_kazoo(name))
            .or_else(|| parse_write_lock(name))
            .or_else(|| parse_ruby(name))
            .or_else(|| parse_aiozk(name))
            .or_else(|| parse_unknown(name))
    }

    /// Returns the client library that uses this format.
    pub fn family(&self) -> Family {
        self.spelling.family()
    }

    /// Returns whether the name counts as a contender, in a directory that has given only sequence
    /// numbers below `limit`. In a name of unknown format, the digits at the end may be another
    /// number, for example a date. Names of known formats always count.
    pub fn counts_below(&self, limit: u32) -> bool {
        self.family() != Family::Unknown || self.position() < limit
    }

    /// Returns the queue position. Negative numbers come last, because ZooKeeper gives them after
    /// the highest positive number.
    pub fn position(&self) -> u32 {
        self.sequence.0 as u32
    }

    /// Returns the key by which a queue is sorted: the position, then the writer before the reader
    /// with the same number.
    pub fn sort_key(&self) -> (u32, bool) {
        (self.position(), self.role != Role::Exclusive)
    }
}

fn parse_native(name: &str) -> Option<Name> {
    for prefix in &Prefix::WORDS {
        if let Some(rest) = name.strip_prefix(prefix.word()) {
            return Some(prefix.to_name(Sequence::parse(rest)?));
        }
    }
    let (digits, rest) = name.strip_prefix("permit-")?.split_once('-')?;
    let weight = digits.parse::<u32>().ok()?;
    // Accept the number of permits only as zoolock prints it, because zoolock finds its own name by
    // comparing text.
    let ours = weight > 0 && weight.to_string() == digits;
    let sequence = Sequence::parse(rest)?;
    ours.then_some(Prefix::Permit(weight).to_name(sequence))
}

fn parse_dot_net(name: &str) -> Option<Name> {
    let (role, rest) = if let Some(rest) = name.strip_prefix("read-") {
        (Role::Shared, rest)
    } else {
        (Role::Exclusive, name.strip_prefix("write-")?)
    };
    Some(Name { spelling: Spelling::DotNet, role, weight: 1, sequence: Sequence::parse(rest)? })
}

fn parse_curator(name: &str) -> Option<Name> {
    let rest = name.strip_prefix("_c_")?;
    let id = rest.bytes().take_while(|b| b.is_ascii_hexdigit() || *b == b'-').count();
    // A UUID has 32 hex digits, with or without four dashes, and a dash follows it. `id` may count
    // more characters than that, so the words below mark the end of the UUID.
    if id < 33 {
        return None;
    }
    let (word, role, spelling, at) = [
        ("-lock-", Role::Exclusive, Spelling::CuratorLock),
        ("-__WRIT__", Role::Exclusive, Spelling::CuratorMarked),
        ("-__READ__", Role::Shared, Spelling::CuratorMarked),
        ("-lease-", Role::Permit, Spelling::CuratorLease),
        ("-latch-", Role::Exclusive, Spelling::CuratorLatch),
    ]
    .into_iter()
    .filter_map(|(word, role, spelling)| name.rfind(word).map(|at| (word, role, spelling, at)))
    .max_by_key(|&(_, _, _, at)| at)?;
    Some(Name { spelling, role, weight: 1, sequence: Sequence::parse(&name[at + word.len()..])? })
}

fn parse_kazoo(name: &str) -> Option<Name> {
    let hex = name.bytes().take_while(u8::is_ascii_hexdigit).count();
    if hex != 32 {
        return None;
    }
    let rest = &name[hex..];
    let (role, rest) = if let Some(rest) = rest.strip_prefix("__lock__") {
        (Role::Exclusive, rest)
    } else {
        (Role::Shared, rest.strip_prefix("__rlock__")?)
    };
    Some(Name { spelling: Spelling::Kazoo, role, weight: 1, sequence: Sequence::parse(rest)? })
}

fn parse_write_lock(name: &str) -> Option<Name> {
    let rest = name.strip_prefix("x-")?;
    let digits = rest.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (head, number) = rest.split_at(rest.len() - digits);
    let head = head.strip_suffix('-')?;
    // A second dash is the sign of the number, not the end of the session id.
    let (session, sequence) = match head.strip_suffix('-') {
        Some(session) => (session, Sequence::parse(&format!("-{number}"))?),
        None => (head, Sequence::parse(number)?),
    };
    let session = session.strip_prefix('-').unwrap_or(session);
    let plausible = !session.is_empty() && session.bytes().all(|b| b.is_ascii_hexdigit());
    plausible.then_some(Name { spelling: Spelling::WriteLock, role: Role::Exclusive, weight: 1, sequence })
}

fn parse_ruby(name: &str) -> Option<Name> {
    let (role, rest) = if let Some(rest) = name.strip_prefix("ex") {
        (Role::Exclusive, rest)
    } else {
        (Role::Shared, name.strip_prefix("sh")?)
    };
    Some(Name { spelling: Spelling::Ruby, role, weight: 1, sequence: Sequence::parse(rest)? })
}

fn parse_aiozk(name: &str) -> Option<Name> {
    let (label, rest) = name.split_once('-')?;
    let (id, number) = rest.split_once('-')?;
    let (spelling, role) = match label {
        "lock" => (Spelling::Aiozk, Role::Exclusive),
        "write" => (Spelling::AiozkMarked, Role::Exclusive),
        "read" => (Spelling::AiozkMarked, Role::Shared),
        _ => return None,
    };
    // aiozk writes a UUID as 32 hex digits, as kazoo does, so the same check applies.
    let sequence = Sequence::parse(number).filter(|_| is_kazoo_lease(id))?;
    Some(Name { spelling, role, weight: 1, sequence })
}

fn parse_unknown(name: &str) -> Option<Name> {
    // A permit of kazoo's semaphore is a UUID. It has no sequence number, but may end in ten digits.
    if is_kazoo_lease(name) {
        return None;
    }
    let at = name.len().checked_sub(DIGITS)?;
    let (before, digits) = name.split_at_checked(at)?;
    let unsigned = Sequence::parse(digits);
    let signed = || Sequence::parse(name.get(at.checked_sub(1)?..)?);
    // A dash behind another separator is a minus sign. A negative number with ten digits does not start with a zero,
    // because ZooKeeper pads it to nine digits only.
    let is_signed = !digits.starts_with('0') && (before.ends_with("--") || before.ends_with("_-"));
    let sequence = if is_signed { signed().or(unsigned) } else { unsigned.or_else(signed) }?;
    let label = name.strip_suffix(&sequence.to_string())?;
    let spelling = match label {
        _ if label.ends_with("lock-") => Spelling::UnknownLock,
        _ if label.ends_with('-') => Spelling::UnknownDash,
        _ => Spelling::Unknown,
    };
    Some(Name { spelling, role: Role::Exclusive, weight: 1, sequence })
}

/// A sequence number that few lock directories reach. Names that end in random digits are mostly above it.
const REACHED_BY_FEW: i32 = 1 << 20;

/// Returns whether a child with this name may be taken for a contender of an unknown library. Such
/// a child counts as a contender as soon as its directory has given the number at the end of the
/// name. Most directories give only low numbers, so only names with low numbers match.
pub fn looks_like_contender(name: &str) -> bool {
    parse_unknown(name).is_some_and(|name| (0..REACHED_BY_FEW).contains(&name.sequence.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ContenderId, SessionId};

    #[test]
    fn number_is_read_behind_the_prefix_only() {
        assert_eq!(Prefix::Lock.parse_sequence("lock-0000000007"), Some(Sequence(7)));
        assert_eq!(Prefix::Lock.parse_sequence("write-0000000007"), None);
        assert_eq!(Prefix::Lock.parse_sequence("lock-7"), None);
    }

    #[test]
    fn own_names_round_trip() {
        use Prefix::*;
        let (id, session) = (ContenderId(0x3f25_04e0_4f89_11d3_9a0c_0305_e82c_3301), SessionId(-5));
        let ours = [Lock, Write, Read, Upgradable, Permit(1), Permit(40), Permit(u32::MAX)];
        let theirs = [
            CuratorLock(id),
            CuratorWrite(id),
            CuratorRead(id),
            KazooLock(id),
            KazooRead(id),
            WriteLock(session),
            WriteLock(SessionId(7)),
        ];
        assert_eq!(CuratorRead(id).to_string(), "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301-__READ__");
        for prefix in ours.into_iter().chain(theirs) {
            for number in [0, 7, i32::MAX, -5, i32::MIN] {
                let name = Name::parse(&prefix.name(Sequence(number))).expect("own name is parsed");
                assert_eq!(prefix.to_name(Sequence(number)), name);
                assert_eq!(name.sequence, Sequence(number));
                assert_eq!(name.weight, if let Permit(weight) = prefix { weight } else { 1 });
                assert_eq!(name.role == Role::Exclusive, prefix.is_exclusive());
                assert_eq!(matches!(name.role, Role::Shared | Role::Upgradable), prefix.reads());
            }
        }
    }

    #[test]
    fn names_of_other_libraries_have_an_id() {
        use Prefix::*;
        let id = ContenderId(1);
        for prefix in [CuratorLock(id), CuratorWrite(id), CuratorRead(id), KazooLock(id), KazooRead(id)] {
            assert!(prefix.has_id(), "{prefix:?}");
        }
        for prefix in [Lock, Write, Read, Upgradable, Permit(1), WriteLock(SessionId(1))] {
            assert!(!prefix.has_id(), "{prefix:?}");
        }
    }

    #[test]
    fn downgraded_writer_keeps_its_naming_scheme() {
        use Prefix::*;
        let id = ContenderId(1);
        for (writer, reader) in
            [(Write, Read), (CuratorWrite(id), CuratorRead(id)), (KazooLock(id), KazooRead(id))]
        {
            assert_eq!(writer.as_reader(), Some(reader));
            assert_eq!(reader.as_reader(), None);
        }
        assert_eq!(Lock.as_reader(), None);
    }

    #[test]
    fn writer_sorts_before_reader_of_same_number() {
        let order = |name: &str| Name::parse(name).expect("name is a contender").sort_key();
        let sorted = ["lock-0000000001", "__WRIT__0000000002", "__READ__0000000002", "upgr-0000000003"];
        let sorted = sorted.map(order);
        assert!(sorted.is_sorted_by(|a, b| a < b), "{sorted:?}");
        assert!(order("__WRIT__0000000002") < order("upgr-0000000002"));
        // Negative numbers come last, because ZooKeeper gives them after the highest positive
        // number.
        assert!(order("lock-2147483647") < order("lock--2147483648"));
    }

    fn parsed(name: &str) -> Option<(Spelling, Role, i32)> {
        Name::parse(name).map(|n| (n.spelling, n.role, n.sequence.0))
    }

    #[test]
    fn names_of_every_library_are_parsed() {
        let uuid = "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301";
        let hex = "3f2504e04f8911d39a0c0305e82c3301";
        use Role::{Exclusive, Permit, Shared, Upgradable};
        use Spelling::{
            Aiozk, AiozkMarked, CuratorLatch, CuratorLease, CuratorLock, CuratorMarked, DotNet, Kazoo, Lock,
            Marked, Own, Ruby, WriteLock,
        };
        for (name, spelling, role, number) in [
            ("lock-0000000007".to_owned(), Lock, Exclusive, 7),
            ("lock--2147483648".to_owned(), Lock, Exclusive, i32::MIN),
            ("lock--000000005".to_owned(), Lock, Exclusive, -5),
            ("__READ__0000000007".to_owned(), Marked, Shared, 7),
            ("__WRIT__0000000007".to_owned(), Marked, Exclusive, 7),
            ("upgr-0000000007".to_owned(), Own, Upgradable, 7),
            ("permit-3-0000000007".to_owned(), Own, Permit, 7),
            ("read-0000000007".to_owned(), DotNet, Shared, 7),
            ("write-0000000007".to_owned(), DotNet, Exclusive, 7),
            (format!("{uuid}-lock-0000000007"), CuratorLock, Exclusive, 7),
            (format!("{uuid}-lock--2147483640"), CuratorLock, Exclusive, -2147483640),
            (format!("{uuid}-__READ__0000000007"), CuratorMarked, Shared, 7),
            (format!("{uuid}-__WRIT__0000000007"), CuratorMarked, Exclusive, 7),
            (format!("{uuid}-lease-0000000007"), CuratorLease, Permit, 7),
            (format!("{uuid}-latch-0000000007"), CuratorLatch, Exclusive, 7),
            (format!("{uuid}-latch--000000005"), CuratorLatch, Exclusive, -5),
            (format!("_c_{hex}-lock-0000000007"), CuratorLock, Exclusive, 7),
            (format!("{hex}__lock__0000000007"), Kazoo, Exclusive, 7),
            (format!("{hex}__rlock__0000000007"), Kazoo, Shared, 7),
            ("x-72057594037927936-0000000007".to_owned(), WriteLock, Exclusive, 7),
            ("x--72057594037927936-0000000007".to_owned(), WriteLock, Exclusive, 7),
            ("x-72057594037927936--2147483648".to_owned(), WriteLock, Exclusive, i32::MIN),
            ("x-0100007fb5e20001-0000000007".to_owned(), WriteLock, Exclusive, 7),
            ("ex0000000007".to_owned(), Ruby, Exclusive, 7),
            ("sh0000000007".to_owned(), Ruby, Shared, 7),
            (format!("lock-{hex}-0000000007"), Aiozk, Exclusive, 7),
            (format!("lock-{hex}--000000005"), Aiozk, Exclusive, -5),
            (format!("write-{hex}-0000000007"), AiozkMarked, Exclusive, 7),
            (format!("read-{hex}-0000000007"), AiozkMarked, Shared, 7),
        ] {
            assert_eq!(parsed(&name), Some((spelling, role, number)), "{name}");
        }
    }

    #[test]
    fn unknown_name_with_number_is_exclusive_contender() {
        use Spelling::{Unknown, UnknownDash, UnknownLock};
        let hex = "3f2504e04f8911d39a0c0305e82c3301";
        for (name, spelling, number) in [
            ("0000000007", Unknown, 7),
            ("job-0000000007", UnknownDash, 7),
            ("größe0000000007", Unknown, 7),
            // The name of a host or a process may end in digits.
            ("lock-00000000070", Unknown, 70),
            ("backup-2024010101", UnknownDash, 2_024_010_101),
            ("_c_short-lock-0000000007", UnknownLock, 7),
            ("zz2504e04f8911d39a0c0305e82c3301__lock__0000000007", Unknown, 7),
            ("x-0000000007", UnknownDash, 7),
            ("x--0000000007", UnknownDash, 7),
            ("x-nothex-0000000007", UnknownDash, 7),
            ("permit-many-0000000007", UnknownDash, 7),
            ("permit-0-0000000007", UnknownDash, 7),
            ("permit-01-0000000007", UnknownDash, 7),
            ("permit-4294967296-0000000007", UnknownDash, 7),
            (&format!("lock-{hex}lock-0000000007"), UnknownLock, 7),
            (&format!("lock-{}-0000000007", &hex[1..]), UnknownDash, 7),
            ("job--2147483648", UnknownDash, i32::MIN),
            ("job-2147483648", Unknown, i32::MIN),
            ("job--1234567890", UnknownDash, -1_234_567_890),
            ("job_-1234567890", Unknown, -1_234_567_890),
            ("job-1234567890", UnknownDash, 1_234_567_890),
            ("job--000000005", UnknownDash, -5),
            ("mylock--000000005", UnknownLock, -5),
        ] {
            assert_eq!(parsed(name), Some((spelling, Role::Exclusive, number)), "{name}");
        }
    }

    #[test]
    fn unknown_name_counts_only_below_given_numbers() {
        let counts = |name: &str, limit| Name::parse(name).expect("name is a contender").counts_below(limit);
        assert!(counts("job-0000000007", 8) && !counts("job-0000000007", 7));
        assert!(!counts("backup-2024010101", 1000) && counts("lock-2024010101", 1000));
        assert!(!counts("job--2147483648", u32::MAX >> 1));
    }

    #[test]
    fn lock_names_that_look_like_contenders_are_recognised() {
        for name in ["order-0000000042", "0000000042", "20240000000042", "order-0001048575"] {
            assert!(looks_like_contender(name), "{name}");
        }
        let uuid = "3f2504e0-4f89-11d3-9a0c-05e012345678";
        for name in ["order-1234567890", "order-42", uuid, "order-0001048576", "order-0000000042x", ""] {
            assert!(!looks_like_contender(name), "{name}");
        }
    }

    #[test]
    fn children_without_number_are_no_contenders() {
        for name in [
            "",
            "config",
            "lock-",
            "lock-7",
            "x-7f-",
            "backup-9999999999",
            // A permit of kazoo's semaphore.
            "3f2504e04f8911d39a0c030000000007",
            "example",
            "lock-0000000007\u{0}",
        ] {
            assert_eq!(parsed(name), None, "{name}");
        }
    }
}
