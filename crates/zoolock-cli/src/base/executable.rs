//! Checks whether a command can be executed, before a lock is acquired for it.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::base::exit::{Exit, Failure, cannot_start};

/// The directories that `execvp` searches if PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Checks that `execvp` will find `program`, and may execute it.
///
/// # Errors
/// Exit code 127 if the program does not exist, 126 if it cannot be executed.
pub(crate) fn check(program: &OsStr) -> Result<(), Failure> {
    if program.is_empty() {
        return Err(Failure::new(Exit::NOT_FOUND, "the command after -- is empty"));
    }
    let mut nearest = Problem::NotFound;
    for path in candidates(program) {
        match check_file(&path) {
            Ok(()) => return Ok(()),
            Err(Problem::NotFound) => {}
            Err(problem) => nearest = problem,
        }
    }
    Err(nearest.failure(program))
}

/// Returns the file that `execvp` runs for `program`, if there is one.
fn find(program: &OsStr) -> Option<PathBuf> {
    candidates(program).into_iter().find(|path| check_file(path).is_ok())
}

/// Returns the paths that `execvp` tries for `program`, in their order.
fn candidates(program: &OsStr) -> Vec<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return vec![PathBuf::from(program)];
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(DEFAULT_PATH));
    std::env::split_paths(&path).map(|directory| directory.join(program)).collect()
}

/// The reason why a file cannot be executed.
enum Problem {
    NotFound,
    Directory,
    NotExecutable,
}

impl Problem {
    fn failure(&self, program: &OsStr) -> Failure {
        let has = |byte| program.as_bytes().contains(&byte);
        let (exit, why) = match self {
            Self::NotFound if has(b' ') => (
                Exit::NOT_FOUND,
                "command not found; check its path, or write a line of a shell as sh -c '...'",
            ),
            Self::NotFound if has(b'/') => (Exit::NOT_FOUND, "command not found; check its path"),
            Self::NotFound => (Exit::NOT_FOUND, "command not found; check its name and PATH"),
            Self::Directory => (Exit::NOT_EXECUTABLE, "is a directory; name a program in it"),
            Self::NotExecutable => {
                (Exit::NOT_EXECUTABLE, "not executable; chmod +x it, or name its interpreter")
            }
        };
        Failure::new(exit, format!("{}: {why}", program.display()))
    }
}

fn check_file(path: &Path) -> Result<(), Problem> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(Problem::Directory),
        Ok(_) => access(path, Access::EXEC_OK).map_err(|_| Problem::NotExecutable),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(Problem::NotExecutable),
        Err(_) => Err(Problem::NotFound),
    }
}

/// Converts `error`, the result of an attempt to execute `program`, to a failure.
pub(crate) fn exec_failure(program: &OsStr, error: std::io::Error) -> Failure {
    // These errors report a limit or a lack of memory. They say nothing about the program.
    let lacking = [Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    if Errno::from_io_error(&error).is_some_and(|errno| lacking.contains(&errno)) {
        return cannot_start(&program.to_string_lossy(), error);
    }
    let exit = match error.kind() {
        std::io::ErrorKind::NotFound => Exit::NOT_FOUND,
        _ => Exit::NOT_EXECUTABLE,
    };
    let cause = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::ACCESS) => exec_failure_cause(program),
        _ => None,
    };
    let cause = cause.unwrap_or_else(|| error.to_string());
    Failure::new(exit, format!("cannot run {}: {cause}", program.display()))
}

/// Returns the reason why the system does not execute a program that exists and is executable.
/// Returns `None` if the reason is unknown.
fn exec_failure_cause(program: &OsStr) -> Option<String> {
    let path = find(program)?;
    let mut start = [0; 256];
    let read = std::fs::File::open(&path).and_then(|mut file| file.read(&mut start)).ok()?;
    let start = &start[..read];
    if start.starts_with(b"\x7fELF") {
        return Some("the loader that it names is missing; install the libraries of its platform".to_owned());
    }
    let rest = start.strip_prefix(b"#!")?;
    let line = rest.split(|&byte| byte == b'\n').next().unwrap_or_default();
    if line.ends_with(b"\r") {
        let path = path.display();
        return Some(format!(
            "its first line ends in a carriage return; remove it: sed -i 's/\\r$//' {path}"
        ));
    }
    let interpreter = line.split(|byte| byte.is_ascii_whitespace()).find(|word| !word.is_empty())?;
    let interpreter = Path::new(OsStr::from_bytes(interpreter));
    let problem = match check_file(interpreter) {
        Err(Problem::NotFound) => "is missing",
        Err(Problem::Directory | Problem::NotExecutable) => "cannot be executed",
        Ok(()) => return None,
    };
    Some(format!(
        "its interpreter {} {problem}; install it, or correct the first line",
        interpreter.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn code(program: &str) -> u8 {
        check(OsStr::new(program)).map_or_else(|failure| failure.exit.number(), |()| 0)
    }

    #[test]
    fn lack_of_a_resource_is_not_an_error_of_the_program() {
        let code = |errno: Errno| exec_failure(OsStr::new("job"), errno.into()).exit.number();
        assert_eq!([code(Errno::NOENT), code(Errno::ACCESS)], [127, 126]);
        for errno in [Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            assert_eq!(code(errno), 69, "{errno}");
        }
    }

    #[test]
    fn script_that_does_not_start_names_the_cause() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let script = dir.path().join("script");
        for (content, errno, cause) in [
            ("#!/no/such/interpreter -x\n", Errno::NOENT, "interpreter /no/such/interpreter is missing"),
            ("#!/bin/sh\r\ntrue\r\n", Errno::NOENT, "carriage return"),
            ("#! /etc/passwd\n", Errno::ACCESS, "interpreter /etc/passwd cannot be executed"),
            ("\u{7f}ELF", Errno::NOENT, "loader"),
        ] {
            std::fs::write(&script, content).expect("file written");
            std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("mode set");
            let message = exec_failure(script.as_os_str(), errno.into()).to_string();
            assert!(message.contains(cause) && message.contains("script"), "{message}");
        }
        let message = exec_failure(OsStr::new("/no/such/file"), Errno::NOENT.into()).to_string();
        assert!(message.contains("No such file"), "{message}");
    }

    #[test]
    fn missing_command_is_127_and_unexecutable_is_126() {
        assert_eq!(code("sh"), 0);
        assert_eq!(code("/bin/sh"), 0);
        assert_eq!(code("no-such-command-anywhere"), 127);
        assert_eq!(code("/no/such/file"), 127);
        assert_eq!(code(""), 127);
        assert_eq!(code("/"), 126);
        assert_eq!(code("/etc/passwd"), 126);
    }
}
