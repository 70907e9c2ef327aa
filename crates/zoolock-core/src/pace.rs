//! The requests that keep a session and its lease alive.
//!
//! A session with a holder or a waiter sends a request every twelfth of its timeout. So the leader
//! soon gets a report that the session lives (see [`lease`](crate::lease)). Every second request is
//! a write, which only a quorum confirms. When little of the lease is left, every request is a
//! write.

use std::time::Duration;

use crate::lease::BEATS;

/// The pace of the requests of one session, counted in beats. A beat is a twelfth of the session
/// timeout.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    /// The number of beats since the last write, or since the last request of an idle session.
    beats: u32,
}

/// The number of beats from one write to the next, or from one request of an idle session to the
/// next.
const WRITES_EACH: u32 = 2;

impl Pace {
    /// Creates a pace. A write is due at the first beat, or a request if the session is idle.
    pub fn new() -> Pace {
        Pace { beats: WRITES_EACH }
    }

    /// Returns the length of a beat.
    pub fn beat(timeout: Duration) -> Duration {
        timeout / BEATS
    }

    /// Counts a beat. Returns whether its request is a write. `is_low`: set if little of the lease
    /// is left.
    pub fn next_beat(&mut self, is_low: bool) -> bool {
        self.beat_for(if is_low { 1 } else { WRITES_EACH })
    }

    /// Counts a beat of a session without locks. Returns whether the session sends a request. The
    /// session sends a request at every second beat. If the tick of the servers is unknown, the
    /// session sends a request at each beat, because without the tick it takes longer to prove that
    /// the leader was told of the session.
    pub fn next_idle_beat(&mut self, knows_tick: bool) -> bool {
        self.beat_for(if knows_tick { WRITES_EACH } else { 1 })
    }

