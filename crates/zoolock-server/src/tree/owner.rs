//! The number in `ephemeralOwner`, as ZooKeeper's `EphemeralType` encodes it.

use crate::ids::SessionId;

/// The owner that marks a container.
pub const CONTAINER: i64 = i64::MIN;

/// The longest time to live, in milliseconds. The other bits of the number encode the type.
pub const MAX_TTL_MS: i64 = 0x00ff_ffff_ffff;

/// The bits that mark a time to live. The first byte marks an extended type, and the next two bytes are the type, zero.
const TTL: i64 = 0xff_i64 << 56;

/// The owner of a znode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZnodeOwner {
    /// No owner.
    None,
    /// No session: a container, which is deleted after its last child.
    Container,
    /// No session: the znode is deleted if it has no children and was not written for this number of milliseconds.
    Ttl(i64),
    /// A session. The znode is deleted when the session ends.
    Session(SessionId),
}

impl ZnodeOwner {
    /// Decodes the number in `ephemeralOwner`.
    pub fn from_number(number: i64) -> Self {
        match number {
            0 => ZnodeOwner::None,
            CONTAINER => ZnodeOwner::Container,
            _ if number & !MAX_TTL_MS == TTL => ZnodeOwner::Ttl(number & MAX_TTL_MS),
            _ => ZnodeOwner::Session(SessionId(number)),
        }
    }
}

/// Encodes a time to live. Returns `None` if ZooKeeper does not accept it.
pub fn ttl_owner(ttl_ms: i64) -> Option<i64> {
    (1..=MAX_TTL_MS).contains(&ttl_ms).then_some(TTL | ttl_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_encoding_matches_zookeeper() {
        assert_eq!(ttl_owner(1), Some(0xff00_0000_0000_0001_u64 as i64));
        assert_eq!(ttl_owner(MAX_TTL_MS).map(ZnodeOwner::from_number), Some(ZnodeOwner::Ttl(MAX_TTL_MS)));
        assert_eq!((ttl_owner(0), ttl_owner(-1), ttl_owner(MAX_TTL_MS + 1)), (None, None, None));
        assert_eq!(ZnodeOwner::from_number(i64::MIN), ZnodeOwner::Container);
        assert_eq!(ZnodeOwner::from_number(0), ZnodeOwner::None);
        for session in [1, i64::MAX, -1] {
            assert_eq!(ZnodeOwner::from_number(session), ZnodeOwner::Session(SessionId(session)));
        }
    }
}
