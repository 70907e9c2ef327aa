//! Work that is done in parts: the expiry of sessions and znodes, the end of large sessions, the watches of connections
//! that have ended, and memory to free.
//!
//! Each of these may concern a hundred thousand znodes or watches, and would keep the core from other connections for
//! long. So [`Core::continue_work`] does a part of about [`CoreConfig::max_part`](super::CoreConfig::max_part) items. Kinds
//! of work alternate, and other connections are served between the calls. `event_turns.rs` delivers events in the same
//! parts.
//!
//! Each part leaves a consistent state. A session with many ephemerals ends in several transactions. The first of them
//! ends the session, so nobody can attach to the session again.

use zoolock_wire::Code;

use super::connection::EVERYTHING;
use super::jobs::SessionEnd;
use super::{Core, Now};
use crate::caps::weight;
use crate::ids::{ConnId, SessionId};
use crate::prepare::decide_removal;
use crate::txn::Change;

/// Number of items that take as long as the end of a connection: its task runs, and the system frees its socket.
pub(super) const PER_CONNECTION: usize = 64;

impl Core {
    /// Returns whether [`Core::continue_work`] has something to do.
    pub fn has_work(&self) -> bool {
        self.expire_until.is_some()
            || self.remove_until.is_some()
            || !self.ends.is_empty() && !self.ends_failed
            || self.watches.has_ended()
            || self.state.tree.has_discarded()
            || !self.deliveries.is_empty() && !self.round.stalled
    }

    /// Finishes all work, if its parts are unlimited.
    pub(super) fn finish_work(&mut self, now: Now) {
        if self.config.max_part == usize::MAX {
            self.continue_work(now);
        }
    }

    /// Does the next part of the work.
    pub fn continue_work(&mut self, now: Now) {
        // Each kind of work does at most this number of items, and returns the number of items done.
        const KINDS: [fn(&mut Core, usize, Now) -> usize; 6] = [
            Core::expire_sessions,
            Core::end_sessions,
            Core::remove_expired,
            |core, max, _| core.watches.forget_ended(max),
            |core, max, _| core.deliver_to_next(max),
            |core, max, _| core.state.tree.free_discarded(max),
        ];
        self.begin_sends();
        let mut left = self.config.max_part;
        let mut idle = 0;
        while idle < KINDS.len() && left > 0 {
            let work = KINDS[self.next_work];
            self.next_work = (self.next_work + 1) % KINDS.len();
            let done = work(self, left, now);
            idle = if done > 0 { 0 } else { idle + 1 };
            left = left.saturating_sub(done);
        }
    }

    /// Ends sessions whose timeout has passed.
    fn expire_sessions(&mut self, max: usize, now: Now) -> usize {
        let Some(until) = self.expire_until else { return 0 };
        let mut done = 0;
        while done < max {
            let Some(session) = self.expiry.pop_expired(until) else {
                self.expire_until = None;
                break;
            };
            done += 1;
            if let Some(conn) = self.waiting_connection(session) {
                self.record_alive(conn, now);
                continue;
            }
            done += self.attached.get(&session).map_or(0, |_| PER_CONNECTION);
            tracing::info!(znodes = self.state.tree.count_ephemerals(session), "session expired");
            self.totals.expired += 1;
            // A small session ends in one transaction, however much was done before it.
            done += self.end_session(session, self.config.max_part, now);
        }
        done
    }

    /// Deletes about `max` ephemerals of a session that has ended, and the others later. Returns the number of short paths
    /// that would take as long.
    ///
    /// # Errors
    /// If the transaction numbers are used up.
    pub(super) fn delete_ephemerals(
        &mut self,
        session: SessionId,
        request: Option<(ConnId, i32)>,
        max: usize,
        now: Now,
    ) -> Result<usize, Code> {
        let ephemerals = self.state.tree.some_ephemerals(session, max);
        let done = ephemerals.iter().map(|path| weight(path)).sum();
        let is_last = ephemerals.len() == self.state.tree.count_ephemerals(session);
        let change = match is_last {
            true => Change::CloseSession { ephemerals },
            false => Change::ClosePart { ephemerals },
        };
        let result = self.commit_change(session, change, now);
        if result.is_ok() && !is_last {
            self.ends.push_back(SessionEnd { session, request });
            return Ok(done);
        }
        let failure = result.as_ref().err().copied();
        if let Some((conn, xid)) = request {
            // The client has asked to end its session. Events that take long to deliver are dropped.
            self.catch_up_shortly(conn);
            self.end_watches(conn);
            self.reply(conn, xid, EVERYTHING, result);
            self.close(conn);
        }
        failure.map_or(Ok(done), Err)
    }

    /// Deletes more ephemerals of sessions that have ended.
    fn end_sessions(&mut self, max: usize, now: Now) -> usize {
        let mut done = 0;
        while done < max
            && !self.ends_failed
            && let Some(SessionEnd { session, request }) = self.ends.pop_front()
        {
            match self.delete_ephemerals(session, request, max - done, now) {
                Ok(deleted) => done += deleted.max(1),
                Err(_) => {
                    // No transaction number is left. A later tick tries again.
                    self.ends.push_front(SessionEnd { session, request: None });
                    self.ends_failed = true;
                }
            }
        }
        done
    }

    /// Continues the ends of sessions that an earlier server has begun, or that have failed.
    pub(super) fn resume_ends(&mut self) {
        self.ends_failed = false;
        if self.ends.is_empty() {
            let ending = self.state.ending.iter().map(|&session| SessionEnd { session, request: None });
            self.ends.extend(ending);
        }
    }

    /// Removes containers and znodes that are due.
    fn remove_expired(&mut self, max: usize, now: Now) -> usize {
        let Some(until) = self.remove_until else { return 0 };
        let paths = self.state.tree.expired_paths(until, max);
        let mut done = 0;
        for path in &paths {
            let change = decide_removal(&self.state, path);
            if change.is_some_and(|change| self.commit_change(SessionId::NONE, change, now).is_ok()) {
                done += weight(path);
            }
        }
        if done == 0 {
            self.remove_until = None;
        }
        done
    }
}
