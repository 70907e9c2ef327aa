//! Receives the signals that other processes send.

use std::sync::Arc;

use rustix::process::Signal;
use rustix_libc_wrappers::process::SignalExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::base::exit::Failure;
use crate::base::proc::ignored_at_start;
use crate::base::reporter::Reporter;
use crate::base::terminal::Terminal;

/// The highest number of a signal on Linux.
const LAST: i32 = 64;
/// The signals that this process does not handle: those that no process can handle, those of its own faults, broken pipes
/// and children, and those of job control.
const NOT_HANDLED: [Signal; 12] = [
    Signal::KILL,
    Signal::STOP,
    Signal::ILL,
    Signal::BUS,
    Signal::FPE,
    Signal::SEGV,
    Signal::PIPE,
    Signal::CHILD,
    Signal::CONT,
    Signal::TSTP,
    Signal::TTIN,
    Signal::TTOU,
];

/// A queue of the signals that have arrived at this process.
#[derive(Debug)]
pub(crate) struct Signals {
    sender: mpsc::Sender<Signal>,
    receiver: mpsc::Receiver<Signal>,
    heard: Vec<Signal>,
    /// Set if HUP does not ask this process to end. It then prints a note.
    stays_at_hup: Option<Arc<Reporter>>,
}

impl Signals {
    /// Starts listening for all signals except those in `NOT_HANDLED`. So none of them ends this process before it has
    /// released its lock. A signal that was ignored when this process was started (by nohup, or in the background of a
    /// script) stays ignored, also in the command of `zoolock run`.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let (sender, receiver) = mpsc::channel(16);
        let mut signals = Self { sender, receiver, heard: Vec::new(), stays_at_hup: None };
        for wanted in (1..=LAST).filter_map(Signal::from_raw).filter(|signal| !NOT_HANDLED.contains(signal)) {
            signals.add_unless_ignored(wanted)?;
        }
        Ok(signals)
    }

    /// Listens for one more signal, unless it was ignored when this process was started.
    pub(crate) fn add_unless_ignored(&mut self, wanted: Signal) -> Result<(), Failure> {
        if ignored_at_start(wanted) { Ok(()) } else { self.listen_for(wanted) }
    }

    /// Listens for one more signal, even if it was ignored when this process was started.
    pub(crate) fn listen_for(&mut self, wanted: Signal) -> Result<(), Failure> {
        if self.heard.contains(&wanted) {
            return Ok(());
        }
        self.heard.push(wanted);
        let stream = signal(SignalKind::from_raw(wanted.as_raw()));
        let mut stream = stream.map_err(|error| Failure::unavailable(error.to_string()))?;
        let sender = self.sender.clone();
        tokio::spawn(
            async move { while stream.recv().await.is_some() && sender.send(wanted).await.is_ok() {} },
        );
        Ok(())
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        match self.receiver.recv().await {
            Some(signal) => signal,
            // Unreachable: `self` has a sender, so the channel stays open.
            None => std::future::pending().await,
        }
    }

    /// Waits for the next signal that asks this process to end.
    pub(crate) async fn next_end_signal(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            match &self.stays_at_hup {
                Some(reporter) if signal == Signal::HUP => {
                    reporter.note("ignored HUP: there is no terminal; send TERM to stop zoolock");
                }
                _ if is_end_signal(signal) => return signal,
                _ => {}
            }
        }
    }

    /// Makes HUP no end signal if there is no terminal, because it then asks a service to read its configuration again. The
    /// terminal is sought now, because it cannot be opened after a hang-up.
    pub(crate) fn stay_at_hup_without_terminal(&mut self, reporter: &Arc<Reporter>) {
        self.stays_at_hup = Terminal::open().is_none().then(|| Arc::clone(reporter));
    }

    /// Removes all signals that equal `unwanted` from the queue.
    pub(crate) fn discard(&mut self, unwanted: Signal) {
        let mut kept = Vec::new();
        while let Ok(signal) = self.receiver.try_recv() {
            if signal != unwanted {
                kept.push(signal);
            }
        }
        for signal in kept {
            let _ = self.sender.try_send(signal);
        }
    }
}

/// Returns whether a signal asks a process to end, as most signals do. USR1 and USR2 are for the command of `zoolock run`.
/// After XFSZ, a write beyond the limit on file sizes fails like a write to a full disk.
pub(crate) fn is_end_signal(signal: Signal) -> bool {
    let others = [Signal::USR1, Signal::USR2, Signal::WINCH, Signal::URG, Signal::XFSZ];
    ![&others[..], &NOT_HANDLED].concat().contains(&signal)
}

/// Returns the name of a signal without SIG, or the number of a signal without a known name.
pub(crate) fn signal_name(signal: Signal) -> String {
    let name = signal_hook::low_level::signal_name(signal.as_raw());
    name.map_or_else(|| signal.as_raw().to_string(), |name| name.trim_start_matches("SIG").to_owned())
}
