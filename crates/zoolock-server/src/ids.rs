use std::fmt;

/// The id of a session. It is never zero or negative, so that it differs from all other kinds of owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(i64);

impl SessionId {
    /// The session of transactions that no client requested, such as the removal of empty containers.
    pub const SERVER: SessionId = SessionId(0);

    /// Creates an id from any random number.
    pub fn from_random(random: u64) -> Self {
        let id = random & (i64::MAX as u64);
        SessionId(i64::try_from(id.max(1)).expect("the sign bit was masked away"))
    }

    /// Creates an id from a number that a peer sent.
    pub fn from_wire(id: i64) -> Self {
        SessionId(id)
    }

    /// Returns the number.
    pub fn get(self) -> i64 {
        self.0
    }

    /// Returns the following id, for use if this one is taken.
    #[must_use]
    pub fn next(self) -> Self {
        SessionId::from_random((self.0 as u64).wrapping_add(1))
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The id of a connection, unique while the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub(crate) u64);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a transaction: the epoch in the upper half, a count in the lower half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zxid(i64);

impl Zxid {
    /// Returns the number before the first one of an epoch.
    pub fn start_of(epoch: u32) -> Self {
        Zxid((i64::from(epoch) << 32) & i64::MAX)
    }

    /// Creates a zxid from its number.
    pub fn from_wire(zxid: i64) -> Self {
        Zxid(zxid)
    }

    /// Returns the number.
    pub fn get(self) -> i64 {
        self.0
    }

    /// Returns the epoch.
    pub fn epoch(self) -> u32 {
        (self.0 as u64 >> 32) as u32
    }

    /// Returns the number of transactions in this epoch.
    pub fn count(self) -> u32 {
        (self.0 as u64 & 0xffff_ffff) as u32
    }

    /// Returns the following number, or `None` at the end of the epoch.
    pub fn next(self) -> Option<Self> {
        (self.count() != u32::MAX).then(|| Zxid(self.0 + 1))
    }
}

impl fmt::Display for Zxid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
