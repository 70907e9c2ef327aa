//! Ends the session of zoolock, once zoolock and all processes of the command are dead.
//!
//! A server frees the lock of a dead process only after the session timeout, because from its place a dead process looks
//! like one that cannot be reached. The reaper knows more. It ends the session if all of these hold:
//! 1. The socket to zoolock has ended, and zoolock has not dismissed the reaper.
//! 2. zoolock is dead, with all its threads: its pidfd is readable. A stopped zoolock is not dead, and nor is one whose
//!    socket has ended for another reason.
//! 3. No descendant is left: `waitid` returns `ECHILD`. The reaper is the child subreaper of the command, so every
//!    descendant is below it until it dies. A search of `/proc` proves less, because a process can fork during the
//!    search, and [`super::table`] leaves out processes that zoolock may not signal. Not needed after the order to
//!    release, when the descendants that are left are daemons.
//! 4. zoolock died less than a third of the session timeout ago. An attach starts the session timeout anew, so a late
//!    one would only prolong the hold.
//!
//! Otherwise the server frees the lock after the session timeout, as without a reaper.
//!
//! The local server of this user is a descendant of the reaper if a command in the command has started it. Then condition 3
//! fails, because a list of children from `/proc` is no proof that no other child is left.
//!
//! The session's password and the credentials exist only in the memory of zoolock and of the reaper, and in one packet of their
//! socket. No other process of the user can read the memory of the reaper (`PR_SET_DUMPABLE`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid as wait_for_any};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{PidfdFlags, Signal, getpid, getppid, pidfd_open};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;
use zoolock::internals::SessionKey;
use zoolock::{Builder, Held, Zoolock};
use zoolock_client::End;
use zoolock_wire::Hidden;

use super::table::ProcessTable;
use crate::base::clock::now;
use crate::secrets::{Credentials, TlsFiles};

/// Maximum size of the packet in bytes.
const PACKET: usize = 64 * 1024;
/// The first pause between two checks of the evidence. Each later pause is twice as long, up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// A session that the reaper may end, and how to reach its servers.
#[derive(Serialize, Deserialize)]
pub(crate) struct ReaperSession {
    /// The name of the lock, for messages.
    lock: String,
    servers: String,
    id: i64,
    password: Zeroizing<Vec<u8>>,
    timeout: Duration,
    credentials: Option<Credentials>,
    tls: Option<TlsFiles>,
}

impl ReaperSession {
    /// Returns the session of a holder. Returns `None` if the session has ended.
    pub(crate) fn of(
        holder: &Held,
        lock: &str,
        credentials: Option<Credentials>,
        tls: Option<TlsFiles>,
    ) -> Option<Self> {
        let key = holder.session_key()?;
        Some(Self {
            lock: lock.to_owned(),
            servers: holder.servers().to_owned(),
            id: key.id,
            password: Zeroizing::new(key.password.0.clone()),
            timeout: key.timeout,
            credentials,
            tls,
        })
    }

