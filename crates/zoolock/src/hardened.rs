//! Hardened locks: whoever may queue cannot take the lock from its holder.
//!
//! ZooKeeper checks a deletion on the znode above, so in a queue whoever may release may steal. Here the directory lets
//! nobody write, delete or change who may what; a contender may be read and no more; and whoever lets go closes a session
//! that it has for this one acquisition. What that keeps out, and what not, is in docs/SECURITY.md.
//!
//! The directory may be there already, made by somebody who can do more in it. So its list is looked at before we stand
//! there, lest we wait in vain, and once more when we have the lock: *then, on the same session, our own node*. Nobody can
//! widen a list that lets nobody change it. A node that was there after the list was seen to be narrow is therefore there
//! until its session ends, and whoever came later finds it.

use std::time::Duration;

use zoolock_core::Kind;
use zoolock_core::contender::{Failure, Reason, Refusal};

use crate::acquire::{Attempt, Lock, Patience, kind_name};
use crate::clock;
use crate::error::{Error, LossReason};
use crate::held::Held;
use crate::keeper::{Keeper, KeeperError, NO_IDENTITY, Right};
use crate::naming::Naming;
use crate::path::LockPath;
use crate::sessions::Single;

/// How long before a look whose answer was lost is repeated.
const AGAIN: Duration = Duration::from_millis(50);

impl Lock {
    /// Refuses what needs more than to create and to read.
    pub(crate) fn check_hardened(&self, kind: Kind) -> Result<(), Error> {
        let options = &self.options;
        let message = if options.crash_detection {
            "is hardened: nobody may write down that a holder begins; leave crash detection out"
        } else if options.tenure.is_some() {
            "is hardened, and each holder has a session of its own; leave batching and linger out"
        } else if options.naming != Naming::Native || options.kazoo_pattern {
            "is hardened: clients of other makes let go by deleting, which nobody may there; leave the naming out"
        } else if matches!(kind, Kind::Upgradable | Kind::Upgrade { .. }) {
            "is hardened: whoever reads cannot go on to write, for that nodes would have to be deleted; take the write lock"
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!("lock {}", self.path()), message))
    }

    /// Takes the lock on a session of its own. `bytes`: of the paths that it watches.
    pub(crate) async fn acquire_hardened(
        &self,
        kind: Kind,
        directories: Vec<LockPath>,
        bytes: usize,
        patience: Patience,
    ) -> Result<Option<Held>, Error> {
        loop {
            let room = self.room_of_its_own(&directories, bytes, patience);
            let Some((room, course)) = self.begin_in(kind_name(kind, directories.len()), room).await? else {
                return Ok(None);
            };
            match self.acquire_on(room.into_room(), kind, directories.clone(), patience, None, course).await?
            {
                Attempt::Held(held) => {
                    let confirmed = self.within(patience, self.confirm(&held)).await;
                    let acquisition = held.acquisition();
                    if let Some(Ok(())) = confirmed {
                        acquisition.is_confirmed();
                        return Ok(Some(held));
                    }
                    let outcome = confirmed.transpose();
                    acquisition.is_unconfirmed(outcome.as_ref().err());
                    // Nobody has worked under it.
                    held.give_back();
                    return outcome.map(|_| None);
                }
                Attempt::Missed => return Ok(None),
                Attempt::Again => {}
            }
        }
    }

    async fn room_of_its_own(
        &self,
        directories: &[LockPath],
        bytes: usize,
        patience: Patience,
    ) -> Result<Option<Single>, Error> {
        let opened = async {
            let room = self.zoolock.single(bytes).await?;
            for directory in directories {
                let Some(keeper) = room.session().keeper() else { break };
                let rights = keeper.rights(directory.as_str());
                drop(keeper);
                match rights.await {
                    Ok((rights, _)) => self.check_rights(directory, &rights)?,
                    Err(error) if matches!(error.failure, Failure::Refused(_)) => {
                        return Err(self.refused_to_look(error));
                    }
                    // It is not there yet; or the next look will tell.
                    Err(_) => {}
                }
            }
            Ok(room)
        };
        self.within(patience, opened).await.transpose()
    }

    /// Makes sure that nobody can take away what we hold.
    async fn confirm(&self, held: &Held) -> Result<(), Error> {
        let lost = |reason| Err(Error::Lost { path: self.path(), reason });
        tokio::select! {
            biased;
            reason = held.lost() => return lost(reason),
            looked = self.look_at_places(held) => looked?,
        }
        match held.is_valid() {
            true => Ok(()),
            // It took longer than the lease lasts.
            false => lost(held.loss().unwrap_or(LossReason::Unreachable)),
        }
    }

    async fn look_at_places(&self, held: &Held) -> Result<(), Error> {
        let acquisition = held.acquisition();
        let session = acquisition.session();
        for (place, directory) in acquisition.directories().iter().enumerate() {
            loop {
                let (Some(keeper), Some(node)) = (session.keeper(), acquisition.node_in(place)) else {
                    // It is lost, and whoever waits for that hears of it.
                    return std::future::pending().await;
                };
                // In one flight, so that our node is seen after the list was.
                let rights = keeper.rights(directory.as_str());
                let look = keeper.exists(&directory.child(&node.name()));
                drop(keeper);
                let is_ours = match (rights.await, look.await) {
                    (Ok((rights, _)), Ok(own)) => {
                        self.check_rights(directory, &rights)?;
                        own.is_some_and(|own| own.czxid == node.czxid && own.owner == session.id())
                    }
                    (Err(KeeperError { failure: Failure::NoNode, .. }), _) => false,
                    (Err(error), _) | (_, Err(error)) if matches!(error.failure, Failure::Refused(_)) => {
                        return Err(self.refused_to_look(error));
                    }
                    _ => {
                        self.zoolock.alarm(clock::monotonic() + AGAIN).await;
                        continue;
                    }
                };
                if !is_ours {
                    return Err(Error::Lost { path: self.path(), reason: LossReason::Broken });
                }
                break;
            }
        }
        Ok(())
    }

    fn refused_to_look(&self, error: KeeperError) -> Error {
        match error.failure {
            Failure::Refused(Refusal::Denied) => {
                Error::Denied { subject: format!("lock {}", self.path()), message: UNNAMED.to_owned() }
            }
            _ => self.refusal(error),
        }
    }

    fn check_rights(&self, directory: &LockPath, rights: &[Right]) -> Result<(), Error> {
        let Some(Right { who, writes, deletes, administers }) = rights.iter().find(|right| right.is_much())
        else {
            return Ok(());
        };
        let deeds = [(deletes, "delete"), (writes, "write"), (administers, "change who may what")];
        let deeds: Vec<&str> = deeds.into_iter().filter_map(|(may, deed)| may.then_some(deed)).collect();
        let path = self.zoolock.shown(directory.as_str());
        Err(Error::Denied {
            subject: format!("lock {path}"),
            message: format!(
                "its directory lets {who} {}, and so take a hardened lock from its holder; use another name, have it \
                 removed while nobody uses the lock (who asks next makes it anew), or have an administrator leave only \
                 create and read in its list (setAcl {path} …:cr)",
                deeds.join(" and ")
            ),
        })
    }

    /// Why what would have to be written in this directory, or deleted, is refused.
    pub(crate) async fn why_not(
        &self,
        keeper: &dyn Keeper,
        directory: &LockPath,
        deed: &str,
        error: KeeperError,
    ) -> Error {
        let denied = error.failure == Failure::Refused(Refusal::Denied);
        if denied
            && let Ok((rights, _)) = keeper.rights(directory.as_str()).await
            && !rights.iter().any(Right::is_much)
        {
            return Error::Denied {
                subject: format!("lock {}", self.path()),
                message: format!(
                    "is hardened: nobody can {deed} but an administrator of the service (super); it goes when its holder \
                     lets go, or that one's session ends: end the program that holds it (`zoolock show` names it)"
                ),
            };
        }
        self.refusal(error)
    }
}

