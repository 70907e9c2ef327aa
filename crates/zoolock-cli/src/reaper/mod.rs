//! The reaper: a second process, which ends the command if zoolock cannot.
//!
//! zoolock may be killed with KILL, stopped by STOP, or get no CPU time. The command must not continue without its lock in
//! any of these cases. So the command is not a child of zoolock, but of the reaper: a small process in a process group of
//! its own, which blocks every signal. The reaper does four things:
//! - It knows the end of the lease, which zoolock sends after each renewal. One grace period before that end, it sends TERM to
//!   the command's process group. At that end, it kills the command and all its descendants.
//! - If the socket to zoolock closes and the reaper was not dismissed, it kills the command and all its descendants at
//!   once.
//! - After that kill, it ends the session of zoolock, so that the lock is free at once ([`session`]). It does so, too, if
//!   zoolock dies between the end of the command and the confirmed release.
//! - It is the parent of the command, and the "child subreaper" of all descendants. So it also finds descendants that
//!   have left the group ([`table`]). It reaps the command's process only after it was dismissed, or after zoolock's
//!   death. Until then, no other process gets the number of the group.
//!
//! If the reaper is killed, the kernel kills the command (PR_SET_PDEATHSIG). zoolock inherits the
//! descendants of the command and kills them. If the reaper and zoolock are killed at once, nothing
//! ends the descendants. Nothing ends processes that a KILL cannot reach: those of another user,
//! and those on other machines.
//!
//! - [`orders`]: the messages between zoolock and the reaper;
//! - [`kill_schedule`]: the times of the actions, as a pure state machine;
//! - [`process`]: the loop of the reaper;
//! - [`session`]: the proof that all are dead, and the end of the session;
//! - [`table`]: the processes of this machine and their descendants.

pub(crate) mod become_command;
pub(crate) mod child;
pub(crate) mod ending;
mod kill_schedule;
pub(crate) mod orders;
mod process;
pub(crate) mod session;
pub(crate) mod table;
pub(crate) mod zombies;

pub(crate) use process::run_reaper;
