//! Deletes strays: znodes of the session that no acquisition knows.
//!
//! A create whose reply was lost can be carried out late, after its acquisition has searched for its znodes and even after
//! the acquisition has ended. ZooKeeper's leader accepts a write if the *server* that passes it on owns the session. Each
//! attach gives the session to the server that reports it to the leader. Attaches overtake the creates in the queues of
//! their server. So the following is possible:
//!
//! 1. A create waits in server A, which hangs. The client attaches at server B, which now owns the session. A search finds
//!    nothing, and a create by A would be refused.
//! 2. The client has also tried to attach at A, and has given up. A continues, carries out this attach, and owns the session
//!    again. Then A passes on the old create, and the leader accepts it.
//!
//! Such a znode would block its queue until the session ends. From step 2 on, the leader refuses each write by B, and B
//! closes the connection. So the client notices with its next write and attaches again, after which the leader refuses the
//! creates of A. Therefore a session that has lost the reply to a create looks for strays after each attach, behind a write
//! that the leader has answered on the new connection. A stray cannot appear later than that without another attach.
//! A `sync` is not refused, so such a session also sends writes while it has no locks (`renewal.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zoolock_core::acquisition::RequestFailure;

use super::znode_owner::{ZnodeOwner, find_znode_owner};
use super::{Connection, LockSession};
use crate::base::path::LockPath;
use crate::base::sync::lock;
use crate::base::telemetry::log_event;
use crate::zk::session::{Op, ZkError, ZkSession};

/// The state of the search for strays.
#[derive(Default)]
pub(super) struct StraySearch {
    /// The directories in which a create was sent whose reply was lost. The create may be carried out at any time until the
    /// session ends, so no directory is removed.
    directories: std::sync::Mutex<BTreeMap<String, LockPath>>,
    /// Set if a search must begin.
    is_due: AtomicBool,
    /// Set once the server has refused to list the znodes of a session. Servers before ZooKeeper 3.6 do so, and close the
    /// connection.
    cannot_list: AtomicBool,
}

impl LockSession {
    /// Records that the reply to a create in these directories was lost.
    pub(crate) fn record_lost_create(&self, directories: &[LockPath]) {
        let named = directories.iter().map(|directory| (directory.as_str().to_owned(), directory.clone()));
        lock(&self.strays.directories).extend(named);
        self.strays.is_due.store(true, Ordering::Release);
    }

    /// Returns whether a create of this session may be carried out late.
    pub(super) fn may_have_strays(&self) -> bool {
        !lock(&self.strays.directories).is_empty()
    }

    /// Records that a server has attached the session again.
    pub(super) fn record_reattach(&self) {
        self.strays.is_due.store(true, Ordering::Release);
    }

    /// Starts a search for strays in the background, if one is due. A search that fails is due again, at the next call.
    pub(super) fn search_strays_if_due(self: &Arc<Self>) {
        let Some(zk) = self.zk().filter(|_| self.may_have_strays()) else { return };
        if self.strays.is_due.swap(false, Ordering::AcqRel) {
            let session = self.clone();
            self.tasks.spawn(async move {
                let mut connection = session.connection();
                tokio::select! {
                    biased;
                    _ = connection.wait_for(|now| *now == Connection::Ended) => {}
                    outcome = session.delete_strays(&zk) => if !outcome.unwrap_or(false) {
                        session.strays.is_due.store(true, Ordering::Release);
                    }
                }
            });
        }
    }

    /// Deletes the strays in the directories with a lost create. Returns false if an acquisition may still find its znode
    /// among them.
    async fn delete_strays(&self, zk: &ZkSession) -> Result<bool, ZkError> {
        match zk.check("/").await {
            Err(error) if !matches!(error.failure, RequestFailure::Refused(_)) => return Err(error),
            // Continues, because the answer of the leader proves that it has handled all writes that it
            // accepts from the earlier owner.
            _ => {}
        }
        let directories = lock(&self.strays.directories).clone();
        let mut paths = Vec::new();
        let own = match self.can_list_znodes().then(|| zk.ephemerals("/")) {
            Some(listing) => match listing.await {
                Err(ZkError { failure: RequestFailure::Refused(_), .. }) => {
                    self.record_refused_listing();
                    None
                }
                listing => Some(listing?),
            },
            None => None,
        };
        match own {
            Some(own) => paths.extend(own.into_iter().filter_map(|path| {
                let directory = directories.get(path.rsplit_once('/')?.0)?;
                Some((directory.clone(), path))
            })),
            None => {
                for directory in directories.into_values() {
                    match zk.children(directory.as_str()).await {
                        Ok((names, _)) => {
                            paths.extend(names.iter().map(|name| (directory.clone(), directory.child(name))));
                        }
                        Err(error) if error.failure.is_answer() => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        let mut is_complete = true;
        for (directory, path) in paths {
            let stat = match zk.exists(&path).await {
                Ok(Some(stat)) => stat,
                Ok(None) => continue,
                Err(error) if error.failure.is_answer() => continue,
                Err(error) => return Err(error),
            };
            if stat.owner != self.id {
                continue;
            }
            let known = self.acquisition_of_node(stat.czxid, &directory);
            let may_learn = || {
                self.acquisitions().iter().any(|acquisition| acquisition.may_learn_of_znode_in(&directory))
            };
            match find_znode_owner(known, may_learn) {
                ZnodeOwner::Acquisition(_) => continue,
                ZnodeOwner::InDoubt => {
                    is_complete = false;
                    continue;
                }
                ZnodeOwner::Nobody => {}
            }
            let logged = path.clone();
            log_event!(DEBUG, path = logged, "deletes a znode whose create was carried out late");
            match zk.commit(vec![Op::DeleteVersion(path, stat.version)]).await {
                Ok(_) | Err(ZkError { failure: RequestFailure::NoNode, .. }) => {}
                // A stray that this client may not delete must not protect the others. The next attach tries it again.
                Err(ZkError { failure: RequestFailure::Refused(_), .. }) => {}
                Err(error) if error.failure.is_answer() => is_complete = false,
                Err(error) => return Err(error),
            }
        }
        Ok(is_complete)
    }

    /// Returns whether the server may know the request for the session's ephemeral znodes
    /// ([`ephemerals_request`](crate::zk::session::ephemerals_request)). Otherwise list a directory, and look for the znodes
    /// of this session there.
    pub(crate) fn can_list_znodes(&self) -> bool {
        !self.strays.cannot_list.load(Ordering::Acquire)
    }

    /// Records that the server has refused that request.
    pub(crate) fn record_refused_listing(&self) {
        self.strays.cannot_list.store(true, Ordering::Release);
    }
}
