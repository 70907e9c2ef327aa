//! Elections: terms, their ends, and what other programs see of the leader.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use zoolock::{
    Election, ElectionState, Ended, Error, FencingToken, Leader, LeaderChange, LeaderChanges, LossReason,
    Previous, Term, Zoolock,
};
use zoolock_tests::locks::{
    connect, connect_through, directory, settings, short_session_settings, until_queued,
};
use zoolock_tests::wait::finish_in_time;
use zoolock_tests::{Place, Proxy, on_both_servers, tree};

/// Set while the work of a term exists. Dropping it clears the flag, and takes a while, so that a release that comes too
/// early lets another leader find the flag.
struct Working(Arc<AtomicBool>);

impl Working {
    fn begin(flag: &Arc<AtomicBool>) -> Working {
        assert!(!flag.swap(true, Ordering::SeqCst), "the work of an earlier term still exists");
        Working(flag.clone())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        // Longer than a hand-over takes.
        std::thread::sleep(Duration::from_millis(3));
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Returns the next change that the stream tells.
async fn next_change(changes: &mut LeaderChanges) -> LeaderChange {
    finish_in_time(changes.next()).await.expect("the stream goes on").expect("read succeeds")
}

/// Connects with a session that is long enough for a grace of two seconds.
async fn connect_for_grace(place: &Place) -> Zoolock {
    let settings = settings().session_timeout(Duration::from_secs(20));
    settings.connect(&place.connect_string()).await.expect("session starts")
}

/// Starts a candidate that works until its term ends, and returns how `run` ended. Tells each term.
fn stand(
    election: &Election,
    terms: tokio::sync::mpsc::UnboundedSender<Term>,
) -> tokio::task::JoinHandle<Result<Ended<()>, Error>> {
    let election = election.clone();
    tokio::spawn(async move {
        election
            .run(|term| {
                terms.send(term).expect("the test waits for terms");
                std::future::pending::<()>()
            })
            .await
    })
}

async fn next<T>(terms: &mut tokio::sync::mpsc::UnboundedReceiver<T>) -> T {
    finish_in_time(terms.recv()).await.expect("a term begins")
}

on_both_servers!(resign_hands_over, |place| async move {
    let (one, two) = (connect(&place).await, connect(&place).await);
    let (first, second) = (one.election("lead").candidate("one:1"), two.election("lead").candidate("two:2"));
    let (sender, mut terms) = tokio::sync::mpsc::unbounded_channel();
    assert_eq!(first.leader().await.expect("read succeeds"), None);
    let running = stand(&first, sender.clone());
    let term = next(&mut terms).await;
    assert!(first.is_leader() && term.is_valid() && !second.is_leader());
    assert_eq!(first.term().map(|term| term.token()), Some(term.token()));
    assert!(second.term().is_none());
    assert!(matches!(first.state(), ElectionState::Leading));
    let waiting = stand(&second, sender);
    until_queued(&two, "lead", 2).await;
    assert!(matches!(second.state(), ElectionState::Waiting));
    let Leader { host, pid, candidate, token, since, .. } =
        second.leader().await.expect("read succeeds").expect("one leads");
    assert!(host.is_some() && since.is_some());
    assert_eq!(
        (pid, candidate.as_deref(), token),
        (Some(std::process::id()), Some("one:1"), Some(term.token()))
    );
    first.resign();
    assert_eq!(finish_in_time(running).await.expect("no panic").expect("run succeeds"), Ended::Resigned);
    assert!(
        !first.is_leader()
            && first.term().is_none()
            && !term.is_valid()
            && matches!(first.state(), ElectionState::Stopped)
    );
    finish_in_time(term.stopping()).await;
    let next_term = next(&mut terms).await;
    assert!(next_term.token() > term.token());
    second.resign();
    assert_eq!(finish_in_time(waiting).await.expect("no panic").expect("run succeeds"), Ended::Resigned);
    tree::assert_no_contenders(&place.addr(), &directory(&place, "lead")).await;
});

on_both_servers!(run_ends_with_its_work, |place| async move {
    let zl = connect(&place).await;
    let election = zl.election("once");
    let ended = finish_in_time(election.run(|term| async move { term.token() })).await.expect("run succeeds");
    let Ended::Returned(token) = ended else { panic!("{ended:?}") };
    // A candidate that resigns before its term leaves the queue.
    let held = zl.mutex("once").lock().await.expect("lock acquired");
    assert_eq!(held.previous(), Previous::Clean);
    assert!(held.token() > token);
    let (sender, _terms) = tokio::sync::mpsc::unbounded_channel();
    let waiting = stand(&election, sender);
    until_queued(&zl, "once", 2).await;
    election.resign();
    assert_eq!(finish_in_time(waiting).await.expect("no panic").expect("run succeeds"), Ended::Resigned);
    tree::assert_contenders(&place.addr(), &directory(&place, "once"), 1).await;
    drop(held);
    // The same handle may stand again.
    let guard = finish_in_time(election.campaign()).await.expect("campaign succeeds").expect("not resigned");
    assert!(election.is_leader());
    guard.release().await.expect("release succeeds");
    assert!(!election.is_leader() && matches!(election.state(), ElectionState::Stopped));
});

on_both_servers!(lock_is_released_after_the_work, |place| async move {
    let count = if zoolock_tests::skip::is_long() { 10_000 } else { 150 };
    let flag = Arc::new(AtomicBool::new(false));
    let terms = Arc::new(AtomicU32::new(0));
    let candidates = futures_util::future::join_all([0, 1, 2].map(|_| connect(&place))).await;
    let elections: Vec<Election> = candidates.iter().map(|zl| zl.election("order")).collect();
    let running = elections.iter().cloned().map(|election| {
        let (flag, terms) = (flag.clone(), terms.clone());
        tokio::spawn(async move {
            let handle = election.clone();
            let mut last: Option<FencingToken> = None;
            let dropped = Arc::new(Notify::new());
            while terms.load(Ordering::SeqCst) < count {
                let work = |term: Term| {
                    let working = Working::begin(&flag);
                    assert!(last < Some(term.token()), "tokens rise");
                    last = Some(term.token());
                    let (handle, dropped) = (handle.clone(), dropped.clone());
                    let number = terms.fetch_add(1, Ordering::SeqCst);
                    async move {
                        let _working = working;
                        // The ends of terms: the work returns, the candidate resigns, or `run` is dropped.
                        match number % 3 {
                            0 => {}
                            1 => {
                                handle.resign();
                                std::future::pending().await
                            }
                            _ => {
                                dropped.notify_one();
                                std::future::pending().await
                            }
                        }
                    }
                };
                // Every third call is dropped early, perhaps while it waits for a term.
                let patience = if fastrand::u8(..3) == 0 { fastrand::u64(..20) } else { 60_000 };
                tokio::select! {
                    ended = election.run(work) => { ended.expect("run succeeds"); }
                    () = dropped.notified() => {}
                    () = tokio::time::sleep(Duration::from_millis(patience)) => {}
                }
            }
        })
    });
    for candidate in futures_util::future::join_all(running).await {
        candidate.expect("no two works exist at once");
    }
    tree::assert_no_contenders(&place.addr(), &directory(&place, "order")).await;
});

on_both_servers!(revoked_leader_has_its_grace, |place| async move {
    let grace = Duration::from_secs(1);
    let zl = connect_for_grace(&place).await;
    let other = connect(&place).await;
    let election = zl.election("asked").grace(grace);
    let (sender, mut terms) = tokio::sync::mpsc::unbounded_channel();
    let running = tokio::spawn({
        let election = election.clone();
        async move {
            election
                .run(|term| {
                    sender.send(term.token()).expect("the test waits for terms");
                    async move {
                        term.stopping().await;
                        // Uses more than the grace.
                        std::future::pending::<()>().await
                    }
                })
                .await
        }
    });
    let first = next(&mut terms).await;
    let asked = Instant::now();
    other.admin().revoke("asked", first).await.expect("the leader is asked");
    let second = next(&mut terms).await;
    assert!(asked.elapsed() >= grace, "the work had {:?}", asked.elapsed());
    assert!(second > first, "the only candidate leads again");
    election.resign();
    assert_eq!(finish_in_time(running).await.expect("no panic").expect("run succeeds"), Ended::Resigned);
    let error = zl
        .election("asked")
        .grace(Duration::from_secs(20))
        .run(async |_| ())
        .await
        .expect_err("grace is too long");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
});

on_both_servers!(work_that_stops_in_time_does_not_end_the_candidacy, |place| async move {
    let zl = connect_for_grace(&place).await;
    let election = zl.election("polite").grace(Duration::from_secs(2));
    let has_stopped = Arc::new(AtomicBool::new(false));
    let stopped = has_stopped.clone();
    let (sender, mut terms) = tokio::sync::mpsc::unbounded_channel();
    let running = tokio::spawn({
        let election = election.clone();
        async move {
            election
                .run(|term| {
                    sender.send(term.token()).expect("the test waits for terms");
                    let stopped = stopped.clone();
                    async move {
                        term.stopping().await;
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        stopped.store(true, Ordering::SeqCst);
                    }
                })
                .await
        }
    });
    let first = next(&mut terms).await;
    zl.admin().revoke("polite", first).await.expect("the leader is asked");
    assert!(next(&mut terms).await > first, "the candidate stands again");
    assert!(has_stopped.load(Ordering::SeqCst), "the work has its grace");
    let error = finish_in_time(election.run(async |_| ())).await.expect_err("the handle stands already");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    election.resign();
    assert_eq!(finish_in_time(running).await.expect("no panic").expect("run succeeds"), Ended::Resigned);
});

on_both_servers!(work_that_looks_at_its_term_does_not_end_the_candidacy, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = short_session_settings()
        .connect(&place.connect_string_through(&proxy.addr()))
        .await
        .expect("session starts");
    let (sender, mut terms) = tokio::sync::mpsc::unbounded_channel();
    let election = zl.election("looks");
    let running = std::thread::spawn(move || {
        let work = |term: Term| {
            sender.send(term.clone()).expect("the test waits for terms");
            async move {
                while term.is_valid() {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        };
        zoolock::Wait::wait(election.run(work))
    });
    let first = next(&mut terms).await;
    proxy.blackhole(true);
    finish_in_time(first.lost()).await;
    proxy.blackhole(false);
    assert!(next(&mut terms).await.token() > first.token(), "the candidate stands again");
    // Work that blocks hears of the end of its client.
    zl.close().await;
    let ended = tokio::task::spawn_blocking(|| running.join().expect("no panic"));
    let error = finish_in_time(ended).await.expect("no panic").expect_err("the client was closed");
    assert!(matches!(error, Error::Closed), "{error}");
});

on_both_servers!(resign_ends_run_in_an_outage, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = connect_through(&place, &proxy).await;
    let election = zl.election("cut-off");
    let (sender, mut terms) = tokio::sync::mpsc::unbounded_channel();
    let running = stand(&election, sender);
    let term = next(&mut terms).await;
    proxy.blackhole(true);
    election.resign();
    assert_eq!(finish_in_time(running).await.expect("no panic").expect("run succeeds"), Ended::Resigned);
    assert!(!term.is_valid() && !election.is_leader());
    proxy.blackhole(false);
    tree::assert_no_contenders(&place.addr(), &directory(&place, "cut-off")).await;
});

on_both_servers!(lost_term_ends_the_work_and_the_candidate_stands_again, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = short_session_settings()
        .connect(&place.connect_string_through(&proxy.addr()))
        .await
        .expect("session starts");
    let other = connect(&place).await;
    let election = zl.election("cut");
    let (sender, mut terms) = tokio::sync::mpsc::unbounded_channel();
    let running = stand(&election, sender);
    let term = next(&mut terms).await;
    let mut changes = other.election("cut").changes();
    let first = next_change(&mut changes).await;
    assert!(matches!(first, LeaderChange::Leader(leader) if leader.token == Some(term.token())));
    proxy.blackhole(true);
    let reason = finish_in_time(term.lost()).await;
    assert!(matches!(reason, LossReason::Unreachable | LossReason::SessionExpired), "{reason}");
    assert!(!term.is_valid() && !election.is_leader());
    assert_eq!(next_change(&mut changes).await, LeaderChange::NoLeader);
    proxy.blackhole(false);
    let again = next(&mut terms).await;
    assert!(again.token() > term.token() && election.is_leader());
    let change = next_change(&mut changes).await;
    assert!(matches!(change, LeaderChange::Leader(leader) if leader.token == Some(again.token())));
    // A client that is closed stands no more.
    zl.close().await;
    let error = finish_in_time(running).await.expect("no panic").expect_err("the client was closed");
    assert!(matches!(error, Error::Closed), "{error}");
});

on_both_servers!(observer_in_an_outage_does_not_know, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (zl, observer) = (connect(&place).await, connect_through(&place, &proxy).await);
    let election = zl.election("seen");
    let guard = finish_in_time(election.campaign()).await.expect("campaign succeeds").expect("not resigned");
    let mut changes = observer.election("seen").changes();
    let LeaderChange::Leader(leader) = next_change(&mut changes).await else {
        panic!("there is a leader");
    };
    proxy.blackhole(true);
    let change = next_change(&mut changes).await;
    assert_eq!(change, LeaderChange::Unknown { last: Some(leader.clone()) });
    proxy.blackhole(false);
    let change = next_change(&mut changes).await;
    assert_eq!(change, LeaderChange::Leader(leader));
    guard.release().await.expect("release succeeds");
    assert_eq!(next_change(&mut changes).await, LeaderChange::NoLeader);
});

