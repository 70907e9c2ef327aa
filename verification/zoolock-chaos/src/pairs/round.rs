//! A round: clients that hold and wait for locks, the faults of a plan, and the checks of the locks.

use std::time::Duration;

use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use zoolock::{Connection, Error, Guard, Zoolock};
use zoolock_tests::name_servers::{Answers, NameServers};
use zoolock_tests::wait::{retry_until_ok, wait_until};
use zoolock_tests::{Proxy, TestFailure, opcode};

use super::plan::{Cut, Faults, Plan, SESSION, SHORT};
use crate::Outcome;
use crate::ensemble::{Ensemble, NODES, TICK, WHOLE};
use crate::tree;

/// The number of locks, each with a holder and a waiter.
const LOCKS: usize = 4;
/// The longest time for each step of a round.
const STEP: Duration = Duration::from_secs(30);
/// The longest time from the end of the faults until the queues are empty.
const CLEAN: Duration = SESSION.saturating_mul(2).checked_div(3).unwrap();
/// Pause between two checks of all locks.
const LOOK: Duration = Duration::from_millis(20);

/// The heads of [`RoundResult::cells`].
pub(super) const COLUMNS: &str =
    "outage | slowest reconnect | least lease left | hand-over | locks lost | needlessly | violations |";

/// The result of a round, or the sum of several results.
#[derive(Debug)]
pub(super) struct RoundResult {
    /// The longest time in which the clients reached no server that had a leader.
    pub(super) outage: Duration,
    /// The longest time for which a holder was not connected.
    pub(super) reconnect: Duration,
    /// The shortest time that a holder's lease had left.
    pub(super) least_lease: Duration,
    /// The longest time from a call of `release()` to the grant of the waiter.
    pub(super) hand_over: Duration,
    /// The locks that were lost, each with the time after the first fault and the reason.
    pub(super) lost: Vec<String>,
    pub(super) needlessly_lost: usize,
    pub(super) violations: Vec<String>,
}

/// The nodes as the clients see them.
pub(super) struct Field<'a> {
    plan: &'a Plan,
    names: Option<&'a NameServers>,
    proxies: Vec<Proxy>,
    /// The node to which all holders and half of the waiters are attached.
    home: usize,
    /// The node that is stopped or restarted.
    target: usize,
    /// The connect string of the clients.
    addresses: String,
}

/// A lock with a holder and a waiter. Each has a session of its own.
struct ContendedLock {
    name: String,
    holder: Zoolock,
    guard: Guard,
    /// Set until the lock is lost or granted to the waiter.
    is_held: bool,
    /// The last time at which the holder was connected.
    connected: Instant,
    waiter: Zoolock,
    /// The waiter's call of `lock()`, which also returns the time of the grant.
    waiting: Option<JoinHandle<Result<(Guard, Instant), Error>>>,
}

impl Default for RoundResult {
    fn default() -> RoundResult {
        RoundResult {
            outage: Duration::ZERO,
            reconnect: Duration::ZERO,
            least_lease: SESSION,
            hand_over: Duration::ZERO,
            lost: Vec::new(),
            needlessly_lost: 0,
            violations: Vec::new(),
        }
    }
}

impl RoundResult {
    /// Judges the losses. After a short outage, each loss is needless and a violation.
    fn judge_losses(&mut self) {
        if self.outage <= SHORT {
            self.needlessly_lost = self.lost.len();
            self.violations.extend(self.lost.iter().map(|lost| format!("needless loss of {lost}")));
        }
    }

    /// Adds the result of another round.
    pub(super) fn add(&mut self, other: &RoundResult) {
        self.outage = self.outage.max(other.outage);
        self.reconnect = self.reconnect.max(other.reconnect);
        self.least_lease = self.least_lease.min(other.least_lease);
        self.hand_over = self.hand_over.max(other.hand_over);
        self.lost.extend_from_slice(&other.lost);
        self.needlessly_lost += other.needlessly_lost;
        self.violations.extend_from_slice(&other.violations);
    }

    /// Returns the cells of a table ([`COLUMNS`]).
    pub(super) fn cells(&self) -> String {
        let times = [self.outage, self.reconnect, self.least_lease, self.hand_over];
        let times = times.map(|time| format!("{:.3} s", time.as_secs_f64())).join(" | ");
        format!("{times} | {} | {} | {} |", self.lost.len(), self.needlessly_lost, self.violations.len())
    }
}

