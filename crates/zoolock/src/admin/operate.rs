//! Operator actions on a lock: inspect it, ask the holder to release it, take it away.

use zoolock_core::Sequence;
use zoolock_core::contender::{Failure, Refusal};
use zoolock_core::names::{Family, Role, Spelling};
use zoolock_core::record::{Left, Marker, Record};

use crate::admin::snapshot::entry;
use crate::admin::snapshot::{self, Entry, Snapshot, View};
use crate::base::error::Error;
use crate::base::naming;
use crate::base::path::{AUDIT, LockPath};
use crate::base::ticket::Ticket;
use crate::engine::data::{self, NodeData, REVOCATIONS};
use crate::engine::gather::{Contender, Gathered};
use crate::engine::reader::Reader;
use crate::lock::acquire::Lock;
use crate::lock::context::Context;
use crate::zk::directory;
use crate::zk::session::{Op, Stat, ZkError, ZkSession};

/// Maximum number of attempts if other clients change the same znodes.
const MAX_ATTEMPTS: usize = 10;

/// A contender that was found by its ticket.
struct Found {
    contender: Contender,
    data: Vec<u8>,
    stat: Stat,
    /// Set if it is the head of the queue.
    is_head: bool,
    /// The paths of the writers' znodes of an upgraded reader.
    upgrades: Vec<String>,
}

/// The way to ask a contender to release the lock.
enum RevokeRequest {
    /// Write this in place of the data of its znode.
    Write(Vec<u8>),
    /// It has been asked already.
    AlreadyAsked,
    /// Its client library supports no such request.
    Unsupported,
    /// Its client must be created as revocable.
    NotRevocable,
}

impl Lock {
    pub(crate) async fn snapshot(&self) -> Result<Snapshot, Error> {
        let zk = self.context.zk().await?;
        snapshot::read(&Reader::new(&*zk), self.directory()?, &View::of(&self.context)).await
    }

    pub(crate) async fn revoke(&self, ticket: Ticket) -> Result<(), Error> {
        let directory = self.directory()?;
        let zk = self.context.zk().await?;
        for _ in 0..MAX_ATTEMPTS {
            let found = self.find(&zk, &directory, ticket).await?;
            let request = match revoke_request(&found) {
                RevokeRequest::Write(request) => request,
                RevokeRequest::AlreadyAsked => return Ok(()),
                RevokeRequest::Unsupported => {
                    let why = match found.contender.name.family() {
                        Family::Unknown => "zoolock cannot ask to release",
                        _ => "does not read revocation requests",
                    };
                    return Err(self.not_revocable(ticket, &found.contender, why));
                }
                RevokeRequest::NotRevocable => {
                    let why = "reads revocation requests only if it was created as revocable (makeRevocable)";
                    return Err(self.not_revocable(ticket, &found.contender, why));
                }
            };
            let path = found.contender.path(&directory);
            match zk.write(&path, &request, Some(found.stat.version)).await {
                Ok(stat) if stat.czxid == found.stat.czxid => return Ok(()),
                Ok(_) | Err(ZkError { failure: Failure::NoNode, .. }) => {
                    return Err(self.no_such_holder(ticket));
                }
                Err(ZkError { failure: Failure::BadVersion, .. }) => {}
                Err(error) => return Err(self.refusal(error)),
            }
        }
        Err(self.changes_too_fast())
    }

