//! The names of contenders, in every family that shares a ZooKeeper with us.
//!
//! A contender that we overlook is a second holder (`docs/DESIGN.md`, "Whose names do we read?").

use crate::ids::Sequence;

/// What our own names begin with. There is no UUID in them, so that the name before ours can be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Prefix {
    /// `lock-`: the mutex.
    Lock,
    /// `__WRIT__`: a writer.
    Write,
    /// `__READ__`: a reader.
    Read,
    /// `upgr-`: a reader that may become a writer.
    Upgradable,
    /// `permit-W-`: so many permits of a semaphore.
    Permit(u32),
}

impl Prefix {
    /// The name with this number.
    pub fn name(self, sequence: Sequence) -> String {
        format!("{self}{sequence}")
    }

    fn text(self) -> &'static str {
        match self {
            Prefix::Lock => "lock-",
            Prefix::Write => "__WRIT__",
            Prefix::Read => "__READ__",
            Prefix::Upgradable => "upgr-",
            Prefix::Permit(_) => "permit-",
        }
    }

    /// Whether it stands for somebody who wants to be alone.
    pub fn is_exclusive(self) -> bool {
        matches!(self, Prefix::Lock | Prefix::Write)
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())?;
        match self {
            Prefix::Permit(weight) => write!(f, "{weight}-"),
            _ => Ok(()),
        }
    }
}

/// Which implementation gave a contender its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// `lock-S`: zoolock, and .NET's mutex.
    Native,
    /// `__READ__S`, `__WRIT__S`, `upgr-S`, `permit-W-S`: zoolock's other kinds.
    NativeOther,
    /// `read-S`, `write-S`: .NET DistributedLock.
    DotNet,
    /// `_c_<uuid>-…-S`: Curator, go-zookeeper, the Rust crate `zookeeper-client`.
    Curator,
    /// `<hex32>__lock__S`, `<hex32>__rlock__S`: kazoo.
    Kazoo,
    /// `x-<session>-S`: Java's WriteLock and C's `zoo_lock`.
    WriteLock,
    /// `exS`, `shS`: zk-ruby.
    Ruby,
}

/// What a contender asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// To be alone.
    Exclusive,
    /// To read beside other readers.
    Shared,
    /// To read now and perhaps write later.
    Upgradable,
    /// Some permits of a semaphore.
    Permit,
}

/// A parsed name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name {
    /// Whose it is.
    pub family: Family,
    /// What it asks for.
    pub role: Role,
    /// How many permits; one for whatever is no permit.
    pub weight: u32,
    /// Its place in the queue.
    pub sequence: Sequence,
}

impl Name {
    /// Parses the name of a child, or says that it is no contender.
    pub fn parse(name: &str) -> Option<Name> {
        native(name)
            .or_else(|| dot_net(name))
            .or_else(|| curator(name))
            .or_else(|| kazoo(name))
            .or_else(|| write_lock(name))
            .or_else(|| ruby(name))
    }

    /// Where this contender stands: by number, and numbers past the end of the signed range come last.
    pub fn position(&self) -> u32 {
        self.sequence.0 as u32
    }
}

fn native(name: &str) -> Option<Name> {
    let plain = [
        (Prefix::Lock, Family::Native, Role::Exclusive),
        (Prefix::Read, Family::NativeOther, Role::Shared),
        (Prefix::Write, Family::NativeOther, Role::Exclusive),
        (Prefix::Upgradable, Family::NativeOther, Role::Upgradable),
    ];
    for (prefix, family, role) in plain {
        if let Some(rest) = name.strip_prefix(prefix.text()) {
            return Some(Name { family, role, weight: 1, sequence: Sequence::parse(rest)? });
        }
    }
    let (digits, rest) = name.strip_prefix("permit-")?.split_once('-')?;
    let weight = digits.parse::<u32>().ok()?;
    // As we print it: whoever looks for our own name among others compares text.
    let ours = weight > 0 && weight.to_string() == digits;
    let sequence = Sequence::parse(rest)?;
    ours.then_some(Name { family: Family::NativeOther, role: Role::Permit, weight, sequence })
}

fn dot_net(name: &str) -> Option<Name> {
    let (role, rest) = if let Some(rest) = name.strip_prefix("read-") {
        (Role::Shared, rest)
    } else {
        (Role::Exclusive, name.strip_prefix("write-")?)
    };
    Some(Name { family: Family::DotNet, role, weight: 1, sequence: Sequence::parse(rest)? })
}

fn curator(name: &str) -> Option<Name> {
    let rest = name.strip_prefix("_c_")?;
    let id = rest.bytes().take_while(|b| b.is_ascii_hexdigit() || *b == b'-').count();
    // Thirty-two hex digits, with or without the four dashes of a UUID, and the dash before the lock's own name. The
    // dash and hex letters of what follows may run on, so the end is found by the words below.
    if id < 33 {
        return None;
    }
    let (role, at, len) = [
        ("-lock-", Role::Exclusive),
        ("-__WRIT__", Role::Exclusive),
        ("-__READ__", Role::Shared),
        ("-lease-", Role::Permit),
    ]
    .into_iter()
    .filter_map(|(word, role)| name.rfind(word).map(|at| (role, at, word.len())))
    .max_by_key(|&(_, at, _)| at)?;
    Some(Name { family: Family::Curator, role, weight: 1, sequence: Sequence::parse(&name[at + len..])? })
}

