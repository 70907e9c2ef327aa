//! Searches every order of events for a [`TaskQueue`]. The tasks of one client share a hold, and one contender outside of
//! the client also wants the lock.
//!
//! Time is counted in units. A *look* is a listing that shows whether another contender waits. A
//! watch event or the answer to a look arrives at most one unit late. The main properties that are
//! checked:
//!
//! * No task is granted the lock while another task holds it with the same znode, or while the
//!   lease is invalid.
//! * Tokens increase.
//! * The hold is not passed on after the outside contender has waited for the maximum hold and one
//!   unit. The wait counts from the grant to the client, or from the moment at which the outside
//!   contender queued if that is later.
//! * A grant that a task does not take in time passes to the next task, and not before that time.
//! * No task waits for ever.

use std::time::Duration;

use stateright::{Checker, HasDiscoveries, Model, Property};
use zoolock_core::lease::Instant;
use zoolock_core::shared_hold::{HoldAction, HoldLimits, ReleaseKind, TaskId, TaskQueue};

const UNIT: Duration = Duration::from_secs(1);
/// Maximum delay of an event.
const LATE: u64 = 1;
/// Time within which a task must take its grant.
const CLAIM: u64 = 2;

struct Client {
    tasks: usize,
    rounds: u8,
    limits: HoldLimits,
    /// Time at which the clock stops.
    end: u64,
    /// Number of times that the lease can end, that a task can give up, that a task can panic, that the lock can be
    /// revoked, and that a task never takes its grant.
    faults: [u8; 5],
    /// Set to drop the watch events.
    ignores_watches: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    queue: TaskQueue<usize>,
    now: u64,
    lease_valid: bool,
    tasks: Vec<(Task, u8)>,
    /// Set if a task has worked under the current hold.
    worked: bool,
    server: Server,
    loss_reported: bool,
    /// Time at which the outside contender queued.
    outside: Option<u64>,
    /// Set if the client has released the lock since the outside contender queued.
    outside_served: bool,
    /// A look whose answer is pending: whether the outside contender waits, and when the look was sent.
    look: Option<(bool, u64)>,
    /// Time at which the watch fired, while its event is under way.
    fired: Option<u64>,
    watching: bool,
    /// Number of holds of the client.
    holds: u32,
    /// The holds and the pass of the last token.
    last: Option<(u32, u32)>,
    /// Time of the current hold's grant.
    granted: u64,
    /// The task that was granted the lock and has not taken the grant, and the time of the grant.
    unclaimed: Option<(usize, u64)>,
    /// Set if the hold was passed on while the outside contender waited.
    passed_beside_outsider: bool,
    budget: [u8; 5],
    violation: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Task {
    Away,
    Waits,
    /// The task has a grant, and has not taken it.
    Granted,
    /// The task has a grant, and never takes it.
    Forgets,
    Holds,
    /// The task still works as if it held the lock, but the client no longer holds it. The task
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
    Claim(usize),
    Forget(usize),
    Release(usize, ReleaseKind),
    Grant,
    OutsideComes,
    LookAnswered,
    WatchFires,
    TimeEnds,
    Tick,
    LeaseRunsOut,
    Lost,
    Gone,
    Closed,
    Revoked,
}

/// Returns a new id for each request of a task.
fn id(task: usize, round: u8) -> TaskId {
    TaskId(task as u64 * 100 + u64::from(round))
}

fn instant(units: u64) -> Instant {
    Instant(units * UNIT.as_nanos() as u64)
}

impl Client {
    /// Handles one event, and carries out the action.
    fn step(
        &self,
        state: &mut State,
        event: impl FnOnce(&mut TaskQueue<usize>, Instant, bool) -> HoldAction<usize>,
    ) {
        let action = event(&mut state.queue, instant(state.now), state.lease_valid);
        if let Some((task, since)) = state.unclaimed
            && state.queue.holder() != Some(id(task, state.tasks[task].1))
        {
            if state.now - since < CLAIM && state.lease_valid {
                state.violation = Some("a grant passes on too early");
            }
            state.unclaimed = None;
        }
        self.act(state, action);
    }

    /// The task takes its grant. If the grant is gone, the task asks again.
    fn claim(&self, state: &mut State, task: usize) {
        let round = state.tasks[task].1;
        let is_valid = state.lease_valid;
        if state.queue.claim(id(task, round), is_valid) {
            state.tasks[task].0 = Task::Holds;
            state.unclaimed = None;
            return;
        }
        self.drop_grant(state, task);
        state.tasks[task] = (Task::Waits, round + 1);
        self.step(state, |queue, now, valid| queue.ask(id(task, round + 1), task, now, valid));
    }

    /// The task drops a grant that it has not taken.
    fn drop_grant(&self, state: &mut State, task: usize) {
        let id = id(task, state.tasks[task].1);
        state.unclaimed = state.unclaimed.filter(|(unclaimed, _)| *unclaimed != task);
        self.step(state, |queue, now, valid| queue.release(id, ReleaseKind::Untouched, now, valid));
    }

