//! Every order of what can happen to the tasks of one process that share a place in the queue, and to one outside.
//!
//! Time is counted in units; a fired watch or a look's answer may be one unit late, and the clock waits for them. What
//! is asked for: one task at a time on a node; none on a lease that is not valid; tokens rise; whoever waits outside sees no local
//! grant once it has waited for the longest hold and the unit, and no more of them than passes; nobody of ours waits
//! for ever.

use std::time::Duration;

use stateright::{Checker, HasDiscoveries, Model, Property};
use zoolock_core::lease::Instant;
use zoolock_core::tenure::{How, Input, Limits, LocalId, Output, Tenure};

const UNIT: Duration = Duration::from_secs(1);
/// How late an event may be.
const LATE: u64 = 1;

struct Process {
    tasks: usize,
    rounds: u8,
    limits: Limits,
    /// The clock stops there.
    end: u64,
    /// How often the lease may run out, somebody give up, somebody unwind, and we be asked to let go.
    faults: [u8; 4],
    /// Switched off: what a watch has to say is not heard.
    deaf: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    tenure: Tenure,
    now: u64,
    lease_valid: bool,
    tasks: Vec<(Task, u8)>,
    /// Whether anybody worked under what is held.
    worked: bool,
    server: Server,
    lost_told: bool,
    /// When it came.
    outside: Option<u64>,
    /// It had its turn.
    outside_served: bool,
    /// A look whose answer is under way: what it saw, and when.
    look: Option<(bool, u64)>,
    /// A watch that has fired.
    fired: Option<u64>,
    watching: bool,
    alarm: Option<u64>,
    tenures: u32,
    last: Option<(u32, u32)>,
    /// When this tenure began.
    granted: u64,
    /// Somebody outside waited when it began, or it has been told of one.
    told: bool,
    /// How often the lock was passed on since.
    passes: u32,
    budget: [u8; 4],
    foul: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Task {
    Away,
    Waits,
    Holds,
    /// It holds what is gone, and may not have noticed.
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

/// Another one each time it asks.
fn id(task: usize, round: u8) -> LocalId {
    LocalId(task as u64 * 100 + u64::from(round))
}

impl Process {
    fn input(&self, state: &mut State, input: Input) {
        let now = Instant(state.now * UNIT.as_nanos() as u64);
        let outputs = state.tenure.step(input, now, state.lease_valid);
        for output in outputs {
            match output {
                Output::Acquire => {
                    if state.server != Server::Nothing {
                        state.foul = Some("queued twice");
                    }
                    state.server = Server::Queued;
                    state.tenures += 1;
                    state.lease_valid = true;
                }
                Output::Cancel => state.server = Server::Nothing,
                Output::LetGo(how) => {
                    if state.server != Server::Granted
                        || state.tasks.iter().any(|(task, _)| *task == Task::Holds)
                    {
                        state.foul = Some("let go of what a task holds");
                    }
                    if how != How::Panicked && state.worked != (how == How::Released) {
                        state.foul = Some("the record does not say who worked last");
                    }
                    self.away(state);
                    state.outside_served |= state.outside.is_some();
                }
                Output::Look => {
                    if state.watching {
                        state.foul = Some("looked twice");
                    }
                    state.watching = true;
                    state.look = Some((self.company(state), state.now));
                }
                Output::Grant(LocalId(id), pass) => self.granted(state, (id / 100) as usize, pass),
                Output::WakeAt(at) => state.alarm = Some(at.0 / UNIT.as_nanos() as u64),
            }
        }
    }

    fn granted(&self, state: &mut State, task: usize, pass: u32) {
        let token = (state.tenures, pass);
        let late = state.outside.is_some_and(|since| {
            let since = since.max(state.granted) + LATE + self.limits.max_hold.as_secs();
            self.company(state) && state.now > since
        });
        state.passes += u32::from(state.told && pass > 0);
        state.foul = match () {
            () if state.server != Server::Granted => Some("granted what is not ours"),
            () if !state.lease_valid => Some("granted on a doubtful session"),
            () if state.tasks.iter().any(|(task, _)| *task == Task::Holds) => Some("two hold"),
            () if state.tasks[task].0 != Task::Waits => Some("granted to who does not want it"),
            () if state.last.is_some_and(|last| last >= token) => Some("the token does not rise"),
            () if late && pass > 0 => Some("somebody outside waits too long"),
            () if state.passes > self.limits.max_passes => Some("passed on too often"),
            () => state.foul,
        };
        state.last = Some(token);
        state.tasks[task].0 = Task::Holds;
    }

    fn company(&self, state: &State) -> bool {
        state.outside.is_some() && !state.outside_served
    }

    fn away(&self, state: &mut State) {
        state.server = Server::Nothing;
        state.watching = false;
        state.look = None;
        state.fired = None;
        state.alarm = None;
        (state.told, state.passes, state.worked) = (false, 0, false);
        state.lost_told = false;
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
            lost_told: false,
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
            told: false,
            passes: 0,
            budget: self.faults,
            foul: None,
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
        let waits_for_outside = self.company(state) && state.server == Server::Nothing;
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
        // The clock waits for what may be late, and for alarms.
        let looks = state.look.map(|(_, since)| since);
        let late = [state.fired, looks].into_iter().flatten().any(|since| since + LATE <= state.now);
        if state.now < self.end && !late && !due && state.lease_valid {
            steps.push(Step::Tick);
        }
        if state.server != Server::Nothing && state.lease_valid && state.budget[0] > 0 {
            steps.push(Step::LeaseRunsOut);
        }
        if !state.lease_valid && state.server == Server::Granted {
            if !state.lost_told {
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
                self.input(&mut state, Input::Ask(id(i, last.tasks[i].1 + 1)));
            }
            Step::GiveUp(i) => {
                state.budget[1] -= 1;
                state.tasks[i].0 = Task::Away;
                self.input(&mut state, Input::GiveUp(id(i, last.tasks[i].1)));
            }
            Step::Done(i, panicked) => {
                state.budget[2] -= u8::from(panicked);
                state.worked |= state.tasks[i].0 == Task::Holds;
                state.tasks[i].0 = Task::Away;
                self.input(&mut state, Input::Done { who: id(i, last.tasks[i].1), panicked });
            }
            Step::Grant => {
                state.server = Server::Granted;
                (state.granted, state.told) = (state.now, self.company(&state));
                self.input(&mut state, Input::Granted);
            }
            Step::OutsideComes => {
                state.outside = Some(state.now);
                if state.watching && !self.deaf {
                    state.fired = Some(state.now);
                }
            }
            Step::LookAnswered => {
                let (company, _) = state.look.take()?;
                state.told |= company;
                self.input(&mut state, if company { Input::NotAlone } else { Input::Alone });
            }
            Step::WatchFires => {
                state.fired = None;
                state.told = true;
                self.input(&mut state, Input::NotAlone);
            }
            Step::Alarm => {
                state.alarm = None;
                self.input(&mut state, Input::Alarm);
            }
            Step::Tick => state.now += 1,
            Step::LeaseRunsOut => {
                state.budget[0] -= 1;
                state.lease_valid = false;
            }
            Step::Lost => {
                state.lost_told = true;
                self.input(&mut state, Input::Lost);
            }
            Step::Gone | Step::Closed => {
                for task in &mut state.tasks {
                    match task.0 {
                        Task::Holds => task.0 = Task::Outlives,
                        Task::Waits if step == Step::Closed => task.0 = Task::Away,
                        _ => {}
                    }
                }
                self.away(&mut state);
                self.input(&mut state, if step == Step::Gone { Input::Gone } else { Input::Failed });
            }
            Step::Revoked => {
                state.budget[3] -= 1;
                self.input(&mut state, Input::Revoked);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("all is well", |_, state: &State| state.foul.is_none()),
            Property::always("nobody of ours waits for nothing", |_, state: &State| {
                let waits = state.tasks.iter().any(|(task, _)| *task == Task::Waits);
                let holds = state.tasks.iter().any(|(task, _)| *task == Task::Holds);
                let looks = state.server == Server::Granted && state.look.is_some();
                !waits || holds || state.server == Server::Queued || !state.lease_valid || looks
            }),
            Property::always("what is lost is kept for nobody", |_, state: &State| {
                let holds = state.tasks.iter().any(|(task, _)| *task == Task::Holds);
                !(state.lost_told && state.server == Server::Granted && !holds)
            }),
            Property::always("nobody outside waits for nothing", |process: &Process, state: &State| {
                let holds = state.tasks.iter().any(|(task, _)| *task == Task::Holds);
                let heard = state.look.is_none() && state.fired.is_none() && state.lease_valid;
                let kept = state.server == Server::Granted && !holds && heard;
                !(kept && process.company(state))
            }),
            Property::sometimes("kept for the next", |_, state: &State| {
                state.server == Server::Granted && state.tasks.iter().all(|(task, _)| *task == Task::Away)
            }),
            Property::sometimes("passed on beside one that waits", |process: &Process, state: &State| {
                process.company(state) && state.passes > 0
            }),
        ]
    }
}

fn limits(max_passes: u32, max_hold: u32, linger: u32) -> Limits {
    Limits { max_passes, max_hold: UNIT * max_hold, linger: UNIT * linger }
}

fn found(process: Process) -> Vec<String> {
    let checker = process.checker().finish_when(HasDiscoveries::AnyFailures).threads(1).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    let failed = |name: &&str| checker.discovery_classification(name).to_string() == "counterexample";
    let discoveries = checker.discoveries();
    discoveries
        .iter()
        .filter(|(name, _)| failed(name))
        .map(|(name, path)| {
            let foul = path.last_state().foul;
            format!("{name} ({foul:?}): {:?}", path.clone().into_actions())
        })
        .collect()
}

#[test]
fn nothing_is_found() {
    for (max_passes, max_hold, linger) in [(2, 2, 0), (2, 3, 2), (0, 5, 1), (9, 0, 0), (1, 2, 9)] {
        for faults in [[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]] {
            let limits = limits(max_passes, max_hold, linger);
            let process = Process { tasks: 2, rounds: 2, limits, end: 6, faults, deaf: false };
            let found = found(process);
            assert!(found.is_empty(), "{max_passes} {max_hold} {linger} {faults:?}: {found:#?}");
        }
    }
}

#[test]
fn whoever_does_not_hear_the_watch_keeps_others_waiting() {
    let process =
        Process { tasks: 2, rounds: 3, limits: limits(1, 1, 9), end: 6, faults: [0; 4], deaf: true };
    assert!(found(process).iter().any(|what| what.contains("waits")), "the search would not notice");
}
