//! Who waits for whom, and who in a circle: ours, and others as far as can be told.

use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use zookeeper_client::{Acls, Client, CreateMode};
use zoolock::{Error, Guard, LossReason, Owner, WaitGraph, Zoolock};
use zoolock_tests::wait::eventually;
use zoolock_tests::{Failure, Place, Proxy, ZoolockBinary, on_both_arms, opcode, tree};

use crate::everybody::make::{Make, curator_or_skip, kazoo};
use crate::everybody::queue::{Queue, holders, shown, waiters, zoolock};
use zoolock_tests::locks::{connect, connect_through, directory, until_queued};

const SOON: Duration = Duration::from_secs(60);
/// How soon a deadlock is to be named.
const AT_ONCE: Duration = Duration::from_secs(2);
const UUID: &str = "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301";

fn parsed(said: crate::everybody::queue::Said) -> Value {
    assert_eq!(said.code, Some(0), "{}", said.notes);
    serde_json::from_str(&said.output).expect("JSON")
}

/// What each of a circle holds and waits for.
fn circle(deadlock: &Value) -> Vec<(&str, &str)> {
    let edges = deadlock["edges"].as_array().expect("a list").iter();
    let lock = |place: &str, at: usize| deadlock["edges"][at][place]["lock"].as_str().expect("text");
    edges.enumerate().map(|(at, _)| (lock("holds", at), lock("waits_for", at))).collect()
}

/// Everybody holds one of them, and then asks for the next one.
fn nested(
    place: &Place,
    binary: &ZoolockBinary,
    scratch: &std::path::Path,
    at: usize,
) -> tokio::process::Child {
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
    command.current_dir(scratch).stdin(Stdio::null()).spawn().expect("it starts")
}

const NAMES: [&str; 3] = ["one", "three", "two"];

on_both_arms!(
    three_owners_over_three_nested_locks_are_named_and_one_break_frees_the_others,
    |place| async move {
        let scratch = tempfile::tempdir().expect("a directory");
        let binary = ZoolockBinary::find().expect("the command has been built");
        let mut owners: Vec<_> =
            (0..NAMES.len()).map(|at| nested(&place, &binary, scratch.path(), at)).collect();
        let bystander = connect(&place).await;
        let _elsewhere = bystander.mutex("elsewhere").lock().await.expect("free");
        for name in NAMES {
            tree::assert_contenders(&place.addr(), &directory(&place, name), 2).await;
        }
        let began = Instant::now();
        let found = parsed(zoolock(&place, &["deadlocks", "--json"]).await);
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        assert_eq!(found["deadlocks"].as_array().map(Vec::len), Some(1), "{found}");
        let deadlock = &found["deadlocks"][0];
        let mut edges = circle(deadlock);
        let start = edges.iter().position(|(holds, _)| *holds == "/locks/one").expect("one of them");
        edges.rotate_left(start);
        let expected =
            [("/locks/one", "/locks/three"), ("/locks/three", "/locks/two"), ("/locks/two", "/locks/one")];
        assert_eq!(edges, expected);
        assert_eq!((&deadlock["owners"], &deadlock["behind"]), (&json!(3), &json!(0)));
        let why = parsed(zoolock(&place, &["why", "two", "--json"]).await);
        assert_eq!(
            (&why["end"], why["chain"].as_array().map(Vec::len)),
            (&json!("circle"), Some(4)),
            "{why}"
        );

        let (lock, token) = (&deadlock["to_break"]["lock"], &deadlock["to_break"]["token"]);
        let (lock, token) = (lock.as_str().expect("text"), token.as_str().expect("text"));
        let broken = zoolock(&place, &["break", lock, "--token", token]).await;
        assert_eq!(broken.code, Some(0), "{}", broken.notes);
        for (name, owner) in NAMES.iter().zip(&mut owners) {
            let ended = tokio::time::timeout(SOON, owner.wait()).await.expect("it goes on").expect("it ends");
            let expected = if lock == format!("/locks/{name}") { 70 } else { 0 };
            assert_eq!(ended.code(), Some(expected), "{name}, and {lock} was broken");
        }
        let found = parsed(zoolock(&place, &["deadlocks", "--json"]).await);
        assert_eq!(found["deadlocks"], json!([]));
    }
);

