//! The lease of a session: what extends it, and the report of its end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use zoolock_core::lease::Lease;
use zoolock_core::pace::Pace;
use zoolock_core::{Event, Instant};

use super::{Connection, LockSession};
use crate::base::clock::{self, Alarm};
use crate::base::sync::lock;
use crate::base::telemetry::log_event;
use crate::zk::session::ConnectionState;

impl LockSession {
    pub(crate) fn valid_until(&self) -> Instant {
        Instant(self.valid_until.load(Ordering::Acquire))
    }

    pub(crate) fn lease_valid(&self) -> bool {
        clock::now() < self.valid_until()
    }

    /// Records that one more acquisition needs the lease, or one fewer. `is_queued`: set if the acquisition has its znodes.
    pub(crate) fn count_lease_user(&self, needs_lease: bool, is_queued: bool) {
        let mut lease = lock(&self.lease);
        if !needs_lease {
            return lease.end_use();
        }
        let is_due = lease.begin_use(clock::now());
        self.store_end(&lease);
        // The create of the znodes is a write.
        if is_due && is_queued {
            self.renewal_due.notify_one();
        }
    }

    fn store_end(&self, lease: &Lease) {
        let end = lease.valid_until().map_or(0, |end| end.0);
        if self.valid_until.swap(end, Ordering::AcqRel) != end {
            self.lease_moved.notify_waiters();
        }
    }

    /// Records that a quorum confirmed a write that was sent at `sent`.
    ///
    /// A confirmation may arrive after the lease has ended. It is still correct to extend the
    /// lease, because the write proves that the session was alive at `sent`. A holder whose alarm
    /// or guard has already found the end of the lease has lost the lock, and does not get it back.
    pub(crate) fn record_confirmed_write(&self, sent: Instant) {
        self.update_lease(|lease| _ = lease.record_confirmed_write(sent, clock::now()));
    }

    /// Records that the server answered a request that was sent at `sent`.
    pub(super) fn record_answer(&self, sent: Instant) {
        self.update_lease(|lease| _ = lease.record_answer(sent, clock::now()));
    }

    /// Records that a server attached the session. `timeout` is the shortest timeout that was
    /// granted so far. If it is shorter than before, the lease is cut. The caller has locked the
    /// session client, so this method must not send requests.
    pub(super) fn record_granted_timeout(&self, sent: Instant, timeout: Duration) {
        let mut lease = lock(&self.lease);
        lease.record_attach(sent, timeout);
        self.store_end(&lease);
    }

    /// Changes the lease with `change`. Tells the acquisitions if a suspect lock is confirmed again, and if an ended lease is
    /// valid again.
    fn update_lease(&self, change: impl FnOnce(&mut Lease)) {
        let (lapsed, is_overdue) = {
            let mut lease = lock(&self.lease);
            let before = self.valid_until();
            if let Some(tick) = self.tick.for_timeout(lease.timeout()) {
                lease.set_tick(tick);
            }
            change(&mut lease);
            self.store_end(&lease);
            // Reads the clock after the store, because a waiter that saw an ended lease before the store waits for
            // `LeaseRenewed`, and must get this event.
            let now = clock::now();
            let is_overdue = lease.overdue_from().is_none_or(|overdue| overdue <= now);
            (before <= now, lease.is_in_use() && is_overdue)
        };
        let is_suspect = *self.connection.borrow() == Connection::Suspect;
        if is_suspect
            && !is_overdue
            && self.is_up()
            && self.change_connection(Connection::Suspect, Connection::Connected)
        {
            self.acquisitions().iter().for_each(|acquisition| acquisition.report_connection(false));
        }
        if lapsed && self.lease_valid() {
            self.tell_all(&Event::LeaseRenewed);
        }
    }

    /// Returns whether so little of the lease is left that each renewal should be a write.
    pub(super) fn is_low(&self) -> bool {
        lock(&self.lease).is_low(clock::now())
    }

    /// Returns whether the lease ends soon. Returns `false` if no acquisition needs the lease, or
    /// there is no connection.
    fn ends_soon(&self) -> bool {
        self.needs_lease() && self.is_up() && lock(&self.lease).ends_soon(clock::now())
    }

    /// Returns whether an acquisition needs the lease. Otherwise the session rests.
    pub(super) fn needs_lease(&self) -> bool {
        lock(&self.lease).is_in_use()
    }

