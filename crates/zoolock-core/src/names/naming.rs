//! The naming schemes of znodes.

use std::fmt;
use std::str::FromStr;

/// The naming scheme of this client's contenders, and whether kazoo's clients read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Names {
    /// The naming scheme.
    pub naming: Naming,
    /// Set if the kazoo clients that use the same locks also look for `lock-` names.
    pub kazoo_pattern: bool,
}

/// The naming scheme of a client's znodes, which determines the client libraries that can share a
/// lock with it. The combinations are in `docs/INTEROP.md`. In the names below, `S` is the sequence
/// number and `W` the number of permits.
///
/// zoolock reads the names of all schemes, and counts any other name that ends in a sequence number as an exclusive
/// contender. The other libraries must read zoolock's names. If another contender in the queue would ignore this client's
/// znode, the acquisition fails with `ForeignContender`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Naming {
    /// `lock-S`, `__READ__S`, `__WRIT__S`, `upgr-S`, `permit-W-S`: zoolock's own names. Mutexes are
    /// shared with Curator, go-zookeeper, `zookeeper-client` and Java's WriteLock. They are also
    /// shared with kazoo clients that look for `lock-` (see `kazoo_pattern`). Read/write locks are
    /// shared with Curator. The cost of a mutex does not grow with the number of waiters, because
    /// the predecessor's name can be computed.
    #[default]
    Native,
    /// `_c_<uuid>-lock-S`, `_c_<uuid>-__READ__S`, `_c_<uuid>-__WRIT__S`: the names of Curator, go-zookeeper and
    /// `zookeeper-client`.
    Curator,
    /// `<hex32>__lock__S`, `<hex32>__rlock__S`: kazoo's Lock, ReadLock and WriteLock.
    Kazoo,
    /// `x-<session>-S`: the recipe WriteLock of ZooKeeper, in Java and C. Every client that may list the lock's children
    /// can read the session id in the name. On Apache ZooKeeper this id is enough to take over the session.
    WriteLock,
}

impl Naming {
    /// All naming schemes.
    pub const ALL: [Naming; 4] = [Naming::Native, Naming::Curator, Naming::Kazoo, Naming::WriteLock];

    /// Returns the name by which the command line calls this scheme.
    pub fn as_str(self) -> &'static str {
        match self {
            Naming::Native => "native",
            Naming::Curator => "curator",
            Naming::Kazoo => "kazoo",
            Naming::WriteLock => "write-lock",
        }
    }
}

impl fmt::Display for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error for a text that is not a naming scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseNamingError(String);

impl fmt::Display for ParseNamingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = Naming::ALL.map(Naming::as_str).join(", ");
        write!(f, "naming {:?}: is none of {all}", self.0)
    }
}

impl std::error::Error for ParseNamingError {}

impl FromStr for Naming {
    type Err = ParseNamingError;

    fn from_str(text: &str) -> Result<Naming, ParseNamingError> {
        let found = Naming::ALL.into_iter().find(|naming| naming.as_str() == text);
        found.ok_or_else(|| ParseNamingError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for naming in Naming::ALL {
            assert_eq!(naming.to_string().parse(), Ok(naming));
        }
        let wrong = "kazo".parse::<Naming>().expect_err("no such naming").to_string();
        assert_eq!(wrong, "naming \"kazo\": is none of native, curator, kazoo, write-lock");
    }
}
