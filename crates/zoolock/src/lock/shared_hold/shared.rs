//! Runs the state machine of a shared hold: the tasks that wait for one lock, and the acquisition that they share.
//!
//! A test runs this file, `share.rs` and `background.rs` in many thread interleavings (`zoolock-tests/tests/orders`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;
use zoolock_core::acquisition::{Loss, SessionEnd};
use zoolock_core::record::HolderState;
use zoolock_core::tenure::{LocalId, ReleaseKind, Tenure, TenureInput, TenureLimits, TenureOutput};
use zoolock_core::{Instant, Kind};

use super::background;
use super::share::{Share, TurnEnd, WaitingTask};
use crate::base::clock;
use crate::base::error::{Error, LossReason};
use crate::base::events::{ListenerSlot, Listeners, LockEvent};
use crate::base::options::Options;
use crate::base::sync::{Mutex, lock};
use crate::base::tasks::Task;
use crate::lock::acquire::{Lock, WaitLimit};
use crate::lock::held::Held;

/// A lock that the tasks of this process share through one queue position.
pub(crate) struct SharedHold {
    /// The lock, with the options of the shared acquisition.
    lock: Lock,
    pub(super) state: Mutex<HoldState>,
}

pub(super) struct HoldState {
    machine: Tenure,
    pub(super) waiting: BTreeMap<LocalId, Waiter>,
    held: Option<Held>,
    /// The listeners of the task that has the lock.
    slot: ListenerSlot,
    /// The task that started the current acquisition, and the slot of its listeners. The listeners
    /// get the acquisition's position in the queue of the lock.
    requesting: Option<(LocalId, ListenerSlot)>,
    /// The last id that was given to a task.
    next: u64,
    /// Number of the current acquisition. It distinguishes the events of this acquisition from
    /// those of earlier ones.
    pub(super) number: u64,
    /// The background tasks of the current acquisition.
    tasks: Vec<Task>,
    /// The time at which the next alarm is due. Set while a background task waits for this time.
    pub(super) alarm: Option<Instant>,
}

/// A waiting task.
pub(super) struct Waiter {
    sender: oneshot::Sender<Result<Held, Error>>,
    pub(super) options: Options,
}

/// The outcome of a task's request.
#[allow(clippy::large_enum_variant, reason = "it is taken apart at once, and small in a test")]
pub(super) enum RequestOutcome {
    Granted(Held),
    /// This process neither has the lock nor waits for it. The task only tries, so it must send a
    /// request of its own.
    Free,
    Busy,
    Waits(WaitingTask),
}

impl SharedHold {
    pub(super) fn new(handle: &Lock, limits: TenureLimits) -> SharedHold {
        let options = Options {
            listeners: Listeners::default(),
            // The owner is the shared queue position, not a task: the lock passes from task to task without a request
            // to the server.
            owner_mode: handle.context.owner_ids().new_shared_position(),
            ..handle.options.clone()
        };
        SharedHold {
            lock: Lock { options, ..Lock::new(handle.context.clone(), handle.names.clone()) },
            state: Mutex::new(HoldState {
                machine: Tenure::new(limits),
                waiting: BTreeMap::new(),
                held: None,
                slot: ListenerSlot::default(),
                requesting: None,
                next: 0,
                number: 0,
                tasks: Vec::new(),
                alarm: None,
            }),
        }
    }

    /// Returns whether this process is a fork of the process that shares the lock.
    pub(super) fn is_forked(&self) -> bool {
        self.lock.context.process().is_forked()
    }

    /// Returns whether a task of this process holds the lock.
    pub(super) fn is_held(&self) -> bool {
        lock(&self.state).machine.holder().is_some()
    }

