//! A model of the lease. The holder measures its lease on its own clock. The leader counts the
//! session timeout on another clock.
//!
//! The holder renews its lease as the library does, one request at a time. The holder is connected
//! to one server. Every half tick, that server reports the holder's session to the leader, if it
//! has received a request of the holder since the last report. As in ZooKeeper, a request that the
//! server forwards to the leader is no such report (`LearnerHandler` touches sessions for pings
//! only). The leader expires the session exactly one session timeout after the last report, and
//! then a rival acquires the lock. The checked property: from then on, the holder does not rely on
//! the lock. The holder's clock runs up to a twelfth faster or slower than the leader's, which is the
//! margin of the lease. When the holder reconnects, the server can grant half of the session timeout.
//!
//! A session can rest between its first write and the time at which it needs the lease ([`LeaseModel::rest`]).
//!
//! In the last tests, messages take longer and the holder's computer sleeps. Meanwhile the leader
//! gets no report. [`with_a_connection`] also models the connection between the server and the
//! leader. All messages on that connection arrive in order, pings too. Once the holder's computer
//! has slept, their delay has no limit.

use std::collections::VecDeque;
use std::time::Duration;

use stateright::{Model, Property};
use zoolock_core::lease::DRIFT_MARGIN;
use zoolock_core::pace::Pace;
use zoolock_core::{Instant, Lease};

use crate::{long, search};

/// Steps per tick. One step is half a tick of the leader's clock.
const TICK: u32 = 2;
/// The session timeout, in steps.
const TIMEOUT: u32 = 24;
/// Units of the holder's clock per step, if it is as fast as the leader's.
const UNITS: u32 = 24;
/// Number of ticks after which a deposed leader notices that it has lost its quorum.
const SYNC_LIMIT: u32 = 5;
/// The rates of the holder's clock. The slowest is the slowest for which the lease has a margin.
const RATES: [u32; 3] = [UNITS - UNITS / DRIFT_MARGIN, UNITS, UNITS + UNITS / DRIFT_MARGIN];

/// The rule by which a holder decides whether it still holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LeaseRule {
    /// The lease of the library.
    Lease,
    /// Every answer of the server renews the lease, also the answer to a ping or a read.
    RenewedByPings,
    /// A renewal counts from its answer, not from its request.
    FromTheAnswer,
    /// The lease lasts for longer than the session timeout.
    WholeTimeout,
    /// The lease follows the requested timeout, although the server has halved it.
    AskedTimeout,
    /// The lease follows the first timeout, although a server has halved it in a later attach.
    FirstTimeout,
    /// The lease lasts until the client reports that the session has expired, after 1.4 session timeouts
    /// without an answer.
    UntilExpired,
    /// The holder uses a clock that stops while its computer sleeps.
    Monotonic,
    /// The holder uses the wall clock, which can be set back.
    WallClock,
    /// A `sync` confirms the lease like a write.
    SyncConfirms,
    /// One confirmed request renews the lease.
    ByOneConfirmation,
    /// Two confirmed requests renew the lease. The second one is sent a tick or more after the answer to the first one.
    ByTwoConfirmations,
    /// A read between two writes counts as proof that the leader got a report, although the
    /// connected server answers a read without the leader.
    ReadsProve,
}

impl LeaseRule {
    pub(crate) const BROKEN: [LeaseRule; 12] = [
        LeaseRule::RenewedByPings,
        LeaseRule::FromTheAnswer,
        LeaseRule::WholeTimeout,
        LeaseRule::AskedTimeout,
        LeaseRule::FirstTimeout,
        LeaseRule::UntilExpired,
        LeaseRule::Monotonic,
        LeaseRule::WallClock,
        LeaseRule::SyncConfirms,
        LeaseRule::ByOneConfirmation,
        LeaseRule::ByTwoConfirmations,
        LeaseRule::ReadsProve,
    ];

    /// Returns whether two confirmed requests extend the lease under this rule. The library needs
    /// three. Two are enough if pings are never delayed. So with such a rule and without delayed
    /// pings, a search finds only the bug after which the rule is named.
    fn needs_two(self) -> bool {
        use LeaseRule::{ByTwoConfirmations, FromTheAnswer, SyncConfirms};
        matches!(self, ByTwoConfirmations | FromTheAnswer | SyncConfirms)
    }
}

