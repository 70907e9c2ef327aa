//! Starts a session, and runs the session task.
//!
//! Each session has one task for all its acquisitions, so thousands of acquisitions need no task of
//! their own. The task handles their timers, and takes replies, watch events and changes of the
//! connection from one queue. So no step of an acquisition's state machine runs under the mutex of
//! the session client (`zoolock-client`).

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, RwLock};

use tokio::sync::{Notify, watch};
use zoolock_core::Event;
use zoolock_core::acquisition::{Reply, SessionEnd};
use zoolock_core::lease::Lease;

use super::lease::watch_lease;
use super::renewal::run_keep_alive;
use super::strays::StraySearch;
use super::task::{MAX_EVENTS_PER_TURN, SessionTask};
use super::tick::ServerTick;
use super::{Connection, LockSession};
use crate::base::clock::Alarm;
use crate::base::metrics;
use crate::base::tasks::Tasks;
use crate::zk::session::{Arrival, Opened};

impl LockSession {
    /// Starts the tasks of an opened session. Must be called from a task that `tasks` has started.
    pub(crate) fn start(
        tasks: &Tasks,
        Opened { zk, arrivals, connection_state, requested }: Opened,
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
            connection: watch::Sender::new(Connection::Connected),
            connection_state: connection_state.clone(),
            end: Mutex::new(None),
            acquisitions: Mutex::default(),
            nodes: Mutex::default(),
            strays: StraySearch::default(),
            session_task: SessionTask::new(arrivals),
            watched: AtomicUsize::new(0),
            is_spare,
        });
        let alarm = Alarm::new()?;
        if let Some(zk) = session.zk() {
            let session = Arc::downgrade(&session);
            zk.on_grant(Box::new(move |sent, timeout| {
                if let Some(session) = session.upgrade() {
                    session.record_attach(sent, timeout);
                }
            }));
        }
        metrics::count_opened_session();
        // These tasks end with the session, because the session client reports its end as the last
        // connection state.
        tasks.spawn(run_session_task(session.clone()));
        tasks.spawn(watch_lease(session.clone(), alarm, connection_state.clone()));
        tasks.spawn(run_keep_alive(session.clone(), connection_state));
        Ok(session)
    }
}

/// Runs the session task until the session ends.
async fn run_session_task(session: Arc<LockSession>) {
    let _on_panic = EndSessionOnPanic(session.clone());
    let session_task = session.session_task();
    loop {
        loop {
            let due = session_task.take_due_timers();
            let all_due_taken = due.len() < MAX_EVENTS_PER_TURN;
            for (member, request) in due {
                member.tell(Event::Answer(request, Ok(Reply::Done)));
            }
            if all_due_taken {
                break;
            }
            tokio::task::yield_now().await;
        }
        let mut handled = 0;
        for arrival in session_task.arrivals.take() {
            session.handle_arrival(arrival);
            handled += 1;
            if handled % MAX_EVENTS_PER_TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        if session.end().is_some() {
            return;
        }
        let next = session_task.next_deadline();
        let sleep = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = session_task.arrivals.wait_for_arrival() => {}
            () = sleep => {}
        }
    }
}

impl LockSession {
    fn handle_arrival(&self, arrival: Arrival) {
        let contender = match &arrival {
            Arrival::Reply { to, .. } => to.contender,
            Arrival::Fired { contender, .. } => *contender,
            Arrival::Disconnected => return self.tell_all(&Event::Disconnected),
            Arrival::Reconnected => return self.tell_all(&Event::Reconnected),
        };
        if let Some(member) = self.member(contender) {
            member.receive(arrival);
        }
    }
}

/// A guard that closes the session if the session task panics. Without the task, no acquisition would get its replies.
struct EndSessionOnPanic(Arc<LockSession>);

impl Drop for EndSessionOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let session = self.0.clone();
            // Closing the session runs steps of the acquisitions' state machines. These steps must
            // not run while this thread unwinds, so another task closes the session.
            self.0.tasks().spawn(async move { session.end_session(SessionEnd::Closed) });
        }
    }
}
