//! What an operator does to a lock from outside: look, ask the holder to let go, take the lock away.

use zoolock_core::contender::Failure;
use zoolock_core::layout::is_kazoo_lease;
use zoolock_core::names::{Family, Name, Role};
use zoolock_core::record::{Left, Marker, Record};

use crate::acquire::Lock;
use crate::data::{NodeData, REVOCATIONS};
use crate::directory;
use crate::error::Error;
use crate::keeper::{Keeper, KeeperError, Op, Stat};
use crate::layout;
use crate::path::{AUDIT, LockPath};
use crate::snapshot::{self, Snapshot};
use crate::ticket::Ticket;

/// How often somebody else may change what we are about to change.
const TRIES: usize = 10;

/// A contender that was found by its ticket.
struct Found {
    /// That of the lock, or one of those of a semaphore in the layout of others.
    directory: LockPath,
    node: String,
    /// `None`: a permit of kazoo's.
    name: Option<Name>,
    data: Vec<u8>,
    stat: Stat,
    /// Whether nobody stands before it.
    first: bool,
    /// The writers' nodes of a reader that writes.
    upgrades: Vec<String>,
}

impl Lock {
    pub(crate) async fn snapshot(&self) -> Result<Snapshot, Error> {
        let keeper = self.zoolock.keeper().await?;
        snapshot::read(&*keeper, self.directory()?, self.zoolock.chroot(), self.zoolock.epoch()).await
    }

    pub(crate) async fn revoke(&self, ticket: Ticket) -> Result<(), Error> {
        let directory = self.directory()?;
        let keeper = self.zoolock.keeper().await?;
        for _ in 0..TRIES {
            let found = self.find(&*keeper, &directory, ticket).await?;
            let word = match NodeData::parse(&found.data) {
                // Ours keep what they say about themselves.
                Some(data) => NodeData { revoked: true, ..data }.encode(),
                None if found.name.is_some_and(|name| name.family() == Family::Curator) => {
                    REVOCATIONS[1].to_vec()
                }
                None => REVOCATIONS[0].to_vec(),
            };
            let path = found.directory.child(&found.node);
            match keeper.write(&path, &word, Some(found.stat.version)).await {
                Ok(stat) if stat.czxid == found.stat.czxid => return Ok(()),
                Ok(_) | Err(KeeperError { failure: Failure::NoNode, .. }) => {
                    return Err(self.no_such_holder(ticket));
                }
                Err(KeeperError { failure: Failure::BadVersion, .. }) => {}
                Err(error) => return Err(self.refusal(error)),
            }
        }
        Err(self.restless())
    }

    /// First a write to the node, whose answer proves that it is the one that was seen; then one transaction that
    /// relies on the version which that write made.
    pub(crate) async fn break_lock(&self, ticket: Ticket) -> Result<(), Error> {
        let directory = self.directory()?;
        let keeper = self.zoolock.keeper().await?;
        for _ in 0..TRIES {
            let found = self.find(&*keeper, &directory, ticket).await?;
            let directory = &found.directory;
            let path = directory.child(&found.node);
            let seen = match keeper.write(&path, &found.data, Some(found.stat.version)).await {
                Ok(stat) if stat.czxid == found.stat.czxid => stat,
                Ok(_) | Err(KeeperError { failure: Failure::NoNode, .. }) => {
                    return Err(self.no_such_holder(ticket));
                }
                Err(KeeperError { failure: Failure::BadVersion, .. }) => continue,
                Err(error) => return Err(self.refusal(error)),
            };
            let (data, stat) = keeper.read(directory.as_str()).await.map_err(|error| self.refusal(error))?;
            let record = Record::parse(&data);
            let mut ops = vec![Op::DeleteVersion(path, seen.version)];
            ops.extend(found.upgrades.iter().map(|node| Op::Delete(directory.child(node))));
            let before = record.marker_of(stat.czxid);
            // What the record says of a holder must not be written over because a waiter or a reader is broken.
            let of_another =
                |sequence| before.is_some_and(|m| m.left == Left::Held && m.sequence != sequence);
            if let Some(Name { role: Role::Exclusive, sequence, .. }) = found.name
                && found.first
                && record.is_writable()
                && !of_another(sequence)
            {
                let tracked = before.is_some_and(|marker| marker.tracked);
                let marker = Marker { directory: stat.czxid, left: Left::Broken, sequence, tracked };
                ops.push(Op::Write {
                    path: directory.as_str().to_owned(),
                    data: marker.encode().into_bytes(),
                    version: Some(stat.version),
                });
            }
            let audit = self.zoolock.audit_directory();
            let line = self.audit_line(ticket, &found);
            ops.push(Op::Log { prefix: format!("{audit}/broken-"), data: line });
            match keeper.commit(ops).await {
                Ok(_) => return Ok(()),
                Err(KeeperError { failure: Failure::BadVersion, .. }) => {}
                // The node, or the place for the line.
                Err(KeeperError { failure: Failure::NoNode, .. }) => {
                    let made = directory::make(keeper.clone(), audit, true).await;
                    made.map_err(|error| self.refusal(error))?;
                }
                Err(error) => return Err(self.refusal(error)),
            }
        }
        Err(self.restless())
    }