/// Holds the first, and then waits for the second.
fn takes_both(zl: &Zoolock, first: &'static str, second: &'static str) -> JoinHandle<Result<Guard, Error>> {
    let zl = zl.clone();
    tokio::spawn(async move {
        let first = zl.mutex(first).lock().await?;
        until_queued(&zl, "all", 3).await;
        let second = zl.mutex(second).lock().await?;
        first.release().await?;
        Ok(second)
    })
}

on_both_arms!(tasks_of_one_process_are_owners_of_their_own, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    // Of one client, and of two.
    let tasks = [takes_both(&zl, "a", "b"), takes_both(&zl, "b", "c"), takes_both(&other, "c", "a")];
    for name in ["a", "b", "c"] {
        until_queued(&zl, name, 1).await;
    }
    // Now all of them go on.
    let gate = [zl.rwlock("all"), other.rwlock("all"), zl.rwlock("all")];
    let mut readers = Vec::new();
    for lock in &gate {
        readers.push(lock.read().await.expect("free"));
    }
    for name in ["a", "b", "c"] {
        until_queued(&zl, name, 2).await;
    }
    let deadlocks = other.deadlocks(None).await.expect("a look");
    assert_eq!((deadlocks.len(), deadlocks[0].edges.len(), deadlocks[0].owners), (1, 3, 3));
    assert!(deadlocks[0].edges.iter().all(|edge| edge.owner_kind == "task"));
    let why = zl.why("b").await.expect("a look");
    assert_eq!((why.end, why.chain.len()), ("circle", 4));
    let graph = WaitGraph::of(&zl.locks(None).await.expect("a look"));
    assert_eq!(graph.owners.iter().filter(|party| party.stuck).count(), 3);
    let cut = deadlocks[0].to_break.as_ref().expect("all are ours");
    let token: zoolock::Ticket = cut.token.parse().expect("a token");
    zl.mutex(&cut.lock).break_lock(token).await.expect("it is there");
    let mut lost = 0;
    for task in tasks {
        match tokio::time::timeout(SOON, task).await.expect("it goes on").expect("no panic") {
            Ok(guard) => guard.release().await.expect("ours"),
            Err(Error::Lost { reason: LossReason::Broken, .. }) => lost += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(lost, 1, "one of them had lost its first lock");
});

on_both_arms!(what_belongs_to_one_owner_is_shown_as_such, |place| async move {
    let zl = connect(&place).await;
    let job = zoolock_tests::locks::settings().owner_id("job-7").expect("a name");
    let job = job.connect(&place.connect_string()).await.expect("a session");
    let owner = Owner::new();
    let first = zl.mutex("first").lock_as(&owner).await.expect("free");
    // Another task of the same owner.
    let second = tokio::spawn({
        let (zl, owner) = (zl.clone(), owner.clone());
        async move { zl.mutex("second").lock_as(&owner).await }
    });
    let second = second.await.expect("no panic").expect("free");
    let here = zl.mutex("here").lock().await.expect("free");
    let shared = zl.mutex("shared").linger(Duration::from_secs(60)).lock().await.expect("free");
    let theirs = job.mutex("theirs").lock().await.expect("free");
    let reader = zl.rwlock("written").upgradable_read().await.expect("free");
    // The guard goes to another task, which writes: as the reader that it is.
    let writer = tokio::spawn(reader.upgrade()).await.expect("no panic").expect("no other reader");
    let locks = zl.survey(None, 0).await.expect("a look");
    let holder = |name: &str| {
        let path = format!("/locks/{name}");
        let lock = locks.iter().find(|lock| lock.path == path).expect("it is there");
        let entries = lock.holder.iter().chain(&lock.beside);
        entries.map(|entry| (entry.owner.clone().expect("ours"), entry.owner_kind)).collect::<Vec<_>>()
    };
    assert_eq!(holder("first"), holder("second"));
    assert_eq!(holder("first")[0].1, "owner");
    assert_eq!(holder("theirs"), [("job-7".to_owned(), "owner")]);
    assert_eq!(holder("here")[0].1, "task");
    assert_eq!(holder("shared")[0].1, "task");
    assert_ne!(holder("here"), holder("shared"), "whose turn it is there is not known");
    assert_eq!(holder("written"), [holder("here"), holder("here")].concat());
    drop((first, second, here, shared, theirs, writer));
});

/// A node in a queue, of this client.
async fn joins(client: &Client, place: &Place, name: &str, prefix: &str) {
    let directory = directory(place, name);
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir(&directory, &options).await.expect("made");
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    client.create(&format!("{directory}/{prefix}"), b"10.0.0.7", &options).await.expect("made");
}

on_both_arms!(clients_of_other_makes_are_known_by_their_sessions_which_nobody_is_told, |place| async move {
    let one = tree::connect(&place.addr()).await.expect("a session");
    let two = tree::connect(&place.addr()).await.expect("a session");
    let prefix = format!("{UUID}-lock-");
    for (client, name) in [(&one, "left"), (&two, "right"), (&one, "right"), (&two, "left")] {
        joins(client, &place, name, &prefix).await;
    }
    let lock = shown(&place, "left").await;
    assert_eq!(holders(&lock, "owner_kind"), ["session"]);
    assert_eq!(waiters(&lock, "owner_kind"), ["session"]);
    assert_ne!(holders(&lock, "owner"), waiters(&lock, "owner"));
    let found = parsed(zoolock(&place, &["deadlocks", "--json"]).await);
    let deadlocks = found["deadlocks"].as_array().expect("a list");
    assert_eq!(deadlocks.len(), 1, "{found}");
    assert_eq!(circle(&deadlocks[0]).len(), 2);
    assert_eq!(deadlocks[0]["edges"][0]["owner_kind"], "session");
    let told = zoolock(&place, &["deadlocks"]).await;
    assert!(told.notes.contains("only the session is known"), "{}", told.notes);

    let sessions = [one.session_id().0, two.session_id().0];
    for arguments in [&["ls"][..], &["show", "left"], &["why", "left"], &["deadlocks"]] {
        for json in [&[][..], &["--json"]] {
            let said = zoolock(&place, &[arguments, json].concat()).await;
            assert_eq!(said.code, Some(0), "{}", said.notes);
            let said = said.output + &said.notes;
            for session in sessions {
                for id in [format!("{session}"), format!("{session:x}"), format!("{session:016x}")] {
                    assert!(!said.contains(&id), "the session {id} in {said}");
                }
            }
        }
    }
});

on_both_arms!(curators_and_kazoos_clients_are_known_by_their_sessions, |place| async move {
    if !curator_or_skip(&format!("curators_and_kazoos_clients_are_known_by_their_sessions::{}", place.arm()))
    {
        return;
    }
    let mut curator = Make::curator(&place);
    curator.told("mutex /locks/java").await;
    curator.says("holds /locks/java").await;
    let zl = connect(&place).await;
    let waiting = tokio::spawn({
        let zl = zl.clone();
        async move { zl.mutex("java").lock().await.map(drop) }
    });
    tree::assert_contenders(&place.addr(), &directory(&place, "java"), 2).await;
    let lock = shown(&place, "java").await;
    assert_eq!(holders(&lock, "owner_kind"), ["session"]);
    assert_eq!(waiters(&lock, "owner_kind"), ["task"]);
    assert_eq!(parsed(zoolock(&place, &["why", "java", "--json"]).await)["end"], "working");
    waiting.abort();
    if kazoo().or_skip(&format!("curators_and_kazoos_clients_are_known_by_their_sessions::{}", place.arm())) {
        let mut python = Make::kazoo(&place);
        python.told("lock /locks/python job-7").await;
        python.says("job-7 holds /locks/python").await;
        let lock = shown(&place, "python").await;
        assert_eq!(holders(&lock, "owner_kind"), ["session"]);
    }
});

on_both_arms!(a_survey_says_the_same_of_holders_and_of_the_next_in_turn, |place| async move {
    let zl = connect(&place).await;
    let everybody = Queue::new(&place, "deep/er/everybody").await;
    for prefix in ["sh", "__READ__", "lock-", "upgr-", "lock-", "__READ__"] {
        everybody.join(prefix, b"").await;
    }
    let reader = zl.rwlock("deep/upgraded").upgradable_read().await.expect("free");
    let _writer = reader.upgrade().await.expect("no other reader");
    let waiting = |name: &'static str| {
        let zl = zl.clone();
        tokio::spawn(async move { zl.rwlock(name).read().await.map(drop) })
    };
    let mut tasks = vec![waiting("deep/upgraded"), waiting("deep/upgraded")];
    let semaphore = zl.semaphore("semaphores/native", 3);
    let _held = semaphore.acquire_many(2).await.expect("free");
    for _ in 0..3 {
        let semaphore = semaphore.clone();
        tasks.push(tokio::spawn(async move { semaphore.acquire_many(2).await.map(drop) }));
    }
    let looked = eventually("all stand there", SOON, async || {
        let locks = zl.locks(None).await.map_err(|error| Failure::new(error.to_string()))?;
        let contenders = |path: &str| {
            let lock = locks.iter().find(|lock| lock.path == path);
            lock.map_or(0, |lock| lock.beside.len() + 1 + lock.waiters.len())
        };
        let found = [contenders("/locks/deep/upgraded"), contenders("/locks/semaphores/native")];
        if found == [4, 4] { Ok(()) } else { Err(Failure::new(format!("{found:?}"))) }
    });
    looked.await.expect("they queue");
    let all = zl.locks(None).await.expect("a look");
    let paths: Vec<_> = all.iter().map(|lock| lock.path.as_str()).collect();
    assert_eq!(paths, ["/locks/deep/er/everybody", "/locks/deep/upgraded", "/locks/semaphores/native",]);
    for count in 0..5 {
        let some = zl.survey(None, count).await.expect("a look");
        for (all, some) in all.iter().zip(&some) {
            let (all, some) = (json!(all), json!(some));
            for part in ["path", "holder", "beside", "waiting", "permits", "clash", "unread"] {
                assert_eq!(all[part], some[part], "{part} of {} with {count}", all["path"]);
            }
            let waiters = all["waiters"].as_array().expect("a list");
            assert_eq!(some["waiters"], json!(waiters[..count.min(waiters.len())]), "{}", all["path"]);
            assert_eq!(all["waiting"], json!(waiters.len()));
        }
        assert_eq!(all.len(), some.len());
    }
    tasks.iter().for_each(JoinHandle::abort);
});