    /// Returns the time from now to the next check of a lease that ends soon or is not valid: when its last sixth begins, and
    /// then eight times in a beat. Returns `None` if no acquisition needs the lease, or there is no connection.
    pub(super) fn next_check(&self) -> Option<Duration> {
        let lease = self.is_up().then(|| lock(&self.lease)).filter(|lease| lease.is_in_use())?;
        let left = lease.valid_until().map_or(Duration::ZERO, |end| clock::now().until(end));
        Some(left.saturating_sub(lease.timeout() / 6).max(Pace::beat(lease.timeout()) / 8))
    }

    /// Returns whether a renewal that is sent now continues the proof that the leader was told of the session, and the lease
    /// ends soon or is not valid. `last_sent`: the time at which the newest renewal was sent.
    pub(super) fn needs_renewal_now(&self, last_sent: Instant) -> bool {
        self.is_up() && lock(&self.lease).needs_renewal_now(clock::now(), last_sent)
    }

    /// Attaches the session on a new connection if the lease ends soon, and the lease can hardly be
    /// renewed on the present connection. There are three causes. The server does not answer. The
    /// server answers, but confirms no write. Or even prompt answers cannot prove in time that the
    /// leader was told of the session.
    pub(super) fn attach_again_if_needed(&self) {
        // Before the create of the first znode, a move could only lose the reply to it.
        if !self.ends_soon() || !self.has_znode() {
            return;
        }
        let (is_hopeless, server_works) = {
            let lease = lock(&self.lease);
            (lease.needs_attach(clock::now()), lease.is_confirmed_last())
        };
        if let Some(zk) = self.zk() {
            zk.reattach(is_hopeless, server_works);
        }
    }

    pub(super) fn report_suspect(&self) {
        if self.change_connection(Connection::Connected, Connection::Suspect) {
            self.acquisitions().iter().for_each(|acquisition| acquisition.report_connection(true));
        }
    }

    /// Changes the state of the connection if it is `from`. Returns whether it was.
    fn change_connection(&self, from: Connection, to: Connection) -> bool {
        self.connection.send_if_modified(|connection| {
            let changes = *connection == from;
            if changes {
                *connection = to;
            }
            changes
        })
    }
}

/// Reports an overdue renewal and the end of the lease to the acquisitions. If the computer was
/// suspended, reports them right after the resume.
pub(super) async fn watch_lease(
    session: Arc<LockSession>,
    alarm: Alarm,
    mut connection_state: watch::Receiver<ConnectionState>,
) {
    let mut reported_end = 0;
    let mut has_failed = false;
    let mut timeout = session.timeout();
    while session.end().is_none() {
        let moved = session.lease_moved.notified();
        tokio::pin!(moved);
        moved.as_mut().enable();
        let end = session.valid_until();
        let shorter = session.timeout();
        if shorter < timeout {
            timeout = shorter;
            // Wakes the receivers of the connection state, because `zoolock run` must learn of the earlier end, to
            // end its command in time.
            session.connection.send_modify(|_| {});
        }
        let ring = async {
            if end.0 == 0 || end.0 == reported_end {
                std::future::pending::<()>().await;
            }
            if let Err(error) = wait_for_end(&session, &alarm, end).await {
                if !std::mem::replace(&mut has_failed, true) {
                    log_event!(ERROR, %error, "the lease timer failed; guards still check the clock when asked");
                }
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = &mut moved => {}
            () = ring => {
                reported_end = end.0;
                if !session.lease_valid() {
                    session.tell_all(&Event::LeaseLost);
                }
            }
            changed = connection_state.changed() => if changed.is_err() { return },
        }
    }
}

/// Waits for the end of the lease. Reports that the lock is suspect while a renewal is overdue and an acquisition needs
/// the lease.
async fn wait_for_end(session: &LockSession, alarm: &Alarm, end: Instant) -> io::Result<()> {
    loop {
        let (now, overdue) = (clock::now(), lock(&session.lease).overdue_from().unwrap_or(end));
        if now >= overdue && session.needs_lease() {
            session.report_suspect();
        }
        if now >= end {
            return Ok(());
        }
        // Reads the time again after the wait, because a write may have been confirmed meanwhile, or an acquisition may
        // have started.
        let next = if now < overdue { overdue } else { now.after(Pace::beat(session.timeout())) };
        alarm.wait_until(next.min(end)).await?;
    }
}
