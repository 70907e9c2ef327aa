//! Credentials, read from a file, an environment variable or a command.
//!
//! Credentials are not accepted on the command line, because every user of the machine can read it.
//! They are never printed. They are wiped from memory after use.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, IsTerminal, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use zeroize::Zeroizing;
use zoolock::Tls;
use zoolock_client::open_regular_file;
use zoolock_server::mode_of_others;

use crate::args::Global;
use crate::base::duration::format_duration;
use crate::base::exit::{Exit, Failure, cannot_start};
use crate::base::terminal::Terminal;
use crate::plan::kerberos::{Kerberos, parse_kerberos};
use crate::reaper::zombies::SpawnedChild;

/// Maximum size of credentials in bytes.
const LIMIT: u64 = 4096;
/// Maximum size of a file with a certificate or a key in bytes.
pub(crate) const MAX_PEM_FILE: u64 = 16 << 20;
/// Maximum run time of a command that prints credentials and cannot ask a question on a terminal.
const COMMAND_BOUND: Duration = Duration::from_secs(60);
/// Pause between two checks whether the command has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// Credentials, with the scheme that sends them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Auth {
    /// ZooKeeper's digest scheme: sends USER:PASSWORD as plain text.
    Digest(Zeroizing<Vec<u8>>),
    /// SASL DIGEST-MD5: does not send the password.
    Sasl(Zeroizing<Vec<u8>>),
    /// The Kerberos ticket that libkrb5 finds.
    Kerberos(Arc<Kerberos>),
}

/// Splits USER:PASSWORD at the first colon.
pub(crate) fn split_user_and_password(secret: &[u8]) -> Result<(&str, &str), Failure> {
    let parts = str::from_utf8(secret).ok().and_then(|text| text.split_once(':'));
    parts.ok_or_else(|| Failure::usage("--auth sasl: user and password must be UTF-8 text"))
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Digest(_) => "Digest(..)",
            Self::Sasl(_) => "Sasl(..)",
            Self::Kerberos(_) => "Kerberos(..)",
        })
    }
}

/// Reads the credentials that `SCHEME:SOURCE` names.
pub(crate) fn read_credentials(text: &str) -> Result<Auth, Failure> {
    let hint = "write it as digest:@FILE, digest:env:NAME or digest:command:COMMAND, with sasl instead of digest for SASL; \
                or as kerberos, kerberos:SERVICE or kerberos:SERVICE/HOST";
    if let Some(service) =
        text.strip_prefix("kerberos").filter(|rest| rest.is_empty() || rest.starts_with(':'))
    {
        return Ok(Auth::Kerberos(Arc::new(parse_kerberos(service.strip_prefix(':'))?)));
    }
    let Some((scheme, source)) = text.split_once(':') else {
        return Err(Failure::usage(format!("--auth: {hint}")));
    };
    let to_auth = match scheme {
        "digest" => Auth::Digest,
        "sasl" => Auth::Sasl,
        // Does not print the text, which may be a user name and a password.
        _ => return Err(Failure::usage(format!("--auth: unknown scheme before the first colon; {hint}"))),
    };
    let (content, source) = if let Some(file) = source.strip_prefix('@') {
        (read_private_file("--auth", Path::new(file), LIMIT)?, file.to_owned())
    } else if let Some(name) = source.strip_prefix("env:") {
        (from_environment(name)?, format!("the environment variable {name}"))
    } else if let Some(command) = source.strip_prefix("command:") {
        (from_command(command)?, "the output of the command".to_owned())
    } else {
        return Err(Failure::usage(
            "--auth: every user of this machine can read a password on the command line; put \
             USER:PASSWORD in a file of your own (mode 0600) and write digest:@FILE",
        ));
    };
    let colon = content.iter().position(|byte| *byte == b':');
    if colon.is_none_or(|at| at == 0) || content.contains(&b'\n') {
        return Err(Failure::usage(format!("--auth: {source} must be one line, USER:PASSWORD")));
    }
    let auth = to_auth(content);
    if let Auth::Sasl(secret) = &auth {
        split_user_and_password(secret)?;
    }
    Ok(auth)
}

/// Reads credentials from the environment, where container schedulers put secrets. Child processes
/// inherit the variable.
fn from_environment(name: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    match std::env::var_os(name).filter(|value| !value.is_empty()) {
        Some(value) => Ok(trim_newlines(value.into_encoded_bytes())),
        None => Err(Failure::usage(format!("--auth: the environment variable {name:?} is unset or empty"))),
    }
}

