//! Migration of a fleet to this library, one process at a time, while the other processes use the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use zoolock_tests::wait::retry_until_ok;
use zoolock_tests::{Place, Result, TestFailure, on_both_servers};

use crate::clients::Client;
use crate::clients::Library::{Java, Kazoo, Zoolock};
use crate::interop::contenders::{
    Contender, LockJudge, Role, assert_nothing_left, available, create_parent, role,
};

const PROCESSES: usize = 4;
/// Number of sections (holds of the lock) of the whole fleet between two replacements.
const BETWEEN: usize = 60;
const BOUND: Duration = Duration::from_secs(60);

/// Starts a fleet with the library and the kind of lock of the first stage. For each further stage,
/// replaces the processes one by one.
async fn migrate(place: &Place, stages: &[Role]) {
    if !available(stages, place) {
        return;
    }
    create_parent(place).await;
    let judge = Arc::new(LockJudge::new());
    let mut fleet = Vec::new();
    for _ in 0..PROCESSES {
        fleet.push(Member::start(place, &stages[0], &judge).await);
    }
    for next in &stages[1..] {
        for _ in 0..PROCESSES {
            until_busy(&judge).await;
            // As in a deployment, the old process ends first. The other processes continue.
            fleet.remove(0).stop().await;
            fleet.push(Member::start(place, next, &judge).await);
        }
    }
    until_busy(&judge).await;
    for member in fleet {
        member.stop().await;
    }
    assert_nothing_left(place).await;
}

/// A process that acquires and releases the lock until it is stopped.
struct Member {
    stopped: Arc<AtomicBool>,
    sections: JoinHandle<Result<usize>>,
}

impl Member {
    async fn start(place: &Place, role: &Role, judge: &Arc<LockJudge>) -> Member {
        let client = Client::start(role.library, place).await;
        // The number of grants so far is a unique number, because each process acquires the lock
        // before the next process starts.
        let mut contender = Contender::new(&client, role, judge.grant_count(), 0, place, judge);
        contender.hold_once(false).await.expect("the process acquires the lock");
        let stopped = Arc::new(AtomicBool::new(false));
        let sections = tokio::spawn({
            let stopped = stopped.clone();
            async move {
                let mut sections = 0;
                while !stopped.load(Ordering::Relaxed) {
                    contender.hold_once(false).await?;
                    sections += 1;
                }
                contender.close().await?;
                Result::Ok(sections)
            }
        });
        Member { stopped, sections }
    }

    /// Ends the process.
    ///
    /// # Panics
    /// Panics if the judge has found a violation, and if the process never held the lock again
    /// after its start.
    async fn stop(self) {
        self.stopped.store(true, Ordering::Relaxed);
        let sections = self.sections.await.expect("a contender does not panic").expect("no violation");
        assert!(sections > 0, "a process never acquired the lock");
    }
}

/// Waits until the fleet has had [`BETWEEN`] further sections.
async fn until_busy(judge: &LockJudge) {
    let began = judge.grant_count();
    let check = async || match judge.grant_count() - began {
        sections if sections >= BETWEEN => Ok(()),
        sections => Err(TestFailure::new(format!("{sections} sections"))),
    };
    retry_until_ok("the fleet uses the lock", BOUND, check).await.expect("the lock is granted");
}

on_both_servers!(curator_fleet_migrates_to_native, |place| async move {
    let stages =
        [role(Java, "curator-mutex", 1), role(Zoolock, "mutex@curator", 1), role(Zoolock, "mutex@native", 1)];
    migrate(&place, &stages).await;
});

on_both_servers!(kazoo_fleet_migrates_to_native, |place| async move {
    let stages = [
        role(Kazoo, "lock", 1),
        role(Zoolock, "mutex@kazoo", 1),
        // `+pattern` asserts that all clients of kazoo see zoolock's znodes. In this stage no
        // client of kazoo is left, so the assertion is true.
        role(Zoolock, "mutex@kazoo+pattern", 1),
        role(Zoolock, "mutex@native+pattern", 1),
        role(Zoolock, "mutex@native", 1),
    ];
    migrate(&place, &stages).await;
});

on_both_servers!(write_lock_fleet_migrates_to_native, |place| async move {
    migrate(&place, &[role(Java, "write-lock", 1), role(Zoolock, "mutex@native", 1)]).await;
});