/// Runs a plan on a whole ensemble. The clients reach the nodes by name if there are name servers. With `knows_home_only`,
/// the clients know one node only.
pub(super) async fn run_round(
    ensemble: &mut Ensemble,
    plan: &Plan,
    names: Option<&NameServers>,
    name: &str,
    knows_home_only: bool,
) -> Outcome<RoundResult> {
    let field = Field::open(ensemble, plan, names, knows_home_only).await?;
    field.heal(ensemble);
    let mut locks = field.open_clients(name).await?;
    if !plan.queues_late {
        field.queue_waiters(&mut locks).await?;
    }
    let mut round = Round::new(locks);
    // The leases become steady.
    round.watch(sleep(SESSION / 3 + plan.pause)).await;

    round.begin();
    field.begin(ensemble).await?;
    if plan.queues_late {
        field.queue_waiters(&mut round.locks).await?;
    }
    round.result.outage = round.watch(field.inject(ensemble)).await?;
    round.wait_until_connected().await;
    if !plan.releases_early {
        field.heal(ensemble);
        round.wait_until_connected().await;
    }
    // This time is long enough for the next renewal.
    round.watch(sleep(SESSION / 6)).await;
    round.hand_over().await;
    field.heal(ensemble);
    let healed = Instant::now();

    ensemble.wait_until_whole(WHOLE).await?;
    if let Err(left) = field.check_queues(ensemble, healed + CLEAN).await {
        round.result.violations.push(left.to_string());
    }
    Ok(round.close().await)
}

