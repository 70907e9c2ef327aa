use std::fmt;

/// A session id.
///
/// It has no `Display`, and its `Debug` is redacted: on Apache ZooKeeper, a client that knows the id can compute the
/// password and take the session over. `{:#x}` prints the id, for a server's own log and reports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub i64);

impl SessionId {
    /// No session. This is the owner of persistent znodes, the sender of changes that no client requested, and the id
    /// in a connect response that refuses a session.
    pub const NONE: SessionId = SessionId(0);

    /// Returns whether the number in `ephemeralOwner` is a session. ZooKeeper marks containers and TTL znodes in the same
    /// field.
    pub fn is_session(self) -> bool {
        const CONTAINER: i64 = i64::MIN;
        const TTL: i64 = 0xff_i64 << 56;
        self.0 != 0 && self.0 != CONTAINER && self.0 & !0x00ff_ffff_ffff != TTL
    }

    /// Creates an id from any random number. The id is never zero or negative. So it differs from the values that mark
    /// persistent znodes, containers and TTL znodes.
    pub fn from_random(random: u64) -> Self {
        let id = random & (i64::MAX as u64);
        SessionId(i64::try_from(id.max(1)).expect("the sign bit was masked away"))
    }

    /// Returns the following id, to try if this id is already in use.
    #[must_use]
    pub fn next(self) -> Self {
        SessionId::from_random((self.0 as u64).wrapping_add(1))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId(..)")
    }
}

impl fmt::LowerHex for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// The number of a transaction: the epoch in the upper half, a count in the lower half. The numbers
/// order all changes of an ensemble.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Zxid(pub i64);

impl Zxid {
    /// Returns the number before the first transaction of an epoch.
    pub fn start_of(epoch: u32) -> Self {
        Zxid((i64::from(epoch) << 32) & i64::MAX)
    }

    /// Returns the epoch.
    pub fn epoch(self) -> u32 {
        (self.0 as u64 >> 32) as u32
    }

    /// Returns the lower half: the count of this transaction in its epoch.
    pub fn count(self) -> u32 {
        (self.0 as u64 & 0xffff_ffff) as u32
    }

    /// Returns the following number in the same epoch, or `None` at the end of the epoch.
    pub fn next(self) -> Option<Self> {
        (self.count() != u32::MAX).then(|| Zxid(self.0 + 1))
    }
}

impl fmt::Display for Zxid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_id_does_not_print_itself() {
        assert_eq!(format!("{:?}", SessionId(0x1234)), "SessionId(..)");
        assert_eq!(format!("{:#x}", SessionId(0x1234)), "0x1234");
    }

    #[test]
    fn containers_and_ttl_znodes_have_no_session() {
        assert!(!SessionId(0).is_session() && !SessionId(i64::MIN).is_session());
        assert!(!SessionId(0xff00_0000_0000_1000_u64 as i64).is_session());
        assert!(SessionId(0x0100_0000_0000_0001).is_session());
    }
}
