//! Sessions for one acquisition each, which lets go by closing its own; see `hardened.rs`.
//!
//! What is being opened is nobody's in particular: the first in the line has the first that is open, and one that nobody
//! wants any more is kept for the next who comes. So those get there, too, whose patience is shorter than a handshake, and
//! there are never more under way than wait for one, however often they ask.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;
use zoolock_core::contender::SessionEnd;

use super::{Pool, Sessions};
use crate::error::Error;
use crate::session::{Room, Serves, Session, lock};

/// Room on a session that nobody else has. Where it is dropped the session goes to the next who wants one.
pub(crate) struct Single {
    sessions: Arc<Sessions>,
    session: Arc<Session>,
    bytes: usize,
    is_taken: bool,
}

impl Single {
    /// Of what was reserved on this session.
    fn new(sessions: &Arc<Sessions>, session: Arc<Session>, bytes: usize) -> Single {
        Single { sessions: sessions.clone(), session, bytes, is_taken: false }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// For the acquisition, with which the session ends from now on.
    pub(crate) fn into_room(mut self) -> Room {
        self.is_taken = true;
        Room::of(self.session.clone(), self.bytes)
    }
}

impl Drop for Single {
    fn drop(&mut self) {
        if !self.is_taken {
            drop(Room::of(self.session.clone(), self.bytes));
            self.sessions.hand_on(self.session.clone());
        }
    }
}

/// Who waits for a session, and what there is.
#[derive(Default)]
pub(super) struct Singles {
    wanted: VecDeque<Wanted>,
    /// How many are being opened.
    opening: usize,
    /// One that nobody has. It is closed when nobody has come for a while.
    spare: Option<Arc<Session>>,
}

struct Wanted {
    bytes: usize,
    answer: oneshot::Sender<Result<Single, Error>>,
}

impl Singles {
    /// How many still wait.
    fn wanted(&mut self) -> usize {
        self.wanted.retain(|wanted| !wanted.answer.is_closed());
        self.wanted.len()
    }

    fn next(&mut self) -> Option<Wanted> {
        self.wanted();
        self.wanted.pop_front()
    }

    fn take_spare(&mut self, bytes: usize) -> Option<Arc<Session>> {
        self.spare.take_if(|spare| is_usable(spare) && spare.reserve_alone(bytes))
    }
}

/// One without a connection may come to life again, or not.
fn is_usable(session: &Session) -> bool {
    session.end().is_none() && session.is_up()
}

impl Sessions {
    /// A session for one acquisition, and for nobody else.
    ///
    /// Cancel safe: one that is opened for nobody is there for the next.
    pub(crate) async fn single(self: &Arc<Self>, bytes: usize) -> Result<Single, Error> {
        let answer = {
            let pool = &mut *lock(&self.pool);
            if let Some(session) = pool.singles.take_spare(bytes) {
                return Ok(Single::new(self, session, bytes));
            }
            let (sender, receiver) = oneshot::channel();
            pool.singles.wanted.push_back(Wanted { bytes, answer: sender });
            self.open_singles(pool);
            receiver
        };
        // All are being closed, or the runtime is going down.
        answer.await.unwrap_or_else(|_| Err(self.is_being_closed()))
    }

    /// Opens as many as are wanted.
    fn open_singles(self: &Arc<Self>, pool: &mut Pool) {
        let wanted = pool.singles.wanted();
        while pool.singles.opening < wanted {
            pool.singles.opening += 1;
            self.tasks.spawn(self.clone().open_single(pool.closed));
        }
    }

    async fn open_single(self: Arc<Self>, closed: u64) {
        let opened = self.open_while(Serves::One, || self.wants_single(closed)).await;
        if let Some(late) = self.opened_single(opened, closed) {
            late.close(late.timeout()).await;
        }
    }

    /// Whether no more are being opened than are wanted.
    fn wants_single(&self, closed: u64) -> bool {
        let pool = &mut *lock(&self.pool);
        pool.closed == closed && pool.singles.opening <= pool.singles.wanted()
    }

    /// Takes what an opening came to. `Some`: all were closed while it was under way.
    fn opened_single(
        self: &Arc<Self>,
        opened: Option<Result<Arc<Session>, Error>>,
        closed: u64,
    ) -> Option<Arc<Session>> {
        {
            let pool = &mut *lock(&self.pool);
            if pool.closed != closed {
                return opened.and_then(Result::ok);
            }
            pool.singles.opening -= 1;
            if let Some(Ok(session)) = &opened {
                pool.live.retain(|session| session.end().is_none());
                pool.live.push(session.clone());
            }
        }
        match opened {
            Some(Ok(session)) => self.hand_on(session),
            Some(Err(error)) => {
                let next = lock(&self.pool).singles.next();
                if let Some(Wanted { answer, .. }) = next {
                    // Whoever has gone meanwhile need not know.
                    let _ = answer.send(Err(error));
                }
            }
            None => {}
        }
        // Somebody may have come for the one that ended just now.
        self.open_singles(&mut lock(&self.pool));
        None
    }

    /// Gives a session that nobody has to the next who wants one, or keeps it; one is enough.
    fn hand_on(self: &Arc<Self>, session: Arc<Session>) {
        if session.end().is_some() {
            return;
        }
        let next = {
            let singles = &mut lock(&self.pool).singles;
            let next = singles.next();
            if next.is_none() && singles.spare.as_deref().is_none_or(|spare| !is_usable(spare)) {
                singles.spare = Some(session);
                return;
            }
            next
        };
        match next {
            // Not under the mutex: where nobody is there any more, it comes back here.
            Some(Wanted { bytes, answer }) if session.reserve_alone(bytes) => {
                let _ = answer.send(Ok(Single::new(self, session, bytes)));
            }
            Some(wanted) => {
                // It ended just now.
                let pool = &mut *lock(&self.pool);
                pool.singles.wanted.push_front(wanted);
                self.open_singles(pool);
            }
            None => session.finish(SessionEnd::Closed),
        }
    }
}
