//! Numbered slots for holders of permits: each holder has numbers that no other holder has.
//!
//! A slot is an ephemeral znode with the number as its name, of the session that holds the permits. ZooKeeper creates a name
//! once, so no two holders have one number. The slots of `/locks/enc` are in `/locks/.slots/enc`. The place depends on the path
//! of the lock alone, so clients with different roots find the same slots. See docs/design/kinds.md.

use std::time::Duration;

use zoolock_core::acquisition::RequestFailure;

use crate::admin::snapshot::request_error;
use crate::base::clock::{deadline_after, monotonic};
use crate::base::error::Error;
use crate::base::path::SLOTS;
use crate::lock::held::Held;
use crate::zk::directory::DirectoryCreation;
use crate::zk::session::{Op, ZkError, ZkSession};

/// Pause between two looks for a free slot.
const PAUSE: Duration = Duration::from_millis(100);

/// The slots of one holder.
#[derive(Debug)]
pub struct Slots {
    numbers: Vec<u32>,
    directory: String,
    /// Identifier of the acquisition. It is the data of the slots, so that a slot is known whose create had no reply.
    id: String,
    /// Set if the outcome of a create is not known.
    is_unsure: bool,
}

/// Returns the directory of the slots of the lock in this directory.
pub(crate) fn slot_directory(lock: &str) -> String {
    let (parent, name) = lock.rsplit_once('/').unwrap_or(("", lock));
    format!("{parent}/{SLOTS}/{name}")
}

/// Returns the slots that are taken, in order.
pub(crate) async fn read(zk: &ZkSession, lock: &str) -> Result<Vec<u32>, ZkError> {
    let names = match zk.children(&slot_directory(lock)).await {
        Ok((names, _)) => names,
        Err(ZkError { failure: RequestFailure::NoNode, .. }) => Vec::new(),
        Err(error) => return Err(error),
    };
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

impl Slots {
    /// Takes the lowest free slots below `below`. There are as many slots as permits, and a holder frees its slots before its
    /// permits. So a slot is missing only if an operator broke the permits of a holder that still works, or if a holder's
    /// session ended without a release of the slots. Waits for it, for `patience` and the session
    /// timeout at most.
    ///
    /// # Errors
    /// [`Error::Conflict`] if no slot became free in time; [`Error::Lost`] if the permits were lost; [`Error::Unavailable`];
    /// [`Error::Denied`].
    pub(crate) async fn take(
        held: &Held,
        below: u32,
        count: u32,
        patience: Duration,
    ) -> Result<Slots, Error> {
        let lock = held.acquisition().directories()[0].as_str();
        let session = held.acquisition().session();
        let mut slots = Slots {
            numbers: Vec::new(),
            directory: slot_directory(lock),
            id: held.acquisition().id().to_string(),
            is_unsure: false,
        };
        let limit = deadline_after(session.timeout().min(patience));
        loop {
            let lost = |reason| Error::Lost { path: held.path().to_owned(), reason };
            let attempt = async {
                match session.zk() {
                    Some(zk) => slots.take_free(&zk, below, count).await,
                    None => Ok(false),
                }
            };
            let outcome = tokio::select! {
                biased;
                reason = held.lost() => return Err(lost(reason)),
                outcome = attempt => outcome,
            };
            match outcome {
                Ok(true) => return Ok(slots),
                Ok(false) if monotonic() < limit => {}
                // The outcome is not known.
                Err(error) if monotonic() < limit && !matches!(error.failure, RequestFailure::Refused(_)) => {
                }
                // An outage is no busy lock.
                Err(error) => {
                    let subject = format!("slots of {}", held.path());
                    return Err(request_error(held.context().endpoints(), subject, error));
                }
                Ok(false) => {
                    let message = format!(
                        "has no free slot of {below}: a holder whose permits were broken or lost still works; stop it"
                    );
                    return Err(Error::Conflict { path: held.path().to_owned(), message });
                }
            }
            tokio::select! {
                biased;
                reason = held.lost() => return Err(lost(reason)),
                () = held.context().alarm(deadline_after(PAUSE)) => {}
            }
        }
    }

    /// Takes free slots. Returns whether there are enough now.
    async fn take_free(&mut self, zk: &ZkSession, below: u32, count: u32) -> Result<bool, ZkError> {
        let names = match zk.children(&self.directory).await {
            Ok((names, _)) => names,
            Err(ZkError { failure: RequestFailure::NoNode, .. }) => {
                DirectoryCreation::new(self.directory.clone(), false).run(zk).await?;
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        for number in 0..below {
            if self.numbers.len() == count as usize {
                break;
            }
            if self.numbers.contains(&number) {
                continue;
            }
            let path = format!("{}/{number}", self.directory);
            let is_own = match names.contains(&number.to_string()) {
                true => self.is_unsure && self.is_own(zk, &path).await?,
                false => match zk.create_ephemeral(&path, self.id.as_bytes()).await {
                    Ok(()) => true,
                    Err(ZkError { failure: RequestFailure::NodeExists, .. }) => false,
                    Err(error) => {
                        self.is_unsure = true;
                        return Err(error);
                    }
                },
            };
            if is_own {
                self.numbers.push(number);
            }
        }
        Ok(self.numbers.len() == count as usize)
    }

    /// Returns whether this holder has created a slot. The session is that of the permits, so the slot lives as long.
    async fn is_own(&self, zk: &ZkSession, path: &str) -> Result<bool, ZkError> {
        match zk.read(path).await {
            Ok((data, stat)) => Ok(stat.owner == zk.session() && data == self.id.as_bytes()),
            Err(ZkError { failure: RequestFailure::NoNode, .. }) => Ok(false),
            // Another client may create slots that this one may not read.
            Err(ZkError { failure: RequestFailure::Refused(_), .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the numbers of the slots.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Frees the slots. The requests are sent at once, so a release that is called next comes after them. If their outcome is
    /// not known, the slots are free when the session ends.
    pub fn free(self, held: &Held) {
        let Some(zk) = held.acquisition().session().zk() else { return };
        for number in self.numbers {
            // Sends the request, and waits for no answer.
            drop(zk.commit(vec![Op::Delete(format!("{}/{number}", self.directory))]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_beside_their_lock() {
        assert_eq!(slot_directory("/locks/team/enc"), "/locks/team/.slots/enc");
        assert_eq!(slot_directory("/enc"), "/.slots/enc");
    }
}
