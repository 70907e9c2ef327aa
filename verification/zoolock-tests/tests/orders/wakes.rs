//! Tests of the hand-off between the driver of a session and its callers
//! (`zoolock-client/src/driver/handoff.rs`), under many thread schedules.
//!
//! The driver is the task that carries out the work and the timers of a session. It sleeps until
//! its alarm, or until a caller wakes it. In this test, the alarm never wakes the driver. So if a
//! wake is lost, the driver sleeps forever. Then shuttle, which runs the schedules, reports a
//! deadlock.

#[path = "../../../../crates/zoolock-client/src/driver/handoff.rs"]
mod handoff;

use std::sync::Arc;

use handoff::{Driven, Handoff};

/// The time of the alarm if there is no timer.
const LATEST: u32 = 1000;

/// The changes that one caller makes. If the wake of the last change is lost, no later wake replaces it.
type Calls = [Change; 4];
const WORK_LAST: Calls = [Change::Nothing, Change::Work, Change::Timer, Change::Work];
const TIMER_LAST: Calls = [Change::Nothing, Change::Work, Change::Work, Change::Timer];

#[derive(Clone, Copy, PartialEq)]
enum Change {
    Nothing,
    Work,
    /// An earlier timer.
    Timer,
}

#[derive(Default)]
struct Toy {
    work: usize,
    timer: Option<u32>,
}

impl Driven for Toy {
    type Time = u32;

    fn next_timer(&self) -> Option<u32> {
        self.timer
    }

    fn has_work(&self) -> bool {
        self.work > 0
    }
}

/// Acts as the driver until `work` items are done and the alarm is set to `timer`. Returns the number of wakes.
async fn drive(handoff: &Handoff<Toy>, work: usize, timer: u32) -> usize {
    let (mut done, mut alarm, mut wakes) = (0, None, 0);
    loop {
        {
            let guarded = &mut *handoff.lock();
            done += std::mem::take(&mut guarded.state.work);
            alarm = guarded.set_alarm(0, LATEST).or(alarm);
        }
        if done == work && alarm == Some(timer) {
            return wakes;
        }
        handoff.wait_for_wake().await;
        wakes += 1;
    }
}

/// Runs callers beside a driver.
fn run(callers: u32, calls: Calls) {
    let handoff = Arc::new(Handoff::new(Toy::default()));
    let threads: Vec<_> = (0..callers)
        .map(|caller| {
            let handoff = handoff.clone();
            shuttle::thread::spawn(move || {
                for (at, change) in (0..).zip(calls) {
                    handoff.change_and_wake(|toy| match change {
                        Change::Nothing => {}
                        Change::Work => toy.work += 1,
                        Change::Timer => {
                            let timer = 100 - 10 * caller - at;
                            toy.timer = Some(toy.timer.map_or(timer, |other| other.min(timer)));
                        }
                    });
                }
            })
        })
        .collect();
    let works = calls.iter().filter(|change| **change == Change::Work).count() * callers as usize;
    let at = (0..).zip(calls).find(|(_, change)| *change == Change::Timer).map_or(0, |(at, _)| at);
    let first_timer = 100 - 10 * (callers - 1) - at;
    let wakes = shuttle::future::block_on(drive(&handoff, works, first_timer));
    // With several callers, a call without a change wakes the driver if it finds another caller's
    // work.
    assert!(callers > 1 || wakes < calls.len(), "the call without a change woke the driver");
    for thread in threads {
        thread.join().expect("the caller ends");
    }
    let guarded = &mut *handoff.lock();
    guarded.clear_alarm();
    assert_eq!(guarded.set_alarm(0, LATEST), Some(first_timer), "an alarm that has rung is set again");
    assert_eq!(guarded.set_alarm(0, LATEST), None, "an alarm that is set stays");
    assert_eq!(
        guarded.set_alarm(LATEST, 2 * LATEST),
        Some(first_timer),
        "an alarm that is past is set again"
    );
}

#[test]
fn no_wake_of_the_driver_is_lost() {
    for calls in [WORK_LAST, TIMER_LAST] {
        shuttle::check_dfs(move || run(1, calls), None);
        shuttle::check_random(move || run(2, calls), 10_000);
        shuttle::check_random(move || run(3, calls), 10_000);
    }
}