impl Right {
    /// Whether it is more than to create and to read.
    fn is_much(&self) -> bool {
        self.writes || self.deletes || self.administers
    }
}

/// What a refusal may mean, besides that we have no credentials.
const UNNAMED: &str = "the service refuses us; give credentials that may create and read there. Whoever made its directory said \
                       who may, and may not have named us: let each user of a hardened lock name all the others (member, \
                       --member)";

/// What a reason means where nobody may write or delete, if that is something else. `words`: those of the service's last
/// refusal.
pub(crate) fn why(reason: Reason, kind: Kind, words: &str, members: &[String]) -> Option<String> {
    match reason {
        Reason::Exhausted | Reason::Refused(Failure::NodeExists) => Some(
            "the next number of its directory is taken by a node that somebody has put there, or its numbers are used up; \
             have an administrator of the service (super) remove what is there, or use another name"
                .to_owned(),
        ),
        Reason::Refused(Failure::Refused(Refusal::Denied)) if words == NO_IDENTITY => {
            let members = (!members.is_empty()).then(|| members.join(", "))?;
            Some(format!("{words} Or it cannot check a member: has it a provider for {members}?"))
        }
        Reason::Refused(Failure::Refused(Refusal::Denied)) if matches!(kind, Kind::Permits { .. }) => {
            Some(format!(
                "{UNNAMED}; where we may, its directory was not made for a hardened semaphore, and its size cannot be \
                 written: use another name"
            ))
        }
        Reason::Refused(Failure::Refused(Refusal::Denied)) => Some(UNNAMED.to_owned()),
        _ => None,
    }
}
