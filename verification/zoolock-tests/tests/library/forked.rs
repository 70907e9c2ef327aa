//! A forked child of a process that holds locks, as in a daemon or a pool of worker processes.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use fork::{Fork, fork};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use zoolock::{Connection, Deadline, Error, Guard, LossReason, Owner, Wait as _, Zoolock};
use zoolock_client::{
    Client, End, Handler, Host, Os, RequestError, RequestNumber, SessionConfig, SessionState,
};
use zoolock_tests::locks::{settings, short_session_settings};
use zoolock_tests::wait::finish_in_time;
use zoolock_tests::{Proxy, on_both_servers, opcode};
use zoolock_wire::{Acl, Code, CreateRequest, Reply, Request, WatchEvent, perms};

/// Time limit of each step, much longer than a step takes.
const SOON: Duration = Duration::from_secs(60);

/// Runs `child` in a forked process. Returns the exit code, or `None` if the process does not end in time.
pub(crate) fn in_child(child: impl FnOnce() -> i32) -> Option<i32> {
    match fork().expect("a process is forked") {
        // A panic must not unwind into the child's copy of the test harness.
        Fork::Child => std::process::exit(catch_unwind(AssertUnwindSafe(child)).unwrap_or(99)),
        Fork::Parent(pid) => {
            let pid = Pid::from_raw(pid).expect("valid process id");
            let deadline = Instant::now() + SOON;
            loop {
                let ended = waitpid(Some(pid), WaitOptions::NOHANG).expect("the child exists");
                if let Some((_, status)) = ended {
                    return status.exit_status();
                }
                if Instant::now() > deadline {
                    kill_process(pid, Signal::KILL).expect("the child exists");
                    let _ = waitpid(Some(pid), WaitOptions::empty());
                    return None;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Returns the number of the first check that fails, counted from 1, or 0 if all succeed.
fn failed(checks: &[bool]) -> i32 {
    checks.iter().position(|ok| !ok).map_or(0, |at| i32::try_from(at).expect("few checks") + 1)
}

fn is_invalid<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Forked { .. }))
}

/// Uses the child's copies of the parent's client and guards, and checks that every use fails. Then
/// uses a client of the child's own.
///
/// Returns the number of the check that failed, or 0.
fn use_all(zl: &Zoolock, address: &str, guard: Guard, dropped: Guard) -> i32 {
    let mutex = zl.mutex("other");
    let (told, tells) = std::sync::mpsc::channel();
    guard.lease().on_lost(move |reason| told.send(reason).expect("the test waits"));
    let owner = Owner::new();
    let code = failed(&[
        tells.recv_timeout(SOON) == Ok(LossReason::Forked),
        is_invalid(&mutex.lock_as(&owner).wait()),
        is_invalid(&mutex.lock_as_timeout(&owner, SOON).wait()),
        guard.connection() == Connection::Ended,
        !guard.is_valid(),
        guard.valid_until().has_passed(),
        guard.loss() == Some(LossReason::Forked),
        guard.lost().wait() == LossReason::Forked,
        !guard.is_revoked(),
        is_invalid(&mutex.lock().wait()),
        is_invalid(&mutex.try_lock().wait()),
        is_invalid(&mutex.lock_timeout(SOON).wait()),
        is_invalid(&mutex.clone().shared_hold(SOON).lock().wait()),
        is_invalid(&zl.admin().snapshot("x").wait()),
        is_invalid(&zl.admin().locks(None, usize::MAX).wait()),
        is_invalid(&zl.rwlock("rw").read().wait()),
        is_invalid(&zl.semaphore("permits", 2).acquire(1).wait()),
        is_invalid(&zl.multi(["a", "b"]).lock().wait()),
        matches!(guard.release().wait(), Err(Error::Lost { reason: LossReason::Forked, .. })),
    ]);
    drop(dropped);
    zl.close().wait();
    if code != 0 {
        return code;
    }
    let Ok(own) = short_session_settings().connect(address).wait() else { return 90 };
    let Ok(guard) = own.mutex("own").lock().wait() else { return 91 };
    if guard.lost().wait_timeout(Duration::from_millis(50)).is_some() {
        return 92;
    }
    let released = guard.release().wait();
    own.close().wait();
    if released.is_err() { 93 } else { 0 }
}

on_both_servers!(forked_process_neither_holds_nor_releases, |place| async move {
    let address = place.connect_string();
    let ended = tokio::task::spawn_blocking(move || {
        let zl = settings().connect(&address).wait().expect("session starts");
        let guard = zl.mutex("kept").lock().wait().expect("lock acquired");
        let other = zl.mutex("dropped").lock().wait().expect("lock acquired");
        let before: Deadline = guard.valid_until();
        // The fork copies the client and the guards: the child uses its copy, and the parent keeps its own.
        let (child_zl, child_address) = (zl.clone(), address.clone());
        let mut kept = Some((guard, other));
        let code = in_child(|| {
            let (guard, other) = kept.take().expect("the closure runs once");
            let code = use_all(&child_zl, &child_address, guard, other);
            drop(child_zl);
            code
        });
        assert_eq!(code, Some(0), "the number of the check that failed in the child");
        let (guard, other) = kept.expect("only the child ran the closure");
        assert!(guard.is_valid() && other.is_valid(), "{:?} {:?}", guard.loss(), other.loss());
        let second = settings().connect(&address).wait().expect("session starts");
        assert!(
            second.mutex("kept").try_lock().wait().expect("attempt succeeds").is_none(),
            "the znode is gone"
        );
        assert!(
            second.mutex("dropped").try_lock().wait().expect("attempt succeeds").is_none(),
            "the znode is gone"
        );
        // The connection still works in the parent.
        let deadline = Instant::now() + SOON;
        while guard.valid_until() <= before {
            assert!(Instant::now() < deadline, "the lease is not renewed");
            std::thread::sleep(Duration::from_millis(20));
        }
        other.release().wait().expect("release succeeds");
        guard.release().wait().expect("release succeeds");
        second.close().wait();
        zl.close().wait();
    });
    ended.await.expect("task does not panic");
});

#[derive(Debug, PartialEq)]
enum Happened {
    Reply(RequestNumber, Result<Reply, RequestError>),
    State(SessionState),
}

/// A handler that passes replies and states on to the test.
struct Recorder(UnboundedSender<Happened>);

impl Handler for Recorder {
    fn handle_reply(
        &mut self,
        request: RequestNumber,
        _: zoolock_client::Instant,
        result: Result<Reply, RequestError>,
    ) {
        let _ = self.0.send(Happened::Reply(request, result));
    }

    fn handle_event(&mut self, _: WatchEvent) {}

    fn handle_state_change(&mut self, state: SessionState) {
        let _ = self.0.send(Happened::State(state));
    }
}

/// A session of `zoolock-client`, without the lock library. The session makes progress only during
/// calls of these methods.
struct Session {
    runtime: Runtime,
    client: Client<Recorder>,
    happened: UnboundedReceiver<Happened>,
}

impl Session {
    fn start(addr: SocketAddr) -> Session {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("runtime starts");
        let (sender, happened) = unbounded_channel();
        let servers = vec![Host::Tcp { name: addr.ip().to_string(), port: addr.port() }];
        let platform = Os::with_runtime(runtime.handle());
        let client = Client::start(SessionConfig::new(SOON), servers, Recorder(sender), platform);
        let mut session = Session { runtime, client, happened };
        while !matches!(session.next(), Happened::State(SessionState::Connected { .. })) {}
        session
    }

    fn next(&mut self) -> Happened {
        self.runtime.block_on(finish_in_time(self.happened.recv())).expect("the session continues")
    }

    fn call(&mut self, request: &Request) -> Result<Reply, RequestError> {
        let id = self.client.request(request)?;
        loop {
            match self.next() {
                Happened::Reply(replied, result) if replied == id => return result,
                Happened::State(state) => panic!("the session is {state:?}"),
                Happened::Reply(..) => {}
            }
        }
    }

    fn close(mut self) {
        self.client.close();
        while self.next() != Happened::State(SessionState::Ended(End::Closed)) {}
    }

    /// Ends the child's copy of the session, after an attempt to send `request` if there is one.
    ///
    /// Returns the number of the check that failed, or 0.
    fn end_in_fork(self, request: Option<&Request>) -> i32 {
        let Session { runtime, client, mut happened } = self;
        let code = request.map_or(0, |request| {
            failed(&[
                client.request(request) == Err(RequestError::SessionEnded),
                happened.try_recv() == Ok(Happened::State(SessionState::Ended(End::Abandoned))),
            ])
        });
        drop(client);
        // If the drop has woken the task of the session, the task runs here.
        runtime.block_on(async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        });
        drop(runtime);
        code
    }
}

on_both_servers!(forked_session_writes_nothing, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let path = format!("{}/forked", place.chroot());
    let ended = tokio::task::spawn_blocking(move || {
        let acl = vec![Acl::anyone(perms::ALL)];
        let create =
            CreateRequest { op: opcode::CREATE2, path: path.clone(), data: None, acl, flags: 0, ttl: -1 };
        let create = Request::Create(create);
        for request in [Some(&create), None] {
            let session = Session::start(proxy.addr().parse().expect("valid address"));
            let before = proxy.counts();
            let mut kept = Some(session);
            let code = in_child(|| kept.take().expect("the closure runs once").end_in_fork(request));
            assert_eq!(code, Some(0), "the number of the check that failed in the child");
            // The session still works in the parent.
            let mut session = kept.expect("only the child ran the closure");
            let znode = session.call(&Request::Exists { path: path.clone(), watch: false });
            assert_eq!(znode, Err(RequestError::Refused(Code::NoNode.number())));
            let sent = proxy.counts().since(&before);
            assert_eq!(sent.all_requests(), 1 + sent.requests(opcode::PING), "{sent:?}");
            session.close();
        }
    });
    ended.await.expect("task does not panic");
});
