//! Tenures: the tasks of one process share one position in the queue of a mutex.
//!
//! The machine in [`zoolock_core::tenure`] makes all decisions. This module has the waiting tasks, the clock, and the one
//! acquisition for all of them.
//!
//! * `shared.rs`: runs the machine.
//! * `share.rs`: one task's turn.
//! * `news.rs`: reports other contenders, timers, revocation and loss to the machine.

mod news;
mod share;
mod shared;

pub(crate) use share::{Share, Turn, TurnEnd, TurnLeft};
pub(crate) use shared::Shared;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use zoolock_core::tenure::Limits;

use crate::base::error::{Error, LossReason};
use crate::base::events::LockEvent;
use crate::base::naming::Naming;
use crate::base::options::Options;
use crate::base::path::LockPath;
use crate::base::sync::lock;
use crate::lock::acquire::{Lock, Patience};
use crate::lock::held::Held;
use shared::Asked;

/// The limits of a lock that is not passed on and not kept.
pub(crate) const ALONE: Limits = Limits { max_passes: 0, max_hold: Duration::ZERO, linger: Duration::ZERO };

/// The settings that two handles must have in common to share a queue position.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Settings {
    limits: Limits,
    naming: Naming,
    kazoo_pattern: bool,
    crash_detection: bool,
    lock_delay: Duration,
}

impl Settings {
    fn of(options: &Options, limits: Limits) -> Settings {
        let Options { naming, kazoo_pattern, crash_detection, lock_delay, .. } = *options;
        Settings { limits, naming, kazoo_pattern, crash_detection, lock_delay }
    }
}

/// The tenures of one client. All its tasks find the same one for the same lock and settings.
#[derive(Default)]
pub(crate) struct Tenures(Mutex<HashMap<(LockPath, Settings), Weak<Shared>>>);

impl Tenures {
    fn of(&self, asked: &Lock, settings: Settings) -> Result<Arc<Shared>, Error> {
        let key = (asked.directory()?, settings);
        let mut all = lock(&self.0);
        if let Some(shared) = all.get(&key).and_then(Weak::upgrade) {
            return Ok(shared);
        }
        if all.len() == all.capacity() {
            all.retain(|_, shared| shared.strong_count() > 0);
        }
        let shared = Arc::new(Shared::new(asked, settings));
        all.insert(key, Arc::downgrade(&shared));
        Ok(shared)
    }
}

/// The tenures that a handle and its clones use. It saves the search in [`Tenures`], and keeps a tenure as long as one of the
/// handles. There are several only if a clone has other settings.
#[derive(Clone, Default)]
pub(crate) struct Known(Arc<Mutex<Vec<Arc<Shared>>>>);

impl Lock {
    /// Makes the handle share one queue position with the other tasks of this process.
    pub(crate) fn share_place(&mut self, limits: Limits) {
        self.options.tenure = Some(limits);
        self.tenure = Some(Known::default());
    }

    /// Returns the tenure of this handle.
    fn shared(&self, limits: Limits) -> Result<Arc<Shared>, Error> {
        let settings = Settings::of(&self.options, limits);
        let Some(Known(known)) = &self.tenure else { return self.context.tenures().of(self, settings) };
        let known = &mut *lock(known);
        if let Some(shared) = known.iter().find(|shared| shared.settings() == settings) {
            return Ok(shared.clone());
        }
        let shared = self.context.tenures().of(self, settings)?;
        known.push(shared.clone());
        Ok(shared)
    }
}

/// Acquires the lock as one of the tasks of this process. Returns `None` if the lock is busy, or the deadline has passed.
pub(crate) async fn acquire(asked: &Lock, limits: Limits, patience: Patience) -> Result<Option<Held>, Error> {
    if asked.options.crash_detection && !limits.linger.is_zero() {
        return Err(Error::invalid(
            format!("lock {}", asked.path()),
            "a lock that is kept while nobody works would look like a crash; use linger or crash_detection, not both",
        ));
    }
    let shared = asked.shared(limits)?;
    let held = match shared.ask(&asked.options, patience) {
        Asked::Granted(held) => Some(held),
        Asked::Free => shared.try_alone(&asked.options).await?,
        Asked::Busy => {
            if !shared.is_held() && !asked.context.is_answered().await {
                return Err(asked.no_answer());
            }
            asked.options.listeners.tell(LockEvent::GaveUp);
            None
        }
        Asked::Waits(mut waiting) => {
            let held = asked.within(patience, waiting.granted()).await.transpose()?;
            if held.is_none() && !shared.is_held() && !asked.context.is_answered().await {
                return Err(asked.no_answer());
            }
            held
        }
    };
    match held {
        Some(held) if !held.is_valid() => {
            // The task polled the grant only after the lease had ended.
            let reason = held.loss().unwrap_or(LossReason::Unreachable);
            Err(Error::Lost { path: asked.path(), reason })
        }
        held => Ok(held.map(Held::seen)),
    }
}
