//! Searches every order of events for a [`Tenure`]. The tasks of one process share a queue
//! position, and one contender outside the process also wants the lock.
//!
//! Time is counted in units. A *look* is a listing that shows whether another contender waits. A
//! watch event or the answer to a look arrives at most one unit late. The main properties that are
//! checked:
//!
//! * No task is granted the lock while another task holds it with the same znode, or while the
//!   lease is invalid.
//! * Tokens increase.
//! * The lock is not passed from task to task after the outside contender has waited for the
//!   maximum hold and one unit. The wait counts from the grant to the process, or from the moment
//!   at which the outside contender queued if that is later.
//! * Once the process knows of the outside contender, the lock is passed from task to task at most
//!   the permitted number of times.
//! * No task waits for ever.

use std::time::Duration;

use stateright::{Checker, HasDiscoveries, Model, Property};
use zoolock_core::lease::Instant;
use zoolock_core::tenure::{LocalId, ReleaseKind, Tenure, TenureInput, TenureLimits, TenureOutput};

const UNIT: Duration = Duration::from_secs(1);
/// Maximum delay of an event.
const LATE: u64 = 1;

struct Process {
    tasks: usize,
    rounds: u8,
    limits: TenureLimits,
    /// Time at which the clock stops.
    end: u64,
    /// Number of times that the lease can end, that a task can give up, that a task can panic, and
    /// that the lock can be revoked.
    faults: [u8; 4],
    /// Set to drop the watch events.
    ignores_watches: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    tenure: Tenure,
    now: u64,
    lease_valid: bool,
    tasks: Vec<(Task, u8)>,
    /// Set if a task has worked under the current hold.
    worked: bool,
    server: Server,
    loss_reported: bool,
    /// Time at which the outside contender queued.
    outside: Option<u64>,
    /// Set if the process has released the lock since the outside contender queued.
    outside_served: bool,
    /// A look whose answer is pending: whether the outside contender waits, and when the look was sent.
    look: Option<(bool, u64)>,
    /// Time at which the watch fired, while its event is under way.
    fired: Option<u64>,
    watching: bool,
    alarm: Option<u64>,
    tenures: u32,
    last: Option<(u32, u32)>,
    /// Time of the current tenure's grant.
    granted: u64,
    /// Set if the outside contender waited at the grant, or the process has learned of it since.
    outsider_known: bool,
    /// Number of times that the lock was passed from task to task since the process learned of the
    /// outside contender.
    passes: u32,
    budget: [u8; 4],
    violation: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Task {
    Away,
    Waits,
    Holds,
    /// The task still works as if it held the lock, but the process no longer holds it. The task
    /// may not know of the loss yet.
    Outlives,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Server {
    Nothing,
    Queued,
    Granted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Ask(usize),
    GiveUp(usize),
    Done(usize, bool),
    Grant,
    OutsideComes,
    LookAnswered,
    WatchFires,
    Alarm,
    Tick,
    LeaseRunsOut,
    Lost,
    Gone,
    Closed,
    Revoked,
}

/// Returns a new id for each request of a task.
fn id(task: usize, round: u8) -> LocalId {
    LocalId(task as u64 * 100 + u64::from(round))
}

impl Process {
    fn input(&self, state: &mut State, input: TenureInput) {
        let now = Instant(state.now * UNIT.as_nanos() as u64);
        let outputs = state.tenure.step(input, now, state.lease_valid);
        for output in outputs {
            match output {
                TenureOutput::Acquire => {
                    if state.server != Server::Nothing {
                        state.violation = Some("queued twice");
                    }
                    state.server = Server::Queued;
                    state.tenures += 1;
                    state.lease_valid = true;
                }
                TenureOutput::Cancel => state.server = Server::Nothing,
                TenureOutput::Release(how) => {
                    if state.server != Server::Granted
                        || state.tasks.iter().any(|(task, _)| *task == Task::Holds)
                    {
                        state.violation = Some("released while a task holds");
                    }
                    if how != ReleaseKind::Panicked && state.worked != (how == ReleaseKind::Released) {
                        state.violation = Some("the marker disagrees with the last work");
                    }
                    self.reset(state);
                    state.outside_served |= state.outside.is_some();
                }
                TenureOutput::Look => {
                    if state.watching {
                        state.violation = Some("looked twice");
                    }
                    state.watching = true;
                    state.look = Some((self.outsider_waits(state), state.now));
                }
                TenureOutput::Grant(LocalId(id), pass) => self.granted(state, (id / 100) as usize, pass),
                TenureOutput::WakeAt(at) => state.alarm = Some(at.0 / UNIT.as_nanos() as u64),
            }
        }
    }

    fn granted(&self, state: &mut State, task: usize, pass: u32) {
        let token = (state.tenures, pass);
        let late = state.outside.is_some_and(|since| {
            let since = since.max(state.granted) + LATE + self.limits.max_hold.as_secs();
            self.outsider_waits(state) && state.now > since
        });
        state.passes += u32::from(state.outsider_known && pass > 0);
        state.violation = match () {
            () if state.server != Server::Granted => Some("granted without the lock"),
            () if !state.lease_valid => Some("granted with an invalid lease"),
            () if state.tasks.iter().any(|(task, _)| *task == Task::Holds) => Some("two hold"),
            () if state.tasks[task].0 != Task::Waits => Some("granted to a task that does not wait"),
            () if state.last.is_some_and(|last| last >= token) => Some("the token does not increase"),
            () if late && pass > 0 => Some("an outsider waits too long"),
            () if state.passes > self.limits.max_passes => Some("passed on too often"),
            () => state.violation,
        };
        state.last = Some(token);
        state.tasks[task].0 = Task::Holds;
    }

    fn outsider_waits(&self, state: &State) -> bool {
        state.outside.is_some() && !state.outside_served
    }

    fn reset(&self, state: &mut State) {
        state.server = Server::Nothing;
        state.watching = false;
        state.look = None;
        state.fired = None;
        state.alarm = None;
        (state.outsider_known, state.passes, state.worked) = (false, 0, false);
        state.loss_reported = false;
    }
}

impl Model for Process {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            tenure: Tenure::new(self.limits),
            now: 0,
            lease_valid: true,
            tasks: vec![(Task::Away, 0); self.tasks],
            worked: false,
            loss_reported: false,
            server: Server::Nothing,
            outside: None,
            outside_served: false,
            look: None,
            fired: None,
            watching: false,
            alarm: None,
            tenures: 0,
            last: None,
            granted: 0,
            outsider_known: false,
            passes: 0,
            budget: self.faults,
            violation: None,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (i, (task, round)) in state.tasks.iter().enumerate() {
            match task {
                Task::Away if *round < self.rounds => steps.push(Step::Ask(i)),
                Task::Away => {}
                Task::Waits if state.budget[1] > 0 => steps.push(Step::GiveUp(i)),
                Task::Waits => {}
                Task::Outlives => steps.push(Step::Done(i, false)),
                Task::Holds => {
                    if state.budget[1] > 0 {
                        steps.push(Step::GiveUp(i));
                    }
                    steps.push(Step::Done(i, false));
                    if state.budget[2] > 0 {
                        steps.push(Step::Done(i, true));
                    }
                }
            }
        }
        let waits_for_outside = self.outsider_waits(state) && state.server == Server::Nothing;
        if state.server == Server::Queued && !waits_for_outside {
            steps.push(Step::Grant);
        }
        if state.outside.is_none() {
            steps.push(Step::OutsideComes);
        }
        if state.look.is_some() {
            steps.push(Step::LookAnswered);
        }
        if state.fired.is_some() && state.look.is_none() {
            steps.push(Step::WatchFires);
        }
        let due = state.alarm.is_some_and(|at| at <= state.now);
        if due {
            steps.push(Step::Alarm);
        }
        // The clock stops while an alarm is due, or while an event is as late as it can be.
        let looks = state.look.map(|(_, since)| since);
        let late = [state.fired, looks].into_iter().flatten().any(|since| since + LATE <= state.now);
        if state.now < self.end && !late && !due && state.lease_valid {
            steps.push(Step::Tick);
        }
        if state.server != Server::Nothing && state.lease_valid && state.budget[0] > 0 {
            steps.push(Step::LeaseRunsOut);
        }
        if !state.lease_valid && state.server == Server::Granted {
            if !state.loss_reported {
                steps.push(Step::Lost);
            }
            steps.push(Step::Gone);
            steps.push(Step::Closed);
        }
        if state.server == Server::Granted && state.budget[3] > 0 {
            steps.push(Step::Revoked);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Ask(i) => {
                state.tasks[i] = (Task::Waits, last.tasks[i].1 + 1);
                self.input(&mut state, TenureInput::Ask(id(i, last.tasks[i].1 + 1)));
            }
            Step::GiveUp(i) => {
                state.budget[1] -= 1;
                state.tasks[i].0 = Task::Away;
                self.input(&mut state, TenureInput::GiveUp(id(i, last.tasks[i].1)));
            }
            Step::Done(i, panicked) => {
                state.budget[2] -= u8::from(panicked);
                state.worked |= state.tasks[i].0 == Task::Holds;
                state.tasks[i].0 = Task::Away;
                self.input(&mut state, TenureInput::Done { who: id(i, last.tasks[i].1), panicked });
            }
            Step::Grant => {
                state.server = Server::Granted;
                (state.granted, state.outsider_known) = (state.now, self.outsider_waits(&state));
                self.input(&mut state, TenureInput::Granted);
            }
            Step::OutsideComes => {
                state.outside = Some(state.now);
                if state.watching && !self.ignores_watches {
                    state.fired = Some(state.now);
                }
            }
            Step::LookAnswered => {
                let (outsider_waits, _) = state.look.take()?;
                state.outsider_known |= outsider_waits;
                self.input(
                    &mut state,
                    if outsider_waits { TenureInput::NotAlone } else { TenureInput::Alone },
                );
            }
            Step::WatchFires => {
                state.fired = None;
                state.outsider_known = true;
                self.input(&mut state, TenureInput::NotAlone);
            }
            Step::Alarm => {
                state.alarm = None;
                self.input(&mut state, TenureInput::Alarm);
            }
            Step::Tick => state.now += 1,
            Step::LeaseRunsOut => {
                state.budget[0] -= 1;
                state.lease_valid = false;
            }
            Step::Lost => {
                state.loss_reported = true;
                self.input(&mut state, TenureInput::Lost);
            }
            Step::Gone | Step::Closed => {
                for task in &mut state.tasks {
                    match task.0 {
                        Task::Holds => task.0 = Task::Outlives,
                        Task::Waits if step == Step::Closed => task.0 = Task::Away,
                        _ => {}
                    }
                }
                self.reset(&mut state);
                self.input(
                    &mut state,
                    if step == Step::Gone { TenureInput::Gone } else { TenureInput::Failed },
                );
            }
            Step::Revoked => {
                state.budget[3] -= 1;
                self.input(&mut state, TenureInput::Revoked);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no violation", |_, state: &State| state.violation.is_none()),
            Property::always("no task waits without a cause", |_, state: &State| {
                let waits = state.tasks.iter().any(|(task, _)| *task == Task::Waits);
                let holds = state.tasks.iter().any(|(task, _)| *task == Task::Holds);
                let looks = state.server == Server::Granted && state.look.is_some();
                !waits || holds || state.server == Server::Queued || !state.lease_valid || looks
            }),
            Property::always("a lost lock is not kept", |_, state: &State| {
                let holds = state.tasks.iter().any(|(task, _)| *task == Task::Holds);
                !(state.loss_reported && state.server == Server::Granted && !holds)
            }),
            Property::always("no outsider waits for an idle process", |process: &Process, state: &State| {
                let holds = state.tasks.iter().any(|(task, _)| *task == Task::Holds);
                let heard = state.look.is_none() && state.fired.is_none() && state.lease_valid;
                let kept = state.server == Server::Granted && !holds && heard;
                !(kept && process.outsider_waits(state))
            }),
            Property::sometimes("kept for the next", |_, state: &State| {
                state.server == Server::Granted && state.tasks.iter().all(|(task, _)| *task == Task::Away)
            }),
            Property::sometimes("passed on while an outsider waits", |process: &Process, state: &State| {
                process.outsider_waits(state) && state.passes > 0
            }),
        ]
    }
}

fn limits(max_passes: u32, max_hold: u32, linger: u32) -> TenureLimits {
    TenureLimits { max_passes, max_hold: UNIT * max_hold, linger: UNIT * linger }
}

fn violations(process: Process) -> Vec<String> {
    let checker = process.checker().finish_when(HasDiscoveries::AnyFailures).threads(1).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    let failed = |name: &&str| checker.discovery_classification(name).to_string() == "counterexample";
    let discoveries = checker.discoveries();
    discoveries
        .iter()
        .filter(|(name, _)| failed(name))
        .map(|(name, path)| {
            let violation = path.last_state().violation;
            format!("{name} ({violation:?}): {:?}", path.clone().into_actions())
        })
        .collect()
}

#[test]
fn tasks_share_the_lock_safely() {
    for (max_passes, max_hold, linger) in [(2, 2, 0), (2, 3, 2), (0, 5, 1), (9, 0, 0), (1, 2, 9)] {
        for faults in [[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]] {
            let limits = limits(max_passes, max_hold, linger);
            let process = Process { tasks: 2, rounds: 2, limits, end: 6, faults, ignores_watches: false };
            let violations = violations(process);
            assert!(violations.is_empty(), "{max_passes} {max_hold} {linger} {faults:?}: {violations:#?}");
        }
    }
}

#[test]
fn ignored_watch_keeps_others_waiting() {
    let process = Process {
        tasks: 2,
        rounds: 3,
        limits: limits(1, 1, 9),
        end: 6,
        faults: [0; 4],
        ignores_watches: true,
    };
    assert!(violations(process).iter().any(|what| what.contains("waits")), "search finds the ignored watch");
}
