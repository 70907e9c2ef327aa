//! The tasks of one process that share one place in the queue of a mutex.
//!
//! What may be done when is decided by [`zoolock_core::tenure`]; here are the tasks that wait, the clock, and the one
//! acquisition that stands for them all.
//!
//! * `shared.rs`: the machine with what it works on.
//! * `share.rs`: what one task has of it.
//! * `news.rs`: who else comes, how late it is, whether the lock is lost.

mod news;
mod share;
mod shared;

pub(crate) use share::{Share, Turn, TurnEnd, TurnLeft};
pub(crate) use shared::Shared;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use zoolock_core::tenure::Limits;

use crate::acquire::{Lock, Patience};
use crate::error::{Error, LossReason};
use crate::events::LockEvent;
use crate::held::Held;
use crate::naming::Naming;
use crate::options::Options;
use crate::path::LockPath;
use crate::session::lock;
use shared::Asked;

/// Neither passes nor time, and nothing is kept.
pub(crate) const ALONE: Limits = Limits { max_passes: 0, max_hold: Duration::ZERO, linger: Duration::ZERO };

/// What two handles have to agree upon to share a place.
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

/// The tenures of one client: all its tasks have to find the same.
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

/// The places that a handle and its clones share, so that they need not be looked for each time, and stay while one of
/// them does. Several only where a clone was given other settings.
#[derive(Clone, Default)]
pub(crate) struct Known(Arc<Mutex<Vec<Arc<Shared>>>>);

impl Lock {
    /// Asks from now on as one of the tasks of this process.
    pub(crate) fn share_place(&mut self, limits: Limits) {
        self.options.tenure = Some(limits);
        self.tenure = Some(Known::default());
    }

    /// The place that it shares.
    fn shared(&self, limits: Limits) -> Result<Arc<Shared>, Error> {
        let settings = Settings::of(&self.options, limits);
        let Some(Known(known)) = &self.tenure else { return self.zoolock.tenures().of(self, settings) };
        let known = &mut *lock(known);
        if let Some(shared) = known.iter().find(|shared| shared.settings() == settings) {
            return Ok(shared.clone());
        }
        let shared = self.zoolock.tenures().of(self, settings)?;
        known.push(shared.clone());
        Ok(shared)
    }
}

/// Asks for the lock as one of the tasks of this process. `None`: busy, or too late.
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
            if !shared.is_held() && !asked.zoolock.is_answered().await {
                return Err(asked.no_answer());
            }
            asked.options.listeners.tell(LockEvent::GaveUp);
            None
        }
        Asked::Waits(mut waiting) => {
            let held = asked.within(patience, waiting.granted()).await.transpose()?;
            if held.is_none() && !shared.is_held() && !asked.zoolock.is_answered().await {
                return Err(asked.no_answer());
            }
            held
        }
    };
    match held {
        Some(held) if !held.is_valid() => {
            // The grant waited for us longer than the lease lasts.
            let reason = held.loss().unwrap_or(LossReason::Unreachable);
            Err(Error::Lost { path: asked.path(), reason })
        }
        held => Ok(held.map(Held::seen)),
    }
}
