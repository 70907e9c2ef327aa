//! Whatever a client was told, by a reply or by an event, is so after a crash: over the wire, on a disk that is slow,
//! loses what it may, and fails at a random moment.

#[path = "../common/mod.rs"]
mod common;

mod client;
mod disk;
mod told;

use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;
use zoolock_server::log::sim::{Fault, Random, SimDisk};
use zoolock_server::log::{Log, Options};
use zoolock_server::wire::{ConnectRequest, Reply, Request};
use zoolock_server::{Limits, ServerHandle};

use self::client::{Client, number, pair, single};
use self::common::{Raw, builder, connect_request, create, exists, get, set, within};
use self::disk::Slow;
use self::told::{Counter, Told};

const CLIENTS: usize = 4;
/// How many servers one disk sees.
const ROUNDS: usize = 3;
/// How many disks, at the same time.
const WORLDS: u64 = 48;

fn options() -> Options {
    Options { segment_size: 8000, allocate: 4096, snapshot_after: 16_000 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_were_told_is_so_after_a_crash() {
    let mut worlds = JoinSet::new();
    for seed in 0..WORLDS {
        worlds.spawn(async move {
            let world = tokio::spawn(world(seed)).await;
            assert!(world.is_ok(), "with the seed {seed}");
        });
    }
    while let Some(world) = worlds.join_next().await {
        world.expect("no world found a fault");
    }
}

async fn world(seed: u64) {
    let mut random = Random(seed);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut disk = SimDisk::new(random.number());
    let told = Arc::new(Mutex::new(Told::default()));
    let mut clients: Vec<Client> =
        (0..CLIENTS).map(|id| Client::new(id, random.number(), Arc::clone(&told))).collect();
    for round in 0..=ROUNDS {
        let came_back = {
            let (_, recovered) = Log::open(disk.copy().port(), options()).expect("a crash damages nothing");
            recovered.state.zxid.get()
        };
        let mut server = start(&disk, dir.path(), random.number()).await;
        let mut so_far = std::mem::take(&mut *told.lock().expect("no client has found a fault"));
        if round == 0 {
            furnish(&server, &mut so_far).await;
        } else {
            let told = so_far.change;
            assert!(came_back >= told, "{came_back:#x} came back, {told:#x} was told");
            check(&server, &mut so_far).await;
        }
        *told.lock().expect("no client has found a fault") = so_far;
        if round < ROUNDS {
            let fault = if random.one_in(3) { Fault::Error } else { Fault::PowerCut };
            disk.fail_at(disk.steps() + random.below(400) as u64, fault);
            let mut running = JoinSet::new();
            for client in clients.drain(..) {
                running.spawn(client.run(server.local_addr()));
            }
            while let Some(client) = running.join_next().await {
                clients.push(client.expect("it found no fault"));
            }
        }
        // At the latest; what the server still has to say to the disk is not heard.
        disk.fail_at(disk.steps(), Fault::PowerCut);
        within(server.stop()).await;
        drop(server);
        disk = disk.after_crash(random.number());
    }
}

async fn start(disk: &SimDisk, dir: &Path, seed: u64) -> ServerHandle {
    let builder = builder().data_dir(dir).limits(Limits {
        disk: Some(Slow::port(disk.port(), seed)),
        log: options(),
        ..Limits::default()
    });
    within(builder.start()).await.expect("a free port, and what a crash leaves is sound")
}

async fn furnish(server: &ServerHandle, told: &mut Told) {
    let mut raw = Raw::connect(server.local_addr()).await;
    for path in ["/s", "/e"] {
        raw.ok(create(path, 0)).await;
        told.exists(path, Some(0));
    }
    for path in (0..CLIENTS).flat_map(|client| pair(client).into_iter().chain([single(client)])) {
        raw.ok(create(&path, 0)).await;
        raw.ok(set(&path, "0", -1)).await;
        told.counters.insert(path, Counter::default());
    }
}

async fn check(server: &ServerHandle, told: &mut Told) {
    let mut raw = Raw::connect(server.local_addr()).await;
    let (header, ..) = raw.call(Request::Ping).await;
    assert!(header.zxid > told.zxid, "{:#x} comes after {:#x}", header.zxid, told.zxid);
    for (path, counter) in &mut told.counters {
        let Reply::Data { data, .. } = raw.ok(get(path, false)).await else { panic!("data") };
        let value = number(data.as_deref());
        let Counter { told, sent } = *counter;
        assert!((told..=sent).contains(&value), "{path} is {value}, {told} was told and {sent} asked for");
        *counter = Counter { told: value, sent: value };
    }
    for [a, b] in (0..CLIENTS).map(pair) {
        assert_eq!(told.counters[&a].told, told.counters[&b].told, "half of a multi");
    }
    for (path, owner) in told.present() {
        let (header, reply, _) = raw.call(exists(path, false)).await;
        let Reply::Stat(stat) = reply else { panic!("{path} was there: error {}", header.err) };
        assert!(owner.is_none_or(|owner| owner == stat.ephemeral_owner), "{path}");
    }
    for path in &told.gone {
        assert_eq!(raw.err(exists(path, false)).await, -101, "{path} was gone");
    }
    for (session, password) in &told.closed {
        let request = ConnectRequest { session: *session, password: password.clone(), ..connect_request() };
        let raw = Raw::connect_with(server.local_addr(), &request).await.expect("an answer");
        assert_eq!(raw.granted.session, 0, "a session was closed");
    }
}
