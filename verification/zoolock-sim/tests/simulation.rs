//! Runs a thousand seeds, or a hundred thousand with `ZOOLOCK_LONG=1`. `ZOOLOCK_FIRST_SEED=n` runs as many seeds from `n`
//! on. With `ZOOLOCK_SEED=n`, the test `replay` runs one seed and prints its trace.

use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use zoolock_sim::{SimReport, run};

/// The number of tests that share the seeds, so that they run in parallel.
const PARTS: u64 = 8;

fn seeds() -> u64 {
    if std::env::var_os("ZOOLOCK_LONG").is_some() { 100_000 } else { 1_000 }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs a seed. Returns its report, or `None` if the run panics or violates a property.
fn run_without_violation(seed: u64) -> Option<SimReport> {
    let report = catch_unwind(|| run(seed, false)).ok();
    report.filter(|report| report.violation.is_none())
}

fn print_and_panic(seed: u64) -> ! {
    println!("the trace of seed {seed}; repeat it with ZOOLOCK_SEED={seed}");
    let report = run(seed, true);
    report.trace.iter().for_each(|line| println!("{line}"));
    panic!("seed {seed} (hash {:x}): {:?}", report.hash, report.violation);
}

fn run_part(nth: u64) {
    let began = Instant::now();
    let (mut passed, mut lost, mut grants, mut requests) = (Duration::ZERO, 0, 0, 0);
    let share = seeds() / PARTS;
    let mut found = Vec::new();
    let first = number("ZOOLOCK_FIRST_SEED").unwrap_or(0);
    for seed in first + nth * share..first + (nth + 1) * share {
        let Some(report) = run_without_violation(seed) else {
            found.push(seed);
            continue;
        };
        passed += report.virtual_time;
        lost += report.grants.lost;
        grants += report.grants.all();
        requests += report.requests;
    }
    let took = began.elapsed();
    println!(
        "{share} seeds in {took:.1?}: {grants} grants, {lost} lost, {requests} writes, {:.0} s of virtual time, {:.0} times real time",
        passed.as_secs_f64(),
        passed.as_secs_f64() / took.as_secs_f64()
    );
    if let Some(first) = found.first() {
        println!("found with {found:?}");
        print_and_panic(*first);
    }
}

macro_rules! parts {
    ($($name:ident $nth:literal)*) => {
        $(
            #[test]
            fn $name() {
                run_part($nth);
            }
        )*
    };
}

parts! {
    no_violation_in_part_0 0
    no_violation_in_part_1 1
    no_violation_in_part_2 2
    no_violation_in_part_3 3
    no_violation_in_part_4 4
    no_violation_in_part_5 5
    no_violation_in_part_6 6
    no_violation_in_part_7 7
}

/// Runs seeds outside of the usual thousand, each of which found a bug. In the first two, the client took an event of
/// a removed watch for an event of the next watch. In the third, a session with many requests moved from server to
/// server for ever. In the fourth, a downgrade was repeated after a lost reply: its read was not sent, and the
/// reader's znode was never deleted. In the fifth, a late write of `break` overwrote the data of a znode whose create
/// got no reply, so its acquisition did not find it, and waited behind it for ever. In the sixth, an acquisition took
/// the znode of another one for its own, because that acquisition had just ended. In the next four, a server carried
/// out an old create after an attach that the client had given up, and the znode blocked its queue. In the next two,
/// a session attached again between the create of a lock and its reply, and the new lock was suspect at once. In the
/// next one, a multi-lock's old create was carried out late. An acquisition took over one of its two znodes, and the
/// search for strays took the other one for known, because both have the same czxid. In the next three, a lock was
/// lost needlessly. A holder paused after a server that did not answer, and its lease ended before it dialed the next
/// one. Then a holder returned to the server that had confirmed nothing, in place of one that worked. And a lease
/// ended after an outage, because the third answer, which proves that the leader was told, was asked for too late. In the
/// last one, a lock was suspect after a rest of its session, because the first renewal came two beats after the rest.
#[test]
fn seeds_that_found_a_bug() {
    for seed in [
        21410, 37511, 96581, 84460, 28970, 32933, 102_661, 103_303, 104_775, 105_535, 346_452, 347_990,
        404_903, 404_805, 526_300, 530_824, 1_483_743,
    ] {
        if run_without_violation(seed).is_none() {
            print_and_panic(seed);
        }
    }
}

#[test]
fn same_seed_gives_the_same_run() {
    for seed in 0..20 {
        let (one, other) = (run(seed, false), run(seed, true));
        assert_eq!(
            (one.hash, one.virtual_time, one.grants),
            (other.hash, other.virtual_time, other.grants),
            "seed {seed}"
        );
    }
}

#[test]
fn every_kind_of_lock_and_of_loss_appears() {
    let mut all = [0; 12];
    for seed in 0..400 {
        let grants = run_without_violation(seed).unwrap_or_else(|| print_and_panic(seed)).grants;
        let each = [
            grants.mutex,
            grants.read,
            grants.write,
            grants.upgraded,
            grants.permits,
            grants.multi,
            grants.shared_hold,
            grants.terms,
            grants.lost,
            grants.expired,
            grants.unreachable,
            grants.broken,
        ];
        all.iter_mut().zip(each).for_each(|(all, each)| *all += each);
    }
    assert!(all.iter().all(|count| *count > 0), "{all:?}");
    println!(
        "mutex, read, write, upgraded, permits, multi, shared hold, terms, lost, expired, unreachable, broken: {all:?}"
    );
}

#[test]
fn virtual_time_is_a_thousand_times_real_time() {
    // Real time is the CPU time of this thread, because other processes may run, too.
    let clock = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("CPU time is positive");
    let (began, mut passed) = (clock(), Duration::ZERO);
    for seed in 0..50 {
        passed += run(seed, false).virtual_time;
    }
    let ratio = passed.as_secs_f64() / (clock() - began).as_secs_f64();
    println!("{ratio:.0} times");
    assert!(ratio >= 1000.0, "only {ratio:.0} times");
}

/// Returns the longest and the average hand-over of some runs, in milliseconds.
fn hand_overs(wait: Duration, tells_previous: bool) -> (u128, u128) {
    let runs = (0..20).flat_map(|seed| zoolock_sim::measure_hand_overs(wait, tells_previous, seed));
    let all: Vec<u128> = runs.map(|hand_over| hand_over.as_millis()).collect();
    println!("after {wait:?}, tells previous: {tells_previous}: {all:?}");
    (*all.iter().max().expect("there are hand-overs"), all.iter().sum::<u128>() / all.len() as u128)
}

/// The sessions of the waiters rest while an hour passes. A session whose lease has ended renews it before it is its turn,
/// because a waiter looks ahead.
#[test]
fn hand_over_after_an_hour_is_as_quick_as_after_seconds() {
    let [soon, late] = [8, 3600].map(|seconds| hand_overs(Duration::from_secs(seconds), false));
    assert!(late.0 <= soon.0 + 20 && late.1 <= soon.1 + 5, "{soon:?}, {late:?}");
}

/// Without look-ahead a grant after an hour waits for a renewal, and for another read of the queue.
#[test]
fn hand_over_without_look_ahead_waits_for_one_renewal() {
    let [soon, late] = [8, 3600].map(|seconds| hand_overs(Duration::from_secs(seconds), true));
    assert!(late.1 > soon.1 && late.1 <= 2 * soon.1, "{soon:?}, {late:?}");
}

/// Runs one seed. Set `ZOOLOCK_SEED=n`, and use `--no-capture`.
#[test]
fn replay() {
    let Some(seed) = number("ZOOLOCK_SEED") else { return };
    let report = run(seed, true);
    report.trace.iter().for_each(|line| println!("{line}"));
    println!(
        "seed {seed}: hash {:x}, {:?} of virtual time, {:?}",
        report.hash, report.virtual_time, report.grants
    );
    assert_eq!(report.violation, None);
}
