//! The guards of a worker.

use std::ops::Deref;

use zoolock::{AnyGuard, FencingToken, Held, ReadGuard, Ticket, UpgradableReadGuard, WriteGuard};

/// A guard of any kind. A guard that may become a guard of another kind keeps its type.
pub(crate) enum WorkerGuard {
    Write(WriteGuard),
    Read(ReadGuard),
    Upgradable(UpgradableReadGuard),
    Other(AnyGuard),
}

impl WorkerGuard {
    pub(crate) fn other(guard: impl Into<AnyGuard>) -> WorkerGuard {
        WorkerGuard::Other(guard.into())
    }
}

impl Deref for WorkerGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        match self {
            WorkerGuard::Write(guard) => guard,
            WorkerGuard::Read(guard) => guard,
            WorkerGuard::Upgradable(guard) => guard,
            WorkerGuard::Other(guard) => guard,
        }
    }
}

impl From<WorkerGuard> for AnyGuard {
    fn from(guard: WorkerGuard) -> AnyGuard {
        match guard {
            WorkerGuard::Write(guard) => guard.into(),
            WorkerGuard::Read(guard) => guard.into(),
            WorkerGuard::Upgradable(guard) => guard.into(),
            WorkerGuard::Other(guard) => guard,
        }
    }
}

/// Converts a ticket to a comparable token.
pub(crate) fn token(ticket: Ticket) -> FencingToken {
    ticket.to_string().parse().expect("a ticket has the format of a token")
}
