//! The requests that keep a session and its lease alive.
//!
//! A session that needs its lease sends a request every twelfth of its timeout. So the leader soon gets a report that the
//! session lives (see [`lease`](crate::lease)). Every second request is a write, which only a quorum confirms. When little of
//! the lease is left, every request is a write.
//!
//! A session that rests sends no write, and only as many requests as its next confirmed write needs to begin a lease.

use std::time::Duration;

use crate::lease::BEATS;

/// The pace of the requests of one session, counted in beats. A beat is a twelfth of the session
/// timeout.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    /// The number of beats since the last write.
    beats: u32,
    /// The number of beats since the last request of the rest.
    resting_beats: u32,
}

/// The number of beats from one write to the next, or from one request of a session that rests to the next.
///
/// With three beats, the first lease after a rest would be too short for a command that asks for all of
/// [`spare_time`](crate::lease::spare_time) as its grace period.
const BEATS_PER_REQUEST: u32 = 2;

impl Pace {
    /// Creates a pace. A write is due at the first beat, or a request if the session rests.
    pub fn new() -> Pace {
        Pace { beats: BEATS_PER_REQUEST, resting_beats: BEATS_PER_REQUEST }
    }

    /// Returns the length of a beat.
    pub fn beat(timeout: Duration) -> Duration {
        timeout / BEATS
    }

    /// Counts a beat. Returns whether its request is a write. `is_low`: set if little of the lease
    /// is left.
    pub fn next_beat(&mut self, is_low: bool) -> bool {
        self.resting_beats = BEATS_PER_REQUEST;
        count_beat(&mut self.beats, if is_low { 1 } else { BEATS_PER_REQUEST })
    }

    /// Counts a beat of a session that rests. Returns whether the session sends a request. The first beat after the rest sends
    /// a write, because the last write is older than a beat.
    pub fn next_resting_beat(&mut self) -> bool {
        self.beats = BEATS_PER_REQUEST;
        count_beat(&mut self.resting_beats, BEATS_PER_REQUEST)
    }
}