/// The faults that can still happen, once each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Faults {
    /// The holder's server is disconnected from the leader.
    follower_cut: bool,
    /// The holder is disconnected from its server. With `heals` the holder reconnects on a new
    /// connection. With `shortens` the server then grants half of the timeout.
    holder_cut: bool,
    heals: bool,
    shortens: bool,
    /// The other servers elect a new leader, which counts the session timeout from then on. The
    /// holder stays with the old leader.
    deposed: bool,
    /// The holder's computer sleeps ([`LeaseModel::nap`]).
    sleeps: bool,
    /// The wall clock of the holder's computer is set back by a session timeout.
    set_back: bool,
}

#[derive(Clone, Debug)]
struct LeaseModel {
    rule: LeaseRule,
    faults: Faults,
    /// Set if the holder knows the tick of the servers.
    knows_tick: bool,
    /// Set if the holder sends another request after each write: a `sync`, or a read with the rule
    /// `ReadsProve`.
    alternates: bool,
    /// The time for which the session rests after its first write, in steps. Then the contender needs the lease.
    rest: u32,
    /// Maximum delay of a message, in steps.
    delay: u32,
    /// Set to model the connection between the server and the leader. The messages on it have no
    /// maximum delay once the holder's computer has slept.
    connection: bool,
    /// Duration of the sleep of the holder's computer, in steps.
    nap: u32,
    /// The leader's time at which the search ends, in steps.
    end: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    rate: u32,
    /// The time on the leader's clock, in steps.
    now: u32,
    /// The time on the holder's clock, in units.
    own: u32,
    lease: Lease,
    /// For the rule with one confirmation: the time at which the last confirmed renewal was sent.
    confirmed: Option<u32>,
    /// For the rules with two confirmations: the end of the lease, and the times of recent renewals (sent, answered).
    with_two: (Option<Instant>, Vec<(u32, u32)>),
    /// Time at which the holder last received an answer from its server.
    heard: u32,
    renew_at: u32,
    /// Set if the last request was a write.
    was_write: bool,
    renewal: Option<Sent>,
    faults: Faults,
    holder_cut: bool,
    follower_cut: bool,
    /// Set if the server has received a request of the holder since the server's last report to the
    /// leader.
    noted: bool,
    /// Messages on the connection from the server to the leader, and back.
    up: VecDeque<Up>,
    down: VecDeque<Down>,
    /// Time from which the leader counts the session timeout.
    touched: u32,
    /// The session timeout after which the leader expires the session, in steps.
    timeout: u32,
    deposed_at: Option<u32>,
    /// Set if the session has expired, and the lock has been granted to a rival.
    rival: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sent {
    at: u32,
    is_write: bool,
    place: Place,
    /// Time at which the renewal began its current hop ([`Place`]).
    since: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    ToServer,
    ToLeader,
    Back,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Up {
    Renewal,
    /// The answer to a ping, with a report of the holder's session.
    Touch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Down {
    Answer,
    Ping,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Tick,
    /// The first message on the way to the leader arrives there.
    GoesUp,
    /// The first message on the way back to the server arrives there.
    GoesDown,
    /// The renewal finishes its current hop.
    Arrives,
    CutFollower,
    CutHolder,
    Heal,
    Depose,
    Sleep,
    SetBack,
}

const OVERLAP: &str = "the holder does not rely on the lock while a rival holds";
const LOST: &str = "a rival holds in the end";

fn instant(own: u32) -> Instant {
    Instant(u64::from(own) * 1_000_000)
}

fn duration(steps: u32) -> Duration {
    Duration::from_millis(u64::from(steps * UNITS))
}

impl LeaseModel {
    fn relies_on_lock(&self, world: &World) -> bool {
        match self.rule {
            LeaseRule::UntilExpired => (world.own - world.heard) * 5 < TIMEOUT * UNITS * 7,
            LeaseRule::ByOneConfirmation => world
                .confirmed
                .is_some_and(|sent| instant(world.own) < instant(sent).after(duration(TIMEOUT) * 11 / 12)),
            _ if self.rule.needs_two() => world.with_two.0.is_some_and(|end| instant(world.own) < end),
            _ => world.lease.is_valid(instant(world.own)),
        }
    }

    /// Extends the lease by an earlier rule of the library, which needed only two confirmed
    /// requests.
    fn confirm_with_two(world: &mut World, sent: u32) {
        let (end, answered) = &mut world.with_two;
        answered.push((sent, world.own));
        // With this timeout, the report interval is a whole tick.
        let is_known = |(_, answered): &(u32, u32)| sent >= answered + TICK * UNITS;
        let newest = answered.iter().rposition(is_known);
        answered.drain(..newest.unwrap_or(0));
        // The session was requested at this time, when the holder's clock started.
        let told = newest.map_or(TIMEOUT * UNITS, |_| answered[0].0);
        *end = (*end).max(Some(instant(sent.min(told)).after(duration(TIMEOUT) * 11 / 12)));
    }

    /// Returns whether a leader answers the holder. With [`LeaseRule::SyncConfirms`], a deposed
    /// leader answers, too, until it notices that it is cut off.
    fn leader_answers(&self, world: &World) -> bool {
        if world.rival {
            return false;
        }
        match world.deposed_at {
            None => !world.follower_cut,
            Some(since) => self.rule == LeaseRule::SyncConfirms && world.now <= since + SYNC_LIMIT * TICK,
        }
    }

    fn advance_step(&self, world: &mut World, own: bool) {
        world.now += 1;
        if own {
            world.own += world.rate;
        }
        if self.connection {
            // One waiting ping is enough: a second one would add nothing.
            if !world.follower_cut && world.down.back() != Some(&Down::Ping) {
                world.down.push_back(Down::Ping);
            }
        } else if std::mem::take(&mut world.noted) {
            if world.follower_cut || world.deposed_at.is_some() {
                world.noted = true;
            } else {
                world.touched = world.now;
            }
        }
        // The session expires as early as possible. The real leader counts in buckets, and rounds up.
        world.rival |= world.now >= world.touched + world.timeout;
    }

    /// Returns whether the renewal can make its next hop, which takes at most the maximum delay. If
    /// the connection is modelled, the hops to the leader and back are the steps `GoesUp` and
    /// `GoesDown`, and this function returns false for them.
    fn can_move(&self, world: &World) -> bool {
        world.renewal.is_some_and(|sent| match sent.place {
            Place::ToServer | Place::Back => !world.holder_cut,
            Place::ToLeader => !self.connection && self.leader_answers(world),
        })
    }
}

impl Model for LeaseModel {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let timeout = match self.rule {
            LeaseRule::WholeTimeout => duration(TIMEOUT) * 3 / 2,
            LeaseRule::AskedTimeout => duration(TIMEOUT) * 2,
            _ => duration(TIMEOUT),
        };
        let world = |rate| World {
            rate,
            now: 0,
            // Not zero, because `Step::SetBack` subtracts this time.
            own: TIMEOUT * UNITS,
            // The leader has known the session since it was requested at this time, so the lease
            // counts from this time.
            lease: Lease::new(timeout, self.knows_tick.then_some(duration(TICK)), instant(TIMEOUT * UNITS)),
            confirmed: None,
            with_two: (None, Vec::new()),
            heard: TIMEOUT * UNITS,
            renew_at: TIMEOUT * UNITS,
            was_write: false,
            renewal: None,
            faults: self.faults,
            holder_cut: false,
            follower_cut: false,
            noted: false,
            up: VecDeque::new(),
            down: VecDeque::new(),
            touched: 0,
            timeout: TIMEOUT,
            deposed_at: None,
            rival: false,
        };
        RATES.map(world).to_vec()
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        let can_move = self.can_move(world);
        if can_move {
            steps.push(Step::Arrives);
        }
        let late = can_move && world.renewal.is_some_and(|sent| world.now >= sent.since + self.delay);
        // Until the holder's computer has slept, the clock waits while a message is on the
        // connection.
        let late = late || world.faults.sleeps && !(world.up.is_empty() && world.down.is_empty());
        if world.now < self.end && !late {
            steps.push(Step::Tick);
        }
        let faults = &world.faults;
        let possible = [
            (!world.up.is_empty(), Step::GoesUp),
            (!world.down.is_empty(), Step::GoesDown),
            (faults.follower_cut && world.deposed_at.is_none(), Step::CutFollower),
            (faults.holder_cut, Step::CutHolder),
            (faults.heals && world.holder_cut, Step::Heal),
            (faults.deposed && !world.follower_cut, Step::Depose),
            (faults.sleeps, Step::Sleep),
            (faults.set_back, Step::SetBack),
        ];
        steps.extend(possible.into_iter().filter(|(possible, _)| *possible).map(|(_, step)| step));
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::Tick => self.advance_step(&mut world, true),
            Step::Arrives => {
                let mut sent = world.renewal.take()?;
                sent.since = world.now;
                match sent.place {
                    Place::ToServer => {
                        world.noted = true;
                        let by_itself = match self.rule {
                            LeaseRule::RenewedByPings => true,
                            LeaseRule::ReadsProve => !sent.is_write,
                            _ => false,
                        };
                        if self.connection && !world.follower_cut && !by_itself {
                            world.up.push_back(Up::Renewal);
                        }
                        sent.place = if by_itself { Place::Back } else { Place::ToLeader };
                        world.renewal = Some(sent);
                    }
                    Place::ToLeader => {
                        sent.place = Place::Back;
                        world.renewal = Some(sent);
                    }
                    Place::Back => {
                        let late = self.rule == LeaseRule::FromTheAnswer;
                        let is_write = sent.is_write;
                        let sent = if late { world.own } else { sent.at };
                        match is_write {
                            true => world.lease.record_confirmed_write(instant(sent), instant(world.own)),
                            false => world.lease.record_answer(instant(sent), instant(world.own)),
                        };
                        match self.rule {
                            LeaseRule::ByOneConfirmation => world.confirmed = Some(sent),
                            _ if self.rule.needs_two() => LeaseModel::confirm_with_two(&mut world, sent),
                            _ => {}
                        }
                        world.heard = world.own;
                    }
                }
            }
            Step::GoesUp => match world.up.pop_front()? {
                Up::Renewal if world.rival => {}
                Up::Renewal => world.down.push_back(Down::Answer),
                Up::Touch => world.touched = world.now,
            },
            Step::GoesDown => match world.down.pop_front()? {
                Down::Answer => {
                    let sent = world.renewal.as_mut()?;
                    (sent.place, sent.since) = (Place::Back, world.now);
                }
                Down::Ping => {
                    if std::mem::take(&mut world.noted) {
                        world.up.push_back(Up::Touch);
                    }
                }
            },
            Step::CutFollower => {
                (world.follower_cut, world.faults.follower_cut) = (true, false);
                world.up.clear();
                world.down.clear();
            }
            Step::CutHolder => (world.holder_cut, world.faults.holder_cut) = (true, false),
            Step::Heal => {
                (world.holder_cut, world.faults.heals) = (false, false);
                // Pending requests get no answer. After the reconnect, the server asks the leader
                // whether the session exists. The leader counts that question as a report.
                world.renewal = None;
                if !world.follower_cut && !world.rival {
                    let mut timeout = duration(TIMEOUT);
                    if world.deposed_at.is_none() {
                        world.touched = world.now;
                        if std::mem::take(&mut world.faults.shortens) {
                            world.timeout = TIMEOUT / 2;
                            timeout /= 2;
                        }
                    }
                    // A deposed leader also confirms the session.
                    if self.rule != LeaseRule::FirstTimeout {
                        world.lease.record_attach(instant(world.own), timeout);
                    }
                }
            }
            Step::Depose => {
                (world.deposed_at, world.faults.deposed) = (Some(world.now), false);
                world.touched = world.now;
            }
            Step::Sleep => {
                world.faults.sleeps = false;
                (0..self.nap).for_each(|_| self.advance_step(&mut world, self.rule != LeaseRule::Monotonic));
            }
            Step::SetBack => {
                world.faults.set_back = false;
                if self.rule == LeaseRule::WallClock {
                    world.own -= TIMEOUT * UNITS;
                }
            }
        }
        // The holder renews as soon as possible.
        let rests = world.own < (TIMEOUT + self.rest) * UNITS;
        if !rests && !world.lease.is_in_use() && world.lease.begin_use(instant(world.own)) {
            world.renew_at = world.own;
        }
        if world.renewal.is_none() && world.own >= world.renew_at && !world.rival {
            let interval = Pace::beat(duration(TIMEOUT)) * if self.alternates && !rests { 1 } else { 2 };
            world.renew_at = world.own + interval.as_millis() as u32;
            let is_first = world.own == TIMEOUT * UNITS;
            world.was_write = is_first || !(rests || self.alternates && world.was_write);
            let is_write = world.was_write;
            world.renewal = Some(Sent { at: world.own, is_write, place: Place::ToServer, since: world.now });
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<LeaseModel>> {
        vec![
            Property::always(OVERLAP, |model: &LeaseModel, w: &World| !(w.rival && model.relies_on_lock(w))),
            Property::sometimes(LOST, |_, w: &World| w.rival),
        ]
    }
}

const NO_FAULTS: Faults = Faults {
    follower_cut: false,
    holder_cut: false,
    heals: false,
    shortens: false,
    deposed: false,
    sleeps: false,
    set_back: false,
};

fn with(rule: LeaseRule, faults: Faults) -> LeaseModel {
    let end = if long() { 2 * TIMEOUT } else { TIMEOUT + TIMEOUT / 2 };
    LeaseModel {
        rule,
        faults,
        knows_tick: true,
        alternates: false,
        rest: 0,
        delay: 1,
        connection: false,
        nap: TIMEOUT,
        end,
    }
}

/// Returns a model in which the holder's computer sleeps for most of a session timeout. Messages
/// between the server and the leader arrive late or never.
fn with_a_connection(rule: LeaseRule) -> LeaseModel {
    let model = with(rule, Faults { sleeps: true, ..NO_FAULTS });
    let end = if long() { TIMEOUT + TIMEOUT / 4 } else { TIMEOUT + 2 };
    LeaseModel { connection: true, nap: TIMEOUT * 2 / 3, delay: 0, end, ..model }
}

fn is_safe(model: LeaseModel) {
    search::expect_no_violation(&format!("{model:?}"), model);
}

fn expect_caught(model: LeaseModel) {
    let switch = format!("{:?}", model.rule);
    search::expect_violation(&switch, &format!("{model:?}"), OVERLAP, &model);
    is_safe(LeaseModel { rule: LeaseRule::Lease, ..model });
}

#[test]
fn lease_ends_before_rival_holds_after_two_cuts() {
    is_safe(with(
        LeaseRule::Lease,
        Faults { follower_cut: true, holder_cut: true, heals: true, ..NO_FAULTS },
    ));
}

#[test]
fn lease_ends_before_rival_holds() {
    let faults = [
        Faults { follower_cut: true, ..NO_FAULTS },
        Faults { holder_cut: true, ..NO_FAULTS },
        Faults { holder_cut: true, heals: true, deposed: true, ..NO_FAULTS },
        Faults { holder_cut: true, heals: true, shortens: true, ..NO_FAULTS },
        Faults { sleeps: true, ..NO_FAULTS },
    ];
    for faults in faults {
        is_safe(with(LeaseRule::Lease, faults));
        is_safe(LeaseModel { knows_tick: false, ..with(LeaseRule::Lease, faults) });
    }
}

#[test]
fn lease_after_a_rest_ends_before_rival_holds() {
    let faults = [
        Faults { follower_cut: true, ..NO_FAULTS },
        Faults { holder_cut: true, heals: true, deposed: true, ..NO_FAULTS },
        Faults { sleeps: true, ..NO_FAULTS },
    ];
    // Below and above the time after which the lease from before the rest is low.
    for (faults, rest) in faults.into_iter().flat_map(|faults| [(faults, 4), (faults, TIMEOUT / 2)]) {
        is_safe(LeaseModel { rest, alternates: true, ..with(LeaseRule::Lease, faults) });
    }
}

mod bugs;

/// Tests in which the holder's computer sleeps, or messages are slow. The server's report reaches
/// the leader up to half a tick after the leader has confirmed the holder's request. In between,
/// the server can be disconnected from the leader. If the previous report is old, the session then
/// expires at once, and a rival acquires the lock.
mod after_a_pause_or_a_stall {
    use super::*;

    fn worlds(rule: LeaseRule) -> [LeaseModel; 2] {
        let stalls = with(rule, Faults { follower_cut: true, ..NO_FAULTS });
        let sleeps = with(rule, Faults { follower_cut: true, sleeps: true, ..NO_FAULTS });
        let end = if long() { TIMEOUT + TIMEOUT / 4 } else { TIMEOUT + TIMEOUT / 8 };
        [sleeps, LeaseModel { delay: 4, end, ..stalls }]
    }

    #[test]
    fn lease_is_safe_after_pauses_and_stalls() {
        worlds(LeaseRule::Lease).into_iter().for_each(is_safe);
    }

    #[test]
    fn lease_is_safe_with_delayed_pings() {
        for nap in [TIMEOUT / 2, TIMEOUT * 5 / 6] {
            is_safe(LeaseModel { nap, ..with_a_connection(LeaseRule::Lease) });
        }
    }
}