// Watches that are set again after each reconnect must not pile up, and tell a change several times.
on_both_servers!(each_change_is_told_once_after_many_reconnects, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let (zl, observer) = (connect(&place).await, connect_through(&place, &proxy).await);
    let guard =
        finish_in_time(zl.election("seen").campaign()).await.expect("succeeds").expect("not resigned");
    let mut changes = observer.election("seen").changes();
    let LeaderChange::Leader(leader) = next_change(&mut changes).await else { panic!("there is a leader") };
    for _ in 0..if zoolock_tests::skip::is_long() { 100 } else { 20 } {
        proxy.close_connections().await;
        let connected = async {
            while observer.admin().snapshot("seen").await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        finish_in_time(connected).await;
    }
    guard.release().await.expect("release succeeds");
    let mut told = Vec::new();
    while told.last() != Some(&LeaderChange::NoLeader) {
        told.push(next_change(&mut changes).await);
    }
    // A reconnect is no outage unless it takes long.
    let unknown = LeaderChange::Unknown { last: Some(leader.clone()) };
    told.retain(|change| *change != unknown);
    told.dedup();
    assert!(told.len() <= 2, "{told:?}");
    let next = finish_in_time(zl.election("seen").campaign()).await.expect("succeeds").expect("not resigned");
    let LeaderChange::Leader(leader) = next_change(&mut changes).await else { panic!("there is a leader") };
    assert_eq!(leader.token, Some(next.token()));
    let none = tokio::time::timeout(Duration::from_millis(300), changes.next()).await;
    assert!(none.is_err(), "{none:?}");
});

#[tokio::test(flavor = "multi_thread")]
async fn candidate_survives_a_restart_of_all_servers() {
    let server = zoolock::TestServer::start().await.expect("server starts");
    let zl = server.connect().await.expect("session starts");
    let election = zl.election("restart");
    let (sender, mut terms) = tokio::sync::mpsc::unbounded_channel();
    let running = stand(&election, sender);
    let term = next(&mut terms).await;
    server.stop().await;
    finish_in_time(term.stopping()).await;
    server.start_again().await.expect("server starts");
    let again = next(&mut terms).await;
    assert!(again.is_valid());
    assert!(election.is_leader());
    drop(running);
    let _: &Zoolock = &zl;
}
