//! Random calls through `zoolock-client` (our client) and through the crate `zookeeper-client`, on
//! one server. Both clients must get the same answers, and the same events between two reconnects.

use std::fmt::Debug;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use tokio::time::timeout;
use zookeeper_client::{Acls, CreateMode, EventType, MultiWriteError, OneshotWatcher};
use zoolock_client::{Host, Notice, Notices, Os, RequestSession, SessionConfig, SessionState};
use zoolock_tests::{Place, Proxy, on_both_servers};
use zoolock_wire::{Acl, Code, CreateRequest, EventKind, OpResult, Reply, Request, Stat, op, perms};

/// Time limit for a reconnect, generous for a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The session timeout. It is longer than any pause of a slow machine: an expired session would lose its ephemeral znodes.
const SESSION: Duration = Duration::from_secs(30);

/// Maximum number of calls in flight.
const MOST_IN_FLIGHT: usize = 8;

/// Number of steps between two reconnects.
const STEPS_PER_CONNECTION: usize = 100;

/// A call, with a path below the root of the client.
#[derive(Clone, Debug)]
enum Call {
    Create {
        path: String,
        data: Vec<u8>,
        mode: Mode,
    },
    Delete {
        path: String,
        version: i32,
    },
    Write {
        path: String,
        data: Vec<u8>,
        version: i32,
    },
    Check {
        path: String,
        version: i32,
    },
    Read {
        path: String,
        watch: bool,
    },
    Exists {
        path: String,
        watch: bool,
    },
    List {
        path: String,
        watch: bool,
    },
    /// A transaction of creates, deletes, writes and checks.
    Multi(Vec<Call>),
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Persistent,
    Sequential,
    Ephemeral,
    EphemeralSequential,
}

/// An answer without its zxids, times and owners, which differ between two roots and two sessions.
#[derive(Debug, PartialEq)]
enum Answer {
    Done,
    /// The name of the created znode, and its stat.
    Created(String, Facts),
    Data(Vec<u8>, Facts),
    Found(Option<Facts>),
    Children(Vec<String>, Facts),
    /// The number of results of a multi.
    Committed(usize),
    /// The name of the error, and for a multi the index of the call that was refused.
    Refused(String, usize),
}

/// The part of a stat that both clients must agree on.
#[derive(Debug, PartialEq)]
struct Facts {
    versions: [i32; 3],
    data_length: i32,
    children: i32,
    is_ephemeral: bool,
}

