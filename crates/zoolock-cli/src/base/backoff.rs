//! Growing pauses between retries.

use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(500);
/// Maximum pause. It is also the length of a run after which the pauses begin at [`SHORTEST`] again.
const LONGEST: Duration = Duration::from_secs(30);

/// The pauses before the restarts of a command or a server. They double up to [`LONGEST`].
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    last: Option<Duration>,
}

impl Backoff {
    /// Returns the pause before the next restart, after a run of duration `ran`.
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
    fn pauses_double_until_a_long_run() {
        let mut backoff = Backoff::default();
        let mut pauses = || backoff.after(Duration::ZERO).as_millis();
        let first: Vec<_> = (0..9).map(|_| pauses()).collect();
        assert_eq!(first, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
        assert_eq!(backoff.after(LONGEST), SHORTEST);
        assert_eq!(backoff.after(SHORTEST), SHORTEST * 2);
    }
}
