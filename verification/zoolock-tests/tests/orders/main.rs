//! Tests of code that several threads share. The crate shuttle runs each test under many thread
//! schedules.
//!
//! The files under test, or the toys around them, use shuttle's mutexes. At each use of a mutex,
//! shuttle chooses the thread that runs next.

mod shared_hold;
mod toy;
mod wakes;

mod sync {
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
    pub(crate) use tokio::sync::Notify;
}

// The modules of the library that the files under test use, with simple replacements for their items.

mod base {
    pub(crate) mod clock {
        pub(crate) use crate::toy::{deadline_after, now};
    }

    pub(crate) mod error {
        pub(crate) use crate::toy::Error;
    }

    pub(crate) mod events {
        pub(crate) use crate::toy::{Listeners, LockEvent};
    }

    pub(crate) mod options {
        pub(crate) use crate::toy::Options;
    }

    pub(crate) mod sync {
        pub(crate) use shuttle::sync::Mutex;

        pub(crate) use crate::toy::lock;
    }

    pub(crate) mod tasks {
        pub(crate) use crate::toy::Task;
    }
}

mod engine {
    pub(crate) use crate::toy::Acquisition;
}

mod lock {
    pub(crate) mod acquire {
        pub(crate) use crate::toy::{FirstSession, Lock, WaitLimit};
    }

    pub(crate) mod held {
        pub(crate) use crate::toy::Held;
    }
}

mod session {
    pub(crate) use crate::toy::{Connection, WatchReservation};
}