    /// Breaks a lock in two steps. A write to the znode proves that it is the znode that was found. One
    /// transaction then relies on the version that this write made.
    pub(crate) async fn break_lock(&self, ticket: Ticket) -> Result<Entry, Error> {
        let directory = self.directory()?;
        let zk = self.context.zk().await?;
        for _ in 0..MAX_ATTEMPTS {
            let found = self.find(&zk, &directory, ticket).await?;
            let path = found.contender.path(&directory);
            let seen = match zk.write(&path, &found.data, Some(found.stat.version)).await {
                Ok(stat) if stat.czxid == found.stat.czxid => stat,
                Ok(_) | Err(ZkError { failure: Failure::NoNode, .. }) => {
                    return Err(self.no_such_holder(ticket));
                }
                Err(ZkError { failure: Failure::BadVersion, .. }) => continue,
                Err(error) => return Err(self.refusal(error)),
            };
            let (data, stat) = zk.read(directory.as_str()).await.map_err(|error| self.refusal(error))?;
            let record = Record::parse(&data);
            let mut ops = vec![Op::DeleteVersion(path, seen.version)];
            ops.extend(found.upgrades.iter().cloned().map(Op::Delete));
            let before = record.marker_of(stat.czxid);
            if let Some(sequence) = found.holds_alone()
                && record.is_writable(stat.czxid)
                // Breaking a waiter or a reader must not overwrite the marker of a holder.
                && before.is_none_or(|m| m.left != Left::Held || m.sequence == sequence)
            {
                let tracked = before.is_some_and(|marker| marker.tracked);
                let marker = Marker { directory: stat.czxid, left: Left::Broken, sequence, tracked };
                ops.push(Op::Write {
                    path: directory.as_str().to_owned(),
                    data: marker.encode().into_bytes(),
                    version: Some(stat.version),
                });
            }
            let audit = audit_directory(&self.context);
            let line = self.audit_line(ticket, &found);
            ops.push(Op::CreatePersistentSequential { prefix: format!("{audit}/broken-"), data: line });
            match zk.commit(ops).await {
                Ok(_) => {
                    let Found { contender, data, stat, .. } = found;
                    return Ok(entry::of(&contender, Some((data, stat)), self.context.epoch()));
                }
                Err(ZkError { failure: Failure::BadVersion, .. }) => {}
                Err(ZkError { failure: Failure::NotEmpty, .. }) => {
                    return Err(Error::invalid(
                        format!("lock {}: token {ticket}", self.path()),
                        "belongs to a znode with children, perhaps another lock; rename one of the two",
                    ));
                }
                // The znode, or the audit directory, is missing.
                Err(ZkError { failure: Failure::NoNode, .. }) => {
                    let made = directory::make(zk.clone(), audit, true).await;
                    made.map_err(|error| self.refusal(error))?;
                }
                Err(error @ ZkError { failure: Failure::Refused(Refusal::Denied), .. }) => {
                    return Err(self.break_denied(&error, &audit));
                }
                Err(error) => return Err(self.refusal(error)),
            }
        }
        Err(self.changes_too_fast())
    }

    async fn find(&self, zk: &ZkSession, directory: &LockPath, ticket: Ticket) -> Result<Found, Error> {
        if ticket.epoch() != self.context.epoch() {
            return Err(self.no_such_holder(ticket));
        }
        let missing = |error: ZkError| match error.failure {
            Failure::NoNode => self.no_such_holder(ticket),
            _ => self.refusal(error),
        };
        let reader = Reader::new(zk);
        let here = Gathered::at(&reader, directory.clone()).await.map_err(missing)?;
        let here = here.unwrap_or_else(|| Gathered::nothing(directory.clone()));
        let Gathered { contenders, foreign, unread, .. } = here;
        // For the error only, so without session ids.
        let mut unread: Vec<String> = unread.iter().map(|part| part.as_str().to_owned()).collect();
        let mut found: Option<Found> = None;
        for (at, contender) in contenders.into_iter().enumerate() {
            match reader.read(&contender.path(directory)).await {
                Ok((data, stat)) if Ticket::new(ticket.epoch(), stat.czxid) == ticket => {
                    found = Some(Found { contender, data, stat, is_head: at == 0, upgrades: Vec::new() });
                }
                Ok((data, _)) => {
                    if let Some(found) = &mut found
                        && let (Some(reader), Some(writer)) =
                            (NodeData::parse(&found.data), NodeData::parse(&data))
                        && writer.reader_id.is_some_and(|id| id == reader.id)
                    {
                        found.upgrades.push(contender.path(directory));
                    }
                }
                Err(ZkError { failure: Failure::Refused(Refusal::Denied), .. }) => {
                    unread.push(directory.child(&entry::without_session(&contender)));
                }
                Err(ZkError { failure: Failure::NoNode | Failure::Refused(_), .. }) => {}
                Err(error) => return Err(self.refusal(error)),
            }
        }
        found.ok_or_else(|| match (foreign, unread.first()) {
            (Some(foreign), _) => self.other_layout(foreign.layout),
            (None, None) => self.no_such_holder(ticket),
            (None, Some(first)) => self.unreadable_or_missing(ticket, directory, first, unread.len() - 1),
        })
    }

