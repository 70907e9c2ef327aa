//! The end of standard input or of the process that started this one, which ends `zoolock hold`.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::retry_on_intr;
use rustix::termios::isatty;
use tokio::sync::mpsc;
use zoolock_client::start_thread;

use crate::base::exit::{Failure, cannot_start};
use crate::base::terminal::Terminal;

/// A receiver for the end of standard input, and of the process that started this one. A thread waits for each.
#[derive(Debug)]
pub(crate) struct InputEnd(Option<mpsc::Receiver<&'static str>>);

impl InputEnd {
    /// Starts a thread that reads standard input, and one that waits for the end of `starter`, a process.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn watch(starter: Option<OwnedFd>) -> Result<Self, Failure> {
        let (ended, receiver) = mpsc::channel(2);
        if let Some(starter) = starter {
            let ended = ended.clone();
            let wait = move || {
                if retry_on_intr(|| poll(&mut [PollFd::new(&starter, PollFlags::IN)], None)).is_ok() {
                    let _ = ended.blocking_send("the process that started zoolock");
                }
            };
            start_thread("zoolock-starter", wait).map_err(|error| cannot_start("a thread", error))?;
        }
        let input = move || {
            if has_end_of_input() && wait_for_end_of_input() {
                let _ = ended.blocking_send("the input");
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

    /// Resolves when the input or the process has ended, and returns which. Reports each end once.
    pub(crate) async fn wait_until_ended(&mut self) -> &'static str {
        if let Some(receiver) = &mut self.0
            && let Some(ended) = receiver.recv().await
        {
            return ended;
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
