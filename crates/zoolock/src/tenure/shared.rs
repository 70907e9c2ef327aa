//! The machine with what it works on: the tasks that wait, and the acquisition that stands for them all.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use zoolock_core::contender::{Loss, SessionEnd};
use zoolock_core::record::Left;
use zoolock_core::tenure::{How, Input, LocalId, Output, Tenure};
use zoolock_core::{Instant, Kind};

use super::share::{Share, TurnEnd, Waiting};
use super::{Settings, news};
use crate::acquire::{Lock, Patience};
use crate::clock;
use crate::error::{Error, LossReason};
use crate::events::{Listeners, LockEvent, Relay};
use crate::held::Held;
use crate::options::Options;
use crate::session::lock;
use crate::tasks::Task;

/// One tenure after the other, of one lock.
pub(crate) struct Shared {
    /// How to ask for it.
    lock: Lock,
    settings: Settings,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    machine: Tenure,
    pub(super) waiting: BTreeMap<LocalId, Waiter>,
    held: Option<Held>,
    /// To whom it is told what happens to it.
    relay: Relay,
    /// Who is told how many stand before us in the queue of the service.
    asking: Option<(LocalId, Relay)>,
    next: u64,
    /// Counts what was asked for, so that late news of an earlier one are known.
    pub(super) number: u64,
    /// What goes on for the present one.
    tasks: Vec<Task>,
    /// When it is to be looked at again; there is a task that does.
    pub(super) alarm: Option<Instant>,
}

/// A task that waits.
pub(super) struct Waiter {
    sender: oneshot::Sender<Result<Held, Error>>,
    pub(super) options: Options,
}

/// What became of the question.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(super) enum Asked {
    Granted(Held),
    /// None of ours has it or wants it: one who only tries asks the service, and nobody else.
    Free,
    Busy,
    Waits(Waiting),
}

impl Shared {
    pub(super) fn new(asked: &Lock, settings: Settings) -> Shared {
        let options = Options {
            tenure: None,
            // None of ours has a place of its own that could be lost.
            requeue: true,
            listeners: Listeners::default(),
            // Nor is it one of ours that asks: whose turn it is changes without a word to the service.
            ask_as: asked.zoolock.askers().new_place(),
            ..asked.options.clone()
        };
        Shared {
            lock: Lock { options, ..Lock::new(asked.zoolock.clone(), asked.names.clone()) },
            settings,
            state: Mutex::new(State {
                machine: Tenure::new(settings.limits),
                waiting: BTreeMap::new(),
                held: None,
                relay: Relay::default(),
                asking: None,
                next: 0,
                number: 0,
                tasks: Vec::new(),
                alarm: None,
            }),
        }
    }

    pub(super) fn settings(&self) -> Settings {
        self.settings
    }

    pub(super) fn ask(self: &Arc<Self>, options: &Options, patience: Patience) -> Asked {
        let state = &mut *lock(&self.state);
        if matches!(patience, Patience::Try) {
            if state.machine.is_idle() {
                return Asked::Free;
            }
            if !state.machine.is_kept() {
                return Asked::Busy;
            }
        }
        let who = state.newcomer();
        let ahead = state.waiting.len() + usize::from(state.machine.holder().is_some());
        let outputs = self.step(state, Input::Ask(who));
        if let Some(held) = self.carry_out(state, outputs, Some((who, options))) {
            return Asked::Granted(held);
        }
        if matches!(patience, Patience::Try) {
            // Others wait, or may, or the lease is not what it was.
            self.happen(state, Input::GiveUp(who));
            return Asked::Busy;
        }
        // The first one hears how many others stand there.
        if ahead > 0 {
            options.listeners.tell(LockEvent::Queued { ahead: u32::try_from(ahead).unwrap_or(u32::MAX) });
        }
        let (sender, answer) = oneshot::channel();
        state.waiting.insert(who, Waiter { sender, options: options.clone() });
        Asked::Waits(Waiting { shared: self.clone(), who, answer })
    }

