use super::*;

const T: Duration = Duration::from_secs(24);
const TICK: Option<Duration> = Some(Duration::from_secs(2));

fn at(seconds: u64) -> Instant {
    Instant(seconds * 1_000_000_000)
}

/// Returns a lease with a report interval of two seconds, which lasts for 22 s.
fn lease() -> Lease {
    Lease::new(T, TICK, at(99))
}

#[test]
fn lease_needs_an_attach_in_its_last_sixth() {
    let mut lease = lease();
    assert!(!lease.needs_attach(at(100)), "the lease has not begun");
    lease.record_confirmed_write(at(100), at(100));
    // The lease ends at 99 + 22 s. The request at 100 does not help, because no later one was answered.
    let needed: Vec<u64> = (100..125).filter(|now| lease.needs_attach(at(*now))).collect();
    assert_eq!(needed, [119, 120]);
    // After an outage a write is confirmed. The third answer would come too late.
    lease.record_attach(at(99), T);
    lease.record_confirmed_write(at(118), at(118));
    assert!(lease.needs_attach(at(119)));
    lease.record_attach(at(119), T);
    lease.record_confirmed_write(at(120), at(120));
    assert!(!lease.needs_attach(at(121)));
}

#[test]
fn lease_that_no_quorum_confirms_needs_an_attach() {
    let mut lease = lease();
    lease.record_confirmed_write(at(100), at(100));
    for second in [104, 108, 112] {
        lease.record_answer(at(second), at(second));
    }
    assert!(lease.ends_soon(at(119)) && !lease.is_confirmed_last());
    assert!(lease.needs_attach(at(119)), "the leader knows of the session, but no quorum confirms it");
}

#[test]
fn late_third_answer_requires_an_attach() {
    let mut lease = lease();
    lease.record_confirmed_write(at(100), at(100));
    lease.record_attach(at(99), T);
    lease.record_confirmed_write(at(117), at(117));
    // The second request is sent after 119, the third two seconds later, and the lease ends at 121.
    assert!(lease.is_confirmed_last());
    assert!(lease.needs_attach(at(118)));
}

#[test]
fn renewal_between_beats_continues_the_proof() {
    let mut lease = lease();
    let needed = |lease: &Lease, last_sent| -> Vec<u64> {
        (100..125).filter(|now| lease.needs_renewal_now(at(*now), at(last_sent))).collect()
    };
    lease.record_answer(at(100), at(101));
    assert!(needed(&lease, 100).is_empty(), "the session rests");
    lease.begin_use(at(101));
    // The report interval is two seconds, and the lease has not begun.
    assert_eq!(needed(&lease, 100)[0], 103);
    assert!(needed(&lease, 103).is_empty(), "the request was sent");
    lease.record_confirmed_write(at(103), at(104));
    // The lease ends at 121.
    assert_eq!(needed(&lease, 103), [118, 119, 120, 121, 122, 123, 124]);
    assert_eq!(needed(&lease, 105)[0], 118, "the answer at 104 continues at 106");
    assert!(needed(&lease, 106).is_empty());
}

#[test]
fn low_or_old_lease_ends_with_the_rest() {
    let mut lease = lease();
    assert!(lease.begin_use(at(99)), "no write is confirmed");
    lease.record_confirmed_write(at(100), at(100));
    lease.end_use();
    // A write is due after a sixth of the timeout, and the lease ends after a quarter.
    for (now, is_due, is_kept) in
        [(104, false, true), (105, true, true), (106, true, true), (107, true, false)]
    {
        let mut lease = lease.clone();
        assert_eq!((lease.begin_use(at(now)), lease.is_valid(at(now))), (is_due, is_kept), "{now}");
        assert!(lease.is_in_use() && !lease.begin_use(at(now)), "the second acquisition");
        lease.record_answer(at(now), at(now));
        assert_eq!(lease.is_valid(at(now)), is_kept, "only a write begins the lease again");
    }
    let mut used = lease.clone();
    used.begin_use(at(103));
    assert!(!used.begin_use(at(115)) && used.is_valid(at(115)), "a lease in use goes on");
    // The write of 115 extends nothing, and less than 10 s are left.
    lease.record_confirmed_write(at(115), at(115));
    assert!(lease.begin_use(at(115)) && !lease.is_valid(at(115)));
}

#[test]
fn limits_of_a_lease_are_exact() {
    let mut lease = lease();
    assert!(lease.is_low(at(100)), "the lease has not begun");
    lease.record_confirmed_write(at(100), at(100));
    // The lease ends at 121. A steady lease has 16 s left, and a low lease has less than 10 s.
    assert!(!lease.is_low(at(111)) && lease.is_low(at(112)));
    assert!(!lease.ends_soon(at(117)) && lease.ends_soon(at(118)) && lease.ends_soon(at(120)));
    assert!(!lease.ends_soon(at(121)), "the lease has ended");
    assert!(lease.is_valid(at(120)) && !lease.is_valid(at(121)));
    assert!(lease.is_confirmed_last());
    lease.record_attach(at(98), T);
    assert_eq!(lease.valid_until(), Some(at(121)), "the same timeout cuts nothing");
    lease.record_attach(at(100), T);
    assert!(!lease.is_confirmed_last(), "the write and the attach were sent together");
}

