//! The machine that uses the state directory. The file `machine` records it. If two machines share
//! a directory, the file locks of one machine may fail to exclude the other.

use std::fmt;
use std::io;
use std::str::FromStr;

use super::files::{replace_file, take_server_lock};
use super::paths::StateDir;
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::Reporter;

/// The file that records the machine of the last server.
const MACHINE: &str = "machine";
/// The placeholder in the file for an unknown id.
const UNKNOWN: &str = "-";

/// A machine, from one boot to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    /// The content of `/etc/machine-id`. Containers often have none.
    id: Option<String>,
    /// The id of the boot. Containers share it with their machine.
    pub(super) boot: Option<String>,
    host: String,
}

impl Machine {
    pub(super) fn current() -> Self {
        let read = |path| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        // An image that was never started has the text "uninitialized".
        let is_id = |id: &String| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        Self {
            id: read("/etc/machine-id").filter(is_id),
            boot: read("/proc/sys/kernel/random/boot_id").filter(|boot| !boot.is_empty()),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }

    /// Returns whether both values name the same boot of the same machine.
    pub(super) fn is_same_boot(&self, other: &Self) -> bool {
        self.boot.is_some() && self.boot == other.boot
    }

    /// Returns whether both values name the same machine. Values with the same boot can have
    /// different host names, because a container has its own.
    fn is_same_machine(&self, other: &Self) -> bool {
        self.is_same_boot(other) || (&self.id, &self.host) == (&other.id, &other.host)
    }

    /// Returns whether this machine has booted since `earlier` was recorded. Then all processes of
    /// that time have ended. Returns false without a machine id, because another machine can have
    /// the same host name.
    pub(super) fn has_rebooted_since(&self, earlier: &Self) -> bool {
        let both_known = self.id.is_some() && self.boot.is_some() && earlier.boot.is_some();
        both_known && self.boot != earlier.boot && self.is_same_machine(earlier)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |word: &Option<String>| word.clone().unwrap_or_else(|| UNKNOWN.to_owned());
        write!(f, "{} {} {}", word(&self.id), word(&self.boot), self.host)
    }
}

impl FromStr for Machine {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.trim_end().splitn(3, ' ').map(str::to_owned);
        let mut word = || words.next().filter(|word| !word.is_empty()).ok_or(());
        let known = |word: String| Some(word).filter(|word| word != UNKNOWN);
        Ok(Self { id: known(word()?), boot: known(word()?), host: word()? })
    }
}

/// Returns the machine of the last server, or `None` before the first server.
///
/// # Errors
/// Fails if the last server ran on another machine, and if the file is damaged or cannot be read.
pub(super) fn check_machine(dir: &StateDir) -> Result<Option<Machine>, Failure> {
    match read(dir)? {
        None => Ok(None),
        Some(Ok(machine)) if Machine::current().is_same_machine(&machine) => Ok(Some(machine)),
        Some(Ok(machine)) => Err(other_machine_failure(dir, &machine)),
        Some(Err(())) => Err(Failure::unavailable(format!(
            "the file {} is damaged; if no other machine uses the directory, run: zoolock serve --adopt",
            dir.file(MACHINE).display()
        ))),
    }
}

/// Returns the content of the file `machine`, if it exists.
fn read(dir: &StateDir) -> Result<Option<Result<Machine, ()>>, Failure> {
    match std::fs::read_to_string(dir.file(MACHINE)) {
        Ok(text) => Ok(Some(text.parse())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Some(Err(()))),
        Err(error) => Err(dir.file_failure("read", MACHINE, &error)),
    }
}

/// Records this machine in the file `machine`. `known` is the content of the file.
pub(super) fn record_machine(dir: &StateDir, known: Option<&Machine>) -> Result<(), Failure> {
    let ours = Machine::current();
    // A container without an id does not replace the record of the machine that it runs on.
    let is_container = |known: &Machine| ours.is_same_boot(known) && ours.id.is_none() && known.id.is_some();
    match known {
        Some(known) if ours == *known || is_container(known) => Ok(()),
        Some(_) => replace_file(dir, MACHINE, &ours.to_string(), true),
        None => create(dir, &ours),
    }
}

/// Creates the file `machine` with a hard link. So only one of two machines succeeds, even if their
/// file locks do not exclude each other.
fn create(dir: &StateDir, machine: &Machine) -> Result<(), Failure> {
    let draft = format!("{MACHINE}.{}", machine.boot.as_deref().unwrap_or(&machine.host));
    replace_file(dir, &draft, &machine.to_string(), true)?;
    let linked = std::fs::hard_link(dir.file(&draft), dir.file(MACHINE));
    let _ = std::fs::remove_file(dir.file(&draft));
    match linked {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_machine(dir).map(|_| ()),
        // The file system may have no hard links. Then the file is created without this exclusion.
        Err(_) => replace_file(dir, MACHINE, &machine.to_string(), true),
    }
}