    /// Takes it if it is free. It is everybody's from then on, unless they have asked meanwhile.
    pub(super) async fn try_alone(self: &Arc<Self>, options: &Options) -> Result<Option<Held>, Error> {
        let relay = Relay::default();
        relay.set(options.listeners.clone());
        let gave_up = || options.listeners.tell(LockEvent::GaveUp);
        let outcome = self.acquire_with(&relay, Patience::Try).await;
        let Some(held) = outcome.inspect_err(|_| gave_up())? else {
            gave_up();
            return Ok(None);
        };
        let state = &mut *lock(&self.state);
        if !state.machine.is_idle() {
            options.listeners.tell(LockEvent::Acquired(held.ticket()));
            return Ok(Some(held));
        }
        let who = state.newcomer();
        // It asks for what we have.
        let _ = self.step(state, Input::Ask(who));
        state.number += 1;
        self.begin(state, held, relay);
        let outputs = self.step(state, Input::Granted);
        let granted = self.carry_out(state, outputs, Some((who, options)));
        if granted.is_none() {
            // It was lost just now, or its lease ran out.
            let reason = state.held.as_ref().and_then(Held::loss).unwrap_or(LossReason::Unreachable);
            self.happen(state, Input::GiveUp(who));
            gave_up();
            return Err(Error::Lost { path: self.lock.path(), reason });
        }
        Ok(granted)
    }

    /// A task's turn is over, and `input` says how.
    pub(super) fn done(self: &Arc<Self>, who: LocalId, input: Input, options: &Options) -> TurnEnd {
        let state = &mut *lock(&self.state);
        if state.machine.holder() != Some(who) {
            // It was gone before.
            return TurnEnd::LetGo;
        }
        let end = state.held.as_ref().and_then(|held| held.acquisition().session().end());
        if let Some(end @ (SessionEnd::Closed | SessionEnd::AuthFailed)) = end {
            // Sooner than the news of it: whoever asked again now would open another session.
            self.close(state, end);
            return TurnEnd::LetGo;
        }
        let outputs = self.step(state, input);
        let lets_go = outputs.iter().any(|output| matches!(output, Output::LetGo(_)));
        let end = match &state.held {
            Some(held) if !lets_go => {
                // Before the next one hears that it has it.
                options.listeners.tell(LockEvent::Released(held.ticket()));
                state.relay.set(Listeners::default());
                TurnEnd::PassedOn
            }
            _ => TurnEnd::LetGo,
        };
        self.carry_out(state, outputs, None);
        end
    }

    /// Tells the machine, and does what it says.
    pub(super) fn happen(self: &Arc<Self>, state: &mut State, input: Input) {
        let outputs = self.step(state, input);
        self.carry_out(state, outputs, None);
    }

    fn step(&self, state: &mut State, input: Input) -> Vec<Output> {
        let valid = state.held.as_ref().is_some_and(Held::is_valid);
        state.machine.step(input, clock::now(), valid)
    }

    /// What `asker` is granted by it.
    fn carry_out(
        self: &Arc<Self>,
        state: &mut State,
        outputs: Vec<Output>,
        asker: Option<(LocalId, &Options)>,
    ) -> Option<Held> {
        let mut granted = None;
        let mut outputs = VecDeque::from(outputs);
        while let Some(output) = outputs.pop_front() {
            match output {
                Output::Acquire => {
                    state.number += 1;
                    let relay = Relay::default();
                    // The others have heard how many they wait for.
                    if let Some((who, options)) = asker {
                        relay.set(options.listeners.clone());
                        state.asking = Some((who, relay.clone()));
                    }
                    let asking = self.clone().ask_the_service(state.number, relay);
                    self.go_on_with(state, asking);
                }
                Output::Cancel => state.end(),
                Output::LetGo(how) => {
                    state.let_go(how);
                    state.end();
                }
                Output::Look => {
                    let Some(held) = &state.held else { continue };
                    let looking = news::look(Arc::downgrade(self), held.acquisition().clone(), state.number);
                    self.go_on_with(state, looking);
                }
                Output::Grant(who, pass) => match asker.filter(|(asker, _)| *asker == who) {
                    Some((_, options)) => granted = Some(self.hand_out(state, who, pass, options)),
                    None => {
                        let Some(Waiter { sender, options }) = state.waiting.remove(&who) else {
                            outputs.extend(self.step(state, Input::GiveUp(who)));
                            continue;
                        };
                        let held = self.hand_out(state, who, pass, &options);
                        // It cannot fail: whoever stops listening says so first, under our mutex.
                        let _ = sender.send(Ok(held));
                    }
                },
                Output::WakeAt(at) => {
                    if state.alarm.replace(at).is_none() {
                        let waking = news::wake(Arc::downgrade(self), state.number);
                        self.go_on_with(state, waking);
                    }
                }
            }
        }
        granted
    }

