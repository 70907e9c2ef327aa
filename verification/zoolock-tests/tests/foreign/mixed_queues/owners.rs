//! Owners of locks, wait graphs and deadlocks.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zookeeper_client::{Acls, CreateMode};
use zoolock::admin::{ChainEnd, OwnerKind, WaitGraph};
use zoolock::{Error, Guard, LossReason, Owner, Zoolock};
use zoolock_tests::locks::{connect, connect_through, directory, settings, until_queued};
use zoolock_tests::wait::retry_until_ok;
use zoolock_tests::{Place, Proxy, TestFailure, ZoolockBinary, on_both_servers, opcode, tree};

use crate::mixed_queues::queue::{Queue, contenders, holders, shown, waiters, zoolock};

const SOON: Duration = Duration::from_secs(60);
/// Time limit for the command to find a deadlock.
const FOUND_WITHIN: Duration = Duration::from_secs(2);
const NAMES: [&str; 3] = ["one", "three", "two"];

/// Returns, for each owner in a deadlock, the lock that it holds and the lock that it waits for.
fn edges_of(deadlock: &Value) -> Vec<(&str, &str)> {
    let edges = deadlock["edges"].as_array().expect("edges are a list").iter();
    let lock = |edge: usize, side: &str| deadlock["edges"][edge][side]["path"].as_str().expect("a path");
    edges.enumerate().map(|(edge, _)| (lock(edge, "holds"), lock(edge, "waits_for"))).collect()
}

/// Starts a command that acquires one lock, waits until all commands hold a lock, and then waits for the next lock.
fn start_nested(place: &Place, binary: &ZoolockBinary, scratch: &Path, at: usize) -> Child {
    let (outer, inner) = (NAMES[at], NAMES[(at + 1) % NAMES.len()]);
    let script = format!(
        "touch {outer}; while [ $(ls | wc -l) -lt {} ]; do sleep 0.02; done; \
         exec {} --connect {} run {inner} -- true",
        NAMES.len(),
        binary.path().display(),
        place.connect_string(),
    );
    let connect = place.connect_string();
    let mut command = binary.command(["--connect", &connect, "run", outer, "--", "sh", "-c", &script]);
    command.current_dir(scratch).stdin(Stdio::null()).spawn().expect("the command starts")
}

on_both_servers!(deadlock_of_three_commands_is_found_and_broken, |place| async move {
    let scratch = tempfile::tempdir().expect("a directory can be created");
    let binary = ZoolockBinary::find().expect("the command has been built");
    let mut owners: Vec<_> =
        (0..NAMES.len()).map(|at| start_nested(&place, &binary, scratch.path(), at)).collect();
    let bystander = connect(&place).await;
    let _elsewhere = bystander.mutex("elsewhere").lock().await.expect("lock granted");
    for name in NAMES {
        tree::assert_contenders(&place.addr(), &directory(&place, name), 2).await;
    }
    let began = Instant::now();
    let found = zoolock(&place, &["deadlocks", "--json"]).await.json_with_code(1);
    assert!(began.elapsed() < FOUND_WITHIN, "{:?}", began.elapsed());
    assert_eq!(found["deadlocks"].as_array().map(Vec::len), Some(1), "{found}");
    let deadlock = &found["deadlocks"][0];
    let mut edges = edges_of(deadlock);
    let start = edges.iter().position(|(holds, _)| *holds == "/locks/one").expect("lock one is an edge");
    edges.rotate_left(start);
    let expected =
        [("/locks/one", "/locks/three"), ("/locks/three", "/locks/two"), ("/locks/two", "/locks/one")];
    assert_eq!(edges, expected);
    assert_eq!((&deadlock["owners"], &deadlock["behind"]), (&json!(3), &json!(0)));
    let why = zoolock(&place, &["why", "two", "--json"]).await.json();
    let chain = why["chain"].as_array().map(Vec::len);
    assert_eq!((&why["end"], chain), (&json!("circle"), Some(4)), "{why}");

    let text = |field: &str| deadlock["to_break"][field].as_str().expect("the field is text");
    let lock = text("path");
    zoolock(&place, &["break", lock, "--token", text("token")]).await.assert(0, &[]);
    for (name, owner) in NAMES.iter().zip(&mut owners) {
        let ended = timeout(SOON, owner.wait()).await.expect("the deadlock is broken").expect("it ends");
        let expected = if lock == format!("/locks/{name}") { 70 } else { 0 };
        assert_eq!(ended.code(), Some(expected), "{name}, and {lock} was broken");
    }
    let found = zoolock(&place, &["deadlocks", "--json"]).await.json();
    assert_eq!(found["deadlocks"], json!([]));
});

