//! A model of belief: the lease of the product, on a clock of its own, beside a leader that counts on another.
//!
//! The holder renews as the product does, one request at a time. Its server notes that it was heard of, and tells the
//! leader so every half tick; the request itself tells the leader nothing, which is how ZooKeeper does it
//! (`LearnerHandler` touches sessions for pings only). The leader lets the session go as early as it ever may, and then
//! a rival holds. What is asked for: nobody believes any more by then. Clocks go 5 % faster or slower than the leader's.
//!
//! Longer stalls and pauses, which leave the leader in the dark, are at the end; there the server and the leader have a
//! connection between them, on which pings wait like everything else, in order and for as long as it may take.

use std::collections::VecDeque;
use std::time::Duration;

use stateright::{Model, Property};
use zoolock_core::lease::Ensemble;
use zoolock_core::pace::Pace;
use zoolock_core::{Instant, Lease, Renewal};

use crate::{long, search};

/// Half a tick of the leader's clock is one step.
const TICK: u32 = 2;
/// The session timeout, in steps.
const T: u32 = 24;
/// What the holder's clock makes of a step, in units, if it is as fast as the leader's.
const UNITS: u32 = 20;
const RATES: [u32; 3] = [UNITS - 1, UNITS, UNITS + 1];

/// How a holder comes to believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Belief {
    /// As ours.
    Lease,
    /// Whatever its server answers renews: pings, reads.
    RenewedByPings,
    /// A request counts from its answer on.
    FromTheAnswer,
    /// All of the timeout, and not two thirds of it.
    WholeTimeout,
    /// The timeout that was asked for: the server has cut it by half.
    AskedTimeout,
    /// Until its client says that the session has expired, which it says when it has heard nothing for 1.4 T.
    UntilExpired,
    /// On a clock that stands still while the machine sleeps.
    Monotonic,
    /// On a clock that somebody sets.
    WallClock,
    /// `sync` is enough, however short the timeout.
    SyncIsEnough,
    /// One confirmation is enough, whatever was before it.
    ByOneConfirmation,
    /// Two are: a request, and one that was sent long enough after it was answered.
    ByTwoConfirmations,
    /// A `sync` is believed for as long as a write.
    SyncLikeAWrite,
}

impl Belief {
    pub(crate) const WRONG: [Belief; 11] = [
        Belief::RenewedByPings,
        Belief::FromTheAnswer,
        Belief::WholeTimeout,
        Belief::AskedTimeout,
        Belief::UntilExpired,
        Belief::Monotonic,
        Belief::WallClock,
        Belief::SyncIsEnough,
        Belief::ByOneConfirmation,
        Belief::ByTwoConfirmations,
        Belief::SyncLikeAWrite,
    ];

    /// Two confirmations are enough where pings never wait, so that what is found is the other thing that is wrong.
    fn goes_by_two(self) -> bool {
        use Belief::{ByTwoConfirmations, FromTheAnswer, SyncIsEnough, SyncLikeAWrite};
        matches!(self, ByTwoConfirmations | FromTheAnswer | SyncIsEnough | SyncLikeAWrite)
    }
}

/// What may go wrong, once each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Faults {
    /// The holder's server is cut off from the leader.
    follower_cut: bool,
    /// The holder is cut off from its server; with `heals` it comes back with a connection of its own.
    holder_cut: bool,
    heals: bool,
    /// The others elect another leader, which counts from then on; the holder is with the one they left.
    deposed: bool,
    /// The machine sleeps for as long as a session lasts.
    sleeps: bool,
    /// Somebody sets the clock back by as much.
    set_back: bool,
}

