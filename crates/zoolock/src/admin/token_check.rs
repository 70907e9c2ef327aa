//! Checks whether a token belongs to a present holder.

use zoolock_core::acquisition::RequestFailure;

use crate::admin::snapshot::{self, Entry, SnapshotOptions, entry};
use crate::base::error::Error;
use crate::base::path::LockPath;
use crate::base::ticket::Ticket;
use crate::engine::gather::LockDirectory;
use crate::engine::reader::QueueReader;
use crate::lock::acquire::Lock;
use crate::zk::session::{Op, ZkError, ZkSession};

/// Maximum number of attempts if the queue changes meanwhile.
const MAX_ATTEMPTS: usize = 10;

/// The answer to [`Admin::check_token`](crate::Admin::check_token).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenCheck {
    /// At a moment during the call, the contender with this token held the lock.
    Current,
    /// At a moment during the call, no holder had this token.
    #[non_exhaustive]
    NotCurrent {
        /// The first holder at that moment; `None` if the lock was free.
        holder: Option<Box<Entry>>,
    },
}

impl Lock {
    /// Checks whether a holder has this ticket. A server that lags behind can say neither yes nor no: a transaction through
    /// the leader confirms that the znode of the holder exists, and that the server was up to date.
    pub(crate) async fn check_token(&self, ticket: Ticket) -> Result<TokenCheck, Error> {
        let directory = self.directory()?;
        // The server does not know how often a shared hold has passed the lock on.
        let wanted = ticket.without_pass();
        // All requests use one session, so that each read shows at least what the transaction before it has shown.
        let zk = self.context.zk().await?;
        let reader = QueueReader::new(&*zk);
        let view = SnapshotOptions { waiters: 0, ..SnapshotOptions::of(&self.context) };
        let mut is_up_to_date = false;
        for _ in 0..MAX_ATTEMPTS {
            let seen = snapshot::read(&reader, directory.clone(), &view).await?;
            let has_token = |entry: &&Entry| entry.token == Some(wanted);
            if let Some(holder) = seen.holders().find(has_token) {
                if self.confirm(&zk, &directory, holder, wanted).await? {
                    return Ok(TokenCheck::Current);
                }
            } else if is_up_to_date {
                // A holder without a token is one that this client may not read.
                let unreadable = seen.holders().filter(|holder| holder.token.is_none());
                let mut hidden = unreadable.map(|holder| &holder.node).chain(&seen.unread);
                return match hidden.next() {
                    Some(first) => Err(self.unreadable_or_missing(ticket, first, hidden.count())),
                    None => Ok(TokenCheck::NotCurrent { holder: seen.holder.clone().map(Box::new) }),
                };
            } else {
                match zk.commit(vec![Op::Check(directory.as_str().to_owned())]).await {
                    Ok(_) | Err(ZkError { failure: RequestFailure::NoNode, .. }) => is_up_to_date = true,
                    Err(error) => return Err(self.request_error(error)),
                }
            }
        }
        Err(self.changes_too_fast())
    }

    /// Confirms that this holder exists, in a transaction. A read before it and one after it show the same znode, so no other
    /// znode of the same name existed in between.
    async fn confirm(
        &self,
        zk: &ZkSession,
        directory: &LockPath,
        holder: &Entry,
        ticket: Ticket,
    ) -> Result<bool, Error> {
        let here = LockDirectory::read(&QueueReader::new(zk), directory.clone()).await;
        let Some(here) = here.map_err(|error| self.request_error(error))? else { return Ok(false) };
        // The entry does not show the session id that some libraries write into their names.
        let mut contenders = here.contenders.iter();
        let Some(contender) = contenders.find(|it| entry::without_session(it) == holder.node) else {
            return Ok(false);
        };
        let path = contender.path(directory);
        let confirmed = match zk.commit(vec![Op::Check(path.clone())]).await {
            Ok(_) => zk.read(&path).await,
            Err(error) => Err(error),
        };
        match confirmed {
            Ok((_, stat)) => Ok(Ticket::new(self.context.epoch(), stat.czxid) == ticket),
            Err(ZkError { failure: RequestFailure::NoNode, .. }) => Ok(false),
            Err(error) => Err(self.request_error(error)),
        }
    }
}
