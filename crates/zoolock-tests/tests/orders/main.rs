//! Runs code that the threads of a process share in many orders of the threads.
//!
//! The files under test are included in this crate. So their mutexes let the test choose which thread runs next.

mod tenure;
mod toy;
mod wakes;

mod sync {
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
    pub(crate) use tokio::sync::Notify;
}

// Toys in place of what the included files use.

mod acquire {
    pub(crate) use crate::toy::{Lock, Patience, closed};
}

mod clock {
    pub(crate) use crate::toy::now;
}

mod driver {
    pub(crate) use crate::toy::Acquisition;
}

mod error {
    pub(crate) use zoolock::LossReason;

    pub(crate) use crate::toy::Error;
}

mod events {
    pub(crate) use crate::toy::{ListenerSlot, Listeners, LockEvent};
}

mod held {
    pub(crate) use crate::toy::Held;
}

mod options {
    pub(crate) use crate::toy::Options;
}

mod session {
    pub(crate) use crate::toy::{Connection, WatchReservation, lock};
}

mod tasks {
    pub(crate) use crate::toy::Task;
}