    pub(super) fn request(self: &Arc<Self>, options: &Options, wait_limit: WaitLimit) -> RequestOutcome {
        let state = &mut *lock(&self.state);
        if matches!(wait_limit, WaitLimit::Try) {
            if state.machine.is_idle() {
                return RequestOutcome::Free;
            }
            if !state.machine.is_held_by_no_task() {
                return RequestOutcome::Busy;
            }
        }
        let task = state.new_id();
        let ahead = state.waiting.len() + usize::from(state.machine.holder().is_some());
        let outputs = self.step(state, TenureInput::Ask(task));
        if let Some(held) = self.run(state, outputs, Some((task, options))) {
            return RequestOutcome::Granted(held);
        }
        if matches!(wait_limit, WaitLimit::Try) {
            // The lock is not granted: other tasks wait, other contenders may wait, or the lease is
            // not valid.
            self.handle_event(state, TenureInput::GiveUp(task));
            return RequestOutcome::Busy;
        }
        // Reports how many tasks of this process are ahead of the new waiter.
        if ahead > 0 {
            options.listeners.tell(LockEvent::Queued { ahead: u32::try_from(ahead).unwrap_or(u32::MAX) });
        }
        let (sender, answer) = oneshot::channel();
        state.waiting.insert(task, Waiter { sender, options: options.clone() });
        RequestOutcome::Waits(WaitingTask { shared: self.clone(), task, answer })
    }

    /// Acquires the lock for one task with a request of its own, if the lock is free. Then shares
    /// the lock with the other tasks, unless another task has asked for it meanwhile.
    pub(super) async fn try_alone(self: &Arc<Self>, options: &Options) -> Result<Option<Held>, Error> {
        let slot = ListenerSlot::default();
        slot.set(options.listeners.clone());
        let gave_up = || options.listeners.tell(LockEvent::GaveUp);
        let outcome = self.acquire_with(&slot, WaitLimit::Try).await;
        let Some(held) = outcome.inspect_err(|_| gave_up())? else {
            gave_up();
            return Ok(None);
        };
        let state = &mut *lock(&self.state);
        if !state.machine.is_idle() {
            options.listeners.tell(LockEvent::Acquired(held.ticket()));
            return Ok(Some(held));
        }
        let task = state.new_id();
        // Ignores the output `Acquire`, because the acquisition exists already.
        let _ = self.step(state, TenureInput::Ask(task));
        state.number += 1;
        self.start_holding(state, held, slot);
        let outputs = self.step(state, TenureInput::Granted);
        let granted = self.run(state, outputs, Some((task, options)));
        if granted.is_none() {
            // The lock was lost just now, or its lease ended.
            let reason = state.held.as_ref().and_then(Held::loss).unwrap_or(LossReason::Unreachable);
            self.handle_event(state, TenureInput::GiveUp(task));
            gave_up();
            return Err(Error::Lost { path: self.lock.path(), reason });
        }
        Ok(granted)
    }

    /// Ends a task's turn (`share.rs`) with `input`.
    pub(super) fn end_turn(
        self: &Arc<Self>,
        task: LocalId,
        input: TenureInput,
        options: &Options,
    ) -> TurnEnd {
        let state = &mut *lock(&self.state);
        if state.machine.holder() != Some(task) {
            // The lock was lost during the turn.
            return TurnEnd::Released;
        }
        let end = state.held.as_ref().and_then(|held| held.acquisition().session().end());
        if let Some(end @ (SessionEnd::Closed | SessionEnd::AuthFailed)) = end {
            // Handles the end of the session before it is reported. Otherwise a waiting task could
            // cause a new acquisition on a new session.
            self.fail_for_session_end(state, end);
            return TurnEnd::Released;
        }
        let outputs = self.step(state, input);
        let releases = outputs.iter().any(|output| matches!(output, TenureOutput::Release(_)));
        let end = match &state.held {
            Some(held) if !releases => {
                // Reports the release before the next task gets the lock.
                options.listeners.tell(LockEvent::Released(held.ticket()));
                state.slot.set(Listeners::default());
                TurnEnd::PassedOn
            }
            _ => TurnEnd::Released,
        };
        self.run(state, outputs, None);
        end
    }

    /// Steps the machine, and runs its outputs.
    pub(super) fn handle_event(self: &Arc<Self>, state: &mut HoldState, input: TenureInput) {
        let outputs = self.step(state, input);
        self.run(state, outputs, None);
    }

    fn step(&self, state: &mut HoldState, input: TenureInput) -> Vec<TenureOutput> {
        let valid = state.held.as_ref().is_some_and(Held::is_valid);
        state.machine.step(input, clock::now(), valid)
    }

