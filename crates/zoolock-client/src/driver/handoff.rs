//! The hand-off between callers and the driver: a state behind a mutex, and a wake for the driver.
//!
//! The driver sleeps until its alarm. A caller that changes the state wakes it only if it has work now, or a timer before
//! its alarm. A test runs this file in many orders of the threads
//! (`zoolock-tests/tests/orders`).

use std::sync::PoisonError;

use crate::sync::{Mutex, MutexGuard, Notify};

/// A state that a driver follows.
pub(crate) trait Driven {
    /// A point in time.
    type Time: Copy + Ord;

    /// Returns the time at which the driver must look at the state.
    fn next_timer(&self) -> Option<Self::Time>;

    /// Returns whether the driver must act now.
    fn has_work(&self) -> bool;
}

/// A state that callers change, and that a driver follows.
pub(crate) struct Handoff<T: Driven> {
    guarded: Mutex<Guarded<T>>,
    wake: Notify,
}

/// The part behind the mutex.
pub(crate) struct Guarded<T: Driven> {
    pub(crate) state: T,
    /// The time at which the driver looks at the state, unless it is woken before.
    alarm: Option<T::Time>,
}

impl<T: Driven> Handoff<T> {
    pub(crate) fn new(state: T) -> Handoff<T> {
        Handoff { guarded: Mutex::new(Guarded { state, alarm: None }), wake: Notify::new() }
    }

    /// Locks the state without a wake of the driver. For the driver itself, and for changes that it need not know.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Guarded<T>> {
        self.guarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the driver if it has something to do before its alarm.
    pub(crate) fn call<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let (result, needs_driver) = {
            let guarded = &mut *self.lock();
            let result = change(&mut guarded.state);
            let timer = guarded.state.next_timer();
            let is_early = timer.is_some_and(|timer| guarded.alarm.is_none_or(|alarm| timer < alarm));
            (result, is_early || guarded.state.has_work())
        };
        if needs_driver {
            self.wake.notify_one();
        }
        result
    }

    /// Resolves when a caller needs the driver. A call between two waits is not lost.
    pub(crate) async fn called(&self) {
        self.wake.notified().await;
    }
}

impl<T: Driven> Guarded<T> {
    /// Sets the alarm for the next timer, at `latest` at the latest. Returns the new time, or `None` if the alarm stays.
    ///
    /// An alarm that is too early costs one look at the timers. That is less than setting it again after every reply. An
    /// alarm that is past, and has not rung, was set before a suspend: the runtime's clock stops then.
    pub(crate) fn set_alarm(&mut self, now: T::Time, latest: T::Time) -> Option<T::Time> {
        let next = self.state.next_timer().map_or(latest, |timer| timer.min(latest));
        let is_late = self.alarm.is_none_or(|alarm| next < alarm || alarm <= now);
        if is_late {
            self.alarm = Some(next);
        }
        is_late.then_some(next)
    }

    /// Records that the alarm has rung.
    pub(crate) fn alarm_rang(&mut self) {
        self.alarm = None;
    }
}
