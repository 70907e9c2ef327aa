//! Permits of semaphores in the layouts of others: first their guard, then one permit after the other, then the guard
//! is let go.
//!
//! Who is granted is decided by counting, after our node was created, so the guard is not what keeps too many out: it is
//! what keeps those who take from waiting for each other. So it is held until all permits are there, which makes several
//! permits all or none among those who do the same; Curator lets go of it in between.

use zoolock_core::Record;
use zoolock_core::contender::{Failure, Kind, Loss, Reason, SessionEnd};
use zoolock_core::layout::Layout;
use zoolock_core::names::Name;
use zoolock_core::record::Size;

use crate::acquire::{Attempt, Lock, Patience, kind_name, watched_bytes};
use crate::error::{Error, LossReason};
use crate::events::{Listeners, LockEvent};
use crate::held::Held;
use crate::keeper::{KeeperError, Stat};
use crate::layout::{Places, made_by, naming_of, places};
use crate::metrics::Course;
use crate::naming::Naming;
use crate::options::Options;
use crate::path::LockPath;
use crate::semaphore::resizing;
use crate::session::{Connection, Room, Session, WATCHED_BYTES};

/// What is asked for, and where.
struct Wanted {
    layout: Layout,
    semaphore: LockPath,
    places: Places,
    take: u32,
    size: u32,
}

impl Wanted {
    fn kind(&self) -> Kind {
        Kind::Lease { size: self.size }
    }

    fn guard_bytes(&self) -> usize {
        watched_bytes(Kind::Mutex, naming_of(self.layout), std::slice::from_ref(&self.places.guard))
    }

    fn lease_bytes(&self) -> usize {
        watched_bytes(self.kind(), naming_of(self.layout), std::slice::from_ref(&self.places.leases))
    }
}