    /// Returns whether tasks take their grants in a step of its own, or never.
    fn claims_late(&self) -> bool {
        self.faults[4] > 0
    }

    fn act(&self, state: &mut State, action: HoldAction<usize>) {
        match action {
            HoldAction::None => {}
            HoldAction::Acquire => {
                if state.server != Server::Nothing {
                    state.violation = Some("queued twice");
                }
                state.server = Server::Queued;
                state.holds += 1;
                state.lease_valid = true;
            }
            HoldAction::Cancel => state.server = Server::Nothing,
            HoldAction::Release { how, acquires_again } => {
                if state.server != Server::Granted || state.tasks.iter().any(|(task, _)| *task == Task::Holds)
                {
                    state.violation = Some("released while a task holds");
                }
                if how != ReleaseKind::Panicked && state.worked != (how == ReleaseKind::Released) {
                    state.violation = Some("the marker disagrees with the last work");
                }
                self.reset(state);
                state.outside_served |= state.outside.is_some();
                if acquires_again {
                    self.act(state, HoldAction::Acquire);
                }
            }
            HoldAction::Grant { waiter, pass, .. } => self.granted(state, waiter, pass),
        }
    }

    fn granted(&self, state: &mut State, task: usize, pass: u32) {
        let token = (state.holds, pass);
        let late = state.outside.is_some_and(|since| {
            let since = since.max(state.granted) + LATE + self.limits.max_hold.as_secs();
            self.outsider_waits(state) && state.now > since
        });
        state.passed_beside_outsider |= self.outsider_waits(state) && pass > 0;
        state.violation = match () {
            () if state.server != Server::Granted => Some("granted without the lock"),
            () if !state.lease_valid => Some("granted with an invalid lease"),
            () if state.tasks.iter().any(|(task, _)| *task == Task::Holds) => Some("two hold"),
            () if state.tasks[task].0 != Task::Waits => Some("granted to a task that does not wait"),
            () if state.last.is_some_and(|last| last >= token) => Some("the token does not increase"),
            () if late && pass > 0 => Some("an outsider waits too long"),
            () => state.violation,
        };
        state.last = Some(token);
        state.tasks[task].0 = Task::Granted;
        state.unclaimed = Some((task, state.now));
        if !self.claims_late() {
            self.claim(state, task);
        }
    }

    /// Returns whether a task holds the lock, or may take its grant.
    fn task_holds(&self, state: &State) -> bool {
        state.unclaimed.is_some() || state.tasks.iter().any(|(task, _)| *task == Task::Holds)
    }

    fn outsider_waits(&self, state: &State) -> bool {
        state.outside.is_some() && !state.outside_served
    }

