//! Credentials, read from a file, an environment variable or a command.
//!
//! Credentials are not accepted on the command line, because every user of the machine can read it.
//! They are never printed. They are wiped from memory after use.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, IsTerminal, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::OnceCell;
use zeroize::Zeroizing;
use zoolock_client::open_regular_file;
use zoolock_server::mode_of_others;

use crate::args::Global;
use crate::base::duration::format_duration;
use crate::base::exit::{Exit, Failure, cannot_start};
use crate::base::terminal::Terminal;
use crate::reaper::zombies::SpawnedChild;
use crate::secrets::{Credentials, TlsFiles, parse_kerberos, split_user_and_password};

/// Maximum size of credentials in bytes.
const LIMIT: u64 = 4096;
/// Maximum size of a file with a certificate or a key in bytes.
pub(crate) const MAX_PEM_FILE: u64 = 16 << 20;
/// Pause between two checks whether the command has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// Credentials, with the scheme that sends them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Auth {
    /// ZooKeeper's digest scheme: sends USER:PASSWORD as plain text.
    Digest(Secret),
    /// SASL DIGEST-MD5: does not send the password.
    Sasl(Secret),
    /// The Kerberos ticket that libkrb5 finds, for this service.
    Kerberos(Option<String>),
}

impl Auth {
    /// Returns the credentials. Runs the command that prints them, if it has not run yet; see [`Secret::read`].
    pub(crate) async fn credentials(&self, bound: Duration) -> Result<Credentials, Failure> {
        Ok(match self {
            Self::Digest(secret) => Credentials::Digest(secret.read(bound).await?.clone()),
            Self::Sasl(secret) => Credentials::Sasl(secret.read(bound).await?.clone()),
            Self::Kerberos(principal) => Credentials::Kerberos(principal.clone()),
        })
    }
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

/// Reads the credentials that `SCHEME:SOURCE` names. A command that prints them does not run yet.
pub(crate) fn read_credentials(text: &str) -> Result<Auth, Failure> {
    let hint = "write it as digest:@FILE, digest:env:NAME or digest:command:COMMAND, with sasl instead of digest for SASL; \
                or as kerberos, kerberos:SERVICE or kerberos:SERVICE/HOST";
    if let Some(service) =
        text.strip_prefix("kerberos").filter(|rest| rest.is_empty() || rest.starts_with(':'))
    {
        let service = service.strip_prefix(':');
        let _ = parse_kerberos(service)?;
        return Ok(Auth::Kerberos(service.map(str::to_owned)));
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
        return Ok(to_auth(Secret { command: command.to_owned(), content: Arc::default() }));
    } else {
        return Err(Failure::usage(
            "--auth: every user of this machine can read a password on the command line; put \
             USER:PASSWORD in a file of your own (mode 0600) and write digest:@FILE",
        ));
    };
    if !is_user_and_password(&content) {
        return Err(Failure::usage(format!("--auth: {source} must be one line, USER:PASSWORD")));
    }
    if scheme == "sasl" {
        split_user_and_password(&content)?;
    }
    Ok(to_auth(Secret { command: String::new(), content: Arc::new(OnceCell::from(content)) }))
}

/// Returns whether the text is one line, USER:PASSWORD.
fn is_user_and_password(text: &[u8]) -> bool {
    text.iter().position(|byte| *byte == b':').is_some_and(|at| at > 0) && !text.contains(&b'\n')
}

/// Reads credentials from the environment, where container schedulers put secrets. Child processes
/// inherit the variable.
fn from_environment(name: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    match std::env::var_os(name).filter(|value| !value.is_empty()) {
        Some(value) => Ok(trim_newlines(value.into_encoded_bytes())),
        None => Err(Failure::usage(format!("--auth: the environment variable {name:?} is unset or empty"))),
    }
}

/// USER:PASSWORD.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret {
    /// The command that prints the content, such as `pass show zoolock`, if the content is not known yet.
    command: String,
    content: Arc<OnceCell<Zeroizing<Vec<u8>>>>,
}

impl Secret {
    /// Returns whether the content was given, or printed by the command.
    pub(crate) fn is_known(&self) -> bool {
        self.content.initialized()
    }

    /// Returns the content. Runs the command once, and kills it if it does not end within `bound`. The run time is not
    /// limited if the command can ask on the terminal.
    async fn read(&self, bound: Duration) -> Result<&Zeroizing<Vec<u8>>, Failure> {
        let run = async || {
            let can_ask = Terminal::open().is_some_and(|terminal| terminal.is_foreground());
            run_command(&self.command, (!can_ask).then_some(bound)).await
        };
        self.content.get_or_try_init(run).await
    }
}

/// Runs a shell command that prints USER:PASSWORD, and returns that. Kills the command if it does not end within `bound`,
/// or if the future is dropped.
async fn run_command(command: &str, bound: Option<Duration>) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let failed = |why: &dyn fmt::Display| {
        Failure::unavailable(format!("--auth: the command that prints the credentials {why}"))
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
    let child = SpawnedChild::start(&mut shell)
        .map_err(|error| cannot_start("the command that prints the credentials (--auth)", error))?;
    let mut printer = Printer { child, ended: false };
    let bound = bound.unwrap_or(Duration::MAX);
    let ended = tokio::time::timeout(bound, printer.wait_for_output()).await.map_err(|_| {
        let (bound, ask) =
            (format_duration(bound), "start zoolock on a terminal if the command asks a question");
        failed(&format_args!(
            "did not end within {bound}; raise ZOOLOCK_CONNECT_TIMEOUT (and --timeout), or {ask}"
        ))
    })?;
    let (mut printed, status) = ended.map_err(|error| failed(&format_args!("gives no output: {error}")))?;
    if printed.len() as u64 > LIMIT {
        return Err(failed(&format_args!("prints more than {LIMIT} bytes")));
    }
    if !status.success() {
        return Err(failed(&format_args!("ended with {status}; see its error message")));
    }
    let content = trim_newlines(std::mem::take(&mut *printed));
    match is_user_and_password(&content) {
        true => Ok(content),
        false => Err(failed(&"must print one line, USER:PASSWORD")),
    }
}

