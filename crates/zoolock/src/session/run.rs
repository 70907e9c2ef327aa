//! Starts a session, and passes its messages on to its acquisitions.
//!
//! The driver of the session client (`zoolock-client`) hands over replies, watch events, due timers and changes of the
//! connection after it has unlocked the client. So no step of an acquisition's state machine runs under that mutex, and
//! thousands of acquisitions need no task of their own.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use zoolock_core::acquisition::SessionEnd;
use zoolock_core::lease::Lease;
use zoolock_core::{Event, Instant};

use super::lease::watch_lease;
use super::renewal::run_keep_alive;
use super::strays::StraySearch;
use super::tick::ServerTick;
use super::{Connection, LockSession};
use crate::base::clock::Alarm;
use crate::base::metrics;
use crate::base::tasks::Tasks;
use crate::zk::session::{Arrival, Opened, Receiver};

impl LockSession {
    /// Starts the tasks of an opened session. Must be called from a task that `tasks` has started.
    pub(crate) fn start(
        tasks: &Tasks,
        Opened { zk, connection_state, requested }: Opened,
        tick: Arc<ServerTick>,
        is_spare: bool,
    ) -> std::io::Result<Arc<LockSession>> {
        let timeout = zk.timeout();
        let session = Arc::new(LockSession {
            id: zk.session(),
            lease: Mutex::new(Lease::new(timeout, tick.for_timeout(timeout), requested)),
            tick,
            zk: RwLock::new(Some(zk)),
            tasks: tasks.clone(),
            valid_until: AtomicU64::new(0),
            lease_moved: Notify::new(),
            renewal_due: Notify::new(),
            connection: watch::Sender::new(Connection::Connected),
            connection_state: connection_state.clone(),
            end: Mutex::new(None),
            acquisitions: Mutex::default(),
            nodes: Mutex::default(),
            strays: StraySearch::default(),
            watched: AtomicUsize::new(0),
            is_spare,
        });
        let alarm = Alarm::new()?;
        if let Some(zk) = session.zk() {
            let receiver: Arc<dyn Receiver> = session.clone();
            zk.set_receiver(&receiver);
        }
        metrics::count_opened_session();
        // These tasks end with the session, because the session client reports its end as the last
        // connection state.
        tasks.spawn(watch_lease(session.clone(), alarm, connection_state.clone()));
        tasks.spawn(run_keep_alive(session.clone(), connection_state));
        Ok(session)
    }
}

impl Receiver for LockSession {
    fn record_attach(&self, sent: Instant, timeout: Duration) {
        self.record_granted_timeout(sent, timeout);
    }

    fn receive(self: Arc<Self>, arrivals: Vec<Arrival>) {
        let steps = || arrivals.into_iter().for_each(|arrival| self.handle_arrival(arrival));
        if panic::catch_unwind(AssertUnwindSafe(steps)).is_err() {
            // Ends the session, because the acquisition whose step has panicked would get no more replies.
            self.end_session(SessionEnd::Closed);
        }
    }
}

impl LockSession {
    fn handle_arrival(&self, arrival: Arrival) {
        // Drops arrivals after the end of the session, because that end has taken the place of all answers.
        if self.end().is_some() {
            return;
        }
        let contender = match &arrival {
            Arrival::Reply { to, .. } => to.contender,
            Arrival::Fired { contender, .. } | Arrival::Timer { contender, .. } => *contender,
            Arrival::Disconnected => return self.tell_all(&Event::Disconnected),
            Arrival::Reconnected => return self.tell_all(&Event::Reconnected),
        };
        if let Some(member) = self.member(contender) {
            member.receive(arrival);
        }
    }
}
