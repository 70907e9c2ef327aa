//! The directory for the files of this user's server.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::file_system;
use crate::base::exit::{Exit, Failure};
use crate::base::proc::check_proc;

/// The name of the socket.
pub(super) const SOCKET: &str = "socket";

/// The directory, to which only this user has access.
#[derive(Debug, Clone)]
pub(crate) struct StateDir {
    path: PathBuf,
}

impl StateDir {
    /// Finds the directory, or creates it. Refuses a directory to which other users or machines
    /// have access, and a directory in the home of another user.
    pub(crate) fn open() -> Result<Self, Failure> {
        // Files in the directory name processes by pid and start time, which are read from `/proc`.
        check_proc()?;
        let ChosenDirectory { path, base } = choose_state_directory(|name| std::env::var_os(name))?;
        let us = rustix::process::geteuid().as_raw();
        let is_ours = |path: &Path| std::fs::metadata(path).is_ok_and(|metadata| metadata.uid() == us);
        // This check is only for root. A user other than root cannot create a directory in the home
        // of another user, unless that user allows it.
        if let Some((variable, base)) = base.as_ref().filter(|(_, base)| us == 0 && base.exists())
            && !is_ours(&path)
            && !is_ours(base)
        {
            return Err(Failure::new(
                Exit::DENIED,
                format!(
                    "{variable} is {}, which is not a directory of user {us}; use sudo -H, or set ZOOLOCK_STATE_DIR to a \
                     directory of this user",
                    base.display()
                ),
            ));
        }
        let base = base.as_ref().map(|(_, base)| base.as_path());
        let created = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        let metadata = match created.or_else(|error| if path.exists() { Ok(()) } else { Err(error) }) {
            Ok(()) => std::fs::metadata(&path),
            Err(error) => Err(error),
        };
        let metadata = metadata.map_err(|error| creation_failure(&path, base, us, &error))?;
        if !metadata.is_dir() {
            return Err(Failure::new(
                Exit::UNAVAILABLE,
                format!("{} is not a directory; local mode keeps its files there", path.display()),
            ));
        }
        if metadata.uid() != us {
            return Err(Failure::new(
                Exit::DENIED,
                format!(
                    "the state directory {} belongs to user {}, not to {us}; {}",
                    path.display(),
                    metadata.uid(),
                    advice(&path, base, us)
                ),
            ));
        }
        if metadata.mode() & 0o077 != 0 {
            return Err(Failure::new(
                Exit::DENIED,
                format!(
                    "the state directory {} is open to others (mode {:04o}); run: chmod 700 {}",
                    path.display(),
                    metadata.mode() & 0o7777,
                    path.display()
                ),
            ));
        }
        if let Some(kind) = file_system::shared_type(&path) {
            return Err(Failure::unavailable(format!(
                "the state directory {} is on a file system that machines share ({kind}); local mode works on one machine: set \
                 ZOOLOCK_STATE_DIR to a directory on a disk of this machine, in all jobs, or name an ensemble with --connect",
                path.display()
            )));
        }
        Ok(Self { path })
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the server's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.file(SOCKET)
    }

    /// Returns the path of a file in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the failure of the action `what` on a file in the directory.
    pub(crate) fn file_failure(&self, what: &str, name: &str, error: &io::Error) -> Failure {
        storage_failure(format!("cannot {what} {}: {error}", self.file(name).display()), error)
    }

    #[cfg(test)]
    pub(crate) fn for_tests(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }
}

/// Returns the failure of an attempt to create the directory `path`.
fn creation_failure(path: &Path, base: Option<&Path>, us: u32, error: &io::Error) -> Failure {
    let parent = path.ancestors().skip(1).find_map(|at| Some((at, std::fs::metadata(at).ok()?)));
    let why = match parent {
        Some((at, metadata)) if !metadata.is_dir() => format!("{} is not a directory", at.display()),
        Some((at, metadata)) if metadata.uid() != us && error.kind() == io::ErrorKind::PermissionDenied => {
            format!("{error}; {} belongs to user {}, {}", at.display(), metadata.uid(), advice(at, base, us))
        }
        _ => error.to_string(),
    };
    storage_failure(format!("cannot create the state directory {}: {why}", path.display()), error)
}