/// Starts a task that acquires the first lock, waits until the lock `all` has three contenders, and then acquires the
/// second lock.
fn take_both(zl: &Zoolock, first: &'static str, second: &'static str) -> JoinHandle<Result<Guard, Error>> {
    let zl = zl.clone();
    tokio::spawn(async move {
        let first = zl.mutex(first).lock().await?;
        until_queued(&zl, "all", 3).await;
        let second = zl.mutex(second).lock().await?;
        first.release().await?;
        Ok(second)
    })
}

on_both_servers!(tasks_are_separate_owners_in_deadlocks, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    // Two tasks use the same client, and one uses another client.
    let tasks = [take_both(&zl, "a", "b"), take_both(&zl, "b", "c"), take_both(&other, "c", "a")];
    for name in ["a", "b", "c"] {
        until_queued(&zl, name, 1).await;
    }
    // The tasks continue when this lock has three readers.
    let gate = [zl.rwlock("all"), other.rwlock("all"), zl.rwlock("all")];
    let mut readers = Vec::new();
    for lock in &gate {
        readers.push(lock.read().await.expect("lock granted"));
    }
    for name in ["a", "b", "c"] {
        until_queued(&zl, name, 2).await;
    }
    let deadlocks = other.admin().deadlocks(None).await.expect("locks read");
    assert_eq!((deadlocks.len(), deadlocks[0].edges.len(), deadlocks[0].owners), (1, 3, 3));
    assert!(deadlocks[0].edges.iter().all(|edge| edge.owner_kind == OwnerKind::Task));
    let why = zl.admin().why("b").await.expect("locks read");
    assert_eq!((why.end, why.chain.len()), (ChainEnd::Circle, 4));
    let graph = WaitGraph::of(&zl.admin().locks(None, usize::MAX).await.expect("locks read"));
    assert_eq!(graph.owners.iter().filter(|party| party.stuck).count(), 3);
    let cut = deadlocks[0].to_break.as_ref().expect("a holder of zoolock can be broken");
    zl.admin().break_lock(&cut.lock, cut.token).await.expect("the holder exists");
    let mut lost = 0;
    for task in tasks {
        match timeout(SOON, task).await.expect("the deadlock is broken").expect("task does not panic") {
            Ok(guard) => guard.release().await.expect("release succeeds"),
            Err(Error::Removed { .. } | Error::Lost { reason: LossReason::Broken, .. }) => lost += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(lost, 1, "one task lost its first lock");
});

on_both_servers!(locks_of_one_owner_are_shown_with_it, |place| async move {
    let zl = connect(&place).await;
    let job = settings().owner_id("job-7").expect("a valid name");
    let job = job.connect(&place.connect_string()).await.expect("connected");
    let owner = Owner::new();
    let first = zl.mutex("first").lock_as(&owner).await.expect("lock granted");
    // Another task acquires a lock as the same owner.
    let second = tokio::spawn({
        let (zl, owner) = (zl.clone(), owner.clone());
        async move { zl.mutex("second").lock_as(&owner).await }
    });
    let second = second.await.expect("task does not panic").expect("lock granted");
    let here = zl.mutex("here").lock().await.expect("lock granted");
    let shared = zl.mutex("shared").shared_hold(Duration::from_secs(60)).lock().await.expect("lock granted");
    let named = job.mutex("named").lock().await.expect("lock granted");
    let reader = zl.rwlock("written").upgradable_read().await.expect("lock granted");
    // Another task upgrades the guard. The task that acquired the read lock stays the owner.
    let writer = tokio::spawn(reader.upgrade()).await.expect("task does not panic").expect("no other reader");
    let locks = zl.admin().locks(None, 0).await.expect("locks read");
    let owners = |name: &str| {
        let path = format!("/locks/{name}");
        let lock = locks.iter().find(|lock| lock.path == path).expect("the lock exists");
        let entries = lock.holder.iter().chain(&lock.beside);
        entries.map(|entry| (entry.owner.clone().expect("an owner"), entry.owner_kind)).collect::<Vec<_>>()
    };
    assert_eq!(owners("first"), owners("second"));
    assert_eq!(owners("first")[0].1, OwnerKind::Owner);
    assert_eq!(owners("named"), [("job-7".to_owned(), OwnerKind::Owner)]);
    assert_eq!(owners("here")[0].1, OwnerKind::Task);
    assert_eq!(owners("shared")[0].1, OwnerKind::Task);
    assert_ne!(owners("here"), owners("shared"), "the current task of a shared hold is unknown");
    assert_eq!(owners("written"), [owners("here"), owners("here")].concat());
    drop((first, second, here, shared, named, writer));
});

on_both_servers!(foreign_owners_are_sessions_with_secret_ids, |place| async move {
    let one = tree::connect(&place.addr()).await.expect("connected");
    let two = tree::connect(&place.addr()).await.expect("connected");
    for (client, name) in [(&one, "left"), (&two, "right"), (&one, "right"), (&two, "left")] {
        Queue::of(client, &place, name).await.join("UUID-lock-", b"10.0.0.7").await;
    }
    let lock = shown(&place, "left").await;
    assert_eq!(contenders(&lock, "owner_kind"), ["session", "session"]);
    assert_ne!(holders(&lock, "owner"), waiters(&lock, "owner"));
    let found = zoolock(&place, &["deadlocks", "--json"]).await.json_with_code(1);
    let deadlocks = found["deadlocks"].as_array().expect("deadlocks are a list");
    assert_eq!(deadlocks.len(), 1, "{found}");
    assert_eq!(edges_of(&deadlocks[0]).len(), 2);
    assert_eq!(deadlocks[0]["edges"][0]["owner_kind"], "session");
    let output = zoolock(&place, &["deadlocks"]).await;
    assert!(output.stderr.contains("show only their session"), "{}", output.stderr);

    let sessions = [one.session_id().0, two.session_id().0];
    for (arguments, code) in
        [(&["ls"][..], 0), (&["show", "left"], 0), (&["why", "left"], 0), (&["deadlocks"], 1)]
    {
        for json in [&[][..], &["--json"]] {
            let output = zoolock(&place, &[arguments, json].concat()).await;
            output.assert(code, &[]);
            let output = output.stdout + &output.stderr;
            for session in sessions {
                for id in [format!("{session}"), format!("{session:x}"), format!("{session:016x}")] {
                    assert!(!output.contains(&id), "the session {id} in {output}");
                }
            }
        }
    }
});

on_both_servers!(survey_agrees_with_locks_for_every_waiter_limit, |place| async move {
    let zl = connect(&place).await;
    let families = Queue::new(&place, "deep/er/families").await;
    for prefix in ["sh", "__READ__", "lock-", "upgr-", "lock-", "__READ__"] {
        families.join(prefix, b"").await;
    }
    let reader = zl.rwlock("deep/upgraded").upgradable_read().await.expect("lock granted");
    let _writer = reader.upgrade().await.expect("no other reader");
    let waiting = |name: &'static str| {
        let zl = zl.clone();
        tokio::spawn(async move { zl.rwlock(name).read().await.map(drop) })
    };
    let mut tasks = vec![waiting("deep/upgraded"), waiting("deep/upgraded")];
    let semaphore = zl.semaphore("semaphores/native", 3);
    let _held = semaphore.acquire(2).await.expect("permits granted");
    for _ in 0..3 {
        let semaphore = semaphore.clone();
        tasks.push(tokio::spawn(async move { semaphore.acquire(2).await.map(drop) }));
    }
    let queued = retry_until_ok("all waiters are queued", SOON, async || {
        let locks =
            zl.admin().locks(None, usize::MAX).await.map_err(|error| TestFailure::new(error.to_string()))?;
        let contenders = |path: &str| {
            let lock = locks.iter().find(|lock| lock.path == path);
            lock.map_or(0, |lock| lock.beside.len() + 1 + lock.waiters.len())
        };
        let found = [contenders("/locks/deep/upgraded"), contenders("/locks/semaphores/native")];
        if found == [4, 4] { Ok(()) } else { Err(TestFailure::new(format!("{found:?}"))) }
    });
    queued.await.expect("the waiters queue");
    let all = zl.admin().locks(None, usize::MAX).await.expect("locks read");
    let paths: Vec<_> = all.iter().map(|lock| lock.path.as_str()).collect();
    assert_eq!(paths, ["/locks/deep/er/families", "/locks/deep/upgraded", "/locks/semaphores/native"]);
    for count in 0..5 {
        let some = zl.admin().locks(None, count).await.expect("locks read");
        for (all, some) in all.iter().zip(&some) {
            let (all, some) = (json!(all), json!(some));
            for part in ["path", "holder", "beside", "waiting", "permits", "clash", "unread"] {
                assert_eq!(all[part], some[part], "{part} of {} with {count}", all["path"]);
            }
            let waiters = all["waiters"].as_array().expect("waiters are a list");
            assert_eq!(some["waiters"], json!(waiters[..count.min(waiters.len())]), "{}", all["path"]);
            assert_eq!(all["waiting"], json!(waiters.len()));
        }
        assert_eq!(all.len(), some.len());
    }
    tasks.iter().for_each(JoinHandle::abort);
});