    /// Runs the machine's outputs. Returns the lock if they grant it to `requester`.
    fn run(
        self: &Arc<Self>,
        state: &mut HoldState,
        outputs: Vec<TenureOutput>,
        requester: Option<(LocalId, &Options)>,
    ) -> Option<Held> {
        let mut granted = None;
        let mut outputs = VecDeque::from(outputs);
        while let Some(output) = outputs.pop_front() {
            match output {
                TenureOutput::Acquire => {
                    state.number += 1;
                    let slot = ListenerSlot::default();
                    // The listeners of a task that asks now must get its position in the queue of
                    // the lock. Waiting tasks have already been told how many tasks are ahead.
                    if let Some((task, options)) = requester {
                        slot.set(options.listeners.clone());
                        state.requesting = Some((task, slot.clone()));
                    }
                    let acquiring = self.clone().acquire_shared(state.number, slot);
                    self.spawn(state, acquiring);
                }
                TenureOutput::Cancel => state.stop_acquisition(),
                TenureOutput::Release(how) => {
                    state.release_held(how);
                    state.stop_acquisition();
                }
                TenureOutput::Look => {
                    let Some(held) = &state.held else { continue };
                    let watching = background::watch_other_contenders(
                        Arc::downgrade(self),
                        held.acquisition().clone(),
                        state.number,
                    );
                    self.spawn(state, watching);
                }
                TenureOutput::Grant(task, pass) => {
                    match requester.filter(|(requester, _)| *requester == task) {
                        Some((_, options)) => granted = Some(self.share_held(state, task, pass, options)),
                        None => {
                            let Some(Waiter { sender, options }) = state.waiting.remove(&task) else {
                                outputs.extend(self.step(state, TenureInput::GiveUp(task)));
                                continue;
                            };
                            let held = self.share_held(state, task, pass, &options);
                            // This cannot fail: a waiter that gives up is removed first, under this mutex.
                            let _ = sender.send(Ok(held));
                        }
                    }
                }
                TenureOutput::WakeAt(at) => {
                    if state.alarm.replace(at).is_none() {
                        let alarm = background::run_alarm(Arc::downgrade(self), state.number);
                        self.spawn(state, alarm);
                    }
                }
            }
        }
        granted
    }

    /// Returns the guard for the task to which the machine grants the lock.
    fn share_held(
        self: &Arc<Self>,
        state: &mut HoldState,
        task: LocalId,
        pass: u32,
        options: &Options,
    ) -> Held {
        let held = state.held.as_ref().expect("the machine grants only a lock that is held");
        let worked = state.machine.has_worked();
        let shared = held.share_with(Share::new(self.clone(), task, pass), worked, options.clone());
        state.slot.set(options.listeners.clone());
        options.listeners.tell(LockEvent::Acquired(shared.ticket()));
        shared
    }

    fn spawn(&self, state: &mut HoldState, task: impl Future<Output = ()> + Send + 'static) {
        state.tasks.retain(|task| !task.is_finished());
        state.tasks.push(self.lock.context.tasks().spawn(task));
    }

    /// Steps the machine with an event of acquisition `number`, if that acquisition is current.
    /// Returns whether it is current.
    pub(super) fn handle_event_of(self: &Arc<Self>, number: u64, input: TenureInput) -> bool {
        let state = &mut *lock(&self.state);
        let timely = state.number == number;
        if timely {
            if input == TenureInput::Gone {
                // Ends this acquisition before the machine starts another one.
                state.release_held(ReleaseKind::Released);
                state.stop_acquisition();
            }
            self.handle_event(state, input);
        }
        timely
    }

    /// Handles the end of the session of acquisition `number`, if that acquisition is current. The
    /// caller has checked that the session cannot be replaced: the client was closed, or the server
    /// refused the credentials.
    pub(super) fn handle_session_end(self: &Arc<Self>, number: u64, end: SessionEnd) {
        let state = &mut *lock(&self.state);
        if state.number == number {
            self.fail_for_session_end(state, end);
        }
    }