/// Reads credentials from a command, such as `pass show zoolock`. The run time is not limited if the command can ask on the
/// terminal.
fn from_command(command: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let can_ask = Terminal::open().is_some_and(|terminal| terminal.is_foreground());
    run_command(command, (!can_ask).then_some(COMMAND_BOUND))
}

/// Runs a shell command and returns its output. Kills the command if it does not end within `bound`.
fn run_command(command: &str, bound: Option<Duration>) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let failed = |why: &dyn fmt::Display| {
        Failure::usage(format!("--auth: the command that prints the credentials {why}"))
    };
    let mut shell = Command::new("/bin/sh");
    // Piped input is left for the command that runs under the lock.
    let input = if io::stdin().is_terminal() { Stdio::inherit() } else { Stdio::null() };
    shell.args(["-c", command]).stdin(input).stdout(Stdio::piped());
    if bound.is_some() {
        // In a process group of its own, the command can be killed with its children. There, it
        // cannot ask a question on the terminal.
        shell.process_group(0);
    }
    let mut child = SpawnedChild::start(&mut shell)
        .map_err(|error| cannot_start("the command that prints the credentials (--auth)", error))?;
    let deadline = bound.map(|bound| Instant::now() + bound);
    // `read_output` closes the pipe when it returns. A command that still prints is then ended by
    // SIGPIPE.
    let output = child
        .stdout
        .take()
        .map_or_else(|| Err(io::ErrorKind::BrokenPipe.into()), |output| read_output(output, deadline));
    let ended = output.and_then(|printed| Ok((printed, wait(&mut child, deadline)?)));
    let (mut printed, status) = match (ended, bound) {
        (Ok(ended), _) => ended,
        (Err(error), Some(bound)) if error.kind() == io::ErrorKind::TimedOut => {
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = child.wait();
            return Err(failed(&format_args!(
                "did not end within {}; if it needs to ask a question, start zoolock on a terminal",
                format_duration(bound)
            )));
        }
        (Err(error), _) => return Err(failed(&format_args!("gives no output: {error}"))),
    };
    if printed.len() as u64 > LIMIT {
        return Err(failed(&format_args!("prints more than {LIMIT} bytes")));
    }
    if !status.success() {
        return Err(failed(&format_args!("ended with {status}; see its error message")));
    }
    Ok(trim_newlines(std::mem::take(&mut *printed)))
}

/// Reads the output until its end, or until it exceeds [`LIMIT`].
fn read_output(mut output: ChildStdout, deadline: Option<Instant>) -> io::Result<Zeroizing<Vec<u8>>> {
    // Allocated at full size, because a reallocation would leave a copy that is not wiped.
    let mut printed = Zeroizing::new(vec![0; LIMIT as usize + 1]);
    let mut filled = 0;
    while filled < printed.len() {
        if let Some(deadline) = deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = left.try_into().map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
        }
        match output.read(&mut printed[filled..]) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    printed.truncate(filled);
    Ok(printed)
}

/// Waits for the child until the deadline.
fn wait(child: &mut Child, deadline: Option<Instant>) -> io::Result<ExitStatus> {
    let Some(deadline) = deadline else { return child.wait() };
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(status),
            None if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
            None => std::thread::sleep(PAUSE),
        }
    }
}

/// Removes newlines at the end.
fn trim_newlines(content: Vec<u8>) -> Zeroizing<Vec<u8>> {
    let mut content = Zeroizing::new(content);
    while content.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        content.pop();
    }
    content
}

/// Checks `--cacert`, `--cert` and `--key`. The library checks the certificates before it connects.
pub(crate) fn check_tls_flags(global: &Global) -> Result<Option<Tls>, Failure> {
    // An empty environment variable counts as unset.
    let file = |path: &Option<PathBuf>| path.clone().filter(|path| is_set(Some(path)));
    let (authorities, certificate, key) = (file(&global.cacert), file(&global.cert), file(&global.key));
    let Some(authorities) = authorities else {
        if certificate.is_some() || key.is_some() {
            return Err(Failure::usage(
                "--cert and --key need --cacert: name the file of the authority that signed the server certificate",
            ));
        }
        return Ok(None);
    };
    let tls = Tls::with_ca_file(authorities);
    match (certificate, key) {
        (None, None) => Ok(Some(tls)),
        (Some(certificate), Some(key)) => {
            check_key_mode("--key", &key)?;
            Ok(Some(tls.identity_files(certificate, key)))
        }
        (Some(_), None) => Err(Failure::usage("--cert needs --key, the file of its private key")),
        (None, Some(_)) => Err(Failure::usage("--key needs --cert, the file of its certificate")),
    }
}

