//! The requests of twelve scenarios, compared with a recording.
//!
//! A change of the structure of the library must not change what it sends. Each scenario waits for the replies to each of its
//! steps, so its requests have one order. No scenario loses the reply to a create, because the search for the znode then runs
//! beside the search for strays. Requests whose time is not the scenario's are left out: pings, and renewals of the
//! lease. With `ZOOLOCK_RECORD=1` a test writes its recording, `recorded/NAME.txt`, instead of comparing it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinHandle;
use zoolock::{AnyGuard, Error, Guard, Zoolock};
use zoolock_tests::locks::{
    await_guard, connect, connect_through, lock_and_release, lock_in_background, until_queued,
};
use zoolock_tests::{Place, Proxy, on_both_servers, opcode};
use zoolock_wire::{CreateRequest, Reader, Request, RequestHeader};

/// A client whose requests are recorded, and a client that competes with it.
struct Scene {
    chroot: String,
    proxy: Proxy,
    recorded: Zoolock,
    other: Zoolock,
}

impl Scene {
    async fn new(place: &Place) -> Scene {
        let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
        let (recorded, other) = (connect_through(place, &proxy).await, connect(place).await);
        let chroot = place.chroot().to_owned();
        proxy.record_requests();
        Scene { chroot, proxy, recorded, other }
    }

    /// Waits until the server has answered as many requests with this opcode, since the scene began.
    async fn until(&self, opcode: i32, replies: u64) {
        self.proxy.until("replies", |stats| stats.total.replies(opcode) >= replies).await;
    }

    /// Releases the lock after the server has answered as many `getData`, the last of which watches the holder's znode.
    async fn release(&self, guard: impl Into<AnyGuard>, reads: u64) {
        self.until(opcode::GET_DATA, reads).await;
        guard.into().release().await.expect("release succeeds");
    }

    /// Compares the requests so far with the recording.
    fn compare(&self, name: &str) {
        let path =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/library/recorded/{name}.txt"));
        let sent = self.sent();
        if std::env::var_os("ZOOLOCK_RECORD").is_some() {
            std::fs::write(&path, &sent).expect("recording written");
        }
        let recorded = std::fs::read_to_string(&path).expect("recording read");
        assert_eq!(sent, recorded, "{}: the requests have changed", path.display());
    }

    /// Returns a line for each recorded request that is neither a ping nor a renewal.
    fn sent(&self) -> String {
        let mut names = Names::default();
        let mut lines = String::new();
        for frame in self.proxy.recorded_requests() {
            let mut reader = Reader::new(&frame);
            let header = RequestHeader::decode(&mut reader).expect("header decoded");
            let mut request = Request::decode(header.op, &mut reader).expect("request decoded");
            match &request {
                Request::Ping => continue,
                Request::Sync { path } if path == "/" => continue,
                Request::Multi(operations) if matches!(operations[0], Request::Check { .. }) => continue,
                _ => {}
            }
            leave_out_process(&mut request);
            let text = format!("{request:?}").replace(&self.chroot, "");
            writeln!(lines, "{}", names.replace(&text)).expect("a string accepts text");
        }
        lines
    }
}

/// Leaves out the fields of a contender's data that tell of its process.
fn leave_out_process(request: &mut Request) {
    match request {
        Request::Multi(operations) => operations.iter_mut().for_each(leave_out_process),
        Request::Create(CreateRequest { data: Some(data), .. })
        | Request::SetData { data: Some(data), .. } => {
            if let Ok(Value::Object(mut fields)) = serde_json::from_slice(data) {
                for field in ["host", "pid", "program", "since_ms", "task"] {
                    fields.remove(field);
                }
                *data = Value::Object(fields).to_string().into();
            }
        }
        _ => {}
    }
}

/// The names of what differs from run to run: identifiers and zxids, in the order in which they appeared.
#[derive(Default)]
struct Names(BTreeMap<String, usize>);

impl Names {
    /// Replaces each hexadecimal number that follows `0x` or has more than eight digits. The number of a sequential znode
    /// stays.
    fn replace(&mut self, text: &str) -> String {
        let mut replaced = String::new();
        for piece in text.split_inclusive(|character: char| !character.is_ascii_hexdigit()) {
            let word = piece.trim_end_matches(|character: char| !character.is_ascii_hexdigit());
            let varies = replaced.ends_with("0x") || word.len() > 8 && !word.starts_with("0000");
            if !varies {
                replaced.push_str(piece);
                continue;
            }
            let next = self.0.len() + 1;
            let number = *self.0.entry(word.to_owned()).or_insert(next);
            write!(replaced, "<{number}>{}", &piece[word.len()..]).expect("a string accepts text");
        }
        replaced
    }
}