    /// A task's part of what is held.
    fn hand_out(self: &Arc<Self>, state: &mut State, who: LocalId, pass: u32, options: &Options) -> Held {
        let held = state.held.as_ref().expect("the machine grants what was granted, and has not let go");
        let worked = state.machine.has_worked();
        let shared = held.shared(Share::new(self.clone(), who, pass), worked, options.clone());
        state.relay.set(options.listeners.clone());
        options.listeners.tell(LockEvent::Acquired(shared.ticket()));
        shared
    }

    fn go_on_with(&self, state: &mut State, task: impl Future<Output = ()> + Send + 'static) {
        state.tasks.retain(|task| !task.is_finished());
        state.tasks.push(self.lock.zoolock.tasks().spawn(task));
    }

    /// News of what was asked for as `number`, unless that is over.
    pub(super) fn news(self: &Arc<Self>, number: u64, input: Input) -> bool {
        let state = &mut *lock(&self.state);
        let timely = state.number == number;
        if timely {
            if input == Input::Gone {
                // Before the machine asks again.
                state.let_go(How::Released);
                state.end();
            }
            self.happen(state, input);
        }
        timely
    }

    /// News that the session of what was asked for as `number` was ended for good.
    pub(super) fn closed(self: &Arc<Self>, number: u64, end: SessionEnd) {
        let state = &mut *lock(&self.state);
        if state.number == number {
            self.close(state, end);
        }
    }

    /// There is no going on.
    fn close(self: &Arc<Self>, state: &mut State, end: SessionEnd) {
        state.let_go(How::Released);
        let reason = Loss::SessionOver(end).into();
        self.fail(state, &Error::Lost { path: self.lock.path(), reason });
    }

    fn fail(self: &Arc<Self>, state: &mut State, error: &Error) {
        for Waiter { sender, options } in std::mem::take(&mut state.waiting).into_values() {
            options.listeners.tell(LockEvent::GaveUp);
            let _ = sender.send(Err(error.clone()));
        }
        state.end();
        self.happen(state, Input::Failed);
    }

    /// Asks the service. What happens to it is told to those of the relay.
    async fn acquire_with(&self, relay: &Relay, patience: Patience) -> Result<Option<Held>, Error> {
        let mut asked = self.lock.clone();
        asked.options.listeners = Listeners::relayed(relay.clone());
        asked.acquire_alone(Kind::Mutex, patience).await
    }

    fn begin(self: &Arc<Self>, state: &mut State, held: Held, relay: Relay) {
        let heeding = news::heed(Arc::downgrade(self), held.acquisition().clone(), state.number);
        self.go_on_with(state, heeding);
        state.held = Some(held);
        state.relay = relay;
        state.asking = None;
    }

    async fn ask_the_service(self: Arc<Self>, number: u64, relay: Relay) {
        let outcome = loop {
            match self.acquire_with(&relay, Patience::ForEver).await {
                // The grant waited for us longer than the lease lasts; those who wait may still have it.
                Err(Error::Lost { reason: LossReason::Unreachable, .. }) => {}
                outcome => break outcome,
            }
        };
        let state = &mut *lock(&self.state);
        match outcome {
            Ok(Some(held)) if state.number == number => {
                self.begin(state, held, relay);
                self.happen(state, Input::Granted);
            }
            // Nobody wants it any more.
            Ok(held) => held.iter().for_each(Held::give_back),
            Err(error) if state.number == number => self.fail(state, &error),
            Err(_) => {}
        }
    }
}

impl State {
    fn newcomer(&mut self) -> LocalId {
        self.next += 1;
        LocalId(self.next)
    }

    fn let_go(&mut self, how: How) {
        let Some(held) = self.held.take() else { return };
        match how {
            // Not as this thread does, which may unwind for another reason.
            How::Released => held.release_as(Left::Released),
            How::Panicked => held.release_as(Left::Panicked),
            How::Untouched => held.give_back(),
        }
    }

    /// Nothing that goes on matters any more.
    fn end(&mut self) {
        self.number += 1;
        self.tasks.drain(..).for_each(|task| task.abort());
        self.alarm = None;
        // Not the listeners: the last one is yet to hear that it was released.
        self.relay = Relay::default();
        self.asking = None;
    }

    /// This one has stopped waiting; what comes is not for it.
    pub(super) fn hears_no_more(&mut self, who: LocalId) {
        if let Some((_, relay)) = self.asking.take_if(|(asking, _)| *asking == who) {
            relay.set(Listeners::default());
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // What is kept goes, and nobody is there who could ask.
        let state = &mut *lock(&self.state);
        let how = if state.machine.has_worked() { How::Released } else { How::Untouched };
        state.let_go(how);
        state.end();
    }
}