/// Returns whether a path is given and not empty.
fn is_set(path: Option<&PathBuf>) -> bool {
    path.is_some_and(|path| !path.as_os_str().is_empty())
}

/// Refuses a private key that everyone may read. Group access is allowed, because Debian keeps keys in a group.
fn check_key_mode(flag: &str, path: &Path) -> Result<(), Failure> {
    let (_, metadata) = open_for_flag(flag, path, MAX_PEM_FILE)?;
    if metadata.permissions().mode() & 0o007 != 0 {
        return Err(Failure::new(
            Exit::DENIED,
            format!(
                "{flag}: everyone can read {path} (mode {mode:04o}); run: chmod o= {path}",
                path = path.display(),
                mode = metadata.mode() & 0o7777,
            ),
        ));
    }
    Ok(())
}

/// Opens the file that a flag names. Refuses a file that is not regular or has more than `limit` bytes.
pub(crate) fn open_for_flag(flag: &str, path: &Path, limit: u64) -> Result<(File, Metadata), Failure> {
    let opened = open_regular_file(path).and_then(|file| file.metadata().map(|metadata| (file, metadata)));
    let (file, metadata) = opened.map_err(|error| {
        let exit = if error.kind() == io::ErrorKind::PermissionDenied { Exit::DENIED } else { Exit::USAGE };
        Failure::new(exit, format!("{flag}: cannot read {}: {error}", path.display()))
    })?;
    check_size(flag, path, metadata.len(), limit)?;
    Ok((file, metadata))
}

fn check_size(flag: &str, path: &Path, size: u64, limit: u64) -> Result<(), Failure> {
    if size > limit {
        return Err(Failure::usage(format!("{flag}: {} has more than {limit} bytes", path.display())));
    }
    Ok(())
}

/// Reads a secret from a file, without newlines at its end. Refuses a file that other users may access.
pub(crate) fn read_private_file(flag: &str, path: &Path, limit: u64) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let (opened, metadata) = open_for_flag(flag, path, limit)?;
    if mode_of_others(metadata.mode(), metadata.gid()) != 0 {
        return Err(Failure::new(
            Exit::DENIED,
            format!(
                "{flag}: other users can read {} (mode {:04o}); run: chmod 600 {}",
                path.display(),
                metadata.mode() & 0o7777,
                path.display()
            ),
        ));
    }
    // Allocated at full size, because a reallocation would leave a copy that is not wiped.
    let mut content = Zeroizing::new(Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0) + 1));
    let read = opened.take(limit + 1).read_to_end(&mut content);
    let size =
        read.map_err(|error| Failure::usage(format!("{flag}: cannot read {}: {error}", path.display())))?;
    // Files such as those in /proc do not tell their size.
    check_size(flag, path, size as u64, limit)?;
    Ok(trim_newlines(std::mem::take(&mut *content)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_from_a_command_are_never_shown() {
        let auth = read_credentials("digest:command:printf 'me:%s\\n' hunter2")
            .expect("the command prints credentials");
        assert_eq!(auth, Auth::Digest(Zeroizing::new(b"me:hunter2".to_vec())));
        assert_eq!(format!("{auth:?}"), "Digest(..)");
        for (command, fragment) in [
            ("exit 3", "exit status: 3"),
            ("echo hunter2", "USER:PASSWORD"),
            ("echo me:hunter2; echo more", "one line"),
            ("yes hunter2:", "more than 4096"),
        ] {
            let failure =
                read_credentials(&format!("digest:command:{command}")).expect_err(command).to_string();
            assert!(failure.contains(fragment) && !failure.contains("hunter2"), "{failure}");
        }
    }

    #[test]
    fn hanging_command_is_killed_with_its_children() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let file = dir.path().join("pid");
        // One command keeps its output open, one closes it.
        for close_output in ["", "exec >&-; "] {
            let command = format!("{close_output}sleep 1000 & echo $! >{}; wait", file.display());
            let failure = run_command(&command, Some(Duration::from_millis(300)))
                .expect_err("the command hangs")
                .to_string();
            assert!(failure.contains("did not end within 300ms"), "{failure}");
            let started = std::fs::read_to_string(&file).expect("the command has started");
            let is_alive = || {
                let stat =
                    std::fs::read_to_string(format!("/proc/{}/stat", started.trim())).unwrap_or_default();
                stat.rsplit(") ")
                    .next()
                    .is_some_and(|state| !state.is_empty() && !state.starts_with(['Z', 'X']))
            };
            let deadline = Instant::now() + Duration::from_secs(30);
            while is_alive() && Instant::now() < deadline {
                std::thread::sleep(PAUSE);
            }
            assert!(!is_alive(), "{command}");
        }
    }
}