/// Gives the directory to this machine. The file keeps the boot of the other machine, so the next
/// server assumes a reboot and ends the old sessions. Without a machine id, the old sessions end at
/// their timeouts.
pub(crate) async fn adopt(reporter: &Reporter) -> Result<Exit, Failure> {
    let dir = StateDir::open()?;
    let Some(_lock) = take_server_lock(&dir).await? else {
        return Err(Failure::unavailable(format!(
            "a server uses the state directory {}; run on its machine: zoolock serve --stop",
            dir.path().display()
        )));
    };
    let known = read(&dir)?;
    if check_machine(&dir).is_err() {
        let boot = known.and_then(Result::ok).and_then(|machine| machine.boot);
        replace_file(&dir, MACHINE, &Machine { boot, ..Machine::current() }.to_string(), true)?;
    }
    reporter.note(format_args!("the state directory {} belongs to this machine", dir.path().display()));
    Ok(Exit::OK)
}

/// Returns the error for a directory of another machine.
pub(super) fn other_machine_failure(dir: &StateDir, machine: &Machine) -> Failure {
    Failure::unavailable(format!(
        "the state directory {} belongs to another machine, {}; local mode works on one machine: set ZOOLOCK_STATE_DIR to a \
         directory of this machine, or name an ensemble with --connect; if {} no longer exists, or was the name of this \
         machine, run: zoolock serve --adopt",
        dir.path().display(),
        machine.host,
        machine.host
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(id: &str, boot: &str, host: &str) -> Machine {
        format!("{id} {boot} {host}").parse().expect("a machine")
    }

    #[test]
    fn machine_reads_back_as_it_was_written() {
        for machine in [Machine::current(), machine("-", "-", "a host"), machine("m", "b", "host")] {
            assert_eq!(machine.to_string().parse(), Ok(machine));
        }
        for bad in ["", "m", "m b", "m  host", "m b "] {
            assert_eq!(bad.parse::<Machine>(), Err(()), "{bad:?}");
        }
    }

    #[test]
    fn reboot_differs_from_another_machine() {
        let ours = machine("m", "b2", "host");
        // The flags are the expected results of `is_same_machine` and `has_rebooted_since`.
        for (other, same, rebooted) in [
            (machine("m", "b2", "host"), true, false),
            (machine("m", "b1", "host"), true, true),
            (machine("other", "b1", "host"), false, false),
            // A clone has the id of its image.
            (machine("m", "b1", "clone"), false, false),
            // A container of this machine.
            (machine("-", "b2", "4f1c"), true, false),
            (machine("m", "-", "host"), true, false),
        ] {
            assert_eq!(ours.is_same_machine(&other), same, "{other}");
            assert_eq!(ours.has_rebooted_since(&other), rebooted, "{other}");
        }
        let nameless = machine("-", "b2", "host");
        assert!(nameless.is_same_machine(&machine("-", "b1", "host")));
        assert!(!nameless.has_rebooted_since(&machine("-", "b1", "host")));
        let timeless = machine("m", "-", "host");
        assert!(!timeless.has_rebooted_since(&machine("m", "-", "host")));
        assert!(!timeless.is_same_boot(&machine("m", "-", "host")));
    }

    #[test]
    fn directory_of_another_machine_is_refused_until_adopted() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let state = StateDir::for_tests(dir.path());
        assert_eq!(check_machine(&state).expect("readable"), None);
        record_machine(&state, None).expect("writable");
        let ours = Machine::current();
        assert_eq!(check_machine(&state).expect("this machine"), Some(ours.clone()));
        let other = Machine { host: "build7".to_owned(), boot: Some("b".to_owned()), ..ours.clone() };
        replace_file(&state, MACHINE, &other.to_string(), true).expect("file written");
        let error = check_machine(&state).expect_err("another machine").to_string();
        assert!(error.contains("build7") && error.contains("serve --adopt"), "{error}");
        // This machine found no file, and another machine has created the file since then.
        assert!(create(&state, &ours).is_err());
        std::fs::write(state.file(MACHINE), "x").expect("file written");
        assert!(check_machine(&state).expect_err("damaged").to_string().contains("damaged"));
    }

    #[test]
    fn renamed_machine_and_container_update_the_file() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let state = StateDir::for_tests(dir.path());
        let ours = Machine::current();
        for known in [
            Machine { host: "earlier-name".to_owned(), ..ours.clone() },
            Machine { id: None, host: "4f1c".to_owned(), ..ours.clone() },
            Machine { boot: Some("earlier".to_owned()), ..ours.clone() },
        ] {
            replace_file(&state, MACHINE, &known.to_string(), true).expect("file written");
            record_machine(&state, Some(&known)).expect("writable");
            assert_eq!(check_machine(&state).expect("same machine"), Some(ours.clone()), "{known}");
        }
    }
}