impl<'a> Field<'a> {
    async fn open(
        ensemble: &Ensemble,
        plan: &'a Plan,
        names: Option<&'a NameServers>,
        knows_home_only: bool,
    ) -> Outcome<Field<'a>> {
        let leader = ensemble.leader(WHOLE).await?;
        let home = if plan.home_leads { leader } else { (leader + 1) % NODES };
        let targets_home = !matches!(plan.faults, Faults::StoppedFollowerAndCut { stops_home: false, .. });
        let target = if targets_home { home } else { (leader + 2) % NODES };
        let (mut proxies, mut known) = (Vec::new(), Vec::new());
        for node in 0..NODES {
            let address = ensemble.client_addr(node);
            let proxy = Proxy::start(&address.to_string()).await?;
            if node == home || !knows_home_only {
                let port = proxy.addr().rsplit_once(':').map(|(_, port)| port.to_owned());
                let named = names.and(port).map(|port| format!("zk{}.test:{port}", node + 1));
                known.push(named.unwrap_or_else(|| proxy.addr()));
            }
            proxies.push(proxy);
        }
        Ok(Field { plan, names, proxies, home, target, addresses: known.join(",") })
    }

    /// Opens the clients. The holders acquire the locks.
    async fn open_clients(&self, name: &str) -> Outcome<Vec<ContendedLock>> {
        let open = async || {
            let builder = Zoolock::builder().tick_time(TICK).session_timeout(SESSION);
            Outcome::Ok(timeout(STEP, builder.connect(&self.addresses)).await??)
        };
        let elsewhere = || self.proxies.iter().enumerate().filter(|(node, _)| *node != self.home);
        for (_, proxy) in elsewhere() {
            proxy.refuse(true).await;
        }
        let mut at_home = Vec::new();
        for number in 0..LOCKS {
            let holder = open().await?;
            let name = format!("{name}-{number}");
            let guard = timeout(STEP, holder.mutex(&name).lock()).await??;
            let waiter = if number % 2 == 0 { Some(open().await?) } else { None };
            at_home.push((name, holder, guard, waiter));
        }
        for (_, proxy) in elsewhere() {
            proxy.refuse(false).await;
        }
        let mut locks = Vec::new();
        for (name, holder, guard, waiter) in at_home {
            let waiter = if let Some(waiter) = waiter { waiter } else { open().await? };
            let (is_held, connected, waiting) = (true, Instant::now(), None);
            locks.push(ContendedLock { name, holder, guard, is_held, connected, waiter, waiting });
        }
        Ok(locks)
    }

    /// Lets the waiters call `lock()`, and waits until their creates are on the way.
    async fn queue_waiters(&self, locks: &mut [ContendedLock]) -> Outcome<()> {
        let creates =
            || self.proxies.iter().map(|proxy| proxy.counts().requests(opcode::CREATE2)).sum::<u64>();
        let before = creates();
        for lock in locks {
            let mutex = lock.waiter.mutex(&lock.name);
            lock.waiting =
                Some(tokio::spawn(async move { mutex.lock().await.map(|guard| (guard, Instant::now())) }));
        }
        Ok(wait_until("the waiters' creates are sent", STEP, || creates() >= before + LOCKS as u64).await?)
    }

    /// Begins the fault that waiters can meet when they queue.
    async fn begin(&self, ensemble: &mut Ensemble) -> Outcome<()> {
        match &self.plan.faults {
            Faults::StoppedFollowerAndCut { .. } => ensemble.stop(self.target).await,
            Faults::BadNamesAndRestart { names, .. } => {
                let (first, second) = names.answers();
                self.names.ok_or("there are no name servers")?.set(first, second);
                Ok(())
            }
        }
    }

    /// Injects the other fault. Returns the time for which the clients reached no server that had a leader.
    async fn inject(&self, ensemble: &mut Ensemble) -> Outcome<Duration> {
        let begun = Instant::now();
        match &self.plan.faults {
            Faults::StoppedFollowerAndCut { stopped, cut, .. } => {
                let outage = self.cut(cut, *stopped).await;
                sleep_until(begun + *stopped).await;
                Ok(outage)
            }
            Faults::BadNamesAndRestart { signal, down, .. } => {
                self.restart_home(ensemble, *signal, *down).await
            }
        }
    }

    /// Ends the home, starts it again after the time `down`, and waits until it listens and there is a leader. Returns the
    /// time without a leader.
    async fn restart_home(
        &self,
        ensemble: &mut Ensemble,
        signal: Signal,
        down: Duration,
    ) -> Outcome<Duration> {
        let (proxy, address) = (&self.proxies[self.home], ensemble.client_addr(self.home));
        let begun = Instant::now();
        proxy.refuse(true).await;
        ensemble.end_node(self.home, signal).await;
        let mut outage = (!self.plan.home_leads).then_some(Duration::ZERO);
        let mut listens = false;
        loop {
            if outage.is_none() && ensemble.leader(Duration::ZERO).await.is_ok() {
                outage = Some(begun.elapsed());
            }
            if !listens && begun.elapsed() >= down {
                ensemble.start(self.home)?;
                listens = TcpStream::connect(address).await.is_ok();
                proxy.refuse(!listens).await;
            }
            match outage {
                Some(outage) if listens => return Ok(outage),
                _ if begun.elapsed() > WHOLE => return Err("no leader, or the server does not listen".into()),
                _ => sleep(LOOK).await,
            }
        }
    }

    async fn cut(&self, cut: &Cut, stopped: Duration) -> Duration {
        match cut {
            Cut::Reset { times } => {
                for time in 0..*times {
                    if time > 0 {
                        sleep(stopped / *times).await;
                    }
                    for proxy in &self.proxies {
                        proxy.close_connections().await;
                    }
                }
                Duration::ZERO
            }
            Cut::Silent { direction, time } => {
                let home = &self.proxies[self.home];
                home.blackhole_towards(*direction, true);
                sleep(*time).await;
                home.blackhole_towards(*direction, false);
                Duration::ZERO
            }
            Cut::Refused { time } => {
                let begun = Instant::now();
                for proxy in &self.proxies {
                    proxy.refuse(true).await;
                    proxy.close_connections().await;
                }
                sleep(*time).await;
                for proxy in &self.proxies {
                    proxy.refuse(false).await;
                }
                begun.elapsed()
            }
        }
    }

    /// Continues the node that is stopped, and lets the name servers answer.
    fn heal(&self, ensemble: &mut Ensemble) {
        ensemble.signal(self.target, Signal::CONT);
        if let Some(names) = self.names {
            names.set(Answers::Right(Duration::ZERO), Answers::Right(Duration::ZERO));
        }
    }

    /// Checks that the queues are empty by this time. The clients must be open, because the znodes of a closed client are
    /// deleted in any case.
    async fn check_queues(&self, ensemble: &Ensemble, deadline: Instant) -> Outcome<()> {
        let target = ensemble.client_addr(self.target).to_string();
        // A server passes on writes in their order, so the leader has handled its earlier writes after this.
        let passed_on = async || {
            let client = tree::connect(&target).await.map_err(|error| TestFailure::new(error.to_string()))?;
            client.sync(tree::ROOT).await.map_err(|error| TestFailure::new(error.to_string()))
        };
        retry_until_ok("the server passes on its writes", STEP, passed_on).await?;
        let client = tree::connect(&target).await?;
        let is_empty = async || {
            let left =
                tree::contenders(&client).await.map_err(|error| TestFailure::new(error.to_string()))?;
            if left.is_empty() { Ok(()) } else { Err(TestFailure::new(format!("{left:?}"))) }
        };
        let left = deadline.saturating_duration_since(Instant::now());
        Ok(retry_until_ok("the queues are empty", left, is_empty).await?)
    }
}