/// A running command that prints credentials. Dropping it kills the command and its process group.
struct Printer {
    child: SpawnedChild,
    ended: bool,
}

impl Printer {
    /// Waits for the end of the command. Returns its output, cut behind [`LIMIT`], and its status.
    async fn wait_for_output(&mut self) -> io::Result<(Zeroizing<Vec<u8>>, ExitStatus)> {
        // Allocated at full size, because a reallocation would leave a copy that is not wiped. `read_to_end` wants some
        // more room.
        let mut printed = Zeroizing::new(Vec::with_capacity(LIMIT as usize + 64));
        let output = self.child.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let output = Receiver::from_owned_fd(output.into())?;
        // Closes the pipe at the end, so that SIGPIPE ends a command that still prints.
        output.take(LIMIT + 1).read_to_end(&mut printed).await?;
        loop {
            if let Some(status) = self.child.0.try_wait()? {
                self.ended = true;
                return Ok((printed, status));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Drop for Printer {
    fn drop(&mut self) {
        if !self.ended {
            // The child is not reaped yet, so no other process has its pid. Without a group of its own, there is no such group.
            let _ = kill_process_group(Pid::from_child(&self.child.0), Signal::KILL);
            let _ = self.child.0.kill();
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
pub(crate) fn check_tls_flags(global: &Global) -> Result<Option<TlsFiles>, Failure> {
    // An empty environment variable counts as unset.
    let file = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
    let (authorities, certificate, key) = (file(&global.cacert), file(&global.cert), file(&global.key));
    let Some(authorities) = authorities else {
        if certificate.is_some() || key.is_some() {
            return Err(Failure::usage(
                "--cert and --key need --cacert: name the file of the authority that signed the server certificate",
            ));
        }
        return Ok(None);
    };
    let identity = match (certificate, key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => {
            check_key_mode("--key", &key)?;
            Some((certificate, key))
        }
        (Some(_), None) => return Err(Failure::usage("--cert needs --key, the file of its private key")),
        (None, Some(_)) => return Err(Failure::usage("--key needs --cert, the file of its certificate")),
    };
    Ok(Some(TlsFiles { authorities, identity }))
}

/// Refuses a private key that everyone may read. Group access is allowed, because Debian keeps keys in a group.
fn check_key_mode(flag: &str, path: &Path) -> Result<(), Failure> {
    let (_, metadata) = open_for_flag(flag, path, MAX_PEM_FILE)?;
    match metadata.mode() & 0o007 {
        0 => Ok(()),
        _ => Err(mode_failure(flag, path, &metadata, "everyone", "o=")),
    }
}

/// Returns the failure for a file that `readers` can read. `mode`: the mode to give it with chmod.
fn mode_failure(flag: &str, path: &Path, metadata: &Metadata, readers: &str, mode: &str) -> Failure {
    let (path, present) = (path.display(), metadata.mode() & 0o7777);
    let message = format!("{flag}: {readers} can read {path} (mode {present:04o}); run: chmod {mode} {path}");
    Failure::new(Exit::DENIED, message)
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
    if mode_of_others(&opened, &metadata) != 0 {
        return Err(mode_failure(flag, path, &metadata, "other users", "600"));
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

    /// Returns the secret that this command prints.
    async fn printed(command: &str) -> Result<Vec<u8>, Failure> {
        let auth = read_credentials(&format!("digest:command:{command}"))?;
        assert_eq!(format!("{auth:?}"), "Digest(..)");
        let Auth::Digest(secret) = auth else { panic!("{command}: {auth:?}") };
        Ok(secret.read(Duration::from_secs(30)).await?.to_vec())
    }

    #[tokio::test]
    async fn credentials_from_a_command_are_never_shown() {
        let secret = printed("printf 'me:%s\\n' hunter2").await.expect("the command prints credentials");
        assert_eq!(secret, b"me:hunter2");
        for (command, fragment) in [
            ("exit 3", "exit status: 3"),
            ("echo hunter2", "USER:PASSWORD"),
            ("echo me:hunter2; echo more", "one line"),
            ("yes hunter2:", "more than 4096"),
        ] {
            let failure = printed(command).await.expect_err(command);
            // The command may succeed later, so its failure is no wrong command line.
            assert_eq!(failure.exit, Exit::UNAVAILABLE, "{failure}");
            let failure = failure.to_string();
            assert!(failure.contains(fragment) && !failure.contains("hunter2"), "{failure}");
        }
    }

    #[tokio::test]
    async fn hanging_command_is_killed_with_its_children() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let file = dir.path().join("pid");
        // One command keeps its output open, one closes it.
        for close_output in ["", "exec >&-; "] {
            let command = format!("{close_output}sleep 1000 & echo $! >{}; wait", file.display());
            let failure = run_command(&command, Some(Duration::from_millis(300)))
                .await
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
            let deadline = std::time::Instant::now() + Duration::from_secs(30);
            while is_alive() && std::time::Instant::now() < deadline {
                tokio::time::sleep(PAUSE).await;
            }
            assert!(!is_alive(), "{command}");
        }
    }
}
