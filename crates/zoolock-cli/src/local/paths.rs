//! The directory for the files of this user's server.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::{file_system, storage};
use crate::exit::{Exit, Failure};

/// The directory, to which only this user has access.
#[derive(Debug, Clone)]
pub(crate) struct StateDir {
    path: PathBuf,
}

impl StateDir {
    /// Finds the directory, or creates it. Refuses it if other users have access.
    pub(crate) fn open() -> Result<Self, Failure> {
        let path = choose(|name| std::env::var_os(name))?;
        let failed = |error: io::Error| {
            storage(format!("cannot create the state directory {}: {error}", path.display()), &error)
        };
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        let metadata = std::fs::metadata(&path).map_err(failed)?;
        if !metadata.is_dir() {
            return Err(Failure::new(
                Exit::UNAVAILABLE,
                format!("{} is not a directory; local mode keeps its files there", path.display()),
            ));
        }
        let us = rustix::process::geteuid().as_raw();
        if metadata.uid() != us {
            return Err(Failure::new(
                Exit::DENIED,
                format!(
                    "the state directory {} belongs to user {}, not to {us}; set HOME or XDG_STATE_HOME to \
                     your own",
                    path.display(),
                    metadata.uid()
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

    /// Returns the path of a file in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the failure of the action `what` on a file in the directory.
    pub(crate) fn failed(&self, what: &str, name: &str, error: &io::Error) -> Failure {
        storage(format!("cannot {what} {}: {error}", self.file(name).display()), error)
    }

    #[cfg(test)]
    pub(crate) fn for_tests(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }
}

/// Chooses the directory by the rules of the XDG base directories. It is the one for state, because a cron job has no
/// runtime directory, and the locks of two servers would not exclude each other.
fn choose(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, Failure> {
    let absolute = |name: &str| {
        variable(name).filter(|value| !value.is_empty()).map(PathBuf::from).filter(|path| path.is_absolute())
    };
    if let Some(given) = variable("ZOOLOCK_STATE_DIR").filter(|value| !value.is_empty()) {
        let path = PathBuf::from(given);
        if !path.is_absolute() {
            return Err(Failure::usage(format!(
                "ZOOLOCK_STATE_DIR {}: must be an absolute path",
                path.display()
            )));
        }
        return Ok(path);
    }
    if let Some(state) = absolute("XDG_STATE_HOME") {
        return Ok(state.join("zoolock"));
    }
    if let Some(home) = absolute("HOME") {
        return Ok(home.join(".local/state/zoolock"));
    }
    Err(Failure::usage(
        "there is no state directory for local mode, since HOME is not set to an absolute path; set HOME or \
         XDG_STATE_HOME, or name an ensemble with --connect",
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn chosen(variables: &[(&str, &str)]) -> Option<String> {
        let lookup =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
        choose(lookup).ok().map(|path| path.to_string_lossy().into_owned())
    }

    #[test]
    fn the_state_directory_follows_the_base_directory_rules() {
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
    fn directory_is_created_for_its_user_alone() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let path = dir.path().join("state");
        DirBuilder::new().mode(0o700).create(&path).expect("created");
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o077, 0);
    }
}
