//! One znode for all tasks of a process: they queue in memory, and the lock passes among them without the network.
//!
//! A tenure begins when the process is granted the lock and ends when it lets go. While nobody else stands in the queue
//! it may go on as it likes; as soon as somebody might, so many passes or so much time are left. Each local grant is
//! made on a valid lease, as any grant. The machine is told what happened ([`Input`]) and says what to do
//! ([`Output`]); it knows no clock, no task and no service. Why it is safe: `docs/DESIGN.md`, "What is a tenure?".

use std::collections::VecDeque;
use std::time::Duration;

use crate::lease::Instant;

/// For how long a process may keep the lock to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits {
    /// How often it may pass the lock on among its own tasks while somebody else waits.
    pub max_passes: u32,
    /// For how long it may do so.
    pub max_hold: Duration,
    /// For how long it keeps a lock that none of its tasks wants, while nobody else does either.
    pub linger: Duration,
}

/// A task of this process that wants the lock, or holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalId(pub u64);

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input {
    /// A task asks.
    Ask(LocalId),
    /// A task that asked does not want it any more, or is too late. If it holds already, nothing was done under it.
    GiveUp(LocalId),
    /// A holder lets go of what it worked under.
    Done {
        /// Which.
        who: LocalId,
        /// It unwinds: whoever comes next must be told by the lock's record.
        panicked: bool,
    },
    /// The process holds the lock.
    Granted,
    /// The process will not get the lock, or not again; whoever waits has been told.
    Failed,
    /// The lease has run out, and the holder has been told. The node may still keep others out, and does so for as long
    /// as the holder works.
    Lost,
    /// Nothing is left of the lock on the server, and the holder has been told.
    Gone,
    /// Somebody asks the process to let go.
    Revoked,
    /// A listing under a watch, which is in force from it on, shows nobody but us.
    Alone,
    /// That listing shows somebody else, or could not be had, or the watch has fired.
    NotAlone,
    /// The time that was asked for has come.
    Alarm,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Output {
    /// Queue for the lock.
    Acquire,
    /// Leave the queue.
    Cancel,
    /// Let go. What is asked for after it may be sent right behind.
    LetGo(How),
    /// Find out whether anybody else stands in the queue, and watch.
    Look,
    /// This task holds the lock; its token has this pass.
    Grant(LocalId, u32),
    /// Say [`Input::Alarm`] at this time, and no longer at an earlier one.
    WakeAt(Instant),
}

/// How the process lets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum How {
    /// As a holder that is done.
    Released,
    /// As one that unwinds.
    Panicked,
    /// As one that never began: whoever held before us is still the last.
    Untouched,
}

/// The tasks of one process that share one place in the queue of one lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tenure {
    limits: Limits,
    phase: Phase,
    waiting: VecDeque<LocalId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    /// Nothing is on the server.
    Away,
    /// Queued.
    Asking,
    Held(Holding),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Holding {
    /// The task that has it; nobody while it is kept for the next.
    holder: Option<LocalId>,
    /// How many of our tasks had it.
    grants: u32,
    /// One of them worked under it.
    worked: bool,
    /// It is not passed on any more.
    lost: bool,
    company: Company,
    revoked: bool,
    /// Since when it is kept for the next.
    idle_since: Option<Instant>,
}

/// Whether somebody else waits; since when, and after how many grants of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Company {
    /// Nobody does, for sure.
    Nobody,
    /// It is being looked for; until then, somebody does.
    Perhaps(Instant, u32),
    /// Somebody does, or did.
    Somebody(Instant, u32),
}

impl Tenure {
    /// A tenure that has not begun.
    pub fn new(limits: Limits) -> Tenure {
        Tenure { limits, phase: Phase::Away, waiting: VecDeque::new() }
    }

