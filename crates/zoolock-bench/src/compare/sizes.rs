//! How much work there is.

use std::time::Duration;

/// What can be made smaller.
pub(super) struct Sizes {
    /// Acquisitions of one who is alone.
    pub(super) solo: usize,
    /// The same before anything is counted.
    pub(super) warm: usize,
    /// The same before that, in Java.
    pub(super) compiling: usize,
    /// The same behind the delay.
    pub(super) far: usize,
    /// Turns of each of a few.
    pub(super) turns: usize,
    /// Waiters of two sizes.
    pub(super) many: usize,
    pub(super) most: usize,
    /// Different locks.
    pub(super) locks: usize,
    /// Tasks of one process, and the turns of each.
    pub(super) local: usize,
    pub(super) local_turns: usize,
    /// How long a turn lasts in the articles' test.
    pub(super) hold: Duration,
    /// When a work is given up.
    pub(super) limit: Duration,
    pub(super) long_limit: Duration,
    /// Whether short works have more rounds.
    pub(super) oftener: bool,
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
            oftener: true,
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
            oftener: false,
        }
    }
}