/// Returns the number of locks for `survey_limits_requests_in_flight`.
fn many() -> usize {
    if zoolock_tests::skip::is_long() { 100_000 } else { 1_000 }
}

on_both_servers!(survey_limits_requests_in_flight, |place| async move {
    let client = tree::connect(&place.addr()).await.expect("connected");
    let bulk = directory(&place, "bulk");
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let sequential = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    client.mkdir(&bulk, &persistent).await.expect("created");
    let numbers: Vec<usize> = (0..many()).collect();
    for some in numbers.chunks(500) {
        let paths: Vec<_> = some.iter().map(|number| format!("{bulk}/{number:06}")).collect();
        let created = paths.iter().map(|path| client.create(path, b"", &persistent));
        try_join_all(created).await.expect("created");
        let nodes: Vec<_> = paths.iter().map(|path| format!("{path}/lock-")).collect();
        let nodes = nodes.iter().flat_map(|node| [node; 3]);
        let created = nodes.map(|node| client.create(node, b"", &sequential));
        try_join_all(created).await.expect("created");
    }
    let proxy = Proxy::start(&place.addr()).await.expect("the proxy starts");
    let zl = connect_through(&place, &proxy).await;
    let before = proxy.counts();
    let reads = [opcode::GET_DATA, opcode::GET_CHILDREN2];
    let (mut most, began) = (0, Instant::now());
    let survey = zl.admin().locks(Some("bulk"), 1);
    tokio::pin!(survey);
    let locks = loop {
        tokio::select! {
            biased;
            locks = &mut survey => break locks.expect("locks read"),
            () = tokio::task::yield_now() => {
                let counts = proxy.counts();
                let in_flight = reads.map(|read| counts.requests(read) - counts.replies(read));
                most = most.max(in_flight.iter().sum::<u64>());
            }
        }
    };
    let took = began.elapsed();
    let counts = proxy.counts().since(&before);
    let requests: u64 = reads.iter().map(|read| counts.requests(*read)).sum();
    println!("{} locks in {took:?}, {requests} requests, at most {most} in flight", locks.len());
    assert_eq!(locks.len(), many());
    assert!(locks.iter().all(|lock| lock.holder.is_some() && lock.waiters.len() == 1 && lock.waiting == 2));
    assert!(locks.is_sorted_by_key(|lock| &lock.path));
    // The survey reads, for each lock directory, its data, its children, the holder and the first waiter.
    assert_eq!(requests, 4 * many() as u64 + 2);
    assert!((2..=64).contains(&most), "{most} in flight");
});