    fn beat_for(&mut self, each: u32) -> bool {
        self.beats = self.beats.saturating_add(1);
        let is_due = self.beats >= each;
        if is_due {
            self.beats = 0;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::lease::{Instant, Lease};

    const TICK: Duration = Duration::from_secs(2);

    #[test]
    fn idle_session_sends_at_every_second_beat() {
        for (knows_tick, each) in [(true, 2), (false, 1)] {
            let mut pace = Pace::new();
            let heard: Vec<bool> = (0..6).map(|_| pace.next_idle_beat(knows_tick)).collect();
            let due: Vec<bool> = (0..6).map(|beat| beat % each == 0).collect();
            assert_eq!(heard, due);
        }
    }

    /// A request that was sent, and its answer.
    struct Sent {
        at: Instant,
        answered: Instant,
        is_write: bool,
    }

    /// A session on which answers are late, and nothing else goes wrong.
    struct SimulatedRun {
        rng: fastrand::Rng,
        timeout: Duration,
        /// The longest delay of an answer.
        late: Duration,
        /// The time of the last answer. Answers come in the order of the requests.
        last_answer: Instant,
        under_way: VecDeque<Sent>,
    }

    struct SimulatedOutcome {
        lost: bool,
        writes: u32,
    }

    impl SimulatedRun {
        fn send(&mut self, now: Instant, is_write: bool) {
            let most = u64::try_from(self.late.as_nanos()).expect("delay fits in u64");
            let late = match self.rng.u8(..4) {
                0 => most,
                1 => most / 20,
                _ => self.rng.u64(..=most),
            };
            self.last_answer = self.last_answer.max(now.after(Duration::from_nanos(late)));
            self.under_way.push_back(Sent { at: now, answered: self.last_answer, is_write });
        }

        /// Runs a session. A contender asks for a lock after some idle time, and the run ends ten
        /// timeouts later.
        fn of(seed: u64, timeout: Duration, late: Duration, tick: Option<Duration>) -> SimulatedOutcome {
            let begin = Instant(1 << 40);
            let mut run = SimulatedRun {
                rng: fastrand::Rng::with_seed(seed),
                timeout,
                late,
                last_answer: begin,
                under_way: VecDeque::new(),
            };
            let mut lease = Lease::new(timeout, tick, begin);
            let mut pace = Pace::new();
            let mut beat = begin.after(late * run.rng.u32(1..=20) / 20);
            let idle = [Duration::ZERO, timeout / 20, timeout * 3][run.rng.usize(..3)];
            let comes = beat.after(idle * run.rng.u32(..=100) / 100);
            let ends = comes.after(timeout * 10);
            let (mut came, mut granted, mut writes) = (false, false, 0);
            loop {
                let answer = run.under_way.front().map(|sent| sent.answered);
                let now = answer
                    .into_iter()
                    .chain([beat])
                    .chain((!came).then_some(comes))
                    .min()
                    .expect("there is a next beat");
                if granted && !lease.is_valid(now) {
                    return SimulatedOutcome { lost: true, writes };
                }
                if now >= ends {
                    assert!(granted, "seed {seed}: the lock was never granted");
                    return SimulatedOutcome { lost: false, writes };
                }
                if answer == Some(now) {
                    let sent = run.under_way.pop_front().expect("an answer is pending");
                    match sent.is_write {
                        true => lease.record_confirmed_write(sent.at, now),
                        false => lease.record_answer(sent.at, now),
                    };
                    granted |= came && lease.is_valid(now);
                } else if !came && now == comes {
                    came = true;
                    run.send(now, true);
                } else {
                    beat = beat.after(Pace::beat(run.timeout) + Duration::from_millis(run.rng.u64(..4)));
                    if came {
                        let is_write = pace.next_beat(lease.is_low(now));
                        run.send(now, is_write);
                        writes += u32::from(is_write);
                    } else if pace.next_idle_beat(tick.is_some()) {
                        run.send(now, false);
                    }
                }
            }
        }
    }

    #[test]
    fn lease_survives_answers_late_by_an_eighth() {
        for half_ticks in [6, 7, 8, 9, 10, 11, 12, 16, 20, 28, 29, 30, 40, 60, 200] {
            let timeout = TICK / 2 * half_ticks;
            for seed in 0..2000 {
                for tick in [Some(TICK), None] {
                    let outcome = SimulatedRun::of(seed, timeout, timeout / 8, tick);
                    assert!(!outcome.lost, "{timeout:?}, {tick:?}: seed {seed}");
                }
            }
        }
    }

    #[test]
    fn lease_ends_if_answers_take_longer() {
        let lost = |seed| SimulatedRun::of(seed, TICK * 3, TICK, Some(TICK)).lost;
        assert!((0..100).any(lost), "no lease ever ends");
    }

    #[test]
    fn lease_is_renewed_every_sixth_of_the_timeout() {
        for ticks in [3, 4, 5, 10, 15] {
            let timeout = TICK * ticks;
            for tick in [Some(TICK), None] {
                let writes = SimulatedRun::of(0, timeout, timeout / 200, tick).writes;
                assert!((50..=70).contains(&writes), "{ticks} ticks, {tick:?}: {writes} in ten timeouts");
            }
        }
    }

    /// Answers are prompt, except for a gap without any answers. A lease that becomes valid again after the gap does not
    /// end again.
    #[test]
    fn lease_renewed_after_a_gap_stays_valid() {
        for seconds in [6, 7, 8, 9, 10, 12, 15, 20, 30] {
            for tick in [Some(TICK), None] {
                for part in 1..200 {
                    let timeout = Duration::from_secs(seconds);
                    let gap = timeout * part / 200;
                    let begin = Instant(1 << 40);
                    let (mut lease, mut pace) = (Lease::new(timeout, tick, begin), Pace::new());
                    let (from, ends) = (begin.after(timeout * 2), begin.after(timeout * 5));
                    let (mut beat, mut begun) = (begin, false);
                    while beat < ends {
                        let answered = beat.after(Duration::from_millis(10));
                        let silent = beat >= from && beat < from.after(gap);
                        assert!(
                            !begun || lease.is_valid(answered),
                            "{timeout:?}, {tick:?}: lost after a gap of {gap:?}, {:?} later",
                            from.until(beat)
                        );
                        if !silent {
                            let was_lost = !lease.is_valid(answered);
                            match pace.next_beat(lease.is_low(beat)) {
                                true => lease.record_confirmed_write(beat, answered),
                                false => lease.record_answer(beat, answered),
                            };
                            begun |= was_lost && beat >= from && lease.is_valid(answered);
                        }
                        beat = beat.after(Pace::beat(timeout));
                    }
                    assert!(lease.is_valid(beat), "{timeout:?}: never begins again after a gap of {gap:?}");
                }
            }
        }
    }
}