    async fn find(&self, keeper: &dyn Keeper, directory: &LockPath, ticket: Ticket) -> Result<Found, Error> {
        if ticket.epoch() != self.zoolock.epoch() {
            return Err(self.no_such_holder(ticket));
        }
        let mut places = vec![directory.clone()];
        places.extend(layout::all_places(directory));
        for place in &places {
            if let Some(found) = self.find_in(keeper, place, ticket).await? {
                return Ok(found);
            }
        }
        Err(self.no_such_holder(ticket))
    }

    async fn find_in(
        &self,
        keeper: &dyn Keeper,
        directory: &LockPath,
        ticket: Ticket,
    ) -> Result<Option<Found>, Error> {
        let children = match keeper.children(directory.as_str()).await {
            Ok((children, _)) => children,
            Err(KeeperError { failure: Failure::NoNode, .. }) => return Ok(None),
            Err(error) => return Err(self.refusal(error)),
        };
        let contender = |child: String| {
            let name = Name::parse(&child);
            (name.is_some() || is_kazoo_lease(&child)).then_some((name, child))
        };
        let mut names: Vec<(Option<Name>, String)> = children.into_iter().filter_map(contender).collect();
        names.sort_by_key(|(name, _)| (name.is_none(), name.map(|name| name.position())));
        let mut found: Option<Found> = None;
        for (at, (name, node)) in names.into_iter().enumerate() {
            match keeper.read(&directory.child(&node)).await {
                Ok((data, stat)) if Ticket::new(ticket.epoch(), stat.czxid) == ticket => {
                    let (directory, first) = (directory.clone(), at == 0);
                    found = Some(Found { directory, node, name, data, stat, first, upgrades: Vec::new() });
                }
                Ok((data, _)) => {
                    if let Some(found) = &mut found
                        && let (Some(reader), Some(writer)) =
                            (NodeData::parse(&found.data), NodeData::parse(&data))
                        && writer.of.is_some_and(|of| of == reader.id)
                    {
                        found.upgrades.push(node);
                    }
                }
                Err(KeeperError { failure: Failure::NoNode | Failure::Refused(_), .. }) => {}
                Err(error) => return Err(self.refusal(error)),
            }
        }
        Ok(found)
    }

    /// Who did what to whom, as JSON.
    fn audit_line(&self, ticket: Ticket, found: &Found) -> Vec<u8> {
        let owner = self.zoolock.owner();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let line = serde_json::json!({
            "deed": "broken",
            "lock": self.path(),
            "node": found.node,
            "ticket": ticket.to_string(),
            "at_ms": now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX)),
            "by": {
                "host": owner.host,
                "pid": std::process::id(),
                "program": owner.program,
                "note": owner.note,
            },
            "was": String::from_utf8_lossy(&found.data),
        });
        line.to_string().into_bytes()
    }

    fn no_such_holder(&self, ticket: Ticket) -> Error {
        Error::NoSuchHolder { path: self.path(), ticket: ticket.to_string() }
    }

    fn restless(&self) -> Error {
        Error::unavailable(
            format!("lock {}", self.path()),
            "it changes faster than it can be changed; try again",
        )
    }

    pub(crate) fn refusal(&self, error: KeeperError) -> Error {
        snapshot::refusal(&self.path(), error)
    }
}

impl crate::zoolock::Zoolock {
    fn audit_directory(&self) -> String {
        format!("{}/{AUDIT}", self.root().trim_end_matches('/'))
    }
}
