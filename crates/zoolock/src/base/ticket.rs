//! The identifier of a holder or a waiter.

use std::fmt;
use std::str::FromStr;

use zoolock_core::token::ParseTokenError;
use zoolock_core::{FencingToken, Zxid};

/// An identifier of one holder or waiter, as `zoolock show` prints it, for [`revoke`](crate::Admin::revoke) and
/// [`break_lock`](crate::Admin::break_lock).
///
/// A ticket is no fencing token. Readers and permit holders may hold at the same time as others, so nothing orders
/// their writes. They have a ticket, but no [`FencingToken`]. The token of an exclusive holder is also its ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(FencingToken);

impl Ticket {
    pub(crate) fn new(epoch: u32, czxid: Zxid) -> Ticket {
        Ticket(FencingToken::new(epoch, czxid, 0))
    }

    /// Returns the ticket of the znode, for all tasks that a shared hold has passed the lock to.
    pub(crate) fn without_pass(&self) -> Ticket {
        Ticket::new(self.0.epoch(), self.0.czxid())
    }

    /// Returns the fencing token, if this is the ticket of an exclusive holder.
    pub(crate) fn as_fencing_token(self) -> FencingToken {
        self.0
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.0.epoch()
    }
}

impl From<FencingToken> for Ticket {
    fn from(token: FencingToken) -> Ticket {
        Ticket(token)
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl serde::Serialize for Ticket {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Ticket {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Ticket, ParseTokenError> {
        text.parse().map(Ticket)
    }
}
