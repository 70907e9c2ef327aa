//! Reaps children that this process did not start, so that none of them remains as a zombie.
//!
//! Orphans become children of pid 1 of their container, or of a child subreaper such as `zoolock run`. A process that
//! replaces itself with zoolock (`exec`) may have had children, too.

use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, getpid, waitid};
use tokio::signal::unix::{SignalKind, signal};

use crate::reaper::table::{ProcessTable, list_children};

/// Children that other code waits for. This module must not reap them.
static RESERVED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

fn lock_reserved() -> MutexGuard<'static, BTreeSet<i32>> {
    RESERVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child process whose exit status only the owner of this value reads. After this value is
/// dropped, this module reaps the child.
#[derive(Debug)]
pub(crate) struct SpawnedChild(pub(crate) Child);

impl SpawnedChild {
    /// Starts a process and reserves it.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        // `RESERVED` is locked from before the start. Otherwise the child could end and be reaped
        // before it is reserved.
        let mut reserved = lock_reserved();
        let child = command.spawn()?;
        reserved.insert(Pid::from_child(&child).as_raw_pid());
        Ok(Self(child))
    }
}

impl Drop for SpawnedChild {
    fn drop(&mut self) {
        let mut reserved = lock_reserved();
        // If the child has not ended yet, it is reaped later like an inherited child.
        let _ = self.0.try_wait();
        reserved.remove(&Pid::from_child(&self.0).as_raw_pid());
    }
}

/// Reserves a process that this process may inherit, so that this module does not reap it.
/// [`unreserve`] ends the reservation.
pub(crate) fn reserve(pid: Pid) {
    lock_reserved().insert(pid.as_raw_pid());
}

/// Ends the reservation of a child. The child is reaped now if it has ended, and otherwise when it ends.
pub(crate) fn unreserve(pid: Pid) {
    lock_reserved().remove(&pid.as_raw_pid());
    reap(pid);
}

/// Reaps this child if it has ended.
pub(crate) fn reap(pid: Pid) {
    let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
}

/// Reaps all children that have ended and are not reserved.
pub(crate) fn reap_all() {
    let reserved = lock_reserved();
    if !matches!(peek_ended_child(), Ok(Some(_))) {
        return;
    }
    let children: Vec<Pid> = match list_children() {
        Some(children) => children.into_iter().filter_map(Pid::from_raw).collect(),
        None => ProcessTable::read().ended_children(getpid()).collect(),
    };
    children.into_iter().filter(|pid| !reserved.contains(&pid.as_raw_pid())).for_each(reap);
}

/// Returns whether this process has no children, ended ones included.
pub(crate) fn has_no_children() -> bool {
    matches!(peek_ended_child(), Err(Errno::CHILD))
}

/// Returns a child that has ended, without reaping it. This takes one system call. A list of the
/// children takes several system calls for each thread, and sometimes several for each process of
/// the machine.
///
/// # Errors
/// `ECHILD` if there are no children.
fn peek_ended_child() -> Result<Option<WaitIdStatus>, Errno> {
    waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)
}

/// Reaps inherited children whenever one ends.
pub(crate) async fn reap_inherited() {
    let Ok(mut ended) = signal(SignalKind::child()) else { return };
    loop {
        reap_all();
        ended.recv().await;
    }
}
