//! Operator actions on a lock: take a snapshot, ask a contender to release, and break the lock.

use std::sync::Arc;

use zoolock_core::Sequence;
use zoolock_core::acquisition::{Refusal, RequestFailure};
use zoolock_core::names::Role;
use zoolock_core::record::{HolderState, Marker, Record};

use crate::admin::snapshot::entry;
use crate::admin::snapshot::{self, Entry, Snapshot, SnapshotOptions};
use crate::base::error::Error;
use crate::base::metrics::SEVERAL_MUTEXES;
use crate::base::naming;
use crate::base::path::LockPath;
use crate::base::telemetry::log_event;
use crate::base::ticket::Ticket;
use crate::engine::data::{self, NodeData, REVOCATIONS};
use crate::engine::gather::{FoundContender, LockDirectory};
use crate::engine::reader::QueueReader;
use crate::lock::acquire::Lock;
use crate::lock::history::{self, HistoryEvent, HistoryKind, Party};
use crate::zk::directory;
use crate::zk::session::{Op, ZkError, ZkSession, ZnodeStat};

/// Maximum number of attempts if other clients change the same znodes.
const MAX_ATTEMPTS: usize = 10;

/// The contender that a ticket names.
struct TicketTarget {
    contender: FoundContender,
    data: Vec<u8>,
    stat: ZnodeStat,
    /// Set if the contender is the head of the queue.
    is_head: bool,
    /// The writer's znodes, if this contender is a reader that upgrades.
    upgrades: Vec<String>,
}

impl Lock {
    pub(crate) async fn snapshot(&self) -> Result<Snapshot, Error> {
        let zk = self.context.zk().await?;
        snapshot::read(&QueueReader::new(&*zk), self.directory()?, &SnapshotOptions::of(&self.context)).await
    }

    pub(crate) async fn revoke(&self, ticket: Ticket) -> Result<(), Error> {
        let directory = self.directory()?;
        let zk = self.context.zk().await?;
        for _ in 0..MAX_ATTEMPTS {
            let found = self.find_ticket_target(&zk, &directory, ticket).await?;
            let request = match revoke_request(&found) {
                Ok(Some(request)) => request,
                Ok(None) => {
                    // Records a repeated request only if it has a reason, because the first request is recorded
                    // already, with its time.
                    if self.context.client_info().note.is_some() {
                        self.record_request(&zk, ticket, &found).await;
                    }
                    return Ok(());
                }
                Err(reason) => return Err(self.not_revocable(ticket, &found.contender, reason)),
            };
            let path = found.contender.path(&directory);
            match zk.write(&path, &request, Some(found.stat.version)).await {
                Ok(stat) if stat.czxid == found.stat.czxid => {
                    self.record_request(&zk, ticket, &found).await;
                    return Ok(());
                }
                Ok(_) | Err(ZkError { failure: RequestFailure::NoNode, .. }) => {
                    return Err(self.no_such_holder(ticket));
                }
                Err(ZkError { failure: RequestFailure::BadVersion, .. }) => {}
                Err(error) => return Err(self.request_error(error)),
            }
        }
        Err(self.changes_too_fast())
    }

