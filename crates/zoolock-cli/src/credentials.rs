//! Credentials come from files, the environment or a command: what is on a command line can be read by every user of the
//! machine. They are never shown, and wiped when they are no longer needed.

use std::fmt;
use std::fs::File;
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

use crate::args::Global;
use crate::duration::humane;
use crate::exit::{Exit, Failure};
use crate::kerberos::{Kerberos, kerberos};
use crate::terminal::Terminal;

/// Much more than any sensible credentials.
const LIMIT: u64 = 4096;
/// How long a command may take that has nobody to ask.
const COMMAND_BOUND: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// What the service knows us by, and how it is presented.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Auth {
    /// ZooKeeper's own: USER:PASSWORD as they are.
    Digest(Zeroizing<Vec<u8>>),
    /// By DIGEST-MD5: nobody sees the password.
    Sasl(Zeroizing<Vec<u8>>),
    /// The Kerberos ticket that libkrb5 finds.
    Kerberos(Arc<Kerberos>),
}

/// The parts; the password may have colons.
pub(crate) fn user_and_password(secret: &[u8]) -> Result<(&str, &str), Failure> {
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

/// Gets what `SCHEME:SOURCE` names.
pub(crate) fn credentials(text: &str) -> Result<Auth, Failure> {
    let how = "write it as digest:@FILE, digest:env:NAME or digest:command:COMMAND; or sasl instead of digest; or as \
               kerberos, kerberos:SERVICE or kerberos:SERVICE/HOST";
    if let Some(service) =
        text.strip_prefix("kerberos").filter(|rest| rest.is_empty() || rest.starts_with(':'))
    {
        return Ok(Auth::Kerberos(Arc::new(kerberos(service.strip_prefix(':'))?)));
    }
    let Some((scheme, source)) = text.split_once(':') else {
        return Err(Failure::usage(format!("--auth: {how}")));
    };
    let present = match scheme {
        "digest" => Auth::Digest,
        "sasl" => Auth::Sasl,
        // It may be a user, and the rest a password.
        _ => return Err(Failure::usage(format!("--auth: the scheme before the first colon is none; {how}"))),
    };
    let (content, place) = if let Some(file) = source.strip_prefix('@') {
        (private("--auth", Path::new(file), LIMIT)?, file.to_owned())
    } else if let Some(name) = source.strip_prefix("env:") {
        (of_environment(name)?, format!("the environment variable {name}"))
    } else if let Some(command) = source.strip_prefix("command:") {
        (of_command(command)?, "what the command prints".to_owned())
    } else {
        return Err(Failure::usage(
            "--auth: a password on the command line can be read by every user of this machine; put \
             USER:PASSWORD in a file of your own (mode 0600) and write digest:@FILE",
        ));
    };
    let colon = content.iter().position(|byte| *byte == b':');
    if colon.is_none_or(|at| at == 0) || content.contains(&b'\n') {
        return Err(Failure::usage(format!("--auth: {place} must hold one line, USER:PASSWORD")));
    }
    let auth = present(content);
    if let Auth::Sasl(secret) = &auth {
        user_and_password(secret)?;
    }
    Ok(auth)
}

/// For where secrets are put into the environment, as container schedulers do. What we start inherits it.
fn of_environment(name: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    match std::env::var_os(name).filter(|value| !value.is_empty()) {
        Some(value) => Ok(trimmed(value.into_encoded_bytes())),
        None => {
            Err(Failure::usage(format!("--auth: the environment variable {name:?} is not set, or empty")))
        }
    }
}

/// For where something else keeps secrets, such as `pass show zoolock`. It may ask on the terminal, for as long as that takes.
fn of_command(command: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let asks = Terminal::open().is_some_and(|terminal| terminal.is_ours());
    printed(command, (!asks).then_some(COMMAND_BOUND))
}

/// What it prints, within `bound` where there is one.
fn printed(command: &str, bound: Option<Duration>) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let failed =
        |why: &dyn fmt::Display| Failure::usage(format!("--auth: the command for the credentials {why}"));
    let mut shell = Command::new("/bin/sh");
    // What is piped to us is for the command that runs under the lock.
    let input = if io::stdin().is_terminal() { Stdio::inherit() } else { Stdio::null() };
    shell.args(["-c", command]).stdin(input).stdout(Stdio::piped());
    if bound.is_some() {
        // So that it can be ended with all that it has started; it could not ask on a terminal any more.
        shell.process_group(0);
    }
    let mut child = shell.spawn().map_err(|error| failed(&format_args!("cannot be started: {error}")))?;
    let deadline = bound.map(|bound| Instant::now() + bound);
    // Its pipe is closed by then, which ends one that prints more.
    let heard = child
        .stdout
        .take()
        .map_or_else(|| Err(io::ErrorKind::BrokenPipe.into()), |output| hear(output, deadline));
    let ended = heard.and_then(|printed| Ok((printed, wait(&mut child, deadline)?)));
    let (mut printed, status) = match (ended, bound) {
        (Ok(ended), _) => ended,
        (Err(error), Some(bound)) if error.kind() == io::ErrorKind::TimedOut => {
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = child.wait();
            return Err(failed(&format_args!(
                "did not end within {}; if it has to ask, start zoolock on a terminal",
                humane(bound)
            )));
        }
        (Err(error), _) => return Err(failed(&format_args!("cannot be heard: {error}"))),
    };
    if printed.len() as u64 > LIMIT {
        return Err(failed(&format_args!("prints more than {LIMIT} bytes")));
    }
    if !status.success() {
        return Err(failed(&format_args!("ended with {status}; it says itself why")));
    }
    Ok(trimmed(std::mem::take(&mut *printed)))
}