fn many() -> usize {
    if std::env::var_os("ZOOLOCK_LONG").is_some() { 100_000 } else { 1_000 }
}

on_both_arms!(many_locks_are_read_a_few_at_a_time, |place| async move {
    let client = tree::connect(&place.addr()).await.expect("a session");
    let bulk = directory(&place, "bulk");
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir(&bulk, &options).await.expect("made");
    let numbers: Vec<usize> = (0..many()).collect();
    for some in numbers.chunks(500) {
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let paths: Vec<_> = some.iter().map(|number| format!("{bulk}/{number:06}")).collect();
        let made = paths.iter().map(|path| client.create(path, b"", &options));
        try_join_all(made).await.expect("made");
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let nodes: Vec<_> = paths.iter().map(|path| format!("{path}/lock-")).collect();
        let made = nodes.iter().flat_map(|node| [node; 3]).map(|node| client.create(node, b"", &options));
        try_join_all(made).await.expect("made");
    }
    let proxy = Proxy::start(&place.addr()).await.expect("a proxy");
    let zl = connect_through(&place, &proxy).await;
    let before = proxy.counts();
    let reads = [opcode::GET_DATA, opcode::GET_CHILDREN2];
    let (mut most, began) = (0, Instant::now());
    let survey = zl.survey(Some("bulk"), 1);
    tokio::pin!(survey);
    let locks = loop {
        tokio::select! {
            biased;
            locks = &mut survey => break locks.expect("a look"),
            () = tokio::task::yield_now() => {
                let counts = proxy.counts();
                let under_way = reads.map(|read| counts.requests(read) - counts.replies(read));
                most = most.max(under_way.iter().sum::<u64>());
            }
        }
    };
    let took = began.elapsed();
    let counts = proxy.counts().since(&before);
    let requests: u64 = reads.iter().map(|read| counts.requests(*read)).sum();
    println!("{} locks in {took:?}, {requests} requests, at most {most} at a time", locks.len());
    assert_eq!(locks.len(), many());
    assert!(locks.iter().all(|lock| lock.holder.is_some() && lock.waiters.len() == 1 && lock.waiting == 2));
    assert!(locks.is_sorted_by_key(|lock| &lock.path));
    // Data and children of each directory, the holder and the next in turn.
    assert_eq!(requests, 4 * many() as u64 + 2);
    assert!((2..=64).contains(&most), "{most} at a time");
});