#[test]
fn tick_that_is_learned_later_counts() {
    let mut lease = Lease::new(T, None, at(99));
    lease.set_tick(Duration::from_secs(2));
    for second in [100, 102, 103] {
        lease.record_confirmed_write(at(second), at(second));
    }
    assert_eq!(lease.valid_until(), Some(at(122)));
}

#[test]
fn lease_is_invalid_before_first_confirmation() {
    let mut lease = lease();
    assert!(!lease.is_valid(at(0)));
    assert!(!lease.record_answer(at(100), at(100)));
    assert_eq!(lease.valid_until(), None);
}

#[test]
fn lease_follows_the_request_reported_to_the_leader() {
    let mut lease = lease();
    assert!(lease.record_confirmed_write(at(100), at(100)));
    // The leader knows of the session since 99, when the session was requested.
    assert_eq!(lease.valid_until(), Some(at(121)));
    assert!(!lease.record_confirmed_write(at(102), at(102)), "the answers to 100 and 102 prove a report");
    assert!(lease.record_confirmed_write(at(103), at(103)), "and the answer to 103 proves its arrival");
    assert_eq!(lease.valid_until(), Some(at(122)));
}

#[test]
fn lease_follows_the_newest_confirmed_write() {
    let mut lease = lease();
    lease.record_confirmed_write(at(100), at(100));
    for second in 101..=115 {
        lease.record_answer(at(second), at(second));
    }
    assert_eq!(lease.valid_until(), Some(at(122)), "a leader that was cut off also answers reads");
    lease.record_confirmed_write(at(116), at(116));
    assert_eq!(lease.valid_until(), Some(at(135)), "the leader knows of the request at 113");
}

#[test]
fn report_needs_the_interval_of_the_pings() {
    let mut lease = lease();
    for half in 200..208 {
        let now = Instant(half * 500_000_000);
        lease.record_confirmed_write(now, now);
    }
    // The answers to the requests at 101, 103 and 103.5 prove that the leader was told of the
    // first.
    assert_eq!(lease.valid_until(), Some(at(123)));
    let mut unknown = Lease::new(T, None, at(99));
    for second in 100..=106 {
        unknown.record_confirmed_write(at(second), at(second));
    }
    assert_eq!(unknown.valid_until(), Some(at(121)), "a quarter of the timeout has to pass");
    unknown.record_confirmed_write(at(107), at(107));
    assert_eq!(unknown.valid_until(), Some(at(122)));
}

#[test]
fn late_answer_to_older_request_changes_nothing() {
    let mut lease = lease();
    lease.record_confirmed_write(at(105), at(106));
    assert!(!lease.record_confirmed_write(at(100), at(107)));
    assert_eq!(lease.valid_until(), Some(at(121)));
}

#[test]
fn attach_tells_the_leader() {
    let mut lease = lease();
    lease.record_confirmed_write(at(100), at(100));
    lease.record_attach(at(110), T);
    assert_eq!(lease.valid_until(), Some(at(121)), "no write was confirmed since");
    assert!(lease.record_confirmed_write(at(111), at(111)));
    assert_eq!(lease.valid_until(), Some(at(132)));
}

#[test]
fn attach_to_another_server_forgets_the_old_requests() {
    let mut lease = lease();
    lease.record_confirmed_write(at(100), at(100));
    lease.record_confirmed_write(at(103), at(103));
    lease.record_attach(at(104), T);
    // With the old answers, this answer would prove that the leader was told of the request at 103.
    lease.record_confirmed_write(at(106), at(106));
    lease.record_confirmed_write(at(107), at(107));
    assert_eq!(lease.valid_until(), Some(at(126)));
}

#[test]
fn shorter_timeout_cuts_the_lease() {
    let mut lease = lease();
    lease.record_confirmed_write(at(100), at(100));
    lease.record_attach(at(101), T / 2);
    assert_eq!(lease.valid_until(), Some(at(112)));
    lease.record_confirmed_write(at(102), at(102));
    assert_eq!((lease.valid_until(), lease.timeout()), (Some(at(112)), T / 2));
    // A longer timeout changes nothing.
    lease.record_attach(at(103), T);
    lease.record_confirmed_write(at(104), at(104));
    assert_eq!(lease.valid_until(), Some(at(114)));
}

#[test]
fn shorter_timeout_extends_no_lease() {
    let mut lease = lease();
    lease.record_confirmed_write(at(100), at(100));
    lease.record_attach(at(115), T / 2);
    assert_eq!(lease.valid_until(), Some(at(121)));
}

