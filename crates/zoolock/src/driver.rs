//! Runs one [`Contender`] over one session: sends what it asks for, reports every answer, once and in order.
//!
//! The machine sits behind a mutex and is stepped by whoever has news: the caller (start, cancel, release), the task
//! that awaits the answers, the tasks that await watches, the session. Requests are put on the wire inside the step,
//! under that mutex, so their order on the wire is the machine's order, and dropping a guard sends its release
//! before `drop` returns.
//!
//! Answers are awaited in the order of the requests by one task, which lives only while there are any: spawned tasks
//! of their own could be run in any order, and the machine relies on the order that the service gives.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use zoolock_core::contender::{
    Departed, Directory, Failure, Grant, Loss, Mode, Node, Reason, Reply, Request, RequestId, WatchId,
};
use zoolock_core::names::{self, native_name};
use zoolock_core::record::Left;
use zoolock_core::{Action, Config, Contender, ContenderId, Event, Instant, Record, Rules, Sequence};

use crate::clock;
use crate::data::NodeData;
use crate::directory;
use crate::keeper::{Answer, Keeper, KeeperError, Watch};
use crate::path::LockPath;
use crate::session::{Session, lock};

/// One acquisition, from the first request to the last clean-up.
pub(crate) struct Acquisition {
    session: Arc<Session>,
    id: ContenderId,
    directory: LockPath,
    data: Vec<u8>,
    reserved: usize,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    machine: Contender,
    in_flight: VecDeque<InFlight>,
    awaiting: bool,
    watches: HashMap<WatchId, Watching>,
    watch_count: u64,
    progress: Progress,
    lost: Option<Loss>,
    departed: Option<Departed>,
    over: bool,
    /// Whether it ever stood in the queue.
    stood: bool,
    /// The words of the last refusal.
    words: String,
}

struct InFlight {
    id: RequestId,
    answer: Pin<Box<dyn Future<Output = Result<News, KeeperError>> + Send>>,
    /// When it was sent, if its success proves that the leader knows our session.
    confirms: Option<Instant>,
}

struct News {
    reply: Reply,
    watch: Option<(WatchId, Watch)>,
}

enum Watching {
    Parked(Watch),
    Running(u64, AbortHandle),
}

/// How far the acquisition has come.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Progress {
    Pending,
    Granted(Grant),
    Failed(Reason),
}

impl Acquisition {
    /// Sends the first flight and returns at once.
    pub(crate) fn start(
        session: Arc<Session>,
        directory: LockPath,
        id: ContenderId,
        data: Vec<u8>,
        reserved: usize,
        mode: Mode,
    ) -> Arc<Acquisition> {
        let config =
            Config { session: session.id(), mode, retire_from: Sequence::RETIRE_FROM, rules: Rules::all() };
        let acquisition = Arc::new(Acquisition {
            session,
            id,
            directory,
            data,
            reserved,
            state: Mutex::new(State {
                machine: Contender::new(config),
                in_flight: VecDeque::new(),
                awaiting: false,
                watches: HashMap::new(),
                watch_count: 0,
                progress: Progress::Pending,
                lost: None,
                departed: None,
                over: false,
                stood: false,
                words: String::new(),
            }),
            changed: Notify::new(),
        });
        acquisition.session.enter(&acquisition);
        acquisition.happen(Event::Start);
        if let Some(end) = acquisition.session.end() {
            // It ended before we were on its list.
            acquisition.happen(Event::SessionOver(end));
        }
        acquisition
    }