    /// Takes one input and says what to do, in this order. `lease_valid`: whether the session's lease is valid *now*.
    pub fn step(&mut self, input: Input, now: Instant, lease_valid: bool) -> Vec<Output> {
        let mut outputs = Vec::new();
        match (input, &mut self.phase) {
            (Input::Ask(who), phase) => {
                self.waiting.push_back(who);
                match phase {
                    Phase::Away => self.acquire(&mut outputs),
                    Phase::Asking => {}
                    Phase::Held(_) => self.pass_on(now, lease_valid, &mut outputs),
                }
            }
            (Input::GiveUp(who), _) => {
                self.waiting.retain(|waiting| *waiting != who);
                if self.phase == Phase::Asking && self.waiting.is_empty() {
                    self.phase = Phase::Away;
                    outputs.push(Output::Cancel);
                }
                self.turn_ends(who, None, now, lease_valid, &mut outputs);
            }
            (Input::Granted, Phase::Asking) => {
                let company = Company::Perhaps(now, 0);
                self.phase = Phase::Held(Holding {
                    holder: None,
                    grants: 0,
                    worked: false,
                    lost: false,
                    company,
                    revoked: false,
                    idle_since: None,
                });
                self.pass_on(now, lease_valid, &mut outputs);
                if matches!(self.phase, Phase::Held(_)) {
                    outputs.push(Output::Look);
                }
            }
            (Input::Failed, Phase::Asking | Phase::Held(_)) => {
                self.phase = Phase::Away;
                self.waiting.clear();
            }
            (Input::Lost, Phase::Held(holding)) => {
                holding.lost = true;
                self.pass_on(now, lease_valid, &mut outputs);
            }
            (Input::Gone, Phase::Held(_)) => self.begin_again(&mut outputs),
            (Input::Revoked, Phase::Held(holding)) => {
                holding.revoked = true;
                self.pass_on(now, lease_valid, &mut outputs);
            }
            (Input::Alone, Phase::Held(holding)) => {
                if let Company::Perhaps(..) = holding.company {
                    holding.company = Company::Nobody;
                }
                self.pass_on(now, lease_valid, &mut outputs);
            }
            (Input::NotAlone, Phase::Held(holding)) => {
                // Who came once counts until we let go: to look again would cost a listing for each who comes.
                holding.company = match holding.company {
                    Company::Nobody => Company::Somebody(now, holding.grants),
                    Company::Perhaps(since, grants) | Company::Somebody(since, grants) => {
                        Company::Somebody(since, grants)
                    }
                };
                self.pass_on(now, lease_valid, &mut outputs);
            }
            (Input::Alarm, Phase::Held(_)) => self.pass_on(now, lease_valid, &mut outputs),
            (Input::Done { who, panicked }, _) => {
                self.turn_ends(who, Some(panicked), now, lease_valid, &mut outputs);
            }
            // Of a tenure that is over.
            _ => {}
        }
        outputs
    }

