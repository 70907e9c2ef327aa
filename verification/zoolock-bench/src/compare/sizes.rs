//! The sizes of the works.

use std::time::Duration;

/// The sizes that a quick run reduces.
pub(super) struct Sizes {
    /// Acquisitions of a client without competitors.
    pub(super) solo: usize,
    /// Uncounted acquisitions before the counted ones.
    pub(super) warm: usize,
    /// Uncounted acquisitions of the first job in Java, so that its code is compiled.
    pub(super) compiling: usize,
    /// Acquisitions behind the delaying proxy.
    pub(super) far: usize,
    /// Acquisitions of each task of a small crowd.
    pub(super) turns: usize,
    /// Waiters of a large crowd.
    pub(super) many: usize,
    /// Waiters of the largest crowd.
    pub(super) most: usize,
    /// Different locks.
    pub(super) locks: usize,
    /// Tasks of one process that acquire the same lock.
    pub(super) local: usize,
    /// Acquisitions of each of the tasks that `local` counts.
    pub(super) local_turns: usize,
    /// The duration of a hold in the work `articles`, and of the rest in the work `rest`.
    pub(super) hold: Duration,
    /// The time after which a job fails.
    pub(super) limit: Duration,
    /// The time after which a job of a long work fails.
    pub(super) long_limit: Duration,
    /// Set if short works have more rounds.
    pub(super) more_rounds: bool,
}

impl Sizes {
    pub(super) fn full() -> Self {
        Self {
            solo: 500,
            warm: 50,
            compiling: 3_000,
            far: 150,
            turns: 100,
            many: 2_000,
            most: 50_000,
            locks: 10_000,
            local: 1_000,
            local_turns: 3,
            hold: Duration::from_millis(10),
            limit: Duration::from_secs(120),
            long_limit: Duration::from_secs(150),
            more_rounds: true,
        }
    }

    pub(super) fn quick() -> Self {
        Self {
            solo: 20,
            warm: 5,
            compiling: 10,
            far: 5,
            turns: 3,
            many: 40,
            most: 80,
            locks: 40,
            local: 20,
            local_turns: 2,
            hold: Duration::from_millis(1),
            limit: Duration::from_secs(60),
            long_limit: Duration::from_secs(60),
            more_rounds: false,
        }
    }
}
