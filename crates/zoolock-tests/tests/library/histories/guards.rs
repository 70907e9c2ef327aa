//! One type for the guards of all kinds of locks.

use zoolock::{
    Error, FencingToken, Guard, LossReason, MultiGuard, MultiReadGuard, PermitGuard, Previous, ReadGuard,
    ReentrantGuard, Ticket, UpgradableReadGuard, WriteGuard,
};

/// A guard of any kind.
pub(crate) enum Held {
    Mutex(Guard),
    Owner(ReentrantGuard),
    Write(WriteGuard),
    Read(ReadGuard),
    Upgradable(UpgradableReadGuard),
    Multi(MultiGuard),
    MultiRead(MultiReadGuard),
    Permits(PermitGuard),
}

macro_rules! each {
    ($held:expr, $guard:ident => $what:expr) => {
        match $held {
            Held::Mutex($guard) => $what,
            Held::Owner($guard) => $what,
            Held::Write($guard) => $what,
            Held::Read($guard) => $what,
            Held::Upgradable($guard) => $what,
            Held::Multi($guard) => $what,
            Held::MultiRead($guard) => $what,
            Held::Permits($guard) => $what,
        }
    };
}

impl Held {
    pub(crate) fn is_valid(&self) -> bool {
        each!(self, guard => guard.is_valid())
    }

    pub(crate) fn ticket(&self) -> FencingToken {
        each!(self, guard => token(guard.ticket()))
    }

    pub(crate) fn is_revoked(&self) -> bool {
        each!(self, guard => guard.is_revoked())
    }

    pub(crate) fn loss(&self) -> Option<LossReason> {
        each!(self, guard => guard.loss())
    }

    pub(crate) async fn lost(&self) -> LossReason {
        each!(self, guard => guard.lost().await)
    }

    pub(crate) async fn revoked(&self) {
        each!(self, guard => guard.revoked().await)
    }

    pub(crate) async fn release(self) -> Result<(), Error> {
        each!(self, guard => guard.release().await)
    }

    /// Returns how the previous exclusive holder released, or `None` for permits.
    ///
    /// An upgraded reader repeats the value from its read lock.
    pub(crate) fn previous(&self) -> Option<Previous> {
        match self {
            Held::Mutex(guard) => Some(guard.previous()),
            Held::Owner(guard) => Some(guard.previous()),
            Held::Write(guard) => Some(guard.previous()),
            Held::Read(guard) => Some(guard.previous()),
            Held::Upgradable(guard) => Some(guard.previous()),
            Held::Multi(guard) => Some(guard.previous()),
            Held::MultiRead(guard) => Some(guard.previous()),
            Held::Permits(_) => None,
        }
    }
}

/// Converts a ticket to a comparable token.
pub(crate) fn token(ticket: Ticket) -> FencingToken {
    ticket.to_string().parse().expect("a ticket has the format of a token")
}
