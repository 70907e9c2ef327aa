use std::fmt;

/// Identifies a session; never zero and never negative, so that no other kind of owner can be mistaken for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(i64);

impl SessionId {
    /// The owner of transactions that no client asked for, such as the removal of empty containers.
    pub const SERVER: SessionId = SessionId(0);

    /// Takes any random number and makes it an id.
    pub fn from_random(random: u64) -> Self {
        let id = random & (i64::MAX as u64);
        SessionId(i64::try_from(id.max(1)).expect("the sign bit was masked away"))
    }

    /// Takes the number a peer sent.
    pub fn from_wire(id: i64) -> Self {
        SessionId(id)
    }

    /// The number.
    pub fn get(self) -> i64 {
        self.0
    }

    /// The id that follows, to step past one that is taken.
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

/// Numbers transactions: the epoch of the server's start in the upper half, a count in the lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zxid(i64);

impl Zxid {
    /// The number before the first of an epoch.
    pub fn start_of(epoch: u32) -> Self {
        Zxid((i64::from(epoch) << 32) & i64::MAX)
    }

    /// Takes a number.
    pub fn from_wire(zxid: i64) -> Self {
        Zxid(zxid)
    }

    /// The number.
    pub fn get(self) -> i64 {
        self.0
    }

    /// The epoch.
    pub fn epoch(self) -> u32 {
        (self.0 as u64 >> 32) as u32
    }

    /// How many transactions this epoch has had.
    pub fn count(self) -> u32 {
        (self.0 as u64 & 0xffff_ffff) as u32
    }

    /// The number that follows, or `None` at the end of the epoch.
    pub fn next(self) -> Option<Self> {
        (self.count() != u32::MAX).then(|| Zxid(self.0 + 1))
    }
}

impl fmt::Display for Zxid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
