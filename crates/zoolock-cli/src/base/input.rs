//! The end of standard input, which ends `zoolock hold`.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, fstat};
use rustix::termios::isatty;
use tokio::sync::mpsc;
use zoolock_client::start_thread;

use crate::base::exit::{Failure, cannot_start};
use crate::base::terminal::Terminal;

/// A receiver for the end of standard input. A thread reads the input.
#[derive(Debug)]
pub(crate) struct InputEnd(Option<mpsc::Receiver<()>>);

impl InputEnd {
    /// Starts a thread that reads standard input.
    ///
    /// # Errors
    /// The system refuses the thread.
    pub(crate) fn watch_stdin() -> Result<Self, Failure> {
        let (ended, receiver) = mpsc::channel(1);
        let input = move || {
            if has_end_of_input() && wait_for_end_of_input() {
                let _ = ended.blocking_send(());
            }
        };
        start_thread("zoolock-input", input).map_err(|error| cannot_start("a thread", error))?;
        Ok(Self(Some(receiver)))
    }

    /// Returns a receiver that never resolves, for `zoolock run`, which leaves standard input to
    /// its command.
    pub(crate) fn never() -> Self {
        Self(None)
    }

    /// Resolves when the input has ended. Later calls never resolve.
    pub(crate) async fn wait_until_ended(&mut self) {
        if let Some(receiver) = &mut self.0
            && receiver.recv().await.is_some()
        {
            return;
        }
        std::future::pending().await
    }
}

/// Returns whether the end of standard input releases the lock. It does for terminals, files and
/// pipes, but not for other character devices, such as `/dev/null`.
pub(crate) fn has_end_of_input() -> bool {
    let stdin = std::io::stdin();
    let is_device =
        fstat(&stdin).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice);
    !is_device || isatty(&stdin)
}

/// Blocks until standard input ends. Returns false if the input cannot be polled.
fn wait_for_end_of_input() -> bool {
    let stdin = std::io::stdin();
    let is_terminal = isatty(&stdin);
    let mut buffer = [0; 4096];
    loop {
        if is_terminal && !Terminal::open().is_some_and(|terminal| terminal.is_foreground()) {
            // A read in the background would stop this process, and the lease would not be renewed.
            std::thread::sleep(Duration::from_millis(500));
            continue;
        }
        let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
        let patience = rustix::event::Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
        match poll(&mut ready, Some(&patience)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return false,
        }
        match rustix::io::read(&stdin, &mut buffer) {
            Ok(0) => return true,
            Ok(_) | Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            // An error, such as a hang-up of the terminal, counts as the end.
            Err(_) => return true,
        }
    }
}
