//! The names of contenders, in every family that shares a ZooKeeper with us.
//!
//! A contender that we overlook is a second holder (`docs/DESIGN.md`, "Whose names do we read?").

use crate::ids::Sequence;

/// The prefix of a native mutex contender. There is no UUID in it, so that the name before ours can be computed.
pub const NATIVE_PREFIX: &str = "lock-";

/// The name of the native contender with this number.
pub fn native_name(sequence: Sequence) -> String {
    format!("{NATIVE_PREFIX}{sequence}")
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
    if let Some(rest) = name.strip_prefix(NATIVE_PREFIX) {
        return Some(Name {
            family: Family::Native,
            role: Role::Exclusive,
            sequence: Sequence::parse(rest)?,
        });
    }
    let (role, rest) = if let Some(rest) = name.strip_prefix("__READ__") {
        (Role::Shared, rest)
    } else if let Some(rest) = name.strip_prefix("__WRIT__") {
        (Role::Exclusive, rest)
    } else if let Some(rest) = name.strip_prefix("upgr-") {
        (Role::Upgradable, rest)
    } else {
        let (weight, rest) = name.strip_prefix("permit-")?.split_once('-')?;
        weight.parse::<u32>().ok()?;
        (Role::Permit, rest)
    };
    Some(Name { family: Family::NativeOther, role, sequence: Sequence::parse(rest)? })
}

fn dot_net(name: &str) -> Option<Name> {
    let (role, rest) = if let Some(rest) = name.strip_prefix("read-") {
        (Role::Shared, rest)
    } else {
        (Role::Exclusive, name.strip_prefix("write-")?)
    };
    Some(Name { family: Family::DotNet, role, sequence: Sequence::parse(rest)? })
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
    Some(Name { family: Family::Curator, role, sequence: Sequence::parse(&name[at + len..])? })
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
    Some(Name { family: Family::Kazoo, role, sequence: Sequence::parse(rest)? })
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
    plausible.then_some(Name { family: Family::WriteLock, role: Role::Exclusive, sequence })
}

fn ruby(name: &str) -> Option<Name> {
    let (role, rest) = if let Some(rest) = name.strip_prefix("ex") {
        (Role::Exclusive, rest)
    } else {
        (Role::Shared, name.strip_prefix("sh")?)
    };
    Some(Name { family: Family::Ruby, role, sequence: Sequence::parse(rest)? })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            "example",
            "lock-0000000007\u{0}",
        ] {
            assert_eq!(parsed(name), None, "{name}");
        }
    }
}
