//! `/proc`, in which zoolock finds processes.

use rustix::process::getpid;

use crate::base::exit::Failure;

/// Checks that `/proc` shows this process. Otherwise zoolock cannot find the processes of a
/// command.
pub(crate) fn check_proc() -> Result<(), Failure> {
    let shown = std::fs::read_link("/proc/self").ok();
    if shown.is_some_and(|shown| shown.as_os_str() == getpid().to_string().as_str()) {
        return Ok(());
    }
    Err(Failure::unavailable(
        "/proc is not mounted, or is of another process namespace, and zoolock finds processes there; run: mount -t proc \
         proc /proc",
    ))
}
