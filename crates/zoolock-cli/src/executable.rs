//! Whether a command can be run, found out before a lock is taken for it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::exit::{Exit, Failure, refused};

/// What `execvp` searches when there is no PATH.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Looks for `program` as `execvp` will.
///
/// # Errors
/// 127 when it is not there, 126 when it is but cannot be executed.
pub(crate) fn check(program: &OsStr) -> Result<(), Failure> {
    if program.is_empty() {
        return Err(Failure::new(Exit::NOT_FOUND, "the command after -- is empty"));
    }
    if program.as_bytes().contains(&b'/') {
        return look(Path::new(program)).map_err(|problem| problem.failure(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(DEFAULT_PATH));
    let mut nearest = Problem::NotFound;
    for directory in std::env::split_paths(&path) {
        match look(&directory.join(program)) {
            Ok(()) => return Ok(()),
            Err(Problem::NotFound) => {}
            Err(problem) => nearest = problem,
        }
    }
    Err(nearest.failure(program))
}

/// Why a file cannot be run.
enum Problem {
    NotFound,
    Directory,
    NotExecutable,
}

impl Problem {
    fn failure(&self, program: &OsStr) -> Failure {
        let program = program.display();
        match self {
            Self::NotFound => Failure::new(Exit::NOT_FOUND, format!("{program}: command not found")),
            Self::Directory => Failure::new(Exit::NOT_EXECUTABLE, format!("{program}: is a directory")),
            Self::NotExecutable => Failure::new(
                Exit::NOT_EXECUTABLE,
                format!("{program}: not executable; chmod +x it, or name its interpreter"),
            ),
        }
    }
}

fn look(path: &Path) -> Result<(), Problem> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(Problem::Directory),
        Ok(_) => access(path, Access::EXEC_OK).map_err(|_| Problem::NotExecutable),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(Problem::NotExecutable),
        Err(_) => Err(Problem::NotFound),
    }
}

/// What an attempt to run `program` that failed with `error` ends with.
pub(crate) fn failed(program: &OsStr, error: std::io::Error) -> Failure {
    // A limit or a lack of memory. The program may be fine.
    let lacking = [Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    if Errno::from_io_error(&error).is_some_and(|errno| lacking.contains(&errno)) {
        return refused(&program.to_string_lossy(), error);
    }
    let exit = match error.kind() {
        std::io::ErrorKind::NotFound => Exit::NOT_FOUND,
        _ => Exit::NOT_EXECUTABLE,
    };
    Failure::new(exit, format!("cannot run {}: {error}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(program: &str) -> u8 {
        check(OsStr::new(program)).map_or_else(|failure| failure.exit.number(), |()| 0)
    }

    #[test]
    fn lack_of_a_resource_is_not_an_error_of_the_program() {
        let code = |errno: Errno| failed(OsStr::new("job"), errno.into()).exit.number();
        assert_eq!([code(Errno::NOENT), code(Errno::ACCESS)], [127, 126]);
        for errno in [Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            assert_eq!(code(errno), 69, "{errno}");
        }
    }

    #[test]
    fn what_cannot_run_is_told_apart() {
        assert_eq!(code("sh"), 0);
        assert_eq!(code("/bin/sh"), 0);
        assert_eq!(code("no-such-command-anywhere"), 127);
        assert_eq!(code("/no/such/file"), 127);
        assert_eq!(code(""), 127);
        assert_eq!(code("/"), 126);
        assert_eq!(code("/etc/passwd"), 126);
    }
}
