//! One lock, looked at again and again, for as little as that can cost.

use zoolock_core::Zxid;
use zoolock_core::contender::Failure;

use super::gather::Gathered;
use super::reader::Reader;
use super::{Known, Snapshot, View, describe, gathered};
use crate::acquire::Lock;
use crate::error::Error;

/// Looks at one lock again and again. Each contender is read once, however often it is seen, so that what it says about
/// itself is what it said then, [`Entry::revoked`](crate::Entry::revoked) among it.
#[derive(Debug)]
pub struct Glances {
    lock: Lock,
    waiters: usize,
    known: Known,
    /// The directory that this is known of: numbers begin again in the next one.
    made: Option<Zxid>,
    /// Whether our own place is wanted.
    finds_us: bool,
}

/// What was seen.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Glance {
    /// The lock, with as many of those who wait as were asked for.
    pub lock: Snapshot,
    /// How many who wait stand before the first contender of this client; `None` where none of them waits, where it was
    /// not asked for ([`Glances::with_place`]), and where the service does not tell (before ZooKeeper 3.6).
    pub place: Option<usize>,
    /// When the directory of the lock was made, as the service counts (its `czxid`); `None` where there is none. The numbers
    /// of nodes begin again in the next one.
    pub made: Option<i64>,
}

impl Glances {
    pub(crate) fn new(lock: Lock, waiters: usize) -> Glances {
        Glances { lock, waiters, known: Known::default(), made: None, finds_us: false }
    }

    /// Wants to know where this client's own contender stands, too: one more request, the first time it is there.
    #[must_use]
    pub fn with_place(self) -> Glances {
        Glances { finds_us: true, ..self }
    }

    /// Looks once: two requests, one for each contender that was not read before, of those who hold and of the next who
    /// wait, and one more where somebody has gone, who may have written how, or has crashed.
    ///
    /// # Cancel safety
    /// The contenders that were read before the future was dropped are not read again: a queue that is too long for one
    /// look is seen after a few.
    ///
    /// # Errors
    /// As [`Mutex::snapshot`](crate::Mutex::snapshot).
    pub async fn look(&mut self) -> Result<Glance, Error> {
        let zoolock = self.lock.zoolock.clone();
        let keeper = zoolock.keeper().await?;
        let reader = Reader::new(&*keeper);
        let view = View { waiters: self.waiters, ..zoolock.view() };
        let here = gathered(&reader, self.lock.directory()?, &view).await?;
        if self.made != here.made {
            (self.made, self.known) = (here.made, Known::default());
        }
        if self.finds_us && !self.knows_us(&here) {
            self.find_us(&here).await;
        }
        let (lock, place) = describe(&reader, here, &view, Some(&mut self.known)).await?;
        Ok(Glance { lock, place, made: self.made.map(|made| made.0) })
    }

    fn knows_us(&self, here: &Gathered) -> bool {
        let own = &self.known.own;
        !own.is_empty() && here.contenders.iter().any(|contender| own.contains(&contender.path(&here.path)))
    }

    /// Asks each of our sessions for what is its own here: names do not tell whose they are.
    async fn find_us(&mut self, here: &Gathered) {
        self.known.own.clear();
        if here.contenders.is_empty() {
            return;
        }
        for session in self.lock.zoolock.sessions() {
            // Each for as long as it is asked, and none that cannot answer: what waits for an answer keeps a session from
            // being closed.
            let keeper = session.keeper().filter(|_| session.is_up());
            let Some(answer) = keeper.map(|keeper| keeper.ephemerals(here.path.as_str())) else { continue };
            match answer.await {
                Ok(own) => self.known.own.extend(own),
                // It knows no such request.
                Err(error) if matches!(error.failure, Failure::Refused(_)) => self.finds_us = false,
                Err(_) => {}
            }
        }
    }
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Neither what others wrote nor the sessions in names of the recipe.
        f.debug_struct("Known").field("read", &self.read.len()).finish_non_exhaustive()
    }
}