#[derive(Clone, Debug)]
struct Ensembles {
    belief: Belief,
    faults: Faults,
    /// In ticks.
    sync_limit: u32,
    /// How long what is sent takes at most, in steps.
    delay: u32,
    /// The server and the leader have a connection, on which all takes as long as it likes once the machine has slept.
    connection: bool,
    /// How long the machine sleeps, in steps.
    nap: u32,
    /// The search ends there.
    end: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    rate: u32,
    /// The leader's clock.
    now: u32,
    /// The holder's.
    own: u32,
    lease: Lease,
    /// When the last renewal that was confirmed was sent, for whoever goes by that.
    confirmed: Option<u32>,
    /// Until when to believe, and when those renewals were sent and answered of which the leader may not have been told, for
    /// whoever goes by two.
    by_two: (Option<Instant>, Vec<(u32, u32)>),
    /// When its server was last heard of.
    heard: u32,
    renew_at: u32,
    renewal: Option<Sent>,
    faults: Faults,
    holder_cut: bool,
    follower_cut: bool,
    /// The server has heard of the holder since it last told the leader.
    noted: bool,
    /// On the way from the server to the leader, and from there.
    up: VecDeque<Up>,
    down: VecDeque<Down>,
    /// When the leader that counts was last told.
    touched: u32,
    deposed_at: Option<u32>,
    /// The session is gone, and the lock with it.
    rival: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sent {
    at: u32,
    place: Place,
    /// Since when it is on its way there.
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
    /// The answer to a ping: the holder was heard of.
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
    /// The first on the connection comes to the leader, or to the server.
    GoesUp,
    GoesDown,
    /// The renewal comes one step further.
    Arrives,
    CutFollower,
    CutHolder,
    Heal,
    Depose,
    Sleep,
    SetBack,
}

const OVERLAP: &str = "nobody believes while a rival holds";
const LOST: &str = "a rival holds in the end";

fn instant(own: u32) -> Instant {
    Instant(u64::from(own) * 1_000_000)
}

fn duration(steps: u32) -> Duration {
    Duration::from_millis(u64::from(steps * UNITS))
}

impl Ensembles {
    fn ensemble(&self) -> Ensemble {
        Ensemble { tick: duration(TICK), sync_limit: self.sync_limit }
    }

    fn how(&self) -> Renewal {
        match self.belief {
            Belief::SyncIsEnough => Renewal::Sync,
            _ => self.ensemble().renewal(duration(T), false),
        }
    }

    fn believes(&self, world: &World) -> bool {
        match self.belief {
            Belief::UntilExpired => (world.own - world.heard) * 5 < T * UNITS * 7,
            Belief::ByOneConfirmation => world.confirmed.is_some_and(|sent| {
                let span = self.ensemble().span(duration(T), self.how());
                instant(world.own) < instant(sent).after(span)
            }),
            _ if self.belief.goes_by_two() => world.by_two.0.is_some_and(|end| instant(world.own) < end),
            _ => world.lease.is_valid(instant(world.own)),
        }
    }

    /// What the lease was before a third confirmation was asked for.
    fn confirm_by_two(&self, world: &mut World, sent: u32, how: Renewal) {
        let (end, answered) = &mut world.by_two;
        answered.push((sent, world.own));
        // A whole tick, with this timeout.
        let is_told = |(_, answered): &(u32, u32)| sent >= answered + TICK * UNITS;
        let newest = answered.iter().rposition(is_told);
        answered.drain(..newest.unwrap_or(0));
        // The session was asked for when the clock began.
        let told = newest.map_or(T * UNITS, |_| answered[0].0);
        let until = instant(sent).after(self.ensemble().span(duration(T), how));
        *end = (*end).max(Some(until.min(instant(told).after(duration(T) * 11 / 12))));
    }

    /// What was answered by a leader counts, whichever it was.
    fn leader_answers(&self, world: &World) -> bool {
        if world.rival {
            return false;
        }
        match (world.deposed_at, self.how()) {
            (None, _) => !world.follower_cut,
            (Some(_), Renewal::Write) => false,
            (Some(since), Renewal::Sync) => world.now <= since + self.sync_limit * TICK,
        }
    }