/// The clients, and the result so far.
struct Round {
    locks: Vec<ContendedLock>,
    /// The clients whose locks were handed over.
    clients: Vec<Zoolock>,
    begun: Instant,
    result: RoundResult,
}

impl Round {
    fn new(locks: Vec<ContendedLock>) -> Round {
        Round { locks, clients: Vec::new(), begun: Instant::now(), result: RoundResult::default() }
    }

    /// Measures times from now on. Keeps the losses so far.
    fn begin(&mut self) {
        self.begun = Instant::now();
        (self.result.reconnect, self.result.least_lease) = (Duration::ZERO, SESSION);
    }

    /// Checks all locks again and again until `work` is done.
    async fn watch<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            self.check_locks();
            tokio::select! {
                done = &mut work => return done,
                () = sleep(LOOK) => {}
            }
        }
    }

    fn check_locks(&mut self) {
        let after = self.begun.elapsed();
        for lock in self.locks.iter_mut().filter(|lock| lock.is_held) {
            // The order matters: a guard that is valid after the waiter was granted is a second holder.
            let is_granted = lock.waiting.as_ref().is_some_and(JoinHandle::is_finished);
            let lease = lock.guard.valid_until().remaining();
            if !lock.guard.is_valid() {
                self.result.lost.push(format!("{} after {after:?}: {:?}", lock.name, lock.guard.loss()));
                lock.is_held = false;
            } else if is_granted {
                let name = &lock.name;
                self.result.violations.push(format!("{name}: waiter ended while the guard was valid"));
                lock.is_held = false;
            } else {
                self.result.least_lease = self.result.least_lease.min(lease);
            }
            if lock.guard.connection() == Connection::Connected {
                lock.connected = Instant::now();
            }
            self.result.reconnect = self.result.reconnect.max(lock.connected.elapsed());
        }
    }

    /// Waits until all holders that have their locks are connected.
    async fn wait_until_connected(&mut self) {
        let deadline = Instant::now() + STEP;
        let is_away = |lock: &ContendedLock| lock.guard.connection() != Connection::Connected;
        while self.locks.iter().any(|lock| lock.is_held && is_away(lock)) {
            if Instant::now() > deadline {
                self.result.violations.push(format!("a holder is not connected within {STEP:?}"));
                return;
            }
            self.watch(sleep(LOOK)).await;
        }
    }

    /// Releases each lock, and waits until its waiter is granted it. The clients stay open.
    async fn hand_over(&mut self) {
        self.check_locks();
        for lock in std::mem::take(&mut self.locks) {
            let (token, released) = (lock.guard.token(), Instant::now());
            let name = lock.name;
            match timeout(STEP, lock.guard.release()).await {
                // The holder of a lost lock leaves the queue, too.
                _ if !lock.is_held => {}
                Ok(Ok(())) => {}
                Ok(Err(Error::Lost { .. })) => self.result.lost.push(format!("{name}: at its release")),
                Ok(Err(error)) => self.result.violations.push(format!("{name}: release: {error}")),
                Err(_) => self.result.violations.push(format!("{name}: no release within {STEP:?}")),
            }
            let waiting = lock.waiting.expect("each waiter has queued before");
            match timeout(STEP, waiting).await {
                Ok(Ok(Ok((guard, granted)))) => {
                    self.result.hand_over = self.result.hand_over.max(granted - released);
                    if guard.token() <= token {
                        self.result.violations.push(format!("{name}: the waiter's token is not higher"));
                    }
                    if let Err(error) = guard.release().await {
                        self.result.violations.push(format!("{name}: release of the waiter: {error}"));
                    }
                }
                Ok(Ok(Err(error))) => self.result.violations.push(format!("{name}: waiter: {error}")),
                Ok(Err(error)) => self.result.violations.push(format!("{name}: waiter: {error}")),
                Err(_) => self.result.violations.push(format!("{name}: waiter not granted within {STEP:?}")),
            }
            self.clients.extend([lock.holder, lock.waiter]);
        }
    }

    async fn close(mut self) -> RoundResult {
        for client in self.clients {
            client.close().await;
        }
        self.result.judge_losses();
        self.result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_after_short_outage_is_needless() {
        let judge = |outage| {
            let mut result = RoundResult { outage, lost: vec!["a".to_owned()], ..RoundResult::default() };
            result.judge_losses();
            (result.needlessly_lost, result.violations.len())
        };
        assert_eq!(judge(SHORT), (1, 1));
        assert_eq!(judge(SHORT + LOOK), (0, 0));
    }
}
