//! The hand-off between callers and the driver: a state behind a mutex, and a wake-up for the driver.
//!
//! The driver is the task that carries out the work and the timers of the state. It sleeps until
//! its alarm. A caller that changes the state wakes the driver early only if the state has work
//! now, or has a timer that is due before the alarm. A test runs this file under many interleavings
//! of the threads (`zoolock-tests/tests/orders`).

use std::sync::PoisonError;

use crate::sync::{Mutex, MutexGuard, Notify};

/// A state whose work and timers a driver carries out.
pub(crate) trait Driven {
    /// A point in time.
    type Time: Copy + Ord;

    /// Returns the time of the next timer, at which the driver must act.
    fn next_timer(&self) -> Option<Self::Time>;

    /// Returns whether the driver must act now.
    fn has_work(&self) -> bool;
}

/// A state that callers change and a driver acts on.
pub(crate) struct Handoff<T: Driven> {
    guarded: Mutex<Guarded<T>>,
    wake: Notify,
}

/// The contents of the mutex of a [`Handoff`].
pub(crate) struct Guarded<T: Driven> {
    pub(crate) state: T,
    /// The time at which the driver wakes up by itself. `None` until the driver sets it.
    alarm: Option<T::Time>,
}

impl<T: Driven> Handoff<T> {
    pub(crate) fn new(state: T) -> Handoff<T> {
        Handoff { guarded: Mutex::new(Guarded { state, alarm: None }), wake: Notify::new() }
    }

    /// Locks the state without waking the driver. Used by the driver itself, and for changes that need no action of the
    /// driver.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Guarded<T>> {
        self.guarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state. Wakes the driver if the state then has work for the driver, or has a
    /// timer that is due before the driver's alarm.
    pub(crate) fn change_and_wake<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
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

    /// Waits until a caller wakes the driver. A wake-up between two waits is not lost.
    pub(crate) async fn wait_for_wake(&self) {
        self.wake.notified().await;
    }
}

impl<T: Driven> Guarded<T> {
    /// Sets the alarm to the next timer, or to `latest` if that is earlier. Returns the new alarm, or `None` if the old
    /// one stays.
    ///
    /// An alarm that is earlier than needed stays, because one early wake-up costs less than a new alarm after every
    /// reply. An alarm is set again if its time has passed but it has not rung. This happens after a suspend, because the
    /// runtime's clock stops meanwhile.
    pub(crate) fn set_alarm(&mut self, now: T::Time, latest: T::Time) -> Option<T::Time> {
        let next = self.state.next_timer().map_or(latest, |timer| timer.min(latest));
        let is_late = self.alarm.is_none_or(|alarm| next < alarm || alarm <= now);
        if is_late {
            self.alarm = Some(next);
        }
        is_late.then_some(next)
    }

    /// Records that the alarm has rung.
    pub(crate) fn clear_alarm(&mut self) {
        self.alarm = None;
    }
}