    fn pass(&self, world: &mut World, own: bool) {
        world.now += 1;
        if own {
            world.own += world.rate;
        }
        if self.connection {
            // One that waits already says as much.
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
        // As early as it may: it counts in buckets, and rounds up.
        world.rival |= world.now >= world.touched + T;
    }

    /// Whether the renewal can come any further, and must not be late.
    fn moves(&self, world: &World) -> bool {
        world.renewal.is_some_and(|sent| match sent.place {
            Place::ToServer | Place::Back => !world.holder_cut,
            Place::ToLeader => !self.connection && self.leader_answers(world),
        })
    }
}

impl Model for Ensembles {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let timeout = match self.belief {
            Belief::WholeTimeout => duration(T) * 3 / 2,
            Belief::AskedTimeout => duration(T) * 2,
            _ => duration(T),
        };
        let world = |rate| World {
            rate,
            now: 0,
            // So that it can be set back.
            own: T * UNITS,
            // A session is opened by a write.
            lease: Lease::new(timeout, self.ensemble(), instant(T * UNITS)),
            confirmed: None,
            by_two: (None, Vec::new()),
            heard: T * UNITS,
            renew_at: T * UNITS,
            renewal: None,
            faults: self.faults,
            holder_cut: false,
            follower_cut: false,
            noted: false,
            up: VecDeque::new(),
            down: VecDeque::new(),
            touched: 0,
            deposed_at: None,
            rival: false,
        };
        RATES.map(world).to_vec()
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        let moves = self.moves(world);
        if moves {
            steps.push(Step::Arrives);
        }
        let late = moves && world.renewal.is_some_and(|sent| world.now >= sent.since + self.delay);
        // Before the machine has slept nothing waits on the connection.
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
            Step::Tick => self.pass(&mut world, true),
            Step::Arrives => {
                let mut sent = world.renewal.take()?;
                sent.since = world.now;
                match sent.place {
                    Place::ToServer => {
                        world.noted = true;
                        let by_itself = self.belief == Belief::RenewedByPings;
                        if self.connection && !world.follower_cut {
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
                        let late = self.belief == Belief::FromTheAnswer;
                        let how = match self.belief {
                            Belief::SyncLikeAWrite | Belief::SyncIsEnough => Renewal::Write,
                            _ => self.how(),
                        };
                        let sent = if late { world.own } else { sent.at };
                        world.lease.confirm(instant(sent), instant(world.own), how);
                        match self.belief {
                            Belief::ByOneConfirmation => world.confirmed = Some(sent),
                            _ if self.belief.goes_by_two() => self.confirm_by_two(&mut world, sent, how),
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
                // What was under way is answered by nobody. A server asks the leader whether it knows the session, and
                // that counts.
                world.renewal = None;
                if !world.follower_cut && world.deposed_at.is_none() && !world.rival {
                    world.touched = world.now;
                }
            }
            Step::Depose => {
                (world.deposed_at, world.faults.deposed) = (Some(world.now), false);
                world.touched = world.now;
            }
            Step::Sleep => {
                world.faults.sleeps = false;
                (0..self.nap).for_each(|_| self.pass(&mut world, self.belief != Belief::Monotonic));
            }
            Step::SetBack => {
                world.faults.set_back = false;
                if self.belief == Belief::WallClock {
                    world.own -= T * UNITS;
                }
            }
        }
        // The holder renews as soon as it may.
        if world.renewal.is_none() && world.own >= world.renew_at && !world.rival {
            let interval = Pace::interval(&self.ensemble(), duration(T)).as_millis() as u32;
            world.renew_at = world.own + interval;
            world.renewal = Some(Sent { at: world.own, place: Place::ToServer, since: world.now });
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Ensembles>> {
        vec![
            Property::always(OVERLAP, |model: &Ensembles, w: &World| !(w.rival && model.believes(w))),
            Property::sometimes(LOST, |_, w: &World| w.rival),
        ]
    }
}

const NOTHING: Faults = Faults {
    follower_cut: false,
    holder_cut: false,
    heals: false,
    deposed: false,
    sleeps: false,
    set_back: false,
};

fn with(belief: Belief, faults: Faults) -> Ensembles {
    // A `sync` is enough with this timeout.
    let end = if long() { 2 * T } else { T + T / 2 };
    Ensembles { belief, faults, sync_limit: 3, delay: 1, connection: false, nap: T, end }
}

/// The machine sleeps for most of a session, and what the server says to the leader comes late, or never: what takes too
/// long is as good as lost.
fn with_a_connection(belief: Belief) -> Ensembles {
    let model = with(belief, Faults { sleeps: true, ..NOTHING });
    let end = if long() { T + T / 4 } else { T + 2 };
    Ensembles { connection: true, nap: T * 2 / 3, delay: 0, end, ..model }
}

fn nothing_is_found(model: Ensembles) {
    search::finds_nothing(&format!("{model:?}"), model);
}

fn is_caught(model: Ensembles) {
    let switch = format!("{:?}", model.belief);
    search::finds(&switch, &format!("{model:?}"), OVERLAP, &model);
    nothing_is_found(Ensembles { belief: Belief::Lease, ..model });
}

#[test]
fn belief_ends_before_a_rival_holds_where_both_are_cut_off() {
    nothing_is_found(with(
        Belief::Lease,
        Faults { follower_cut: true, holder_cut: true, heals: true, ..NOTHING },
    ));
}

#[test]
fn belief_ends_before_a_rival_holds() {
    let faults = [
        Faults { follower_cut: true, ..NOTHING },
        Faults { holder_cut: true, ..NOTHING },
        Faults { holder_cut: true, heals: true, deposed: true, ..NOTHING },
        Faults { sleeps: true, ..NOTHING },
    ];
    for faults in faults {
        nothing_is_found(with(Belief::Lease, faults));
        if faults.deposed {
            // Where a `sync` is not enough.
            nothing_is_found(Ensembles { sync_limit: 5, ..with(Belief::Lease, faults) });
        }
    }
}

mod bugs {
    use super::*;

    const CUT: Faults = Faults { follower_cut: true, ..NOTHING };

    #[test]
    fn renewed_by_pings_and_reads() {
        is_caught(with(Belief::RenewedByPings, CUT));
    }

    #[test]
    fn counted_from_the_answer() {
        is_caught(Ensembles { delay: 3, end: T + T / 4, ..with(Belief::FromTheAnswer, CUT) });
    }

    #[test]
    fn all_of_the_timeout() {
        is_caught(with(Belief::WholeTimeout, CUT));
    }

    #[test]
    fn the_timeout_that_was_asked_for() {
        is_caught(with(Belief::AskedTimeout, CUT));
    }

    #[test]
    fn expired_as_the_moment_of_loss() {
        is_caught(with(Belief::UntilExpired, Faults { holder_cut: true, ..NOTHING }));
    }

    #[test]
    fn a_clock_that_stands_still_while_the_machine_sleeps() {
        is_caught(with(Belief::Monotonic, Faults { sleeps: true, ..NOTHING }));
    }

    #[test]
    fn a_clock_that_somebody_sets() {
        is_caught(with(Belief::WallClock, Faults { holder_cut: true, set_back: true, ..NOTHING }));
    }

    #[test]
    fn the_second_renewal_where_pings_wait() {
        is_caught(with_a_connection(Belief::ByTwoConfirmations));
    }

    #[test]
    fn the_first_renewal_after_a_pause() {
        is_caught(with(Belief::ByOneConfirmation, Faults { follower_cut: true, sleeps: true, ..NOTHING }));
    }

    /// With the shortest timeout for which a `sync` is enough.
    #[test]
    fn a_sync_that_is_believed_for_as_long_as_a_write() {
        let model = with(Belief::SyncLikeAWrite, Faults { deposed: true, ..NOTHING });
        is_caught(Ensembles { sync_limit: 4, ..model });
    }

    #[test]
    fn a_sync_answered_by_a_leader_that_was_left() {
        let model = with(Belief::SyncIsEnough, Faults { deposed: true, ..NOTHING });
        is_caught(Ensembles { sync_limit: 5, ..model });
    }
}

/// The leader is told of the holder up to half a tick after it has confirmed a request of it. If it had not heard of the
/// holder for long, and the server is cut off in between, then a rival holds at once.
mod after_a_pause_or_a_stall {
    use super::*;

    fn worlds(belief: Belief) -> [Ensembles; 2] {
        let stalls = with(belief, Faults { follower_cut: true, ..NOTHING });
        let sleeps = with(belief, Faults { follower_cut: true, sleeps: true, ..NOTHING });
        let end = if long() { T + T / 4 } else { T + T / 8 };
        [sleeps, Ensembles { delay: 4, end, ..stalls }]
    }

    #[test]
    fn nothing_is_found_with_the_lease() {
        worlds(Belief::Lease).into_iter().for_each(nothing_is_found);
    }

    #[test]
    fn nothing_is_found_whatever_waits_on_the_connection() {
        for nap in [T / 2, T * 5 / 6] {
            nothing_is_found(Ensembles { nap, ..with_a_connection(Belief::Lease) });
        }
    }
}
