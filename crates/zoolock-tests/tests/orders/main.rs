//! Runs code that the threads of a process share in many orders of the threads.
//!
//! The files under test are included in this crate. So their mutexes let the test choose which thread runs next.

mod shared_hold;
mod toy;
mod wakes;

mod sync {
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
    pub(crate) use tokio::sync::Notify;
}

// Toys in place of what the included files use.

mod base {
    pub(crate) mod clock {
        pub(crate) use crate::toy::now;
    }

    pub(crate) mod error {
        pub(crate) use zoolock::LossReason;

        pub(crate) use crate::toy::Error;
    }

    pub(crate) mod events {
        pub(crate) use crate::toy::{ListenerSlot, Listeners, LockEvent};
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
        pub(crate) use crate::toy::{Lock, WaitLimit};
    }

    pub(crate) mod held {
        pub(crate) use crate::toy::Held;
    }
}

mod session {
    pub(crate) use crate::toy::{Connection, WatchReservation};
}