    fn reset(&self, state: &mut State) {
        state.server = Server::Nothing;
        state.watching = false;
        state.look = None;
        state.fired = None;
        state.unclaimed = None;
        (state.passed_beside_outsider, state.worked, state.loss_reported) = (false, false, false);
    }
}

impl Model for Client {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            queue: TaskQueue::new(self.limits),
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
            holds: 0,
            last: None,
            granted: 0,
            unclaimed: None,
            passed_beside_outsider: false,
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
                Task::Granted | Task::Forgets => {
                    if *task == Task::Granted {
                        steps.push(Step::Claim(i));
                        steps.extend((state.budget[4] > 0).then_some(Step::Forget(i)));
                    }
                    if state.budget[1] > 0 {
                        steps.push(Step::Release(i, ReleaseKind::Untouched));
                    }
                }
                Task::Outlives => steps.push(Step::Release(i, ReleaseKind::Released)),
                Task::Holds => {
                    // A task that gives up after its grant has not worked under the lock.
                    if state.budget[1] > 0 {
                        steps.push(Step::Release(i, ReleaseKind::Untouched));
                    }
                    steps.push(Step::Release(i, ReleaseKind::Released));
                    if state.budget[2] > 0 {
                        steps.push(Step::Release(i, ReleaseKind::Panicked));
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
        let due = state.server == Server::Granted
            && state.lease_valid
            && state.queue.time_to_check(instant(state.now)) == Duration::ZERO;
        if due {
            steps.push(Step::TimeEnds);
        }
        // The clock stops while a check is due, or while an event is as late as it can be.
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
                let id = id(i, last.tasks[i].1 + 1);
                self.step(&mut state, |queue, now, valid| queue.ask(id, i, now, valid));
            }
            Step::GiveUp(i) => {
                state.budget[1] -= 1;
                state.tasks[i].0 = Task::Away;
                let action = state.queue.give_up(id(i, last.tasks[i].1))?;
                self.act(&mut state, action);
            }
            Step::Release(i, how) => {
                state.budget[1] -= u8::from(how == ReleaseKind::Untouched);
                state.budget[2] -= u8::from(how == ReleaseKind::Panicked);
                state.worked |= state.tasks[i].0 == Task::Holds && how != ReleaseKind::Untouched;
                state.tasks[i].0 = Task::Away;
                if how == ReleaseKind::Untouched {
                    self.drop_grant(&mut state, i);
                } else {
                    let id = id(i, last.tasks[i].1);
                    self.step(&mut state, |queue, now, valid| queue.release(id, how, now, valid));
                }
            }
            Step::Claim(i) => self.claim(&mut state, i),
            Step::Forget(i) => {
                state.budget[4] -= 1;
                state.tasks[i].0 = Task::Forgets;
            }
            Step::Grant => {
                state.server = Server::Granted;
                state.granted = state.now;
                self.step(&mut state, TaskQueue::begin_hold);
                if state.server == Server::Granted {
                    state.watching = true;
                    state.look = Some((self.outsider_waits(&state), state.now));
                }
            }
            Step::OutsideComes => {
                state.outside = Some(state.now);
                if state.watching && !self.ignores_watches {
                    state.fired = Some(state.now);
                }
            }
            Step::LookAnswered => {
                let (outsider_waits, _) = state.look.take()?;
                let find = if outsider_waits { TaskQueue::find_contended } else { TaskQueue::find_alone };
                self.step(&mut state, find);
            }
            Step::WatchFires => {
                state.fired = None;
                self.step(&mut state, TaskQueue::find_contended);
            }
            Step::TimeEnds => {
                self.step(&mut state, TaskQueue::check);
                if state.unclaimed.is_some_and(|(_, since)| since + CLAIM <= state.now) {
                    state.violation = Some("a grant that no task takes stays");
                }
            }
            Step::Tick => state.now += 1,
            Step::LeaseRunsOut => {
                state.budget[0] -= 1;
                state.lease_valid = false;
            }
            Step::Lost => {
                state.loss_reported = true;
                self.step(&mut state, TaskQueue::end_soon);
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
                if step == Step::Gone {
                    self.step(&mut state, |queue, _, _| queue.lose());
                } else {
                    state.queue.fail();
                }
            }
            Step::Revoked => {
                state.budget[3] -= 1;
                self.step(&mut state, TaskQueue::end_soon);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no violation", |_, state: &State| state.violation.is_none()),
            Property::always("no task waits without a cause", |client: &Client, state: &State| {
                let waits = state.tasks.iter().any(|(task, _)| *task == Task::Waits);
                !waits || client.task_holds(state) || state.server == Server::Queued || !state.lease_valid
            }),
            Property::always("a lost lock is not kept", |_, state: &State| {
                let works = state.tasks.iter().any(|(task, _)| *task == Task::Holds);
                !(state.loss_reported && state.server == Server::Granted && !works)
            }),
            Property::always("no outsider waits for an idle client", |client: &Client, state: &State| {
                let heard = state.look.is_none() && state.fired.is_none() && state.lease_valid;
                let kept = state.server == Server::Granted && !client.task_holds(state) && heard;
                !(kept && client.outsider_waits(state))
            }),
            Property::sometimes("kept for the next", |_, state: &State| {
                state.server == Server::Granted && state.tasks.iter().all(|(task, _)| *task == Task::Away)
            }),
            Property::sometimes("passed on while an outsider waits", |_, state: &State| {
                state.passed_beside_outsider
            }),
        ]
    }
}

fn violations(client: Client) -> Vec<String> {
    let checker = client.checker().finish_when(HasDiscoveries::AnyFailures).threads(1).spawn_bfs().join();
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

fn limits(max_hold: u32, max_idle: u32) -> HoldLimits {
    let claim_timeout = instant(0).until(instant(CLAIM));
    HoldLimits { max_hold: UNIT * max_hold, max_idle: UNIT * max_idle, claim_timeout }
}

fn expect_no_violation(limits: HoldLimits, faults: [u8; 5]) {
    let client = Client { tasks: 2, rounds: 2, limits, end: 6, faults, ignores_watches: false };
    let violations = violations(client);
    assert!(violations.is_empty(), "{limits:?} {faults:?}: {violations:#?}");
}

#[test]
fn tasks_share_the_lock_safely() {
    for (max_hold, max_idle) in [(2, 0), (3, 2), (5, 1), (0, 0), (2, 9)] {
        for faults in [[0; 5], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]] {
            expect_no_violation(limits(max_hold, max_idle), faults);
        }
    }
}

#[test]
fn grant_that_a_task_does_not_take_passes_on() {
    for (max_hold, max_idle) in [(2, 0), (3, 2)] {
        for faults in [[0, 0, 0, 0, 1], [1, 0, 0, 0, 1], [0, 1, 0, 0, 1], [0, 0, 0, 1, 1]] {
            expect_no_violation(limits(max_hold, max_idle), faults);
        }
    }
}

#[test]
fn ignored_watch_keeps_others_waiting() {
    let client =
        Client { tasks: 2, rounds: 3, limits: limits(1, 9), end: 6, faults: [0; 5], ignores_watches: true };
    assert!(violations(client).iter().any(|what| what.contains("waits")), "search finds the ignored watch");
}