/// The kind and the path of a watch event.
type Fired = (&'static str, String);

/// Returns a call for one of few paths, or for a sequential znode that was created before.
fn random_call(rng: &mut Rng, sequential: &[String], is_in_multi: bool) -> Call {
    let path = match rng.choice(sequential).filter(|_| rng.u8(..4) == 0) {
        Some(path) => path.clone(),
        None => random_path(rng),
    };
    let version = if rng.u8(..3) == 0 { rng.i32(0..3) } else { -1 };
    let watch = rng.u8(..3) == 0;
    let data = vec![b'x'; rng.usize(..40)];
    let modes =
        [Mode::Persistent, Mode::Persistent, Mode::Ephemeral, Mode::Sequential, Mode::EphemeralSequential];
    match rng.u8(..if is_in_multi { 7 } else { 14 }) {
        0..3 => Call::Create { data, mode: modes[rng.usize(..modes.len())], path },
        3 | 4 => Call::Delete { path, version },
        5 => Call::Write { data, path, version },
        6 if is_in_multi => Call::Check { path, version },
        6 => Call::Multi((0..rng.usize(1..4)).map(|_| random_call(rng, sequential, true)).collect()),
        7..10 => Call::Read { path, watch },
        10..12 => Call::Exists { path, watch },
        _ => Call::List { path, watch },
    }
}

/// Returns one of few paths, of one to three parts.
fn random_path(rng: &mut Rng) -> String {
    (0..rng.usize(1..4)).map(|_| format!("/{}", ["a", "b", "c"][rng.usize(..3)])).collect()
}

// ---- our client ----

struct Ours {
    requests: RequestSession,
    notices: Notices,
    root: String,
}

impl Ours {
    async fn open(place: &Place, proxy: &Proxy) -> Ours {
        let address: std::net::SocketAddr = proxy.addr().parse().expect("an address");
        let host = Host::Tcp { name: address.ip().to_string(), port: address.port() };
        let platform = Os::with_runtime(&tokio::runtime::Handle::current());
        let requests =
            RequestSession::open(SessionConfig::new(SESSION), vec![host], platform).await.expect("a session");
        let notices = requests.notices();
        let ours = Ours { requests, notices, root: format!("{}/ours", place.chroot()) };
        let root = Call::Create { path: String::new(), data: Vec::new(), mode: Mode::Persistent };
        assert!(matches!(ours.call(&root).await, Answer::Created(..)));
        ours
    }

    fn request(&self, call: &Call) -> Request {
        let at = |path: &String| format!("{}{path}", self.root);
        match call {
            Call::Create { path, data, mode } => Request::Create(CreateRequest {
                op: op::CREATE2,
                path: at(path),
                data: Some(data.clone().into()),
                acl: vec![Acl::anyone(perms::ALL)],
                flags: match mode {
                    Mode::Persistent => 0,
                    Mode::Ephemeral => 1,
                    Mode::Sequential => 2,
                    Mode::EphemeralSequential => 3,
                },
                ttl: 0,
            }),
            Call::Delete { path, version } => Request::Delete { path: at(path), version: *version },
            Call::Write { path, data, version } => {
                Request::SetData { path: at(path), data: Some(data.clone().into()), version: *version }
            }
            Call::Check { path, version } => Request::Check { path: at(path), version: *version },
            Call::Read { path, watch } => Request::GetData { path: at(path), watch: *watch },
            Call::Exists { path, watch } => Request::Exists { path: at(path), watch: *watch },
            Call::List { path, watch } => Request::GetChildren2 { path: at(path), watch: *watch },
            Call::Multi(calls) => Request::Multi(calls.iter().map(|call| self.request(call)).collect()),
        }
    }

    async fn call(&self, call: &Call) -> Answer {
        match self.requests.call(&self.request(call)).await {
            Ok(Reply::Empty) => Answer::Done,
            Ok(Reply::PathStat { path, stat }) => Answer::Created(name_of(&path), facts(&stat)),
            Ok(Reply::Data { data, stat }) => Answer::Data(data.unwrap_or_default().to_vec(), facts(&stat)),
            Ok(Reply::Stat(stat)) => Answer::Found(Some(facts(&stat))),
            Ok(Reply::ChildrenStat { mut children, stat }) => {
                children.sort();
                Answer::Children(children, facts(&stat))
            }
            Ok(Reply::Multi(results)) => {
                let refused = results.iter().enumerate().find_map(|(at, result)| match result {
                    // The other operations of a refused transaction have the error codes 0 and -2.
                    OpResult::Error(number) if !matches!(number, 0 | -2) => Some((*number, at)),
                    _ => None,
                });
                match refused {
                    Some((number, at)) => Answer::Refused(code_name(Code::from_number(number)), at),
                    None => Answer::Committed(results.len()),
                }
            }
            Ok(other) => panic!("{call:?} was answered with {other:?}"),
            Err(error) => match error.code() {
                Some(Code::NoNode) if matches!(call, Call::Exists { .. }) => Answer::Found(None),
                code => Answer::Refused(code_name(code), 0),
            },
        }
    }

    fn fired(&mut self) -> Vec<Fired> {
        let mut fired = Vec::new();
        while let Ok(notice) = self.notices.try_recv() {
            if let Notice::Event(event) = notice {
                let path = event.path.strip_prefix(&self.root).expect("a path of ours").to_owned();
                let kind = match event.kind {
                    EventKind::Created => "created",
                    EventKind::Deleted => "deleted",
                    EventKind::DataChanged => "changed",
                    EventKind::ChildrenChanged => "children",
                };
                fired.push((kind, path));
            }
        }
        fired
    }

    /// Waits until the session is attached again.
    async fn reconnected(&mut self) {
        let attached = async {
            loop {
                match self.notices.recv().await.expect("the session lives") {
                    Notice::State(SessionState::Connected { .. }) => return,
                    Notice::State(SessionState::Ended(end)) => panic!("the session ended: {end}"),
                    _ => {}
                }
            }
        };
        timeout(PATIENCE, attached).await.expect("a new connection");
    }
}

fn facts(stat: &Stat) -> Facts {
    Facts {
        versions: [stat.version, stat.cversion, stat.aversion],
        data_length: stat.data_length,
        children: stat.num_children,
        is_ephemeral: stat.ephemeral_owner != 0,
    }
}

fn code_name(code: Option<Code>) -> String {
    code.map_or_else(|| "unknown".to_owned(), |code| variant(&code))
}

/// Returns the last part of a path.
fn name_of(path: &str) -> String {
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

/// Returns the name of an enum variant. Both clients use ZooKeeper's names.
fn variant(error: &impl Debug) -> String {
    format!("{error:?}").chars().take_while(char::is_ascii_alphanumeric).collect()
}

// ---- the other client ----

type Watching = Pin<Box<dyn Future<Output = zookeeper_client::WatchedEvent> + Send>>;

struct Theirs {
    client: zookeeper_client::Client,
    watches: Vec<Watching>,
}

impl Theirs {
    async fn open(place: &Place, proxy: &Proxy) -> Theirs {
        let connector = zookeeper_client::Client::connector().with_session_timeout(SESSION);
        let client =
            connector.connect(&place.connect_string_through(&proxy.addr())).await.expect("a session");
        client
            .create("/theirs", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all()))
            .await
            .expect("created");
        let client =
            client.chroot(format!("{}/theirs", place.chroot())).unwrap_or_else(|_| panic!("a chroot"));
        Theirs { client, watches: Vec::new() }
    }

    /// Sends a call when first polled. Returns its answer, and the watch that it set.
    async fn call(&self, call: &Call) -> (Answer, Option<OneshotWatcher>) {
        self.try_call(call).await.unwrap_or_else(|error| (Answer::Refused(variant(&error), 0), None))
    }

    async fn try_call(
        &self,
        call: &Call,
    ) -> Result<(Answer, Option<OneshotWatcher>), zookeeper_client::Error> {
        let client = &self.client;
        let found = |stat: Option<zookeeper_client::Stat>| Answer::Found(stat.as_ref().map(their_facts));
        let children = |mut names: Vec<String>, stat| {
            names.sort();
            Answer::Children(names, their_facts(&stat))
        };
        Ok(match call {
            Call::Create { path, data, mode } => {
                let options = mode.theirs().with_acls(Acls::anyone_all());
                let (stat, sequence) = client.create(path, data, &options).await?;
                let number = if mode.is_sequential() { sequence.to_string() } else { String::new() };
                (Answer::Created(name_of(path) + &number, their_facts(&stat)), None)
            }
            Call::Delete { path, version } => {
                client.delete(path, expected(*version)).await?;
                (Answer::Done, None)
            }
            Call::Write { path, data, version } => {
                (found(Some(client.set_data(path, data, expected(*version)).await?)), None)
            }
            Call::Read { path, watch: true } => {
                let (data, stat, watcher) = client.get_and_watch_data(path).await?;
                (Answer::Data(data, their_facts(&stat)), Some(watcher))
            }
            Call::Read { path, watch: false } => {
                let (data, stat) = client.get_data(path).await?;
                (Answer::Data(data, their_facts(&stat)), None)
            }
            Call::Exists { path, watch: true } => {
                let (stat, watcher) = client.check_and_watch_stat(path).await?;
                (found(stat), Some(watcher))
            }
            Call::Exists { path, watch: false } => (found(client.check_stat(path).await?), None),
            Call::List { path, watch: true } => {
                let (names, stat, watcher) = client.get_and_watch_children(path).await?;
                (children(names, stat), Some(watcher))
            }
            Call::List { path, watch: false } => {
                let (names, stat) = client.get_children(path).await?;
                (children(names, stat), None)
            }
            Call::Multi(calls) => (self.commit(calls).await, None),
            Call::Check { .. } => unreachable!("only in a multi"),
        })
    }

    async fn commit(&self, calls: &[Call]) -> Answer {
        let mut writer = self.client.new_multi_writer();
        for call in calls {
            let added = match call {
                Call::Create { path, data, mode } => {
                    writer.add_create(path, data, &mode.theirs().with_acls(Acls::anyone_all()))
                }
                Call::Delete { path, version } => writer.add_delete(path, expected(*version)),
                Call::Write { path, data, version } => writer.add_set_data(path, data, expected(*version)),
                Call::Check { path, version } => writer.add_check_version(path, *version),
                _ => unreachable!("no write"),
            };
            added.expect("a valid call");
        }
        match writer.commit().await {
            Ok(results) => Answer::Committed(results.len()),
            Err(MultiWriteError::OperationFailed { index, source }) => {
                Answer::Refused(variant(&source), index)
            }
            Err(other) => panic!("a multi failed: {other:?}"),
        }
    }

    fn fired(&mut self) -> Vec<Fired> {
        let context = &mut Context::from_waker(Waker::noop());
        let mut fired = Vec::new();
        self.watches.retain_mut(|watch| match watch.as_mut().poll(context) {
            std::task::Poll::Pending => true,
            std::task::Poll::Ready(event) => {
                let kind = match event.event_type {
                    EventType::NodeCreated => "created",
                    EventType::NodeDeleted => "deleted",
                    EventType::NodeDataChanged => "changed",
                    EventType::NodeChildrenChanged => "children",
                    EventType::Session => panic!("the session ended: {event:?}"),
                };
                fired.push((kind, event.path));
                false
            }
        });
        fired
    }

    /// Drops the watches, and waits until the session is attached again.
    async fn reconnected(&mut self) {
        self.watches.clear();
        let attached = async {
            while self.client.get_data("/").await.is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, attached).await.expect("a new connection");
    }
}

impl Mode {
    fn is_sequential(self) -> bool {
        matches!(self, Mode::Sequential | Mode::EphemeralSequential)
    }

    fn theirs(self) -> CreateMode {
        match self {
            Mode::Persistent => CreateMode::Persistent,
            Mode::Sequential => CreateMode::PersistentSequential,
            Mode::Ephemeral => CreateMode::Ephemeral,
            Mode::EphemeralSequential => CreateMode::EphemeralSequential,
        }
    }
}

fn expected(version: i32) -> Option<i32> {
    (version >= 0).then_some(version)
}

fn their_facts(stat: &zookeeper_client::Stat) -> Facts {
    Facts {
        versions: [stat.version, stat.cversion, stat.aversion],
        data_length: stat.data_length,
        children: stat.num_children,
        is_ephemeral: stat.ephemeral_owner != 0,
    }
}

// ---- both ----

/// Sorts events and removes duplicates, because one event of the server can notify several watchers
/// of the crate `zookeeper-client`.
fn as_set(mut fired: Vec<Fired>) -> Vec<Fired> {
    fired.sort();
    fired.dedup();
    fired
}

on_both_servers!(clients_agree_on_random_calls, |place| async move {
    let long = zoolock_tests::skip::is_long();
    let most: usize = if long { 100_000 } else { 3_000 };
    let seed = zoolock_tests::locks::seed();
    let mut rng = Rng::with_seed(seed);
    let proxy = Proxy::start(&place.addr()).await.expect("the proxy starts");
    let (mut ours, mut theirs) = (Ours::open(&place, &proxy).await, Theirs::open(&place, &proxy).await);
    let (mut calls, mut steps, mut events, mut reconnects) = (0, 0, 0, 0);
    let mut sequential = Vec::new();
    while calls < most {
        steps += 1;
        // These calls are in flight together. Their answers come in order. If a call causes a watch
        // event, the event comes before the answers to later calls.
        let step: Vec<Call> =
            (0..rng.usize(1..=MOST_IN_FLIGHT)).map(|_| random_call(&mut rng, &sequential, false)).collect();
        calls += step.len();
        let our_answers = join_all(step.iter().map(|call| ours.call(call))).await;
        let answers = join_all(step.iter().map(|call| theirs.call(call)).collect::<Vec<_>>()).await;
        let (their_answers, watchers): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
        theirs
            .watches
            .extend(watchers.into_iter().flatten().map(|watcher| Box::pin(watcher.changed()) as Watching));
        assert_eq!(our_answers, their_answers, "seed {seed}, {calls} calls: {step:#?}");
        sequential.extend(step.iter().zip(&our_answers).filter_map(|(call, answer)| match (call, answer) {
            (Call::Create { path, mode, .. }, Answer::Created(name, _)) if mode.is_sequential() => {
                path.rsplit_once('/').map(|(parent, _)| format!("{parent}/{name}"))
            }
            _ => None,
        }));
        let fired = [as_set(ours.fired()), as_set(theirs.fired())];
        assert_eq!(fired[0], fired[1], "seed {seed}, {calls} calls: {step:#?}");
        events += fired[0].len();
        if steps % STEPS_PER_CONNECTION == 0 {
            reconnects += 1;
            proxy.close_connections().await;
            ours.reconnected().await;
            theirs.reconnected().await;
        }
    }
    println!("{calls} calls, {events} events, {reconnects} reconnects");
    assert!(events > calls / 100 && reconnects > 0, "too few: {events} events, {reconnects} reconnects");
    ours.requests.close().await;
});