    pub(crate) fn id(&self) -> ContenderId {
        self.id
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(crate) fn directory(&self) -> &LockPath {
        &self.directory
    }

    /// The words in which the service last refused something.
    pub(crate) fn words(&self) -> String {
        lock(&self.state).words.clone()
    }

    /// Whether it ever stood in the queue, as far as we know.
    pub(crate) fn has_stood(&self) -> bool {
        lock(&self.state).stood
    }

    /// Whether only clean-up is left.
    pub(crate) fn is_leaving(&self) -> bool {
        lock(&self.state).machine.is_leaving()
    }

    /// Whether it stands in this directory without a node that we know of.
    fn is_nodeless_in(&self, directory: &LockPath) -> bool {
        self.directory == *directory && lock(&self.state).machine.node().is_none()
    }

    /// Tells the machine that something happened, and does what it says.
    pub(crate) fn happen(self: &Arc<Self>, event: Event) {
        let state = &mut *lock(&self.state);
        let ends = matches!(event, Event::Release(_) | Event::Cancel | Event::TimedOut);
        if ends && !self.session.keeper().is_some_and(|keeper| keeper.is_connected()) {
            // Sooner than the session would say it: a delete must not wait in the client's queue.
            self.step(state, Event::Disconnected);
        }
        self.step(state, event);
    }

    /// Says that the deadline has passed, after `patience`. Aborting the task is fine.
    pub(crate) fn give_up_after(self: &Arc<Self>, patience: Duration) -> AbortHandle {
        let acquisition = self.clone();
        let task = self.session.runtime().spawn(async move {
            tokio::time::sleep(patience).await;
            acquisition.happen(Event::TimedOut);
        });
        task.abort_handle()
    }

    // ---- what callers wait for ----

    /// Waits for the grant or the failure.
    pub(crate) async fn outcome(&self) -> Progress {
        self.wait(|state| match state.progress {
            Progress::Pending => None,
            progress => Some(progress),
        })
        .await
    }

    /// Waits until the lock is lost.
    pub(crate) async fn lost(&self) -> Loss {
        self.wait(|state| state.lost).await
    }

    pub(crate) fn is_lost(&self) -> Option<Loss> {
        lock(&self.state).lost
    }

    /// Whether the release is done.
    pub(crate) fn has_departed(&self) -> bool {
        lock(&self.state).departed.is_some()
    }

    /// Waits until the release is done.
    pub(crate) async fn departed(&self) -> Departed {
        self.wait(|state| state.departed).await
    }

    pub(crate) async fn over(&self) {
        self.wait(|state| state.over.then_some(())).await;
    }

    pub(crate) fn release(self: &Arc<Self>) {
        let left = if std::thread::panicking() { Left::Panicked } else { Left::Released };
        self.happen(Event::Release(left));
    }

    async fn wait<T>(&self, ready: impl Fn(&State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(value) = ready(&lock(&self.state)) {
                return value;
            }
            changed.await;
        }
    }

    // ---- the machine ----

    fn step(self: &Arc<Self>, state: &mut State, event: Event) {
        let actions = state.machine.step(event, self.session.lease_valid());
        for action in actions {
            match action {
                Action::Send(id, Request::Sleep(ms)) => self.sleep(id, ms),
                Action::Send(id, request) => self.send(state, id, request),
                Action::Unwatch(watch) => {
                    if let Some(Watching::Running(_, task)) = state.watches.remove(&watch) {
                        task.abort();
                    }
                }
                Action::Granted(grant) => state.progress = Progress::Granted(grant),
                Action::Failed(reason) => state.progress = Progress::Failed(reason),
                Action::Lost(loss) => state.lost = Some(loss),
                Action::Released(how) => state.departed = Some(how),
                Action::Over => self.finish(state),
            }
        }
        self.changed.notify_waiters();
    }

    fn finish(&self, state: &mut State) {
        state.over = true;
        for (_, watching) in state.watches.drain() {
            if let Watching::Running(_, task) = watching {
                task.abort();
            }
        }
        self.session.leave(self.id, self.reserved);
    }

    fn sleep(self: &Arc<Self>, id: RequestId, ms: u32) {
        let acquisition = self.clone();
        self.session.runtime().spawn(async move {
            tokio::time::sleep(Duration::from_millis(ms.into())).await;
            acquisition.happen(Event::Answer(id, Ok(Reply::Done)));
        });
    }

    fn send(self: &Arc<Self>, state: &mut State, id: RequestId, request: Request) {
        // Once the session is over nothing is answered any more; the machine hears of that instead.
        let Some(keeper) = self.session.keeper() else { return };
        let writes = matches!(request, Request::Join | Request::Delete(_) | Request::Release { .. });
        let confirms = writes.then(clock::now);
        let answer = self.call(keeper, request);
        state.in_flight.push_back(InFlight { id, answer, confirms });
        if !state.awaiting {
            state.awaiting = true;
            self.session.runtime().spawn(self.clone().await_answers());
        }
    }

    async fn await_answers(self: Arc<Self>) {
        loop {
            let Some(InFlight { id, answer, confirms }) = self.next_in_flight() else { return };
            let outcome = answer.await;
            if let (Ok(_), Some(sent)) = (&outcome, confirms) {
                self.session.confirm(sent);
            }
            self.answered(id, outcome);
        }
    }

    fn next_in_flight(&self) -> Option<InFlight> {
        let mut state = lock(&self.state);
        let next = state.in_flight.pop_front();
        state.awaiting = next.is_some();
        next
    }

    fn answered(self: &Arc<Self>, id: RequestId, outcome: Result<News, KeeperError>) {
        let state = &mut *lock(&self.state);
        if state.over {
            return;
        }
        match outcome {
            Err(error) => {
                if matches!(error.failure, Failure::Refused(_)) {
                    state.words = error.message;
                }
                self.step(state, Event::Answer(id, Err(error.failure)));
            }
            Ok(News { reply, watch }) => {
                match &reply {
                    Reply::Joined(node) => {
                        state.stood = true;
                        self.session.own(node.czxid, self.id);
                    }
                    // Found after lost replies: others who search must know that they are taken.
                    Reply::Mine(nodes) => nodes.iter().for_each(|node| self.session.own(node.czxid, self.id)),
                    _ => {}
                }
                let watch = watch.map(|(id, watch)| {
                    state.watches.insert(id, Watching::Parked(watch));
                    id
                });
                self.step(state, Event::Answer(id, Ok(reply)));
                if let Some(watch) = watch {
                    self.await_watch(state, watch);
                }
            }
        }
    }

    /// Waits for a watch, unless the machine has taken it back already.
    fn await_watch(self: &Arc<Self>, state: &mut State, id: WatchId) {
        if !matches!(state.watches.get(&id), Some(Watching::Parked(_))) {
            return;
        }
        let Some(Watching::Parked(watch)) = state.watches.remove(&id) else { return };
        state.watch_count += 1;
        let count = state.watch_count;
        let acquisition = self.clone();
        let task = self.session.runtime().spawn(async move {
            let deleted = watch.await;
            acquisition.fired(id, count, deleted);
        });
        state.watches.insert(id, Watching::Running(count, task.abort_handle()));
    }

    fn fired(self: &Arc<Self>, id: WatchId, count: u64, deleted: bool) {
        let state = &mut *lock(&self.state);
        // A watch that was taken back while it fired may have given its name to another.
        if matches!(state.watches.get(&id), Some(Watching::Running(current, _)) if *current == count) {
            state.watches.remove(&id);
            self.step(state, Event::Fired { watch: id, deleted });
        }
    }

    // ---- requests ----

    fn call(
        self: &Arc<Self>,
        keeper: Arc<dyn Keeper>,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Result<News, KeeperError>> + Send>> {
        let path = self.directory.as_str();
        let own = |sequence| self.directory.child(&native_name(sequence));
        match request {
            Request::Join => {
                let prefix = self.directory.child(names::NATIVE_PREFIX);
                news(keeper.join(&prefix, &self.data), |(sequence, stat)| {
                    Ok(Reply::Joined(Node { sequence, czxid: stat.czxid }))
                })
            }
            Request::MakeDirectory => {
                let made: Answer<()> = Box::pin(directory::make(keeper, path.to_owned()));
                done(made)
            }
            Request::ReadDirectory => news(keeper.read(path), |(data, stat)| {
                Ok(Reply::Directory(Directory {
                    czxid: stat.czxid,
                    pzxid: stat.pzxid,
                    version: stat.version,
                    children: stat.children,
                    record: Record::parse(&data),
                }))
            }),
            Request::List => news(keeper.children(path), |names| Ok(Reply::Children(names))),
            Request::FindMine => {
                let acquisition = self.clone();
                let found: Answer<Vec<Node>> = Box::pin(async move { acquisition.find_mine(keeper).await });
                news(found, |nodes| Ok(Reply::Mine(nodes)))
            }
            Request::Watch { name, watch: id } => {
                let answer = keeper.watch(&self.directory.child(&name));
                Box::pin(async move {
                    let (stat, watch) = answer.await?;
                    let reply = Reply::Node { czxid: stat.czxid, owner: stat.owner };
                    Ok(News { reply, watch: Some((id, watch)) })
                })
            }
            Request::Exists(sequence) => news(keeper.exists(&own(sequence)), |stat| match stat {
                Some(stat) => Ok(Reply::Node { czxid: stat.czxid, owner: stat.owner }),
                None => Err(KeeperError { failure: Failure::NoNode, message: String::new() }),
            }),
            Request::Sync => done(keeper.sync(path)),
            Request::Delete(sequence) => done(keeper.delete(&own(sequence))),
            Request::Release { sequence, marker, version } => {
                let record = marker.encode();
                done(keeper.delete_and_write(&own(sequence), path, record.as_bytes(), version))
            }
            Request::DeleteDirectory => done(keeper.delete(path)),
            Request::Sleep(_) => unreachable!("sleeps never reach the service"),
        }
    }

    /// Every contender of this acquisition, after creates whose replies were lost.
    ///
    /// A node is ours if it belongs to our session, to no other acquisition that knows it, and carries our UUID. If
    /// somebody wrote over its data (a revocation), the UUID is gone: then it is ours only if no other acquisition
    /// of this session could be missing a node here.
    async fn find_mine(&self, keeper: Arc<dyn Keeper>) -> Result<Vec<Node>, KeeperError> {
        let prefix = self.directory.child(names::NATIVE_PREFIX);
        let names: Vec<Sequence> = match keeper.ephemerals(&prefix).await {
            Ok(paths) => paths.iter().filter_map(|p| Sequence::parse(p.strip_prefix(&prefix)?)).collect(),
            Err(KeeperError { failure: Failure::Refused(_), .. }) => {
                let names = keeper.children(self.directory.as_str()).await?;
                names.iter().filter_map(|n| Sequence::parse(n.strip_prefix(names::NATIVE_PREFIX)?)).collect()
            }
            Err(error) => return Err(error),
        };
        let reads: Vec<_> = names
            .into_iter()
            .map(|sequence| (sequence, keeper.read(&self.directory.child(&native_name(sequence)))))
            .collect();
        let mut mine = Vec::new();
        for (sequence, read) in reads {
            let (data, stat) = match read.await {
                Ok(read) => read,
                Err(KeeperError { failure: Failure::NoNode, .. }) => continue,
                Err(error) => return Err(error),
            };
            if stat.owner != self.session.id() {
                continue;
            }
            let ours = match (self.session.owner_of(stat.czxid), NodeData::parse(&data)) {
                (Some(owner), _) => owner == self.id,
                (None, Some(data)) => data.id == self.id.to_string(),
                (None, None) => !self.somebody_else_misses_a_node(),
            };
            if ours {
                mine.push(Node { sequence, czxid: stat.czxid });
            }
        }
        Ok(mine)
    }

    fn somebody_else_misses_a_node(&self) -> bool {
        let mut others = self.session.acquisitions().into_iter().filter(|other| other.id != self.id);
        others.any(|other| other.is_nodeless_in(&self.directory))
    }
}

fn news<T: Send + 'static>(
    answer: Answer<T>,
    reply: impl FnOnce(T) -> Result<Reply, KeeperError> + Send + 'static,
) -> Pin<Box<dyn Future<Output = Result<News, KeeperError>> + Send>> {
    Box::pin(async move { Ok(News { reply: reply(answer.await?)?, watch: None }) })
}

fn done(answer: Answer<()>) -> Pin<Box<dyn Future<Output = Result<News, KeeperError>> + Send>> {
    news(answer, |()| Ok(Reply::Done))
}