/// Returns the advice for a directory of another user. A directory below `base`, the home of this
/// user, was probably created by mistake. The advice is then to change its owner.
fn advice(path: &Path, base: Option<&Path>, us: u32) -> String {
    if base.is_some_and(|base| path != base && path.starts_with(base)) {
        format!("run: sudo chown -R {us} {}", path.display())
    } else {
        "set ZOOLOCK_STATE_DIR to a directory of this user".to_owned()
    }
}

/// The choice of the state directory.
struct ChosenDirectory {
    path: PathBuf,
    /// The base directory of the path, and the variable that names it. `None` if the user chose the path itself.
    base: Option<(&'static str, PathBuf)>,
}

/// Chooses the directory by the rules of the XDG base directories. Uses the directory for state,
/// because cron jobs have no runtime directory. A job with another directory would start a second
/// server, and the locks of two servers do not exclude each other.
fn choose_state_directory(variable: impl Fn(&str) -> Option<OsString>) -> Result<ChosenDirectory, Failure> {
    let below = |name: &'static str, rest: &str| {
        let base = variable(name).filter(|value| !value.is_empty()).map(PathBuf::from)?;
        base.is_absolute().then(|| ChosenDirectory { path: base.join(rest), base: Some((name, base)) })
    };
    if let Some(given) = variable("ZOOLOCK_STATE_DIR").filter(|value| !value.is_empty()) {
        let path = PathBuf::from(given);
        if !path.is_absolute() {
            return Err(Failure::usage(format!(
                "ZOOLOCK_STATE_DIR {}: must be an absolute path",
                path.display()
            )));
        }
        return Ok(ChosenDirectory { path, base: None });
    }
    below("XDG_STATE_HOME", "zoolock").or_else(|| below("HOME", ".local/state/zoolock")).ok_or_else(|| {
        Failure::usage(
            "there is no state directory for local mode, since HOME is not set to an absolute path; set HOME or \
             XDG_STATE_HOME, or name an ensemble with --connect",
        )
    })
}

/// Returns the failure for an error of the file system, with a remedy.
fn storage_failure(mut message: String, error: &io::Error) -> Failure {
    message.push_str(match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free space there, or set ZOOLOCK_STATE_DIR to a directory with free space"
        }
        io::ErrorKind::ReadOnlyFilesystem => "; set ZOOLOCK_STATE_DIR to a directory that can be written",
        io::ErrorKind::FileTooLarge => "; raise the limit on the size of files (ulimit -f)",
        _ => "",
    });
    let exit = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Exit::DENIED,
        _ => Exit::UNAVAILABLE,
    };
    Failure::new(exit, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(variables: &[(&str, &str)]) -> Option<String> {
        let lookup =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
        choose_state_directory(lookup).ok().map(|choice| choice.path.to_string_lossy().into_owned())
    }

    #[test]
    fn state_directory_follows_the_base_directory_rules() {
        let home = ("HOME", "/home/me");
        assert_eq!(chosen(&[home]).as_deref(), Some("/home/me/.local/state/zoolock"));
        assert_eq!(chosen(&[home, ("XDG_STATE_HOME", "/s")]).as_deref(), Some("/s/zoolock"));
        // A relative path is ignored.
        assert_eq!(
            chosen(&[home, ("XDG_STATE_HOME", "s")]).as_deref(),
            Some("/home/me/.local/state/zoolock")
        );
        assert_eq!(chosen(&[home, ("ZOOLOCK_STATE_DIR", "/z")]).as_deref(), Some("/z"));
        assert_eq!(chosen(&[home, ("ZOOLOCK_STATE_DIR", "z")]), None);
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[("HOME", "")]), None);
    }

    #[test]
    fn directory_of_another_user_in_the_way_is_named() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let path = dir.path().join("state/zoolock");
        let us = rustix::process::geteuid().as_raw();
        let home = dir.path().parent();
        let message =
            |home, us, kind: io::ErrorKind| creation_failure(&path, home, us, &kind.into()).to_string();
        let denied = io::ErrorKind::PermissionDenied;
        let chown = format!("sudo chown -R {} {}", us + 1, dir.path().display());
        assert!(message(home, us + 1, denied).contains(&chown));
        assert!(message(Some(dir.path()), us + 1, denied).contains("ZOOLOCK_STATE_DIR"));
        assert!(!message(home, us, denied).contains("chown"));
        assert!(message(home, us, io::ErrorKind::StorageFull).contains("free space"));
        std::fs::write(dir.path().join("state"), "").expect("file written");
        assert!(message(home, us, io::ErrorKind::NotADirectory).contains("state is not a directory"));
    }
}
