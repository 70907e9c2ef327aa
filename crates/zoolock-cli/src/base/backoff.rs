//! Growing pauses between retries.

use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(500);
/// Maximum pause. After a run of at least this length, the pauses begin at [`SHORTEST`] again.
const LONGEST: Duration = Duration::from_secs(30);

/// Pauses that double up to [`LONGEST`], until a run lasts that long.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    last: Option<Duration>,
}

impl Backoff {
    /// Returns the pause after a run that lasted `ran`.
    pub(crate) fn after(&mut self, ran: Duration) -> Duration {
        let pause = match self.last {
            Some(last) if ran < LONGEST => (last * 2).min(LONGEST),
            _ => SHORTEST,
        };
        self.last = Some(pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_begin_anew_after_a_while() {
        let mut backoff = Backoff::default();
        let mut pauses = || backoff.after(Duration::ZERO).as_millis();
        let first: Vec<_> = (0..9).map(|_| pauses()).collect();
        assert_eq!(first, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
        assert_eq!(backoff.after(LONGEST), SHORTEST);
        assert_eq!(backoff.after(SHORTEST), SHORTEST * 2);
    }
}