fn count_beat(beats: &mut u32, each: u32) -> bool {
    *beats = beats.saturating_add(1);
    let is_due = *beats >= each;
    if is_due {
        *beats = 0;
    }
    is_due
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::lease::{Instant, Lease, spare_time};

    const TICK: Duration = Duration::from_secs(2);

    #[test]
    fn session_that_rests_sends_at_every_second_beat() {
        let mut pace = Pace::new();
        let sends: Vec<bool> = (0..6).map(|_| pace.next_resting_beat()).collect();
        assert_eq!(sends, [true, false, true, false, true, false]);
    }

    /// Returns the shortest lease that the first write after a long rest begins, counted from the time at which the write is
    /// sent. `each`: the number of beats from one request of the rest to the next.
    fn shortest_first_lease(timeout: Duration, tick: Option<Duration>, each: u32) -> Duration {
        let (beat, late) = (Pace::beat(timeout), Duration::from_millis(10));
        let mut lease = Lease::new(timeout, tick, Instant(1 << 40));
        let (mut pace, mut now) = (each, Instant(1 << 40));
        let mut shortest = timeout;
        for beats in 0..4 * BEATS {
            if count_beat(&mut pace, each) {
                lease.record_answer(now, now.after(late));
            }
            for part in (1..=16).filter(|_| beats > 2 * BEATS) {
                let (mut lease, sent) = (lease.clone(), now.after(beat * part / 16));
                lease.record_confirmed_write(sent, sent.after(late));
                shortest = shortest.min(sent.until(lease.valid_until().unwrap_or_default()));
            }
            now = now.after(beat);
        }
        shortest
    }

    #[test]
    fn first_lease_after_a_rest_has_time_for_the_longest_grace_period() {
        let mut slower_is_too_short = 0;
        for seconds in 6..=300 {
            for tick in [Some(TICK), None] {
                let timeout = Duration::from_secs(seconds);
                let least = spare_time(timeout, tick) + timeout / 12;
                let lasts = shortest_first_lease(timeout, tick, BEATS_PER_REQUEST);
                assert!(lasts >= least, "{timeout:?}, {tick:?}: the lease lasts {lasts:?}, not {least:?}");
                slower_is_too_short +=
                    u32::from(shortest_first_lease(timeout, tick, BEATS_PER_REQUEST + 1) < least);
            }
        }
        assert!(slower_is_too_short > 250, "three beats are too few for {slower_is_too_short} of 590");
    }

    /// A request that was sent, and its answer.
    struct Sent {
        at: Instant,
        answered: Instant,
        is_write: bool,
    }

    /// The delays of the answers.
    #[derive(Clone, Copy, Debug)]
    enum Delay {
        UpTo(Duration),
        Always(Duration),
    }

    /// A session on which answers are late, and nothing else goes wrong.
    struct SimulatedRun {
        rng: fastrand::Rng,
        timeout: Duration,
        delay: Delay,
        /// The time of the last answer. Answers come in the order of the requests.
        last_answer: Instant,
        under_way: VecDeque<Sent>,
    }

    #[derive(Default)]
    struct SimulatedOutcome {
        lost: bool,
        writes: u32,
    }

    impl SimulatedRun {
        fn send(&mut self, now: Instant, is_write: bool) {
            let late = match (self.delay, self.rng.u8(..4)) {
                (Delay::Always(late), _) | (Delay::UpTo(late), 0) => late,
                (Delay::UpTo(most), 1) => most / 20,
                (Delay::UpTo(most), _) => most * self.rng.u32(..=1000) / 1000,
            };
            self.last_answer = self.last_answer.max(now.after(late));
            self.under_way.push_back(Sent { at: now, answered: self.last_answer, is_write });
        }

        /// Runs a session. After some idle time a contender creates its znode, and waits behind others for some time, in
        /// which the session rests. Then the contender needs the lease, until the run ends ten timeouts later. `rule`: set if
        /// a low lease ends with the rest.
        fn of(
            seed: u64,
            timeout: Duration,
            delay: Delay,
            tick: Option<Duration>,
            rule: bool,
        ) -> SimulatedOutcome {
            let begin = Instant(1 << 40);
            let mut run = SimulatedRun {
                rng: fastrand::Rng::with_seed(seed),
                timeout,
                delay,
                last_answer: begin,
                under_way: VecDeque::new(),
            };
            let mut lease = Lease::new(timeout, tick, begin);
            let mut pace = Pace::new();
            let mut beat = begin.after(timeout * run.rng.u32(1..=20) / 160);
            let creates = begin.after(timeout * 2 * [0, run.rng.u32(..=100)][run.rng.usize(..2)] / 100);
            let rest = [Duration::ZERO, timeout / 8, timeout, timeout * 3][run.rng.usize(..4)];
            let comes = beat.max(creates).after(rest * run.rng.u32(..=100) / 100);
            let ends = comes.after(timeout * 10);
            // The next check for a renewal between two beats.
            let mut check = comes.after(Pace::beat(timeout) / 8);
            let (mut last_write, mut came, mut granted) = (begin, false, false);
            let mut outcome = SimulatedOutcome::default();
            let (mut ended_with_rest, mut has_created) = (false, false);
            loop {
                let answer = run.under_way.front().map(|sent| sent.answered);
                let now = answer
                    .into_iter()
                    .chain([beat, if came { check } else { comes }])
                    .chain((!has_created).then_some(creates))
                    .min()
                    .expect("there is a next beat");
                if granted && !lease.is_valid(now) {
                    return SimulatedOutcome { lost: true, ..outcome };
                }
                if now >= ends {
                    assert!(
                        granted,
                        "{timeout:?}, {tick:?}, {delay:?}, seed {seed}: the lock was never granted"
                    );
                    return outcome;
                }
                if answer == Some(now) {
                    let sent = run.under_way.pop_front().expect("an answer is pending");
                    if sent.is_write {
                        ended_with_rest = false;
                        lease.record_confirmed_write(sent.at, now);
                    } else {
                        lease.record_answer(sent.at, now);
                        assert!(
                            !ended_with_rest || !lease.is_valid(now),
                            "seed {seed}: begun without a write"
                        );
                    }
                } else if !has_created && now == creates {
                    has_created = true;
                    run.send(now, true);
                } else if !came && now == comes {
                    came = true;
                    let before = lease.clone();
                    let is_due = lease.begin_use(now);
                    if !rule {
                        lease.clone_from(&before);
                        let _ = lease.begin_use(begin);
                    }
                    ended_with_rest = before.is_valid(now) && !lease.is_valid(now);
                    if is_due {
                        run.send(now, true);
                        last_write = now;
                    } else {
                        // The loop that sends the renewals learns of the end of the rest at its next beat.
                        check = beat;
                    }
                } else if came && now == check {
                    check = now.after(Pace::beat(timeout) / 8);
                    if lease.needs_renewal_now(now, last_write) {
                        run.send(now, true);
                        last_write = now;
                    }
                } else {
                    beat = beat.after(Pace::beat(run.timeout) + Duration::from_millis(run.rng.u64(..4)));
                    if came {
                        let is_write = pace.next_beat(lease.is_low(now));
                        run.send(now, is_write);
                        if is_write {
                            last_write = now;
                            outcome.writes += 1;
                        }
                    } else if pace.next_resting_beat() {
                        run.send(now, false);
                    }
                }
                granted |= came && lease.is_valid(now);
            }
        }
    }

    const HALF_TICKS: [u32; 15] = [6, 7, 8, 9, 10, 11, 12, 16, 20, 28, 29, 30, 40, 60, 200];

    #[test]
    fn lease_survives_answers_late_by_an_eighth() {
        for half_ticks in HALF_TICKS {
            let timeout = TICK / 2 * half_ticks;
            for seed in 0..2000 {
                for tick in [Some(TICK), None] {
                    let outcome = SimulatedRun::of(seed, timeout, Delay::UpTo(timeout / 8), tick, true);
                    assert!(!outcome.lost, "{timeout:?}, {tick:?}: seed {seed}");
                }
            }
        }
    }

    #[test]
    fn lease_begins_with_answers_that_are_always_late() {
        for half_ticks in HALF_TICKS {
            let timeout = TICK / 2 * half_ticks;
            for late in 0..=24 {
                for seed in 0..40 {
                    for tick in [Some(TICK), None] {
                        let delay = Delay::Always(timeout / 8 * late / 24);
                        let outcome = SimulatedRun::of(seed, timeout, delay, tick, true);
                        assert!(!outcome.lost, "{timeout:?}, {tick:?}, {late}: seed {seed}");
                    }
                }
            }
        }
    }

    #[test]
    fn lease_ends_if_answers_take_longer() {
        let lost = |seed| SimulatedRun::of(seed, TICK * 3, Delay::UpTo(TICK), Some(TICK), true).lost;
        assert!((0..100).any(lost), "no lease ever ends");
    }

    /// A lock that is granted on the rest of a lease can be lost on a healthy network.
    #[test]
    fn low_lease_must_end_with_the_rest() {
        let lost = |rule| {
            let timeout = TICK * 15;
            (0..2000)
                .filter(|seed| {
                    SimulatedRun::of(*seed, timeout, Delay::UpTo(timeout / 8), Some(TICK), rule).lost
                })
                .count()
        };
        assert_eq!(lost(true), 0);
        assert!(lost(false) > 0, "no lock is lost");
    }

    #[test]
    fn lease_is_renewed_every_sixth_of_the_timeout() {
        for ticks in [3, 4, 5, 10, 15] {
            let timeout = TICK * ticks;
            for tick in [Some(TICK), None] {
                let writes = SimulatedRun::of(0, timeout, Delay::UpTo(timeout / 200), tick, true).writes;
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

    /// A session that rests after a hold creates a znode, and needs the lease again some time later.
    #[test]
    fn no_renewal_is_overdue_after_a_short_rest() {
        let parts = 8;
        for seconds in [6, 8, 10, 12, 30, 300] {
            let timeout = Duration::from_secs(seconds);
            let late = timeout / 50;
            for (created, rest) in
                (1..=2 * parts).flat_map(|created| (0..5 * parts).map(move |rest| (created, rest)))
            {
                let begin = Instant(1 << 40);
                let (mut lease, mut pace) = (Lease::new(timeout, Some(TICK), begin), Pace::new());
                let (created, used) = (6 * parts + created, 6 * parts + created + rest);
                for part in 0..16 * parts {
                    let now = begin.after(timeout / BEATS * part / parts);
                    let mut writes = part == created;
                    // A lock was held before, until its third beat, which was a write.
                    if part == 2 * parts + 1 {
                        lease.end_use();
                    }
                    if part == 0 || part == used {
                        writes |= lease.begin_use(now) && rest > 0;
                    }
                    let is_beat = part % parts == 0;
                    let sends = match (is_beat, lease.is_in_use()) {
                        (true, true) => {
                            writes |= pace.next_beat(lease.is_low(now));
                            true
                        }
                        (true, false) => pace.next_resting_beat() || writes,
                        (false, _) => writes,
                    };
                    let overdue = lease.overdue_from().filter(|_| lease.is_in_use());
                    let is_overdue = overdue.is_some_and(|overdue| overdue <= now.after(late));
                    assert!(!is_overdue, "{timeout:?}: created at {created}, used from {used}, at {part}");
                    match (sends, writes) {
                        (true, true) => lease.record_confirmed_write(now, now.after(late)),
                        (true, false) => lease.record_answer(now, now.after(late)),
                        (false, _) => false,
                    };
                }
            }
        }
    }

    /// Sends the requests of a session on a healthy server. The session learns the tick at different beats.
    #[test]
    fn no_renewal_is_overdue_on_a_healthy_server() {
        for seconds in [6, 10, 12, 30, 40, 300] {
            let (timeout, late) = (Duration::from_secs(seconds), Duration::from_millis(25));
            for learned_at in [0, 4, 8, usize::MAX] {
                let mut lease = Lease::new(
                    timeout,
                    (learned_at == 0).then_some(Duration::from_secs(2)),
                    Instant(1 << 40),
                );
                let (mut sent, mut pace) = (Instant(1 << 40), Pace::new());
                for beat in 0..60 {
                    if let Some(overdue) = lease.overdue_from() {
                        assert!(sent.after(late) < overdue, "{timeout:?}, beat {beat}: {lease:?}");
                    }
                    if beat == learned_at {
                        lease.set_tick(Duration::from_secs(2).min(timeout / 3));
                    }
                    let answered = sent.after(late);
                    match pace.next_beat(lease.is_low(sent)) {
                        true => lease.record_confirmed_write(sent, answered),
                        false => lease.record_answer(sent, answered),
                    };
                    sent = sent.after(timeout / BEATS);
                }
            }
        }
    }
}
