//! The requests that keep the lease and the session alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use zoolock_core::Instant;
use zoolock_core::acquisition::{RequestFailure, SessionEnd};
use zoolock_core::pace::Pace;

use super::LockSession;
use crate::base::clock;
use crate::base::metrics;
use crate::base::sync::lock;
use crate::base::telemetry::log_event;
use crate::zk::session::ConnectionState;

/// Minimum time between two renewals. This minimum matters only for session timeouts that are too
/// short for any lease.
const SHORTEST_BEAT: Duration = Duration::from_millis(10);

/// Number of beats for which an idle spare session is kept. A beat is the interval of the renewals.
const MAX_IDLE_BEATS: u32 = 4;

/// Maximum number of renewals that wait for an answer. Several are allowed, so that a late answer
/// does not delay the next renewal.
const MAX_PENDING: usize = 6;

/// Number of renewals after which the client asks for the tick of the servers. A client that ends earlier, such as a
/// short command, does not ask.
const RENEWALS_BEFORE_TICK: u32 = 4;

/// Renews the lease while an acquisition needs it, and keeps a session that rests alive. Closes an unused spare session.
/// Reports a lost connection and the end of the session. Runs until the session ends.
pub(super) async fn run_keep_alive(
    session: Arc<LockSession>,
    mut connection_state: watch::Receiver<ConnectionState>,
) {
    let mut pace = Pace::new();
    let mut renewer = Renewer::new(&session);
    let mut beats = beat_interval(session.timeout());
    let mut idle_beats = 0u32;
    loop {
        let next_check = session.next_check();
        let is_beat = tokio::select! {
            biased;
            changed = connection_state.changed() => {
                let now = *connection_state.borrow_and_update();
                match now {
                    ConnectionState::Down => {
                        session.report_suspect();
                    }
                    ConnectionState::Up => {
                        metrics::count_reconnect();
                        session.record_reattach();
                        beats = self::beat_interval(session.timeout());
                    }
                    ConnectionState::Ended(end) => return session.end_session(end),
                }
                if changed.is_err() {
                    // The task of the ZooKeeper session ended without reporting the end of the session.
                    return session.end_session(SessionEnd::Closed);
                }
                false
            }
            _ = beats.tick() => true,
            // The lease is in use again after a rest.
            () = session.renewal_due.notified() => {
                if session.is_up() {
                    renewer.confirm();
                }
                continue;
            }
            // Checks more often than at the beats, because a holder may have to try several servers before its
            // lease ends, and because an outage may leave too few beats for the three answers that extend the lease.
            () = tokio::time::sleep(next_check.unwrap_or_default()), if next_check.is_some() => {
                session.attach_again_if_needed();
                if session.needs_renewal_now(renewer.last_sent) {
                    renewer.confirm();
                }
                continue;
            }
        };
        if session.end().is_some() {
            return;
        }
        if session.is_up() {
            session.search_strays_if_due();
        }
        if !session.is_up() {
            // Does not renew without a connection, because the request would be refused.
        } else if session.needs_lease() {
            idle_beats = 0;
            if is_beat {
                session.attach_again_if_needed();
            }
            // Writes after a reconnect, because only a write renews the lease at once.
            let writes = !is_beat || pace.next_beat(session.is_low());
            renewer.renew(if writes { Renewal::Confirm } else { Renewal::KeepAlive });
        } else if is_beat {
            idle_beats = if session.is_idle() { idle_beats + 1 } else { 0 };
            if idle_beats > MAX_IDLE_BEATS && session.close_if_unused() {
                return;
            }
            if pace.next_resting_beat() {
                renewer.renew(Renewal::Rest);
            }
        }
    }
}

fn beat_interval(timeout: Duration) -> tokio::time::Interval {
    let mut beats = tokio::time::interval(Pace::beat(timeout).max(SHORTEST_BEAT));
    beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    beats
}

/// The request of a beat.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Renewal {
    /// A write, behind a ping.
    Confirm,
    /// A `sync`, behind a ping.
    KeepAlive,
    /// A `sync` in place of a ping, of a session that rests.
    Rest,
}

/// The sender of the requests that keep the lease and the session alive.
struct Renewer {
    session: Arc<LockSession>,
    pending: Arc<Semaphore>,
    /// The number of renewals, without those between two beats.
    renewals: u32,
    /// The time at which the newest renewal was sent.
    last_sent: Instant,
    /// The number of failed checks after which the next renewal checked another znode. A check
    /// fails if the znode does not exist, or the server refuses the request.
    missing: Arc<AtomicUsize>,
}

