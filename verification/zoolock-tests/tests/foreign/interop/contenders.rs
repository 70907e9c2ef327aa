//! Contenders of several libraries that share one lock. A section is one hold of the lock by one
//! contender.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use zookeeper_client::{Acls, CreateMode};
use zoolock_tests::judge::{Judge, Share};
use zoolock_tests::{Place, Result, TestFailure, tree};

use crate::clients::{Client, ClientLock, Library};
use crate::interop::fairness::{Passes, Waits, find_starved};

/// The path of the shared lock, below the chroot.
pub(crate) const LOCK: &str = "/locks/shared";

/// Time for which a contender holds the lock in a section. A contender that ignores the holder can acquire the lock in
/// this time.
const INSIDE: Duration = Duration::from_millis(5);
/// In every tenth section, holders of permits wait until all permits are taken.
const TOGETHER: usize = 10;
/// Maximum duration of the wait until all permits are taken.
const PATIENCE: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(5);

/// Maximum average duration of a section.
const EACH: Duration = Duration::from_millis(60);
/// Maximum duration of a run in addition to that of its sections.
const BOUND: Duration = Duration::from_secs(120);
/// Maximum time for the judge to find a violation.
const VIOLATION_BOUND: Duration = Duration::from_secs(60);

/// Contenders of one library for one kind of lock.
#[derive(Debug, Clone)]
pub(crate) struct Role {
    pub(crate) library: Library,
    kind: String,
    contenders: usize,
}

pub(crate) fn role(library: Library, kind: &str, contenders: usize) -> Role {
    Role { library, kind: kind.to_owned(), contenders }
}

impl Role {
    /// Returns the share of the lock that a contender holds. `size` is the size of the semaphore.
    fn share(&self, size: u32) -> Share {
        let numbers: Vec<u32> = self.kind.split(':').filter_map(|part| part.parse().ok()).collect();
        match self.kind.as_str() {
            kind if kind.contains("semaphore") => {
                Share::Permits { count: *numbers.get(1).unwrap_or(&1), size }
            }
            kind if kind.contains("read") => Share::Shared,
            _ => Share::Exclusive,
        }
    }

    /// Returns the size of the semaphore that the clients of this role use.
    fn permits(&self) -> Option<u32> {
        self.kind.split_once("semaphore:")?.1.split(':').next()?.parse().ok()
    }
}

/// The judge of the shared lock. The tokens are not judged, because most libraries have none.
pub(crate) type LockJudge = Judge<String, ()>;

/// A session that contends for the lock.
pub(crate) struct Contender {
    name: String,
    share: Share,
    lock: ClientLock,
    place: Place,
    judge: Arc<LockJudge>,
}

impl Contender {
    pub(crate) fn new(
        client: &Client,
        role: &Role,
        number: usize,
        permits: u32,
        place: &Place,
        judge: &Arc<LockJudge>,
    ) -> Self {
        Contender {
            name: format!("{:?} {} {number}", role.library, role.kind),
            share: role.share(permits),
            lock: client.lock(&role.kind, LOCK),
            place: place.clone(),
            judge: judge.clone(),
        }
    }

    /// Acquires the lock, stays in a section, and releases the lock. With `together`, a holder of
    /// permits first waits until all permits are taken. Returns how often other contenders entered
    /// a section during the wait for the lock.
    ///
    /// # Errors
    /// Fails if the judge finds a violation, and if the client fails.
    pub(crate) async fn hold_once(&mut self, together: bool) -> Result<usize> {
        let asked = self.judge.grant_count();
        let began = Instant::now();
        self.lock.acquire().await?;
        let entered = self.judge.enter_with(self.name.clone(), self.share, None);
        if let Err(violation) = self.judge.check() {
            let queue = tree::descendants(&self.place.connect_string(), LOCK).await?;
            return Err(TestFailure::new(format!("violation: {violation}; the queue is {queue:?}")));
        }
        match self.share {
            Share::Permits { .. } if together => self.stay_with_others(began).await,
            _ => sleep(INSIDE).await,
        }
        self.judge.exit(&self.name);
        self.lock.release().await?;
        Ok(entered - asked)
    }

    /// Waits until all permits are taken. Then waits for as long as this section has taken so far.
    /// Each wait lasts at most [`PATIENCE`]. In the second wait, a contender that ignores the other
    /// holders could acquire one permit too many.
    async fn stay_with_others(&self, began: Instant) {
        let entered = Instant::now();
        while !self.judge.is_full() && entered.elapsed() < PATIENCE {
            sleep(PAUSE).await;
        }
        sleep(began.elapsed().min(PATIENCE)).await;
    }

    /// Closes the session.
    ///
    /// # Errors
    /// Fails if the client fails.
    pub(crate) async fn close(self) -> Result<()> {
        self.lock.close().await
    }
}

/// Returns the number of sections of each contender. Sections with permits are long, so there are
/// fewer of them.
pub(crate) fn sections_each(roles: &[Role]) -> usize {
    match zoolock_tests::skip::is_long() {
        true => 2000,
        false if roles.iter().any(|role| role.kind.contains("semaphore")) => 30,
        false => 60,
    }
}

