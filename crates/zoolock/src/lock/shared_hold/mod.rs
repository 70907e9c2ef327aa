//! Shared holds: the tasks of one process share one position in the queue of a mutex.
//!
//! The state machine in [`zoolock_core::tenure`] makes all decisions. This module has the waiting tasks, the clock, and
//! the one acquisition that the tasks share.
//!
//! * `shared.rs`: runs the state machine.
//! * `share.rs`: one task's turn, from its grant to its release.
//! * `background.rs`: reports other contenders, timers, revocation and loss to the state machine.

mod background;
mod share;
mod shared;

pub(crate) use share::{Share, TurnEnd, TurnResult};
pub(crate) use shared::SharedHold;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use zoolock_core::tenure::TenureLimits;

use crate::base::error::{Error, LossReason};
use crate::base::events::LockEvent;
use crate::base::naming::Naming;
use crate::base::options::Options;
use crate::base::path::LockPath;
use crate::base::sync::lock;
use crate::lock::acquire::{Lock, WaitLimit};
use crate::lock::held::Held;
use shared::RequestOutcome;

/// The settings that two handles must have in common to share a queue position.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct SharingSettings {
    limits: TenureLimits,
    naming: Naming,
    kazoo_pattern: bool,
    crash_detection: bool,
    lock_delay: Duration,
}

impl SharingSettings {
    fn of(options: &Options, limits: TenureLimits) -> SharingSettings {
        let Options { naming, kazoo_pattern, crash_detection, lock_delay, .. } = *options;
        SharingSettings { limits, naming, kazoo_pattern, crash_detection, lock_delay }
    }
}

/// The shared holds of one client. Tasks with the same lock and the same settings get the same shared hold.
#[derive(Default)]
pub(crate) struct SharedHolds(Mutex<HashMap<(LockPath, SharingSettings), Weak<SharedHold>>>);

impl SharedHolds {
    fn of(&self, handle: &Lock, settings: SharingSettings) -> Result<Arc<SharedHold>, Error> {
        let key = (handle.directory()?, settings);
        let mut all = lock(&self.0);
        if let Some(shared) = all.get(&key).and_then(Weak::upgrade) {
            return Ok(shared);
        }
        if all.len() == all.capacity() {
            all.retain(|_, shared| shared.strong_count() > 0);
        }
        let shared = Arc::new(SharedHold::new(handle, settings.limits));
        all.insert(key, Arc::downgrade(&shared));
        Ok(shared)
    }
}

/// The shared hold of a handle and its clones; empty until the first acquisition. This cache avoids the lookup in
/// [`SharedHolds`]. It keeps the shared hold alive as long as one of the handles exists.
#[derive(Clone, Default)]
pub(crate) struct CachedHold(Arc<OnceLock<Arc<SharedHold>>>);

impl CachedHold {
    fn get(&self, handle: &Lock, limits: TenureLimits) -> Result<Arc<SharedHold>, Error> {
        if let Some(shared) = self.0.get() {
            return Ok(shared.clone());
        }
        let shared =
            handle.context.shared_holds().of(handle, SharingSettings::of(&handle.options, limits))?;
        Ok(self.0.get_or_init(|| shared).clone())
    }
}

/// Acquires the lock for a task of this process. Returns `None` if the lock is busy at the end of the wait.
pub(crate) async fn acquire(
    handle: &Lock,
    cached: &CachedHold,
    limits: TenureLimits,
    wait_limit: WaitLimit,
) -> Result<Option<Held>, Error> {
    handle.context.process().check_not_forked()?;
    if handle.options.crash_detection && !limits.linger.is_zero() {
        return Err(Error::invalid(
            format!("lock {}", handle.path()),
            "linger and crash_detection cannot be combined; use one of them",
        ));
    }
    let shared = cached.get(handle, limits)?;
    let held = match shared.request(&handle.options, wait_limit) {
        RequestOutcome::Granted(held) => Some(held),
        RequestOutcome::Free => shared.try_alone(&handle.options).await?,
        RequestOutcome::Busy => {
            if !shared.is_held() && !handle.context.server_answers().await {
                return Err(handle.no_answer());
            }
            handle.options.listeners.tell(LockEvent::GaveUp);
            None
        }
        RequestOutcome::Waits(mut task) => {
            let held = handle.wait_within(wait_limit, task.granted()).await.transpose()?;
            if held.is_none() && !shared.is_held() && !handle.context.server_answers().await {
                return Err(handle.no_answer());
            }
            held
        }
    };
    match held {
        Some(held) if !held.is_valid() => {
            // The task polled the grant only after the lease had ended.
            let reason = held.loss().unwrap_or(LossReason::Unreachable);
            Err(Error::Lost { path: handle.path(), reason })
        }
        held => Ok(held.map(Held::mark_seen)),
    }
}
