//! The process that outlives us: it ends the command where we cannot.
//!
//! zoolock may be killed with KILL, stopped by STOP, or not get to run; the command must not go on without its lock in
//! any of these cases. So the command is not our child but that of a second small process of ours, the reaper, in a
//! process group of its own, which deaf to every signal does three things:
//! - it knows until when the lock is ours (zoolock tells it after each renewal), asks the command's group to end a
//!   grace period before that, and kills all of it then;
//! - when the socket to zoolock closes without a goodbye, it kills all of it at once;
//! - as the parent of the command and the "child subreaper" of all that the command starts, it finds also those that
//!   have left the group ([`table`]), and keeps the number of the group from being given to anybody else: the
//!   command's process is taken only after zoolock's goodbye.
//!
//! If somebody kills the reaper, the kernel kills the command (PR_SET_PDEATHSIG), and zoolock inherits and ends the
//! rest. Both at once, and what a KILL cannot reach (another user's processes, other machines), are beyond us.
//!
//! - [`orders`]: what the two say to each other;
//! - [`duty`]: what is to be done when; a pure state machine;
//! - [`process`]: the reaper itself;
//! - [`table`]: the processes of this machine, who descends from whom.

mod duty;
pub(crate) mod orders;
mod process;
pub(crate) mod table;

pub(crate) use process::reap;
