//! Which holder or waiter is meant.

use std::fmt;
use std::str::FromStr;

use zoolock_core::token::ParseTokenError;
use zoolock_core::{FencingToken, Zxid};

/// Names one holder or waiter, as `zoolock show` prints it: for [`revoke`](crate::Mutex::revoke) and
/// [`break_lock`](crate::Mutex::break_lock).
///
/// A ticket is no fence. Readers and holders of permits hold beside others, so nothing orders what they write; they
/// have a ticket and no [`FencingToken`]. The token of somebody who holds alone is a ticket, too, but for a reader that has
/// become a writer or the other way round: it keeps its token, and its ticket is that of its znode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(FencingToken);

impl Ticket {
    pub(crate) fn new(epoch: u32, czxid: Zxid) -> Ticket {
        Ticket(FencingToken::new(epoch, czxid, 0))
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

impl FromStr for Ticket {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Ticket, ParseTokenError> {
        text.parse().map(Ticket)
    }
}