/// Returns whether this machine has the libraries of all roles. If not, reports the test as skipped.
pub(crate) fn available(roles: &[Role], place: &Place) -> bool {
    roles.iter().all(|role| role.library.or_skip(place))
}

/// Lets all contenders share one lock. Checks that none starves, and that no znode or watch is
/// left. Skips the test if a library is missing.
///
/// # Panics
/// Panics if contenders that exclude each other hold the lock together, if a contender starves or does not finish its
/// sections, and if znodes or watches are left.
pub(crate) async fn assert_shared_fairly(place: &Place, roles: &[Role]) {
    if !available(roles, place) {
        return;
    }
    create_parent(place).await;
    let all = contend(place, roles).await;
    for Waits { name, passed } in &all {
        println!("{}: {name}: {:?}", place.server_kind(), Passes::of(passed));
    }
    if let Some(starved) = find_starved(&all) {
        panic!("{starved}; {all:?}");
    }
    assert_nothing_left(place).await;
}

/// Lets all contenders share one lock until each has finished its sections.
///
/// # Panics
/// Panics if contenders that exclude each other hold the lock together, and if a contender does not finish its
/// sections.
pub(crate) async fn contend(place: &Place, roles: &[Role]) -> Vec<Waits> {
    let sections = sections_each(roles);
    let contenders: usize = roles.iter().map(|role| role.contenders).sum();
    let bound = BOUND + EACH * (sections * contenders).try_into().expect("there are few sections");
    match timeout(bound, run(place, roles, Some(sections))).await {
        Ok(waits) => waits.unwrap_or_else(|failure| panic!("{failure}")),
        Err(_) => {
            let left = tree::descendants(&place.connect_string(), "/").await;
            panic!("the sections take longer than {bound:?}; the tree has {left:?}");
        }
    }
}

/// Runs `sections` sections for each contender, or sections without end if it is `None`.
///
/// # Errors
/// Fails if the judge finds a violation, and if a client fails.
pub(crate) async fn run(place: &Place, roles: &[Role], sections: Option<usize>) -> Result<Vec<Waits>> {
    let permits = roles.iter().filter_map(Role::permits).min().unwrap_or_default();
    let judge = Arc::new(LockJudge::new());
    let mut clients: Vec<Client> = Vec::new();
    let mut contenders = Vec::new();
    for role in roles {
        let started = clients.iter().find(|client| client.library == role.library).cloned();
        let client = match started {
            Some(client) => client,
            None => Client::start(role.library, place).await,
        };
        for _ in 0..role.contenders {
            let number = contenders.len();
            contenders.push(Contender::new(&client, role, number, permits, place, &judge));
        }
        clients.push(client);
    }
    let barrier = Arc::new(Barrier::new(contenders.len()));
    let mut running = JoinSet::new();
    for mut contender in contenders {
        let barrier = barrier.clone();
        running.spawn(async move {
            // The first section opens the session. It is slower, and its wait does not count.
            contender.hold_once(false).await?;
            barrier.wait().await;
            let mut passed = Vec::new();
            while sections.is_none_or(|sections| passed.len() < sections) {
                let together = passed.len() % TOGETHER == 0;
                passed.push(contender.hold_once(together).await?);
            }
            let name = contender.name.clone();
            contender.close().await?;
            Result::Ok(Waits { name, passed })
        });
    }
    let mut all = Vec::new();
    while let Some(waits) = running.join_next().await {
        all.push(waits.expect("a contender does not panic")?);
    }
    Ok(all)
}

/// Returns the violation that the judge finds.
///
/// # Panics
/// Panics if the judge finds no violation.
pub(crate) async fn run_until_violation(place: &Place, roles: &[Role]) -> String {
    // Contenders whose sequence numbers are equal can also wait for each other. Then the run times out and is repeated.
    for _ in 0..3 {
        if let Ok(ended) = timeout(VIOLATION_BOUND, run(place, roles, None)).await {
            return ended.expect_err("the sections have no end").to_string();
        }
    }
    panic!("no two contenders held the lock together");
}

/// Waits until no znode, no watch and no contender of the test is left.
pub(crate) async fn assert_nothing_left(place: &Place) {
    tree::assert_no_ephemerals(&place.connect_string(), "/").await;
    tree::assert_no_contenders(&place.connect_string(), LOCK).await;
    place.assert_no_watches().await;
}

/// Creates the parent of the lock directory, which some libraries do not create.
pub(crate) async fn create_parent(place: &Place) {
    let client = tree::connect(&place.connect_string()).await.expect("connected");
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create("/locks", b"", &options).await.expect("the chroot is empty");
}

/// Creates the directory of the lock.
pub(crate) async fn create_lock_directory(place: &Place) {
    create_parent(place).await;
    let client = tree::connect(&place.connect_string()).await.expect("connected");
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create(LOCK, b"", &options).await.expect("the directory is new");
}