macro_rules! recorded {
    ($name:ident, |$scene:ident| $body:block) => {
        on_both_servers!($name, |place| async move {
            let $scene = Scene::new(&place).await;
            $body
            $scene.compare(stringify!($name));
        });
    };
}

/// Queues the recorded client behind a holder, and waits until the deletion of the holder's znode grants it the lock.
async fn armed(scene: &Scene) -> (Guard, JoinHandle<Result<Guard, Error>>) {
    let held = scene.other.mutex("a").lock().await.expect("lock acquired");
    let waiting = lock_in_background(&scene.recorded.mutex("a"));
    scene.until(opcode::GET_DATA, 3).await;
    (held, waiting)
}

/// Acquires and releases locks with the other client, so that their directories exist.
async fn make_directories(scene: &Scene, names: &[&str]) {
    for name in names {
        lock_and_release(&scene.other.mutex(name)).await;
    }
}

recorded!(free_lock_in_a_new_directory, |scene| {
    let guard = scene.recorded.mutex("a").lock().await.expect("lock acquired");
    scene.release(guard, 3).await;
});

recorded!(free_lock, |scene| {
    make_directories(&scene, &["a"]).await;
    let guard = scene.recorded.mutex("a").lock().await.expect("lock acquired");
    scene.release(guard, 2).await;
});

recorded!(waiter_behind_the_holder, |scene| {
    let (held, waiting) = armed(&scene).await;
    held.release().await.expect("release succeeds");
    scene.release(await_guard(waiting).await, 4).await;
});

recorded!(third_in_the_queue, |scene| {
    let first = scene.other.mutex("a").lock().await.expect("lock acquired");
    let second = lock_in_background(&scene.other.mutex("a"));
    until_queued(&scene.other, "a", 2).await;
    let third = lock_in_background(&scene.recorded.mutex("a"));
    scene.until(opcode::GET_DATA, 2).await;
    first.release().await.expect("release succeeds");
    let second = await_guard(second).await;
    scene.until(opcode::GET_DATA, 5).await;
    second.release().await.expect("release succeeds");
    scene.release(await_guard(third).await, 6).await;
});

recorded!(busy_lock, |scene| {
    let held = scene.other.mutex("a").lock().await.expect("lock acquired");
    assert!(scene.recorded.mutex("a").try_lock().await.expect("attempt succeeds").is_none());
    scene.until(opcode::DELETE, 1).await;
    held.release().await.expect("release succeeds");
});

recorded!(waiter_that_gives_up, |scene| {
    let (held, waiting) = armed(&scene).await;
    // A delete within five milliseconds after the read of the own znode needs no check.
    tokio::time::sleep(Duration::from_millis(50)).await;
    waiting.abort();
    scene.until(opcode::DELETE, 1).await;
    held.release().await.expect("release succeeds");
});

recorded!(lost_reply_to_the_release, |scene| {
    make_directories(&scene, &["a"]).await;
    let guard = scene.recorded.mutex("a").lock().await.expect("lock acquired");
    scene.proxy.drop_next_reply(opcode::MULTI);
    scene.release(guard, 2).await;
});

recorded!(waiter_that_reconnects, |scene| {
    let (held, waiting) = armed(&scene).await;
    scene.proxy.close_connections().await;
    scene.until(opcode::GET_DATA, 4).await;
    held.release().await.expect("release succeeds");
    scene.release(await_guard(waiting).await, 6).await;
});

recorded!(writer_that_downgrades, |scene| {
    make_directories(&scene, &["a"]).await;
    let writer = scene.recorded.rwlock("a").write().await.expect("lock acquired");
    scene.until(opcode::GET_DATA, 2).await;
    let reader = writer.downgrade().await.expect("downgrade succeeds");
    scene.release(reader, 5).await;
});

recorded!(semaphore, |scene| {
    let held = scene.other.semaphore("a", 1).acquire(1).await.expect("permit acquired");
    let semaphore = scene.recorded.semaphore("a", 1);
    let waiting = tokio::spawn(async move { semaphore.acquire(1).await });
    scene.until(opcode::GET_DATA, 3).await;
    held.release().await.expect("release succeeds");
    scene.release(await_guard(waiting).await, 5).await;
});

recorded!(two_locks, |scene| {
    make_directories(&scene, &["a", "b"]).await;
    let guard = scene.recorded.multi(["a", "b"]).lock().await.expect("locks acquired");
    scene.release(guard, 4).await;
});

recorded!(crash_detection, |scene| {
    let guard = scene.recorded.mutex("a").crash_detection().lock().await.expect("lock acquired");
    scene.release(guard, 3).await;
});