    /// Sends a session, or says that there is none.
    pub(crate) fn send(session: Option<&Self>, socket: impl AsFd) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Fails for a path that is not UTF-8.
        let text = Zeroizing::new(serde_json::to_vec(&session).unwrap_or_default());
        // Without the session, the server frees the lock of a killed zoolock at the session timeout.
        if !(1..=PACKET).contains(&text.len()) || send(&socket, &text, flags).is_err() {
            send(&socket, b"null", flags)?;
        }
        Ok(())
    }

    /// Receives what [`ReaperSession::send`] has sent.
    pub(super) fn receive(socket: impl AsFd) -> io::Result<Option<Self>> {
        let mut buffer = Zeroizing::new(vec![0; PACKET]);
        let (_, length) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
        Ok(serde_json::from_slice(&buffer[..length]).unwrap_or_default())
    }

    /// Ends the session, and returns a message with the outcome. `died`: the time at which the socket to zoolock has ended.
    /// `command_may_live`: set unless the command has ended and the release has begun.
    pub(super) fn end(self, died: Duration, parent: &Parent, command_may_live: bool) -> String {
        let (until, lock) = (died + self.timeout / 3, self.lock.clone());
        let ended = wait_for_proof(until, parent, command_may_live)
            .map_err(str::to_owned)
            .and_then(|()| self.attach_and_close(until));
        match ended {
            Ok(()) if command_may_live => format!("the last process has ended; {lock} is released"),
            Ok(()) => format!("zoolock has died; {lock} is released"),
            Err(reason) => format!("{reason}; the server frees {lock} when the session ends"),
        }
    }

    fn attach_and_close(self, until: Duration) -> Result<(), String> {
        let key = SessionKey { id: self.id, password: Hidden(self.password.to_vec()), timeout: self.timeout };
        let builder = Zoolock::builder();
        let builder = self.tls.iter().map(TlsFiles::load).fold(builder, Builder::tls);
        let builder = match self.credentials {
            Some(credentials) => credentials.apply(builder).map_err(|failure| failure.to_string())?,
            None => builder,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let limit = until.saturating_sub(now());
        let servers = &self.servers;
        let ended = async { tokio::time::timeout(limit, builder.end_session(servers, key)).await };
        let ended = runtime.block_on(ended);
        // The runtime may have a thread that looks up a name. This process does not wait for it.
        runtime.shutdown_background();
        match ended {
            Ok(Ok(End::Closed)) => Ok(()),
            Ok(Ok(end)) => Err(end.to_string()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer from {servers}")),
        }
    }
}

/// Waits until the session may end. Kills descendants of the command that appear meanwhile.
fn wait_for_proof(until: Duration, parent: &Parent, command_may_live: bool) -> Result<(), &'static str> {
    let mut pause = MIN_PAUSE;
    loop {
        let evidence = Evidence {
            is_zoolock_dead: parent.is_dead(),
            has_child: !reap_to_the_last(),
            command_may_live,
            is_late: now() >= until,
        };
        match evidence.decide() {
            Decision::End => return Ok(()),
            Decision::Keep(reason) => return Err(reason),
            Decision::Wait => {}
        }
        // After the order to release, the descendants that are left are daemons.
        if command_may_live {
            for process in ProcessTable::read().living_descendants(getpid(), &Default::default()) {
                process.signal(Signal::KILL);
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// The knowledge of the reaper at one time after the socket to zoolock has ended.
#[derive(Debug, Clone, Copy)]
struct Evidence {
    /// `None` if the system does not tell.
    is_zoolock_dead: Option<bool>,
    /// Set unless the kernel says that this process has no child.
    has_child: bool,
    /// Set unless zoolock has said that the command has ended.
    command_may_live: bool,
    /// Set a third of the session timeout after the end of the socket.
    is_late: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    End,
    Wait,
    /// The server ends the session, for this reason.
    Keep(&'static str),
}

impl Evidence {
    /// Applies the four conditions at the top of this file.
    fn decide(self) -> Decision {
        match self.is_zoolock_dead {
            None => Decision::Keep("this system does not tell when zoolock is dead (Linux before 5.3)"),
            Some(false) if self.is_late => {
                Decision::Keep("the socket to zoolock has ended, but zoolock lives")
            }
            Some(true) if self.is_late && self.has_child && self.command_may_live => {
                Decision::Keep("a process of the command lives that zoolock cannot kill")
            }
            Some(true) if self.is_late => Decision::Keep("the processes have ended too late"),
            Some(true) if !(self.has_child && self.command_may_live) => Decision::End,
            Some(_) => Decision::Wait,
        }
    }
}

/// zoolock, the parent of the reaper.
pub(super) struct Parent(Option<OwnedFd>);

impl Parent {
    /// Opens the parent of this process.
    pub(super) fn open() -> Self {
        let parent = getppid();
        let file = parent.and_then(|parent| pidfd_open(parent, PidfdFlags::empty()).ok());
        // No other process has the pid while it is that of the parent, dead or alive.
        Self(file.filter(|_| getppid() == parent))
    }

    /// Returns whether all threads of the parent have ended, if the system tells.
    fn is_dead(&self) -> Option<bool> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(self.0.as_ref()?, PollFlags::IN)], Some(&now));
        Some(ended.is_ok_and(|count| count > 0))
    }
}

/// Reaps the children that have ended, also those that were started without SIGCHLD. Returns whether no child is left.
pub(super) fn reap_to_the_last() -> bool {
    // __WALL, because a process can be started without SIGCHLD (clone), and is a child, too.
    let any = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
    loop {
        match wait_for_any(Id::All, any) {
            Err(error) => return error == Errno::ECHILD,
            Ok(WaitStatus::StillAlive) => return false,
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