    /// Releases the lock and fails all waiters, because the session cannot be replaced.
    fn fail_for_session_end(self: &Arc<Self>, state: &mut HoldState, end: SessionEnd) {
        state.release_held(ReleaseKind::Released);
        let reason = Loss::SessionOver(end).into();
        let error = match end {
            SessionEnd::Closed => Error::closed(),
            SessionEnd::AuthFailed => Error::lock_denied(&self.lock.path()),
            SessionEnd::Expired => Error::Lost { path: self.lock.path(), reason },
        };
        self.fail(state, &error);
    }

    fn fail(self: &Arc<Self>, state: &mut HoldState, error: &Error) {
        for Waiter { sender, options } in std::mem::take(&mut state.waiting).into_values() {
            options.listeners.tell(LockEvent::GaveUp);
            let _ = sender.send(Err(error.clone()));
        }
        state.stop_acquisition();
        self.handle_event(state, TenureInput::Failed);
    }

    /// Acquires the lock. The listeners in the slot get the events of the acquisition.
    async fn acquire_with(&self, slot: &ListenerSlot, wait_limit: WaitLimit) -> Result<Option<Held>, Error> {
        let mut handle = self.lock.clone();
        handle.options.listeners = Listeners::in_slot(slot.clone());
        handle.acquire_in_span(Kind::Mutex, wait_limit).await
    }

    fn start_holding(self: &Arc<Self>, state: &mut HoldState, held: Held, slot: ListenerSlot) {
        let watching = background::watch_loss(Arc::downgrade(self), held.acquisition().clone(), state.number);
        self.spawn(state, watching);
        state.held = Some(held);
        state.slot = slot;
        state.requesting = None;
    }

    async fn acquire_shared(self: Arc<Self>, number: u64, slot: ListenerSlot) {
        let outcome = loop {
            match self.acquire_with(&slot, WaitLimit::ForEver).await {
                // The grant was polled only after the lease had ended. Acquires again, because
                // tasks still wait.
                Err(Error::Lost { reason: LossReason::Unreachable, .. }) => {}
                outcome => break outcome,
            }
        };
        let state = &mut *lock(&self.state);
        match outcome {
            Ok(Some(held)) if state.number == number => {
                self.start_holding(state, held, slot);
                self.handle_event(state, TenureInput::Granted);
            }
            // This acquisition is not the current one any more. So no task wants its grant.
            Ok(held) => held.iter().for_each(Held::release_untouched),
            Err(error) if state.number == number => self.fail(state, &error),
            Err(_) => {}
        }
    }
}

impl HoldState {
    fn new_id(&mut self) -> LocalId {
        self.next += 1;
        LocalId(self.next)
    }

    fn release_held(&mut self, how: ReleaseKind) {
        let Some(held) = self.held.take() else { return };
        match how {
            // Does not call `release_state_of_this_thread`, because this thread may unwind for another
            // reason.
            ReleaseKind::Released => held.release_as(HolderState::Released),
            ReleaseKind::Panicked => held.release_as(HolderState::Panicked),
            ReleaseKind::Untouched => held.release_untouched(),
        }
    }

    /// Stops everything that runs for the current acquisition.
    fn stop_acquisition(&mut self) {
        self.number += 1;
        self.tasks.drain(..).for_each(|task| task.abort());
        self.alarm = None;
        // Replaces the slot and does not clear it, because the last task must still get the event
        // of its release.
        self.slot = ListenerSlot::default();
        self.requesting = None;
    }

    /// Stops the events of a task that has stopped waiting.
    pub(super) fn stop_events(&mut self, task: LocalId) {
        if let Some((_, slot)) = self.requesting.take_if(|(requesting, _)| *requesting == task) {
            slot.set(Listeners::default());
        }
    }
}

impl Drop for SharedHold {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        // Releases a lock that this process still keeps after the last release. No handle is left
        // that could acquire the lock again.
        let state = &mut *lock(&self.state);
        let how = if state.machine.has_worked() { ReleaseKind::Released } else { ReleaseKind::Untouched };
        state.release_held(how);
        state.stop_acquisition();
    }
}