fn kazoo(name: &str) -> Option<Name> {
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
    Some(Name { family: Family::Kazoo, role, weight: 1, sequence: Sequence::parse(rest)? })
}

fn write_lock(name: &str) -> Option<Name> {
    let rest = name.strip_prefix("x-")?;
    let digits = rest.bytes().rev().take_while(u8::is_ascii_digit).count();
    if digits == 0 || digits == rest.len() {
        return None;
    }
    let (head, number) = rest.split_at(rest.len() - digits);
    let head = head.strip_suffix('-')?;
    // A second dash is the sign of the number, not the end of the session.
    let (session, sequence) = match head.strip_suffix('-') {
        Some(session) => (session, Sequence::parse(&format!("-{number}"))?),
        None => (head, Sequence::parse(number)?),
    };
    let session = session.strip_prefix('-').unwrap_or(session);
    let plausible = !session.is_empty() && session.bytes().all(|b| b.is_ascii_hexdigit());
    plausible.then_some(Name { family: Family::WriteLock, role: Role::Exclusive, weight: 1, sequence })
}

fn ruby(name: &str) -> Option<Name> {
    let (role, rest) = if let Some(rest) = name.strip_prefix("ex") {
        (Role::Exclusive, rest)
    } else {
        (Role::Shared, name.strip_prefix("sh")?)
    };
    Some(Name { family: Family::Ruby, role, weight: 1, sequence: Sequence::parse(rest)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_names_are_read_as_they_are_written() {
        use Prefix::*;
        for prefix in [Lock, Write, Read, Upgradable, Permit(1), Permit(40), Permit(u32::MAX)] {
            for number in [0, 7, i32::MAX, -5, i32::MIN] {
                let name = Name::parse(&prefix.name(Sequence(number))).expect("ours");
                assert_eq!(name.sequence, Sequence(number));
                assert_eq!(name.weight, if let Permit(weight) = prefix { weight } else { 1 });
                assert_eq!(name.role == Role::Exclusive, prefix.is_exclusive());
            }
        }
    }

    fn parsed(name: &str) -> Option<(Family, Role, i32)> {
        Name::parse(name).map(|n| (n.family, n.role, n.sequence.0))
    }

    #[test]
    fn every_family_is_read() {
        let uuid = "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301";
        let hex = "3f2504e04f8911d39a0c0305e82c3301";
        use Family::*;
        use Role::*;
        for (name, family, role, number) in [
            ("lock-0000000007".to_owned(), Native, Exclusive, 7),
            ("lock--2147483648".to_owned(), Native, Exclusive, i32::MIN),
            ("lock--000000005".to_owned(), Native, Exclusive, -5),
            ("__READ__0000000007".to_owned(), NativeOther, Shared, 7),
            ("__WRIT__0000000007".to_owned(), NativeOther, Exclusive, 7),
            ("upgr-0000000007".to_owned(), NativeOther, Upgradable, 7),
            ("permit-3-0000000007".to_owned(), NativeOther, Permit, 7),
            ("read-0000000007".to_owned(), DotNet, Shared, 7),
            ("write-0000000007".to_owned(), DotNet, Exclusive, 7),
            (format!("{uuid}-lock-0000000007"), Curator, Exclusive, 7),
            (format!("{uuid}-lock--2147483640"), Curator, Exclusive, -2147483640),
            (format!("{uuid}-__READ__0000000007"), Curator, Shared, 7),
            (format!("{uuid}-__WRIT__0000000007"), Curator, Exclusive, 7),
            (format!("{uuid}-lease-0000000007"), Curator, Permit, 7),
            (format!("_c_{hex}-lock-0000000007"), Curator, Exclusive, 7),
            (format!("{hex}__lock__0000000007"), Kazoo, Exclusive, 7),
            (format!("{hex}__rlock__0000000007"), Kazoo, Shared, 7),
            ("x-72057594037927936-0000000007".to_owned(), WriteLock, Exclusive, 7),
            ("x--72057594037927936-0000000007".to_owned(), WriteLock, Exclusive, 7),
            ("x-72057594037927936--2147483648".to_owned(), WriteLock, Exclusive, i32::MIN),
            ("x-0100007fb5e20001-0000000007".to_owned(), WriteLock, Exclusive, 7),
            ("ex0000000007".to_owned(), Ruby, Exclusive, 7),
            ("sh0000000007".to_owned(), Ruby, Shared, 7),
        ] {
            assert_eq!(parsed(&name), Some((family, role, number)), "{name}");
        }
    }

    #[test]
    fn what_is_no_contender_is_passed_over() {
        for name in [
            "",
            "config",
            "lock-",
            "lock-7",
            "lock-00000000070",
            "backup-2024010101",
            "_c_short-lock-0000000007",
            "zz2504e04f8911d39a0c0305e82c3301__lock__0000000007",
            "x-0000000007",
            "x--0000000007",
            "x-nothex-0000000007",
            "permit-many-0000000007",
            "permit-0-0000000007",
            "permit-+1-0000000007",
            "permit-01-0000000007",
            "permit-4294967296-0000000007",
            "example",
            "lock-0000000007\u{0}",
        ] {
            assert_eq!(parsed(name), None, "{name}");
        }
    }
}
