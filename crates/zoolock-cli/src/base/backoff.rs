//! Growing pauses between retries.

use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(500);
/// Maximum pause. If the command or server ran for at least this duration, the next pause is
/// [`SHORTEST`] again.
const LONGEST: Duration = Duration::from_secs(30);

/// The pauses before the restarts of a command or a server. Each pause is twice as long as the one
/// before, up to [`LONGEST`].
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    last: Option<Duration>,
}

impl Backoff {
    /// Returns the pause before the next restart. `ran` is the duration of the run that has just
    /// ended.
    pub(crate) fn next_pause(&mut self, ran: Duration) -> Duration {
        let pause = match self.last {
            Some(last) if ran < LONGEST => (last * 2).min(LONGEST),
            _ => SHORTEST,
        };
        self.last = Some(pause);
        pause
    }

    /// Returns whether the last pause was the maximum.
    pub(crate) fn is_longest(&self) -> bool {
        self.last == Some(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_a_long_run() {
        let mut backoff = Backoff::default();
        let mut pauses = || backoff.next_pause(Duration::ZERO).as_millis();
        let first: Vec<_> = (0..9).map(|_| pauses()).collect();
        assert_eq!(first, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
        assert_eq!(backoff.next_pause(LONGEST), SHORTEST);
        assert_eq!(backoff.next_pause(SHORTEST), SHORTEST * 2);
    }
}
