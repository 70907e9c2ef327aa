//! The common methods of all guards.

use std::future::Future;

use zoolock::{Error, Guard, LossReason, MultiGuard, PermitGuard, ReadGuard, ReentrantGuard, WriteGuard};

/// A guard of any kind.
pub(crate) trait AnyGuard: Send {
    fn is_valid(&self) -> bool;
    /// Returns the fencing token of an exclusive lock, or `None` for a lock that can be shared.
    fn token(&self) -> Option<String>;
    fn ticket(&self) -> String;
    /// Returns the reason of the loss, if the lock is lost.
    fn loss(&self) -> Option<LossReason>;
    fn release(self) -> impl Future<Output = Result<(), Error>> + Send;
}

macro_rules! held {
    ($guard:ident, |$it:ident| $token:expr) => {
        impl AnyGuard for $guard {
            fn is_valid(&self) -> bool {
                let guard: &Guard<_> = self;
                guard.is_valid()
            }

            fn token(&self) -> Option<String> {
                let $it: &Guard<_> = self;
                $token
            }

            fn ticket(&self) -> String {
                let guard: &Guard<_> = self;
                guard.ticket().to_string()
            }

            fn loss(&self) -> Option<LossReason> {
                let guard: &Guard<_> = self;
                guard.loss()
            }

            async fn release(self) -> Result<(), Error> {
                self.release().await
            }
        }
    };
}

held!(Guard, |it| Some(it.token().to_string()));
held!(WriteGuard, |it| Some(it.token().to_string()));
held!(MultiGuard, |it| Some(it.token().to_string()));
held!(ReentrantGuard, |it| Some(it.token().to_string()));
held!(ReadGuard, |_it| None);
held!(PermitGuard, |_it| None);