    /// Whether nothing of it is on the server and nobody wants anything.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Away && self.waiting.is_empty()
    }

    /// Whether one of our tasks worked under what the process holds.
    pub fn has_worked(&self) -> bool {
        matches!(self.phase, Phase::Held(Holding { worked: true, .. }))
    }

    /// The task that has it.
    pub fn holder(&self) -> Option<LocalId> {
        match self.phase {
            Phase::Held(holding) => holding.holder,
            Phase::Away | Phase::Asking => None,
        }
    }

    /// Whether the process holds the lock, and none of its tasks does.
    pub fn is_kept(&self) -> bool {
        matches!(self.phase, Phase::Held(Holding { holder: None, .. }))
    }

    /// The lock is free among us: to the next of ours, to the others, or kept.
    fn pass_on(&mut self, now: Instant, lease_valid: bool, outputs: &mut Vec<Output>) {
        let Phase::Held(holding) = &mut self.phase else { return };
        if holding.holder.is_some() {
            return;
        }
        if holding.lost || holding.revoked || holding.grants == u32::MAX {
            return self.let_go(outputs);
        }
        // Whoever says that it is lost has not got round to us yet.
        if !lease_valid {
            return;
        }
        if let Company::Perhaps(since, grants) | Company::Somebody(since, grants) = holding.company {
            // The grant that begins a tenure is none of its passes.
            let passes = holding.grants.saturating_sub(grants.max(1));
            let had_enough = passes >= self.limits.max_passes || since.until(now) >= self.limits.max_hold;
            if holding.grants > 0 && had_enough {
                match holding.company {
                    // What is being looked for is answered before a release behind it: to wait for the answer costs the
                    // others nothing but the way back, and to queue anew would cost us as much.
                    Company::Perhaps(..) if !self.waiting.is_empty() || !self.limits.linger.is_zero() => {
                        return;
                    }
                    _ => return self.let_go(outputs),
                }
            }
        }
        if let Some(next) = self.waiting.pop_front() {
            outputs.push(Output::Grant(next, holding.grants));
            *holding =
                Holding { holder: Some(next), grants: holding.grants + 1, idle_since: None, ..*holding };
            return;
        }
        let since = *holding.idle_since.get_or_insert(now);
        let until = match holding.company {
            Company::Somebody(..) => since,
            Company::Perhaps(..) | Company::Nobody => since.after(self.limits.linger),
        };
        if until <= now {
            return self.let_go(outputs);
        }
        outputs.push(Output::WakeAt(until));
    }

    /// `panicked`: of one that worked under it. Said by one that held before the lock was gone it means nothing.
    fn turn_ends(
        &mut self,
        who: LocalId,
        panicked: Option<bool>,
        now: Instant,
        lease_valid: bool,
        outputs: &mut Vec<Output>,
    ) {
        let Phase::Held(holding) = &mut self.phase else { return };
        if holding.holder != Some(who) {
            return;
        }
        holding.holder = None;
        holding.worked |= panicked.is_some();
        match panicked {
            Some(true) => self.let_go_as(How::Panicked, outputs),
            // Nobody can be granted it, and the node is kept for nobody.
            _ if !lease_valid => self.let_go(outputs),
            _ => self.pass_on(now, lease_valid, outputs),
        }
    }

    fn let_go(&mut self, outputs: &mut Vec<Output>) {
        let how = if self.has_worked() { How::Released } else { How::Untouched };
        self.let_go_as(how, outputs);
    }

    fn let_go_as(&mut self, how: How, outputs: &mut Vec<Output>) {
        outputs.push(Output::LetGo(how));
        self.begin_again(outputs);
    }

    fn begin_again(&mut self, outputs: &mut Vec<Output>) {
        self.phase = Phase::Away;
        if !self.waiting.is_empty() {
            self.acquire(outputs);
        }
    }

    fn acquire(&mut self, outputs: &mut Vec<Output>) {
        self.phase = Phase::Asking;
        outputs.push(Output::Acquire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: LocalId = LocalId(1);
    const TWO: LocalId = LocalId(2);
    const LIMITS: Limits =
        Limits { max_passes: 5, max_hold: Duration::from_secs(1), linger: Duration::from_millis(100) };

    fn at(millis: u64) -> Instant {
        Instant(0).after(Duration::from_millis(millis))
    }

    /// Those who ask before it begins.
    fn begun(limits: Limits, tasks: &[LocalId]) -> Tenure {
        let mut tenure = Tenure::new(limits);
        for (nth, task) in tasks.iter().enumerate() {
            let acquires = if nth == 0 { vec![Output::Acquire] } else { vec![] };
            assert_eq!(tenure.step(Input::Ask(*task), at(0), true), acquires);
        }
        // Whatever the limits are, one of them is served.
        let granted = tenure.step(Input::Granted, at(0), true);
        assert_eq!(granted, [Output::Grant(tasks[0], 0), Output::Look]);
        tenure
    }

    fn done(who: LocalId) -> Input {
        Input::Done { who, panicked: false }
    }

    #[test]
    fn it_is_known_who_has_it_and_for_whom_it_is_kept() {
        let mut tenure = Tenure::new(LIMITS);
        let seen =
            |tenure: &Tenure| (tenure.is_idle(), tenure.holder(), tenure.is_kept(), tenure.has_worked());
        assert_eq!(seen(&tenure), (true, None, false, false));
        tenure.step(Input::Ask(ONE), at(0), true);
        assert_eq!(seen(&tenure), (false, None, false, false));
        let mut tenure = begun(LIMITS, &[ONE]);
        assert_eq!(seen(&tenure), (false, Some(ONE), false, false));
        assert_eq!(tenure.step(done(ONE), at(10), true), [Output::WakeAt(at(110))]);
        assert_eq!(seen(&tenure), (false, None, true, true));
        assert_eq!(tenure.step(Input::Alarm, at(109), true), [Output::WakeAt(at(110))]);
        assert_eq!(tenure.step(Input::Alarm, at(110), true), [Output::LetGo(How::Released)]);
        assert_eq!(seen(&tenure), (true, None, false, false));
    }

    #[test]
    fn who_is_asked_to_let_go_passes_it_on_to_nobody() {
        let mut tenure = begun(LIMITS, &[ONE, TWO]);
        assert_eq!(tenure.step(Input::Revoked, at(0), true), []);
        assert_eq!(tenure.step(done(ONE), at(0), true), [Output::LetGo(How::Released), Output::Acquire]);
        // What is kept is let go of at once.
        let mut tenure = begun(LIMITS, &[ONE]);
        tenure.step(done(ONE), at(0), true);
        assert_eq!(tenure.step(Input::Revoked, at(0), true), [Output::LetGo(How::Released)]);
    }

    #[test]
    fn passes_are_made_until_there_were_enough() {
        let mut tenure = begun(LIMITS, &[ONE, TWO]);
        assert_eq!(tenure.step(done(ONE), at(999), true), [Output::Grant(TWO, 1)]);
        let mut tenure = begun(LIMITS, &[ONE, TWO]);
        tenure.step(Input::NotAlone, at(0), true);
        let let_go = [Output::LetGo(How::Released), Output::Acquire];
        assert_eq!(tenure.step(done(ONE), at(1000), true), let_go);
    }

    #[test]
    fn with_no_passes_left_what_is_being_looked_for_is_waited_for_if_anybody_wants_it() {
        let none = Limits { max_passes: 0, linger: Duration::ZERO, ..LIMITS };
        let mut tenure = begun(none, &[ONE]);
        assert_eq!(tenure.step(done(ONE), at(0), true), [Output::LetGo(How::Released)]);

        let mut tenure = begun(none, &[ONE, TWO]);
        assert_eq!(tenure.step(done(ONE), at(0), true), []);
        assert_eq!(tenure.step(Input::Alone, at(0), true), [Output::Grant(TWO, 1)]);

        let mut tenure = begun(none, &[ONE, TWO]);
        assert_eq!(tenure.step(done(ONE), at(0), true), []);
        let let_go = [Output::LetGo(How::Released), Output::Acquire];
        assert_eq!(tenure.step(Input::NotAlone, at(0), true), let_go);

        let mut tenure = begun(Limits { max_passes: 0, ..LIMITS }, &[ONE]);
        assert_eq!(tenure.step(done(ONE), at(0), true), []);
        assert_eq!(tenure.step(Input::Alone, at(0), true), [Output::WakeAt(at(100))]);
    }

    #[test]
    fn each_time_that_it_is_kept_is_counted_anew() {
        let mut tenure = begun(LIMITS, &[ONE]);
        tenure.step(Input::Alone, at(0), true);
        assert_eq!(tenure.step(done(ONE), at(0), true), [Output::WakeAt(at(100))]);
        assert_eq!(tenure.step(Input::Ask(TWO), at(50), true), [Output::Grant(TWO, 1)]);
        assert_eq!(tenure.step(done(TWO), at(200), true), [Output::WakeAt(at(300))]);
    }

    #[test]
    fn after_a_panic_or_with_a_doubtful_lease_it_is_let_go_of() {
        let mut tenure = begun(LIMITS, &[ONE, TWO]);
        let panicked = Input::Done { who: ONE, panicked: true };
        let let_go = [Output::LetGo(How::Panicked), Output::Acquire];
        assert_eq!(tenure.step(panicked, at(0), true), let_go);

        let mut tenure = begun(LIMITS, &[ONE, TWO]);
        let let_go = [Output::LetGo(How::Released), Output::Acquire];
        assert_eq!(tenure.step(done(ONE), at(0), false), let_go);
    }
}