    /// Returns the audit line of a broken lock, as JSON.
    fn audit_line(&self, ticket: Ticket, found: &Found) -> Vec<u8> {
        let client = self.context.client_info();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let line = serde_json::json!({
            "deed": "broken",
            "lock": self.path(),
            "node": entry::without_session(&found.contender),
            "ticket": ticket.to_string(),
            "at_ms": now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX)),
            "by": {
                "host": client.host,
                "pid": std::process::id(),
                "program": client.program,
                "note": client.note,
            },
            "was": String::from_utf8_lossy(&found.data),
        });
        line.to_string().into_bytes()
    }

    fn no_such_holder(&self, ticket: Ticket) -> Error {
        Error::NoSuchHolder { path: self.path(), ticket: ticket.to_string() }
    }

    /// Returns the error if the token may belong to a contender that may not be read.
    fn unreadable_or_missing(
        &self,
        ticket: Ticket,
        directory: &LockPath,
        first: &str,
        others: usize,
    ) -> Error {
        let first = snapshot::display_name(first, directory, self.context.chroot());
        let others = if others == 0 { String::new() } else { format!(" and {others} more") };
        Error::Denied {
            subject: format!("lock {}", self.path()),
            message: format!(
                "no readable contender has the token {ticket}, but {first}{others} cannot be read; use credentials that \
                 may read all contenders"
            ),
        }
    }

    /// Returns the error if the znode may be written, but another part of the transaction is refused.
    fn break_denied(&self, error: &ZkError, audit: &str) -> Error {
        let audit = self.context.without_chroot(audit);
        Error::Denied {
            subject: format!("lock {}", self.path()),
            message: format!(
                "{}; use credentials that may delete in its directory and create in {audit}; {audit} belongs to the first \
                 client that broke a lock below this root, so use a root per owner",
                error.message
            ),
        }
    }

    fn not_revocable(&self, ticket: Ticket, contender: &Contender, why: &str) -> Error {
        let who = naming::described(&contender.name);
        let message = format!(
            "belongs to {who}, which {why}; end that client, or take the lock away from it with `zoolock break`"
        );
        Error::invalid(format!("lock {}: token {ticket}", self.path()), message)
    }

    fn changes_too_fast(&self) -> Error {
        Error::unavailable(format!("lock {}", self.path()), "other clients change it too fast; try again")
    }

    pub(crate) fn refusal(&self, error: ZkError) -> Error {
        snapshot::refusal(&self.path(), error)
    }
}

impl Found {
    /// Returns the sequence number of a holder whose release the directory's data records.
    fn holds_alone(&self) -> Option<Sequence> {
        let name = self.contender.name;
        (self.is_head && name.role == Role::Exclusive).then_some(name.sequence)
    }
}

/// Returns how the contender can be asked. Data that its client library does not read as a request is not
/// written: to kazoo the data is the name of a client.
fn revoke_request(found: &Found) -> RevokeRequest {
    // zoolock's contenders have their own data in every naming scheme.
    if let Some(data) = NodeData::parse(&found.data) {
        return RevokeRequest::Write(NodeData { revoked: true, ..data }.encode());
    }
    if data::flags(&found.data).revoked {
        return RevokeRequest::AlreadyAsked;
    }
    let Contender { node, name } = &found.contender;
    // go-zookeeper's names have a UUID without dashes, and its clients do not read revocations.
    let curator = matches!(name.spelling, Spelling::CuratorLock | Spelling::CuratorMarked)
        && node.as_bytes().get(11) == Some(&b'-');
    // Curator's revocable clients have empty data, and only they watch their znode.
    match (curator, found.data.is_empty()) {
        (true, true) => RevokeRequest::Write(REVOCATIONS[1].to_vec()),
        (true, false) => RevokeRequest::NotRevocable,
        (false, _) => RevokeRequest::Unsupported,
    }
}

/// Returns the directory that records each break.
fn audit_directory(context: &Context) -> String {
    format!("{}/{AUDIT}", context.root().trim_end_matches('/'))
}
