//! The types of ids and numbers. Each has a type of its own, so that the compiler tells them apart.

use std::fmt;

pub use zoolock_wire::{SessionId, Zxid};

/// The UUID of one acquisition, written into the data of every znode that it creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContenderId(pub u128);

impl fmt::Display for ContenderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The number that ZooKeeper appends to a sequential znode: a signed 32-bit count of the creates in its
/// parent.
///
/// It orders only the contenders of one incarnation of a directory. It starts again when the directory is
/// created again, and it ends at [`Sequence::LAST`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub i32);

impl Sequence {
    /// The highest number. After it, ZooKeeper refuses creates, repeats the number, or gives
    /// negative numbers.
    pub const LAST: Sequence = Sequence(i32::MAX);

    /// The first number at which a directory is retired: 2^31 - 2^20. Contenders leave a retired
    /// directory, and it is deleted when it is empty.
    pub const RETIRE_FROM: Sequence = Sequence(i32::MAX - (1 << 20) + 1);

    /// Parses a number in ZooKeeper's format `%010d`: ten digits, or a minus and nine or ten digits.
    pub fn parse(text: &str) -> Option<Sequence> {
        let digits = text.strip_prefix('-');
        let well_formed = match digits {
            None => text.len() == 10,
            Some(d) => d.len() == 9 || d.len() == 10,
        };
        if !well_formed || !digits.unwrap_or(text).bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        text.parse().ok().map(Sequence)
    }

    /// Returns the number before this one; `None` for zero and for negative numbers.
    pub fn before(self) -> Option<Sequence> {
        (self.0 > 0).then(|| Sequence(self.0 - 1))
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retirement_starts_a_million_before_the_end() {
        assert_eq!(i64::from(Sequence::RETIRE_FROM.0), (1 << 31) - (1 << 20));
    }

    #[test]
    fn sequence_round_trips_as_java_prints_it() {
        for n in [0, 1, 42, i32::MAX, -1, -5, -999_999_999, -1_000_000_000, i32::MIN] {
            let text = Sequence(n).to_string();
            assert_eq!(Sequence::parse(&text), Some(Sequence(n)), "{text}");
        }
        assert_eq!(Sequence(-5).to_string(), "-000000005");
    }

    #[test]
    fn sequence_refuses_what_zookeeper_never_prints() {
        for bad in
            ["", "-", "1", "000000001", "00000000001", "+000000001", "0000o00001", "2147483648", "--00000001"]
        {
            assert_eq!(Sequence::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn first_number_has_no_predecessor() {
        assert_eq!(Sequence(1).before(), Some(Sequence(0)));
        assert_eq!(Sequence(0).before(), None);
    }
}
