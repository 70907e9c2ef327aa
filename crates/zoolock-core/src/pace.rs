//! How often to renew a lease.
//!
//! A sixth of the timeout T, so that two renewals may fail. Where T is short, a ping of the server's takes a quarter of it
//! and more, and a twelfth gives back what waiting for it costs. The same where answers are slow, however long T is: then
//! what is left says so.

use std::time::Duration;

use crate::lease::Ensemble;

/// When the next renewal is due, counted in beats.
#[derive(Debug, Clone)]
pub struct Pace {
    renews_each: u32,
    is_heard_each: u32,
    /// How many since something was sent.
    beats: u32,
}

impl Pace {
    /// That of a session with this timeout. Something is due at the first beat.
    pub fn new(ensemble: &Ensemble, timeout: Duration) -> Pace {
        let (renews_each, is_heard_each) = if timeout < ensemble.tick * 5 { (1, 2) } else { (2, 3) };
        Pace { renews_each, is_heard_each, beats: is_heard_each }
    }

    /// How long a beat is.
    pub fn beat(timeout: Duration) -> Duration {
        timeout / 12
    }

    /// How often a lease is renewed while all is well.
    pub fn interval(ensemble: &Ensemble, timeout: Duration) -> Duration {
        Pace::beat(timeout) * Pace::new(ensemble, timeout).renews_each
    }

    /// Whether to renew at this beat; sooner than is due where the lease is low.
    pub fn renews(&mut self, is_low: bool) -> bool {
        self.beat_for(if is_low { 1 } else { self.renews_each })
    }