    /// Breaks a lock in two steps. First, it writes the unchanged data to the znode. The czxid in the reply
    /// proves that this is still the znode that was found. Second, one transaction deletes the znode at the
    /// version that the write has made.
    pub(crate) async fn break_lock(&self, ticket: Ticket) -> Result<Entry, Error> {
        let directory = self.directory()?;
        let zk = self.context.zk().await?;
        for _ in 0..MAX_ATTEMPTS {
            let found = self.find_ticket_target(&zk, &directory, ticket).await?;
            let path = found.contender.path(&directory);
            let seen = match zk.write(&path, &found.data, Some(found.stat.version)).await {
                Ok(stat) if stat.czxid == found.stat.czxid => stat,
                Ok(_) | Err(ZkError { failure: RequestFailure::NoNode, .. }) => {
                    return Err(self.no_such_holder(ticket));
                }
                Err(ZkError { failure: RequestFailure::BadVersion, .. }) => continue,
                Err(error) => return Err(self.request_error(error)),
            };
            let (data, stat) =
                zk.read(directory.as_str()).await.map_err(|error| self.request_error(error))?;
            let record = Record::parse(&data);
            let mut ops = vec![Op::DeleteVersion(path, seen.version)];
            ops.extend(found.upgrades.iter().cloned().map(Op::Delete));
            let before = record.marker_of(stat.czxid);
            if let Some(sequence) = found.exclusive_holder_sequence()
                && record.is_writable(stat.czxid)
                // Keeps the marker of another holder that has not released, because only that marker shows a
                // crash of that holder to the next one.
                && before.is_none_or(|m| m.state != HolderState::Held || m.sequence == sequence)
            {
                let tracked = before.is_some_and(|marker| marker.tracked);
                let marker = Marker { directory: stat.czxid, state: HolderState::Broken, sequence, tracked };
                ops.push(Op::Write {
                    path: directory.as_str().to_owned(),
                    data: marker.encode().into_bytes(),
                    version: Some(stat.version),
                });
            }
            let audit = history::audit_directory(&self.context);
            ops.push(history::event_op(&audit, &self.history_event(HistoryKind::Broken, ticket, &found)));
            match zk.commit(ops).await {
                Ok(_) => {
                    let TicketTarget { contender, data, stat, .. } = found;
                    return Ok(entry::describe_contender(
                        &contender,
                        Some((data, stat)),
                        self.context.epoch(),
                    ));
                }
                Err(ZkError { failure: RequestFailure::BadVersion, .. }) => {}
                Err(ZkError { failure: RequestFailure::NotEmpty, .. }) => {
                    return Err(Error::invalid(
                        format!("lock {}: token {ticket}", self.path()),
                        "belongs to a znode with children, perhaps another lock; rename one of the two",
                    ));
                }
                // Creates the audit directory and tries again, because that directory or the contender's
                // znode is missing.
                Err(ZkError { failure: RequestFailure::NoNode, .. }) => {
                    let made = directory::create_with_parents(zk.clone(), audit, true).await;
                    made.map_err(|error| self.request_error(error))?;
                }
                Err(error @ ZkError { failure: RequestFailure::Refused(Refusal::Denied), .. }) => {
                    return Err(self.break_denied(&error, &audit));
                }
                Err(error) => return Err(self.request_error(error)),
            }
        }
        Err(self.changes_too_fast())
    }