/// Reads until the end, or until there is too much.
fn hear(mut output: ChildStdout, deadline: Option<Instant>) -> io::Result<Zeroizing<Vec<u8>>> {
    // Of its full size at once: what is moved is not wiped.
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

/// Without the newlines at the end.
fn trimmed(content: Vec<u8>) -> Zeroizing<Vec<u8>> {
    let mut content = Zeroizing::new(content);
    while content.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        content.pop();
    }
    content
}

/// How to speak TLS; what is wrong with the certificates themselves is said before anything is sent.
pub(crate) fn tls(global: &Global) -> Result<Option<Tls>, Failure> {
    // An empty variable is as none.
    let file = |path: &Option<PathBuf>| path.clone().filter(|path| named(Some(path)));
    let (authorities, certificate, key) = (file(&global.cacert), file(&global.cert), file(&global.key));
    let Some(authorities) = authorities else {
        if certificate.is_some() || key.is_some() {
            return Err(Failure::usage(
                "--cert and --key go with --cacert: name the file of the authority that signed the service's certificate",
            ));
        }
        return Ok(None);
    };
    let tls = Tls::with_ca_file(authorities);
    match (certificate, key) {
        (None, None) => Ok(Some(tls)),
        (Some(certificate), Some(key)) => {
            is_ours("--key", &key)?;
            Ok(Some(tls.identity_files(certificate, key)))
        }
        (Some(_), None) => Err(Failure::usage("--cert goes with --key, the file of its private key")),
        (None, Some(_)) => Err(Failure::usage("--key goes with --cert, the file of its certificate")),
    }
}

pub(crate) fn named(path: Option<&PathBuf>) -> bool {
    path.is_some_and(|path| !path.as_os_str().is_empty())
}

/// Refuses a private key that everybody may read; a group of its own is how Debian keeps them.
fn is_ours(flag: &str, path: &Path) -> Result<(), Failure> {
    let metadata = std::fs::metadata(path)
        .map_err(|error| Failure::usage(format!("{flag}: cannot read {}: {error}", path.display())))?;
    if metadata.permissions().mode() & 0o007 != 0 {
        return Err(Failure::new(
            Exit::DENIED,
            format!(
                "{flag}: {path} can be read by everybody (mode {mode:04o}); run: chmod o= {path}",
                path = path.display(),
                mode = metadata.mode() & 0o7777,
            ),
        ));
    }
    Ok(())
}

/// Reads a file that nobody else may read; the newlines at its end are left out.
pub(crate) fn private(flag: &str, path: &Path, limit: u64) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let failed = |error: std::io::Error| {
        let exit =
            if error.kind() == std::io::ErrorKind::PermissionDenied { Exit::DENIED } else { Exit::USAGE };
        Failure::new(exit, format!("{flag}: cannot read {}: {error}", path.display()))
    };
    let mut opened = File::open(path).map_err(failed)?;
    let metadata = opened.metadata().map_err(failed)?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(Failure::new(
            Exit::DENIED,
            format!(
                "{flag}: {} can be read by others (mode {:04o}); run: chmod 600 {}",
                path.display(),
                metadata.mode() & 0o7777,
                path.display()
            ),
        ));
    }
    // Of the right size at once: what is moved is not wiped.
    let size = metadata.len().min(limit + 1);
    let mut content = Zeroizing::new(Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1));
    opened.by_ref().take(limit + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > limit {
        return Err(Failure::usage(format!("{flag}: {} has more than {limit} bytes", path.display())));
    }
    Ok(trimmed(std::mem::take(&mut *content)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_had_from_a_command_and_never_shown() {
        let auth = credentials("digest:command:printf 'me:%s\\n' hunter2").expect("printed");
        assert_eq!(auth, Auth::Digest(Zeroizing::new(b"me:hunter2".to_vec())));
        assert_eq!(format!("{auth:?}"), "Digest(..)");
        for (command, words) in [
            ("exit 3", "exit status: 3"),
            ("echo hunter2", "USER:PASSWORD"),
            ("echo me:hunter2; echo more", "one line"),
            ("yes hunter2:", "more than 4096"),
        ] {
            let failure = credentials(&format!("digest:command:{command}")).expect_err(command).to_string();
            assert!(failure.contains(words) && !failure.contains("hunter2"), "{failure}");
        }
    }

    #[test]
    fn a_command_that_does_not_end_is_ended_with_all_that_it_started() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("pid");
        // One goes on speaking, one has said all.
        for silence in ["", "exec >&-; "] {
            let command = format!("{silence}sleep 1000 & echo $! >{}; wait", file.display());
            let failure =
                printed(&command, Some(Duration::from_millis(300))).expect_err("too late").to_string();
            assert!(failure.contains("did not end within 300ms"), "{failure}");
            let started = std::fs::read_to_string(&file).expect("it began");
            let lives = || {
                let stat =
                    std::fs::read_to_string(format!("/proc/{}/stat", started.trim())).unwrap_or_default();
                stat.rsplit(") ")
                    .next()
                    .is_some_and(|state| !state.is_empty() && !state.starts_with(['Z', 'X']))
            };
            let deadline = Instant::now() + Duration::from_secs(30);
            while lives() && Instant::now() < deadline {
                std::thread::sleep(PAUSE);
            }
            assert!(!lives(), "{command}");
        }
    }
}