impl Lock {
    /// `None`: busy, or timed out.
    pub(crate) async fn acquire_laid_out(
        &self,
        layout: Layout,
        take: u32,
        size: u32,
        patience: Patience,
    ) -> Result<Option<Held>, Error> {
        let semaphore = self.directory()?;
        let wanted = Wanted { layout, places: places(layout, &semaphore), semaphore, take, size };
        let bytes = (take as usize).saturating_mul(wanted.lease_bytes()).saturating_add(wanted.guard_bytes());
        if take > 1 && bytes > WATCHED_BYTES {
            let message = "are more than can be watched together, each having a node of its own; take fewer";
            return Err(Error::invalid(format!("{take} permits"), message));
        }
        loop {
            let begun = self.begin(kind_name(wanted.kind(), 1), bytes, patience).await?;
            let Some((room, course)) = begun else { return Ok(None) };
            let mut telling = Telling { lock: self, told: false };
            let mut course = Some(course);
            let taken = self.take_on(room, &wanted, patience, &mut course).await;
            if let Some(mut course) = course {
                // It never came to the first permit.
                match (&taken, patience) {
                    (Ok(Attempt::Missed), Patience::Try) => course.failed(Reason::Busy),
                    (Ok(Attempt::Missed), _) => course.failed(Reason::TimedOut),
                    (Ok(_), _) => course.failed(Reason::SessionOver(SessionEnd::Expired)),
                    (Err(error), _) => course.refused(error),
                }
            }
            match taken {
                Ok(Attempt::Again) => telling.told = true,
                Ok(Attempt::Missed) => return Ok(None),
                Ok(Attempt::Held(held)) => {
                    telling.told = true;
                    return Ok(Some(held));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// On one session, with room for all that will be watched. The first permit takes the `course`.
    async fn take_on(
        &self,
        mut room: Room,
        wanted: &Wanted,
        patience: Patience,
        course: &mut Option<Course>,
    ) -> Result<Attempt, Error> {
        // Before anything is made: Curator's directories in kazoo's would count as permits there.
        let Some(free) = self.within(patience, self.look(room.session(), wanted)).await else {
            return Ok(Attempt::Missed);
        };
        free?;
        let session = room.session().clone();
        let listeners = self.options.listeners.of_a_whole();
        let for_guard = self.part(wanted.layout, listeners.queueing());
        let guard = for_guard.acquire_on(
            room.part(wanted.guard_bytes()),
            Kind::Mutex,
            vec![wanted.places.guard.clone()],
            patience,
            None,
            Course::unseen(),
        );
        let guard = match guard.await? {
            Attempt::Held(guard) => guard,
            missed => return Ok(missed),
        };
        // Dropped before the guard, so that whoever takes that next finds their room.
        let mut leases = Leases(Vec::new());
        while leases.0.len() < wanted.take as usize {
            let first = leases.0.is_empty();
            let heard = if first { listeners.first() } else { listeners.another() };
            let for_lease = self.part(wanted.layout, heard);
            let lease = for_lease.acquire_on(
                room.part(wanted.lease_bytes()),
                wanted.kind(),
                vec![wanted.places.leases.clone()],
                patience,
                None,
                course.take().unwrap_or_else(|| Course::begin(kind_name(wanted.kind(), 1), self.label())),
            );
            let attempt = tokio::select! {
                biased;
                attempt = lease => attempt?,
                reason = leases.lost_with(&guard) => {
                    return self.lost_while_taking(reason, &session, patience).await;
                }
            };
            match attempt {
                Attempt::Held(lease) => leases.0.push(lease),
                Attempt::Missed => return Ok(Attempt::Missed),
                Attempt::Again => return self.lost_for_good(LossReason::SessionExpired),
            }
        }
        if let Some(reason) = leases.loss_with(&guard) {
            return self.lost_while_taking(reason, &session, patience).await;
        }
        let held = leases.into_one(wanted.semaphore.clone());
        listeners.acquired(held.ticket(), wanted.take as usize);
        Ok(Attempt::Held(held))
    }

    /// The handle for one part of what is taken.
    fn part(&self, layout: Layout, listeners: Listeners) -> Lock {
        let naming = match layout {
            Layout::Curator => Naming::Curator,
            Layout::Kazoo => Naming::Kazoo,
        };
        let options = Options { naming, listeners, ..self.options.clone() };
        Lock { options, ..self.clone() }
    }

    /// What was taken so far counts for nothing any more.
    async fn lost_while_taking(
        &self,
        reason: LossReason,
        session: &Session,
        patience: Patience,
    ) -> Result<Attempt, Error> {
        if reason != LossReason::Unreachable {
            return self.lost_for_good(reason);
        }
        // Whoever only waits for a mutex would not even notice. Here it is back to the end of the queue.
        let mut connection = session.connection();
        let settled = connection.wait_for(|connection| *connection != Connection::Suspect);
        if self.within(patience, settled).await.is_none() {
            return Ok(Attempt::Missed);
        }
        match session.end() {
            None => Ok(Attempt::Again),
            Some(end) => self.lost_for_good(Loss::SessionOver(end).into()),
        }
    }

    /// The place in the queue is gone.
    fn lost_for_good(&self, reason: LossReason) -> Result<Attempt, Error> {
        match reason {
            LossReason::SessionExpired if self.options.requeue => Ok(Attempt::Again),
            reason => Err(Error::Lost { path: self.path(), reason }),
        }
    }

    /// Whether something else lives where the semaphore is to be. What cannot be read does not matter.
    async fn look(&self, session: &Session, wanted: &Wanted) -> Result<(), Error> {
        let Some(keeper) = session.keeper() else { return Ok(()) };
        let path = wanted.semaphore.as_str();
        let (data, children) = (keeper.read(path), keeper.children(path));
        let (Ok((data, stat)), Ok((children, _))) = (data.await, children.await) else { return Ok(()) };
        match obstacle(wanted.layout, wanted.size, Record::parse(&data), &stat, &children) {
            Some(reason) => self.explain(reason, wanted.kind(), self.path(), String::new()),
            None => Ok(()),
        }
    }

    /// Changes the size of a semaphore in the layout of others.
    pub(crate) async fn resize_laid_out(&self, layout: Layout, permits: u32) -> Result<(), Error> {
        let subject = || format!("lock {}", self.path());
        if layout == Layout::Curator {
            let message =
                "the size of a semaphore of Curator is written nowhere: give every user of it the new one";
            return Err(Error::invalid(subject(), message));
        }
        let directory = self.directory()?;
        let keeper = self.zoolock.keeper().await?;
        loop {
            let (data, stat) = match keeper.read(directory.as_str()).await {
                Ok(read) => read,
                Err(KeeperError { failure: Failure::NoNode, .. }) => return Err(self.no_semaphore()),
                Err(error) => return Err(self.refusal(error)),
            };
            // Where kazoo came first it may have left the data empty.
            if !matches!(Record::parse(&data), Record::Leases(_) | Record::Empty) {
                return Err(Error::invalid(
                    subject(),
                    format!(
                        "says no size of a semaphore of {}; resize it under its own naming",
                        made_by(layout)
                    ),
                ));
            }
            let size = Size { directory: stat.czxid, permits }.encode_as_kazoo();
            match keeper.commit(resizing(directory.as_str(), size, stat.version)).await {
                Ok(_) => return Ok(()),
                // Somebody else resizes, too.
                Err(error) if error.failure == Failure::BadVersion => {}
                Err(error) => return Err(self.refusal(error)),
            }
        }
    }
}

/// What stands in the way of a semaphore of this layout and size.
fn obstacle(layout: Layout, size: u32, record: Record, stat: &Stat, children: &[String]) -> Option<Reason> {
    if let Some(other) = Layout::proven_by(children, record).filter(|proven| *proven != layout) {
        return Some(Reason::OtherLayout(other));
    }
    match record {
        Record::Semaphore(size) if size.is_of(stat.czxid) => Some(Reason::OtherKind),
        Record::Marker(marker) if marker.directory == stat.czxid => Some(Reason::OtherKind),
        _ if children.iter().any(|child| Name::parse(child).is_some()) => Some(Reason::OtherKind),
        // It would be found with the first permit, but for that the guard is waited for.
        Record::Leases(theirs) if layout == Layout::Kazoo && theirs != size => {
            Some(Reason::OtherSize(theirs))
        }
        _ => None,
    }
}

/// Permits that count only together: given back where they do not come together.
struct Leases(Vec<Held>);

impl Leases {
    fn loss_with(&self, guard: &Held) -> Option<LossReason> {
        std::iter::once(guard).chain(&self.0).find_map(|held| match held.is_valid() {
            true => None,
            false => Some(held.loss().unwrap_or(LossReason::Unreachable)),
        })
    }

    async fn lost_with(&self, guard: &Held) -> LossReason {
        let all = std::iter::once(guard).chain(&self.0).map(|held| Box::pin(held.lost()));
        futures_util::future::select_all(all).await.0
    }

    fn into_one(mut self, semaphore: LockPath) -> Held {
        let mut all = std::mem::take(&mut self.0).into_iter();
        let first = all.next().expect("at least one permit is taken");
        first.with_leases(all.collect(), semaphore)
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        for lease in &self.0 {
            lease.give_back();
        }
    }
}

/// Tells the listeners of one that gave up, also where its future was dropped.
struct Telling<'a> {
    lock: &'a Lock,
    told: bool,
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if !self.told {
            self.lock.options.listeners.tell(LockEvent::GaveUp);
        }
    }
}

#[cfg(test)]
mod tests {
    use zoolock_core::record::{Left, Marker};
    use zoolock_core::{Sequence, SessionId, Zxid};

    use super::*;

    const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";

    fn found(layout: Layout, data: &str, children: &[&str]) -> Option<Reason> {
        let (czxid, pzxid, owner) = (Zxid(7), Zxid(9), SessionId(0));
        let stat = Stat { czxid, pzxid, version: 1, children: 0, owner, created_ms: 0 };
        let children: Vec<String> = children.iter().map(|&child| child.to_owned()).collect();
        obstacle(layout, 5, Record::parse(data.as_bytes()), &stat, &children)
    }

    #[test]
    fn nothing_stands_in_the_way_of_a_semaphore_of_the_same_make() {
        for (data, children) in [("", &[][..]), ("", &["locks", "leases"]), ("config", &["other"])] {
            assert_eq!(found(Layout::Curator, data, children), None);
        }
        for (data, children) in [("", &[][..]), ("5", &[HEX]), ("config", &[HEX]), ("", &["other"])] {
            assert_eq!(found(Layout::Kazoo, data, children), None);
        }
    }

    #[test]
    fn what_else_lives_there_is_named() {
        let curator = Some(Reason::OtherLayout(Layout::Curator));
        assert_eq!(found(Layout::Kazoo, "", &["locks", "leases"]), curator);
        let kazoo = Some(Reason::OtherLayout(Layout::Kazoo));
        assert_eq!(found(Layout::Curator, "5", &[HEX]), kazoo);
        assert_eq!(found(Layout::Curator, "5", &[]), kazoo, "an idle one");
        assert_eq!(found(Layout::Kazoo, "4", &[HEX]), Some(Reason::OtherSize(4)));
        let marker = |directory| {
            let (left, sequence) = (Left::Released, Sequence(1));
            Marker { directory, left, sequence, tracked: false }.encode()
        };
        for layout in [Layout::Curator, Layout::Kazoo] {
            assert_eq!(found(layout, "", &["lock-0000000001"]), Some(Reason::OtherKind));
            assert_eq!(found(layout, &marker(Zxid(7)), &[]), Some(Reason::OtherKind));
            assert_eq!(found(layout, &marker(Zxid(6)), &[]), None, "of a directory that is gone");
            let size = Size { directory: Zxid(7), permits: 5 }.encode();
            assert_eq!(found(layout, &size, &[]), Some(Reason::OtherKind));
        }
    }
}
