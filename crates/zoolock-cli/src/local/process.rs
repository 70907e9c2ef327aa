//! The process of a server or of a command, as recorded in a file.

use std::str::FromStr;

use rustix::process::{Pid, getpid};

use super::machine::Machine;
use crate::reaper::table::start_time;

/// The version of this program.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The process of a server or of a command, as recorded in the file `server` or in a file in `holders`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordedProcess {
    pub(crate) pid: Pid,
    /// The start time, in clock ticks since the boot. The pid alone does not identify a process,
    /// because pids are reused.
    pub(super) start_time: u64,
    pub(super) version: String,
    /// The process namespace, in which the pid is valid.
    pub(super) namespace: String,
    pub(super) machine: Machine,
}

impl RecordedProcess {
    pub(super) fn current() -> RecordedProcess {
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        RecordedProcess {
            pid: getpid(),
            start_time: start_time(getpid()).unwrap_or_default(),
            version: VERSION.to_owned(),
            namespace: namespace.to_string_lossy().into_owned(),
            machine: Machine::current(),
        }
    }

    /// Returns whether both records name the same process. The host names in them can differ.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.pid, self.start_time, &self.namespace) == (other.pid, other.start_time, &other.namespace)
            && self.machine.boot == other.machine.boot
    }

    /// Returns whether the process is in the process namespace of the caller, where its pid is valid.
    pub(crate) fn is_in_our_namespace(&self) -> bool {
        self.namespace == RecordedProcess::current().namespace
    }

    /// Returns whether the process runs. Returns false for a process of another boot or another process namespace.
    pub(super) fn is_running(&self) -> bool {
        self.machine.is_same_boot(&Machine::current())
            && self.is_in_our_namespace()
            && start_time(self.pid) == Some(self.start_time)
    }
}

impl std::fmt::Display for RecordedProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RecordedProcess { pid, start_time, version, namespace, machine } = self;
        write!(f, "{pid} {start_time} {version} {namespace} {machine}")
    }
}

impl FromStr for RecordedProcess {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.trim_end().splitn(5, ' ');
        let mut word = || words.next().ok_or(());
        let pid = word()?.parse().ok().and_then(Pid::from_raw).ok_or(())?;
        let start_time = word()?.parse().map_err(|_| ())?;
        let (version, namespace) = (word()?.to_owned(), word()?.to_owned());
        Ok(RecordedProcess { pid, start_time, version, namespace, machine: word()?.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_reads_back_as_it_was_written() {
        let process = RecordedProcess::current();
        assert_eq!(process.to_string().parse(), Ok(process.clone()));
        assert!(process.is_in_our_namespace());
        for bad in [
            "",
            "42",
            "42 7 0.1.0 pid:[1] m boot",
            "0 7 0.1.0 pid:[1] m boot host",
            "42 x 0.1.0 pid:[1] m boot host",
        ] {
            assert_eq!(bad.parse::<RecordedProcess>(), Err(()), "{bad:?}");
        }
    }
}