#[test]
fn one_confirmation_after_a_silence_is_not_enough() {
    let mut lease = lease();
    lease.record_confirmed_write(at(100), at(100));
    lease.record_confirmed_write(at(129), at(130));
    assert!(!lease.is_valid(at(130)), "the session may end before the leader is told of it");
    lease.record_confirmed_write(at(132), at(132));
    assert!(!lease.is_valid(at(132)), "the report may be on its way");
    assert!(lease.record_confirmed_write(at(133), at(134)));
    assert_eq!(lease.valid_until(), Some(at(151)));
}

#[test]
fn frequent_requests_take_little_memory() {
    let mut lease = lease();
    for milli in 100_000..140_000 {
        let now = Instant(milli * 1_000_000);
        lease.record_confirmed_write(now, now);
    }
    assert!(lease.answered.len() < 6 && lease.reported.len() < 6, "{lease:?}");
    assert!(lease.valid_until() >= Some(at(159)), "{lease:?}");
}

#[test]
fn lengths_are_those_of_the_guide() {
    let length = |seconds, tick| steady_length(Duration::from_secs(seconds), tick).as_millis();
    assert_eq!(length(30, TICK), 22_500);
    assert_eq!(length(30, None), 15_000);
    assert_eq!(length(12, TICK), 8_000);
    assert_eq!(length(6, TICK), 3_000);
    assert_eq!(spare_time(Duration::from_secs(30), TICK), Duration::from_millis(12_500));
    assert_eq!(spare_time(Duration::from_secs(30), None), Duration::from_secs(5));
}

#[test]
fn steady_lease_has_its_length() {
    for (seconds, tick) in [(30, TICK), (30, None), (12, TICK), (12, None), (6, TICK), (6, None), (300, TICK)]
    {
        let timeout = Duration::from_secs(seconds);
        let mut lease = Lease::new(timeout, tick, at(100));
        let (mut sent, late) = (at(100), Duration::from_millis(5));
        for beat in 0..100 {
            let answered = sent.after(late);
            if beat % 2 == 0 {
                lease.record_confirmed_write(sent, answered);
            } else {
                lease.record_answer(sent, answered);
            }
            if beat % 2 == 0 {
                let left = sent.until(lease.valid_until().expect("lease is confirmed"));
                assert!(left >= steady_length(timeout, tick), "{timeout:?}, {tick:?}: {left:?}");
            }
            assert!(beat < 12 || beat % 2 == 1 || !lease.is_low(answered), "{timeout:?}, {tick:?}");
            sent = sent.after(timeout / BEATS);
        }
    }
}

#[test]
fn renewal_is_overdue_after_a_third_or_before_the_end() {
    let mut lease = lease();
    assert_eq!(lease.overdue_from(), None);
    lease.record_confirmed_write(at(100), at(100));
    assert_eq!(lease.overdue_from(), Some(at(108)));
    // Writes are confirmed, but the leader is not told, so the lease still ends at 121.
    lease.record_attach(at(99), T);
    lease.record_confirmed_write(at(110), at(110));
    assert_eq!((lease.valid_until(), lease.overdue_from()), (Some(at(121)), Some(at(117))));
}

#[test]
fn every_lease_has_time_to_spare() {
    for seconds in 6..=300 {
        let timeout = Duration::from_secs(seconds);
        for tick in [TICK, None] {
            assert!(spare_time(timeout, tick) >= timeout / 7, "{timeout:?}, {tick:?}");
        }
    }
}

#[test]
fn no_timeout_makes_a_length_overflow() {
    for timeout in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(1), T, Duration::MAX / 100]
    {
        for tick in [Some(Duration::ZERO), TICK, Some(Duration::from_secs(3600)), None] {
            assert!(steady_length(timeout, tick) <= timeout);
            let mut lease = Lease::new(timeout, tick, at(100));
            lease.record_confirmed_write(at(100), at(100));
            lease.is_low(at(100));
        }
    }
}

/// The lease of a holder with the slowest clock ends when the leader may expire the session.
#[test]
fn margin_covers_the_promised_drift() {
    let mut lease = lease();
    for second in [100, 102, 103] {
        lease.record_confirmed_write(at(second), at(second));
    }
    let own = at(100).until(lease.valid_until().expect("lease is confirmed"));
    // The rates of the holder's and of the leader's clock, in parts of the true rate.
    for (holder, leader, is_covered) in
        [(11, 12, true), (23, 25, true), (22, 23, true), (19, 21, false), (10, 11, false)]
    {
        let by_leader = own * leader / holder;
        assert_eq!(by_leader <= T, is_covered, "{holder}/{leader}: {by_leader:?}");
    }
}

#[test]
fn clock_neither_overflows_nor_underflows() {
    assert_eq!(at(100).until(at(103)), Duration::from_secs(3));
    assert_eq!(at(103).until(at(100)), Duration::ZERO);
    assert_eq!(at(100).after(Duration::MAX), Instant(u64::MAX));
}
