//! The fencing token.

use std::fmt;
use std::str::FromStr;

use crate::ids::Zxid;

/// A fencing token: a number that rises with every grant. The resource that the lock protects
/// checks the token.
///
/// Tokens are ordered by epoch, then by the transaction that created the holder's znode, then by
/// the number of passes within one shared hold. The epoch is a setting. An operator raises it when
/// the ensemble is wiped, restored from a backup, or replaced by another ensemble, because the
/// transaction ids then start again.
///
/// A resource refuses a token that is lower than the highest one it has seen. An equal token is that of the same holder. Compare
/// only tokens of holders that share a lock: of two different locks, the higher token may have been granted earlier. The token
/// of several locks that were acquired together counts in each of them.
///
/// The text form has a fixed width, so tokens compare as text exactly as they compare as values: in SQL
/// `UPDATE … SET …, token = :token WHERE id = :id AND token <= :token`, and no updated row means that the token is old.
///
/// ```
/// # use zoolock_core as zoolock;
/// use zoolock::FencingToken;
/// # fn main() -> Result<(), zoolock::ParseTokenError> {
/// let older: FencingToken = "00000000-0000000100000009-00000000".parse()?;
/// let newer: FencingToken = "00000000-000000010000000a-00000000".parse()?;
/// assert!(older < newer && older.to_u128() < newer.to_u128());
/// assert!(older.to_string() < newer.to_string());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken {
    epoch: u32,
    czxid: Zxid,
    pass: u32,
}

impl FencingToken {
    /// Creates a token from an epoch, a creation transaction and a pass.
    #[doc(hidden)]
    pub fn new(epoch: u32, czxid: Zxid, pass: u32) -> FencingToken {
        FencingToken { epoch, czxid, pass }
    }

    /// Returns the configured epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the transaction that created the holder's znode.
    #[doc(hidden)]
    pub fn czxid(&self) -> Zxid {
        self.czxid
    }

    /// Returns the number of local passes before this grant: how often the tasks of one process
    /// passed the lock on, with the same znode.
    pub fn pass(&self) -> u32 {
        self.pass
    }
}

impl FencingToken {
    /// Returns the token as a number. The numbers are ordered as the tokens are.
    pub fn to_u128(&self) -> u128 {
        // A zxid is never negative.
        u128::from(self.epoch) << 96 | (self.czxid.0 as u128) << 32 | u128::from(self.pass)
    }

    /// Returns the token as bytes, for a column of 16 bytes. The bytes are ordered as the tokens are.
    pub fn to_be_bytes(&self) -> [u8; 16] {
        self.to_u128().to_be_bytes()
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FencingToken({self})")
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:016x}-{:08x}", self.epoch, self.czxid.0, self.pass)
    }
}

/// An error for a text that is not a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseTokenError(String);

impl fmt::Display for ParseTokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a fencing token: expected 8, 16 and 8 hex digits joined by `-`", self.0)
    }
}

impl std::error::Error for ParseTokenError {}

impl FromStr for FencingToken {
    type Err = ParseTokenError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        fn hex(part: Option<&str>, width: usize) -> Option<u64> {
            let part = part?;
            let fits = part.len() == width && part.bytes().all(|b| b.is_ascii_hexdigit());
            if fits { u64::from_str_radix(part, 16).ok() } else { None }
        }
        let parse = || {
            let mut parts = s.split('-');
            let epoch = u32::try_from(hex(parts.next(), 8)?).ok()?;
            let czxid = i64::try_from(hex(parts.next(), 16)?).ok()?;
            let pass = u32::try_from(hex(parts.next(), 8)?).ok()?;
            parts.next().is_none().then_some(FencingToken::new(epoch, Zxid(czxid), pass))
        };
        parse().ok_or_else(|| ParseTokenError(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_order_is_value_order() {
        let mut tokens = Vec::new();
        for epoch in [0, 1, 9, u32::MAX] {
            for czxid in [0, 1, 0xffff_ffff, 0x1_0000_0000, i64::MAX] {
                for pass in [0, 1, 10, u32::MAX] {
                    tokens.push(FencingToken::new(epoch, Zxid(czxid), pass));
                }
            }
        }
        let mut by_text = tokens.clone();
        by_text.sort_by_key(|t| t.to_string());
        let mut by_number = tokens.clone();
        by_number.sort_by_key(FencingToken::to_u128);
        let mut by_bytes = tokens.clone();
        by_bytes.sort_by_key(FencingToken::to_be_bytes);
        tokens.sort();
        assert_eq!((&tokens, &tokens, &tokens), (&by_text, &by_number, &by_bytes));
    }

    #[test]
    fn token_round_trips() {
        let token = FencingToken::new(3, Zxid(0x1_0000_0007), 0x20);
        assert_eq!((token.epoch(), token.czxid(), token.pass()), (3, Zxid(0x1_0000_0007), 0x20));
        assert_eq!(token.to_string(), "00000003-0000000100000007-00000020");
        assert_eq!(format!("{token:?}"), "FencingToken(00000003-0000000100000007-00000020)");
        assert_eq!(token.to_be_bytes()[..5], [0, 0, 0, 3, 0]);
        assert_eq!(token.to_string().parse(), Ok(token));
        // Each part has a fixed width.
        "0000000-00000000100000007-00000020".parse::<FencingToken>().expect_err("parts have 7 and 17 digits");
    }

    #[test]
    fn nonsense_is_refused_with_its_text() {
        for bad in [
            "",
            "1",
            "00000000-0000000000000000",
            "00000000-0000000000000000-0000000g",
            "+0000000-0000000000000000-00000000",
        ] {
            let error = bad.parse::<FencingToken>().expect_err(bad);
            assert!(error.to_string().contains(bad));
        }
    }
}
