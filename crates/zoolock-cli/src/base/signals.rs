//! Receives the signals that other processes send.

use std::io;

use rustix::process::Signal;
use rustix_libc_wrappers::process::SignalExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::base::exit::Failure;
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
    /// The signals that this process ignored when it was started.
    ignored: SignalMask,
    /// Set if HUP does not ask this process to end.
    stays_at_hup: bool,
}

impl Signals {
    /// Starts listening for all signals except those in `NOT_HANDLED`. So none of them ends this process before it has
    /// released its lock. A signal that was ignored when this process was started (by nohup, or in the background of a
    /// script) stays ignored, also in the command of `zoolock run`.
    pub(crate) fn listen() -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel(16);
        let mut signals =
            Self { sender, receiver, heard: Vec::new(), ignored: SignalMask::ignored(), stays_at_hup: false };
        for wanted in (1..=LAST).filter_map(Signal::from_raw).filter(|signal| !NOT_HANDLED.contains(signal)) {
            signals.add_unless_ignored(wanted)?;
        }
        Ok(signals)
    }

    /// Listens for one more signal, unless it was ignored when this process was started.
    pub(crate) fn add_unless_ignored(&mut self, wanted: Signal) -> io::Result<()> {
        if self.ignored.contains(wanted) { Ok(()) } else { self.listen_for(wanted) }
    }

    /// Listens for one more signal, even if it was ignored when this process was started.
    fn listen_for(&mut self, wanted: Signal) -> io::Result<()> {
        if self.heard.contains(&wanted) {
            return Ok(());
        }
        self.heard.push(wanted);
        let mut stream = signal(SignalKind::from_raw(wanted.as_raw()))?;
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
            if is_end_signal(signal) && !(self.stays_at_hup && signal == Signal::HUP) {
                return signal;
            }
        }
    }

    /// Makes HUP no end signal, because a service without a terminal is asked by HUP to read its configuration again.
    pub(crate) fn stay_at_hup(&mut self) {
        self.stays_at_hup = true;
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

/// A receiver of the signals that end a server.
#[derive(Debug)]
pub(crate) struct ServerSignals<'a> {
    signals: Signals,
    /// Set if the server had a controlling terminal when it started. This is recorded at the start, because the terminal
    /// cannot be opened after a hang-up.
    has_terminal: bool,
    reporter: &'a Reporter,
}

impl<'a> ServerSignals<'a> {
    /// Starts listening.
    ///
    /// # Errors
    /// The system refuses a signal handler.
    pub(crate) fn listen(reporter: &'a Reporter) -> Result<Self, Failure> {
        let signals = Signals::listen().map_err(|error| Failure::unavailable(error.to_string()))?;
        Ok(Self { signals, has_terminal: Terminal::open().is_some(), reporter })
    }

    /// Listens for TERM, even if it was ignored when this process was started.
    ///
    /// # Errors
    /// The system refuses a signal handler.
    pub(crate) fn listen_for_term(&mut self) -> Result<(), Failure> {
        self.signals.listen_for(Signal::TERM).map_err(|error| Failure::unavailable(error.to_string()))
    }

    /// Waits for a signal that ends the server. Ignores HUP if the server has no terminal: HUP is then the usual request
    /// to read the configuration again.
    pub(crate) async fn next_end_signal(&mut self) -> Signal {
        loop {
            let signal = self.signals.next_end_signal().await;
            if signal != Signal::HUP || self.has_terminal {
                return signal;
            }
            self.reporter.note("ignored HUP: the server has no terminal; send TERM to stop it");
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

/// A set of signals, with one bit for each.
#[derive(Debug, Clone, Copy)]
struct SignalMask(u64);

impl SignalMask {
    /// Returns the signals that this process ignores, or an empty set without `/proc`. The caller has not installed signal
    /// handlers yet, so the set contains the signals that were ignored when the process was started.
    fn ignored() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        Self(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0))
    }

    fn contains(self, signal: Signal) -> bool {
        self.0 >> (signal.as_raw() - 1) & 1 == 1
    }
}