    /// Whether to be heard of at this beat, while nobody stands on the session.
    pub fn is_heard(&mut self) -> bool {
        self.beat_for(self.is_heard_each)
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
    fn who_has_nobody_to_renew_for_is_heard_of_at_every_second_or_third_beat() {
        let ensemble = Ensemble { tick: TICK, sync_limit: 5 };
        for (ticks, each) in [(3, 2), (4, 2), (5, 3), (20, 3)] {
            let mut pace = Pace::new(&ensemble, TICK * ticks);
            let heard: Vec<bool> = (0..3 * each).map(|_| pace.is_heard()).collect();
            let due: Vec<bool> = (0..3 * each).map(|beat| beat % each == 0).collect();
            assert_eq!(heard, due, "{ticks} ticks");
        }
    }

    /// How long a holder believes, and how much it costs, where nothing goes wrong but that answers are late.
    struct Run {
        rng: fastrand::Rng,
        timeout: Duration,
        /// The latest.
        late: Duration,
        /// They come in the order of the requests.
        answered: Instant,
        under_way: VecDeque<(Instant, Instant, bool)>,
    }

    /// What came of one.
    struct Outcome {
        lost: bool,
        renewals: u32,
    }

    impl Run {
        fn send(&mut self, now: Instant, counts: bool) {
            let most = u64::try_from(self.late.as_nanos()).expect("it is short");
            let late = match self.rng.u8(..4) {
                0 => most,
                1 => most / 20,
                _ => self.rng.u64(..=most),
            };
            self.answered = self.answered.max(now.after(Duration::from_nanos(late)));
            self.under_way.push_back((now, self.answered, counts));
        }

        /// A session that somebody asks for at zero, and stands on after `idle`, for ten timeouts.
        fn of(seed: u64, timeout: Duration, late: Duration) -> Outcome {
            let ensemble = Ensemble { tick: TICK, ..Ensemble::default() };
            let how = ensemble.renewal(timeout, false);
            let begin = Instant(1 << 40);
            let mut run = Run {
                rng: fastrand::Rng::with_seed(seed),
                timeout,
                late,
                answered: begin,
                under_way: VecDeque::new(),
            };
            let mut lease = Lease::new(timeout, ensemble, begin);
            let mut pace = Pace::new(&ensemble, timeout);
            let mut beat = begin.after(late * run.rng.u32(1..=20) / 20);
            let idle = [Duration::ZERO, timeout / 20, timeout * 3][run.rng.usize(..3)];
            let comes = beat.after(idle * run.rng.u32(..=100) / 100);
            let ends = comes.after(timeout * 10);
            let (mut came, mut granted, mut renewals) = (false, false, 0);
            loop {
                let answer = run.under_way.front().map(|(_, at, _)| *at);
                let now =
                    answer.into_iter().chain([beat]).chain((!came).then_some(comes)).min().expect("a beat");
                if granted && !lease.is_valid(now) {
                    return Outcome { lost: true, renewals };
                }
                if now >= ends {
                    assert!(granted, "seed {seed}: it was never believed");
                    return Outcome { lost: false, renewals };
                }
                if answer == Some(now) {
                    let (sent, _, counts) = run.under_way.pop_front().expect("it is there");
                    match counts {
                        true => drop(lease.confirm(sent, now, how)),
                        false => lease.hear(sent, now),
                    }
                    granted |= came && lease.is_valid(now);
                } else if !came && now == comes {
                    came = true;
                    run.send(now, true);
                } else {
                    beat = beat.after(Pace::beat(run.timeout) + Duration::from_millis(run.rng.u64(..4)));
                    if came && pace.renews(lease.is_low(now)) && run.under_way.len() < 3 {
                        run.send(now, true);
                        renewals += 1;
                    } else if !came && pace.is_heard() && run.under_way.is_empty() {
                        run.send(now, false);
                    }
                }
            }
        }
    }

    #[test]
    fn a_lock_is_not_lost_where_answers_take_an_eighth_of_the_timeout() {
        for half_ticks in [6, 7, 8, 9, 10, 11, 12, 16, 20, 28, 29, 30, 40, 60, 200] {
            let timeout = TICK / 2 * half_ticks;
            for seed in 0..2000 {
                let outcome = Run::of(seed, timeout, timeout / 8);
                assert!(!outcome.lost, "{timeout:?}: seed {seed}");
            }
        }
    }

    #[test]
    fn it_is_lost_where_they_take_much_longer() {
        let lost = |seed| Run::of(seed, TICK * 3, TICK).lost;
        assert!((0..100).any(lost), "nothing is ever lost");
    }

    #[test]
    fn a_lease_is_renewed_every_sixth_of_a_long_timeout_and_every_twelfth_of_a_short_one() {
        for (ticks, most) in [(3, 12), (4, 12), (5, 6), (10, 6), (15, 6)] {
            let timeout = TICK * ticks;
            let renewals = Run::of(0, timeout, timeout / 200).renewals;
            assert!(renewals <= most * 10 + 3, "{ticks} ticks: {renewals} in ten timeouts");
            assert!(renewals >= most * 10 - 10, "{ticks} ticks: {renewals} in ten timeouts");
        }
    }

    /// Answers are prompt, and for a while there are none. Belief that begins again after that does not end again.
    #[test]
    fn what_is_granted_after_a_gap_is_not_lost() {
        for seconds in [6, 7, 8, 9, 10, 12, 15, 20, 30] {
            let timeout = Duration::from_secs(seconds);
            let ensemble = Ensemble { tick: TICK, ..Ensemble::default() };
            for part in 1..200 {
                let gap = timeout * part / 200;
                let begin = Instant(1 << 40);
                let (mut lease, mut pace) =
                    (Lease::new(timeout, ensemble, begin), Pace::new(&ensemble, timeout));
                let (from, ends) = (begin.after(timeout * 2), begin.after(timeout * 5));
                let (mut beat, mut begun) = (begin, false);
                while beat < ends {
                    let answered = beat.after(Duration::from_millis(10));
                    let silent = beat >= from && beat < from.after(gap);
                    assert!(
                        !begun || lease.is_valid(answered),
                        "{timeout:?}: lost after a gap of {gap:?}, {:?} later",
                        from.until(beat)
                    );
                    if !silent && pace.renews(lease.is_low(beat)) {
                        let was_lost = !lease.is_valid(answered);
                        lease.confirm(beat, answered, ensemble.renewal(timeout, true));
                        begun |= was_lost && beat >= from && lease.is_valid(answered);
                    }
                    beat = beat.after(Pace::beat(timeout));
                }
                assert!(lease.is_valid(beat), "{timeout:?}: never begins again after a gap of {gap:?}");
            }
        }
    }
}