    async fn find_ticket_target(
        &self,
        zk: &ZkSession,
        directory: &LockPath,
        ticket: Ticket,
    ) -> Result<TicketTarget, Error> {
        if ticket.epoch() != self.context.epoch() {
            return Err(self.no_such_holder(ticket));
        }
        let missing = |error: ZkError| match error.failure {
            RequestFailure::NoNode => self.no_such_holder(ticket),
            _ => self.request_error(error),
        };
        let reader = QueueReader::new(zk);
        let here = LockDirectory::read(&reader, directory.clone()).await.map_err(missing)?;
        let here = here.unwrap_or_else(|| LockDirectory::unused_lock(directory.clone()));
        let LockDirectory { contenders, foreign, unread, .. } = here;
        // These names are shown in an error, so they must not contain session ids.
        let mut unread: Vec<String> = unread.iter().map(|part| part.as_str().to_owned()).collect();
        let mut found: Option<TicketTarget> = None;
        for (at, contender) in contenders.into_iter().enumerate() {
            match reader.read(&contender.path(directory)).await {
                Ok((data, stat)) if Ticket::new(ticket.epoch(), stat.czxid) == ticket => {
                    found =
                        Some(TicketTarget { contender, data, stat, is_head: at == 0, upgrades: Vec::new() });
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
                Err(ZkError { failure: RequestFailure::Refused(Refusal::Denied), .. }) => {
                    unread.push(directory.child(&entry::without_session(&contender)));
                }
                Err(ZkError { failure: RequestFailure::NoNode | RequestFailure::Refused(_), .. }) => {}
                Err(error) => return Err(self.request_error(error)),
            }
        }
        found.ok_or_else(|| match (foreign, unread.first()) {
            (Some(foreign), _) => self.other_layout(foreign.layout),
            (None, None) => self.no_such_holder(ticket),
            (None, Some(first)) => {
                let first = snapshot::display_name(first, directory, self.context.chroot());
                self.unreadable_or_missing(ticket, &first, unread.len() - 1)
            }
        })
    }

    /// Records a request in the history. A failure is logged, because the contender is asked all the same.
    async fn record_request(&self, zk: &Arc<ZkSession>, ticket: Ticket, found: &TicketTarget) {
        let event = self.history_event(HistoryKind::Asked, ticket, found);
        if let Err(error) = history::add(zk, &self.context, &event).await {
            log_event!(DEBUG, lock = event.lock, error = error.message, "cannot record a request");
        }
    }

    /// Returns the event for the history of the lock. It has no session id.
    fn history_event(&self, event: HistoryKind, ticket: Ticket, found: &TicketTarget) -> HistoryEvent {
        let read = Some((found.data.clone(), found.stat));
        let entry = entry::describe_contender(&found.contender, read, self.context.epoch());
        HistoryEvent {
            event,
            lock: self.path(),
            at: None,
            number: entry.number(),
            token: Some(ticket),
            held: match found.contender.name.role {
                // Not known, because the contender may still wait: for other locks, or for permits.
                _ if NodeData::parse(&found.data).is_some_and(|data| data.kind == SEVERAL_MUTEXES) => None,
                Role::Permit => None,
                _ if found.is_head => Some(true),
                // The writer's znode of an upgraded reader holds, although it is not first.
                Role::Exclusive
                    if NodeData::parse(&found.data).is_some_and(|data| data.reader_id.is_some()) =>
                {
                    None
                }
                Role::Exclusive => Some(false),
                _ => None,
            },
            by: Party::this_process(self.context.client_info()),
            contender: Party {
                library: (!entry.has_zoolock_data()).then(|| entry.library().to_owned()),
                host: entry.host,
                pid: entry.pid,
                program: entry.program,
                runs_program: entry.runs_program,
                note: entry.note.or(entry.identifier),
                ..Party::default()
            },
        }
    }

    fn no_such_holder(&self, ticket: Ticket) -> Error {
        Error::NoSuchHolder { path: self.path(), ticket: ticket.to_string() }
    }

    /// Returns the error for a token that may belong to a contender whose znode this client has no
    /// permission to read.
    pub(super) fn unreadable_or_missing(&self, ticket: Ticket, first: &str, others: usize) -> Error {
        let others = if others == 0 { String::new() } else { format!(" and {others} more") };
        Error::Denied {
            subject: format!("lock {}", self.path()),
            message: format!(
                "no readable contender has the token {ticket}, but {first}{others} cannot be read; use credentials that \
                 may read all contenders"
            ),
        }
    }

    /// Returns the error for a break whose transaction the server denies, although this client may write the
    /// znode.
    fn break_denied(&self, error: &ZkError, audit: &str) -> Error {
        let audit = self.context.without_chroot(audit);
        Error::Denied {
            subject: format!("lock {}", self.path()),
            message: format!(
                "{}; use credentials that may delete in its directory and create in {audit}; {audit} belongs to the first \
                 client that wrote to it, so use a root per owner",
                error.message
            ),
        }
    }

    fn not_revocable(&self, ticket: Ticket, contender: &FoundContender, reason: &str) -> Error {
        let contender = naming::describe(&contender.name);
        let message = format!(
            "{contender}, token {ticket}, cannot be asked to release: {reason}; end that client, or take the lock away from \
             it with `zoolock break`"
        );
        Error::NotRevocable { path: self.path(), message }
    }

    pub(super) fn changes_too_fast(&self) -> Error {
        let message = format!("lock {}: other clients change it too fast; try again", self.path());
        Error::unavailable(self.context.endpoints(), message)
    }

    pub(crate) fn request_error(&self, error: ZkError) -> Error {
        snapshot::request_error(self.context.endpoints(), format!("lock {}", self.path()), error)
    }
}

impl TicketTarget {
    /// Returns the sequence number of an exclusive holder, and `None` for other contenders. Only the release
    /// of an exclusive holder is recorded in the lock directory.
    fn exclusive_holder_sequence(&self) -> Option<Sequence> {
        let name = self.contender.name;
        (self.is_head && name.role == Role::Exclusive).then_some(name.sequence)
    }
}

/// Returns the text to write to the contender's znode to ask for a release; `None` if the contender was asked already.
///
/// # Errors
/// The reason why the contender cannot be asked: its client library would not read the data as a request.
fn revoke_request(found: &TicketTarget) -> Result<Option<Vec<u8>>, &'static str> {
    // zoolock's contenders have zoolock's data format in every naming scheme.
    if let Some(data) = NodeData::parse(&found.data) {
        // Another write would hide the time of the first request.
        return Ok((!data.revoked).then(|| NodeData { revoked: true, ..data }.encode()));
    }
    if data::parse_flags(&found.data).revoked {
        return Ok(None);
    }
    match entry::unrevocable_reason(&found.contender, &found.data) {
        Some(reason) => Err(reason),
        // Only clients of Curator are left.
        None => Ok(Some(REVOCATIONS[1].to_vec())),
    }
}