impl Renewer {
    fn new(session: &Arc<LockSession>) -> Renewer {
        Renewer {
            session: session.clone(),
            pending: Arc::new(Semaphore::new(MAX_PENDING)),
            renewals: 0,
            last_sent: Instant::default(),
            missing: Arc::default(),
        }
    }

    /// Sends a request that shows the leader that the session is alive: a `sync`, or a transaction that checks a znode. The
    /// check changes nothing, and only a quorum can confirm it.
    ///
    /// The client's server passes both requests on to the leader, over the connection between the
    /// two servers. The request arrives after the server's earlier reports of live sessions, and
    /// the leader's answer arrives after the leader's earlier pings. So an answer proves that these
    /// reports and pings have arrived. A read would prove nothing, because the client's server
    /// answers a read without the leader.
    fn renew(&mut self, renewal: Renewal) {
        self.renewals = self.renewals.saturating_add(1);
        // Asks for the tick at the renewals 4, 8, 16 and so on, until an attempt has succeeded.
        if self.renewals >= RENEWALS_BEFORE_TICK && self.renewals.is_power_of_two() {
            self.session.tick.learn_in_background();
        }
        if renewal == Renewal::Confirm { self.confirm() } else { self.keep_alive(renewal) }
    }

    /// Sends a transaction that checks a znode. Sends a `sync` in its place while no acquisition has a znode.
    fn confirm(&mut self) {
        let Some(zk) = self.session.zk() else { return };
        let turn = self.missing.load(Ordering::Relaxed);
        // Sends no write while no acquisition has a znode, because the directory may not exist yet. The create of the
        // znode is a write, which begins the lease.
        let Some(path) = self.session.znode_to_check(turn) else {
            return self.keep_alive(Renewal::KeepAlive);
        };
        let Ok(slot) = self.pending.clone().try_acquire_owned() else { return };
        let (session, sent) = (self.session.clone(), clock::now());
        self.last_sent = sent;
        let (answer, missing) = (zk.check(&path), self.missing.clone());
        self.session.tasks.spawn(async move {
            let outcome = answer.await;
            metrics::count_renewal(outcome.is_ok());
            match outcome {
                Ok(()) => session.record_confirmed_write(sent),
                Err(error) => {
                    // Makes the next renewal check another znode.
                    if matches!(error.failure, RequestFailure::NoNode | RequestFailure::Refused(_)) {
                        // Counts one failure, even if several pending checks of this znode fail, because each
                        // failure skips one znode.
                        let _ =
                            missing.compare_exchange(turn, turn + 1, Ordering::Relaxed, Ordering::Relaxed);
                    }
                    log_event!(TRACE, message = error.message, "the lease was not renewed");
                }
            }
            drop(slot);
        });
    }

    /// Sends a `sync`. A session that rests also sends it. Without recent answers, the lease of the next holder could begin
    /// only after three more requests were answered.
    ///
    /// A session that may have strays sends a write instead, because a server answers a `sync` also
    /// for a session that has moved to another server.
    fn keep_alive(&mut self, renewal: Renewal) {
        let Some(zk) = self.session.zk() else { return };
        let Ok(slot) = self.pending.clone().try_acquire_owned() else { return };
        let (session, sent) = (self.session.clone(), clock::now());
        self.last_sent = sent;
        let answer = match session.may_have_strays() {
            true => zk.check("/"),
            false => zk.sync_ahead(renewal != Renewal::Rest),
        };
        self.session.tasks.spawn(async move {
            // A refusal is an answer, too, because only the leader refuses a check.
            if answer.await.map_or_else(|error| error.failure.is_answer(), |()| true) {
                session.record_answer(sent);
            }
            drop(slot);
        });
    }
}

impl LockSession {
    /// Returns the znode that a renewal checks: the directory of one of the acquisitions that have a znode, or the root of
    /// the tree. Returns `None` if no acquisition has a znode. `turn`: the value of `Renewer::missing`, which selects the
    /// znode.
    ///
    /// An odd value selects the root, which exists even if an operator has removed all lock directories. Without the root,
    /// no renewal could succeed any more, and an acquisition that waits for the lease would wait for ever.
    fn znode_to_check(&self, turn: usize) -> Option<String> {
        let acquisitions = lock(&self.acquisitions);
        let placed = acquisitions.values().filter(|registration| !registration.nodes.is_empty());
        let at = (turn / 2).checked_rem(placed.clone().count())?;
        if turn % 2 == 1 {
            return Some("/".to_owned());
        }
        placed.clone().nth(at)?.acquisition.directories().first().map(|path| path.as_str().to_owned())
    }
}
