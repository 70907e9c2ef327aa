//! Credentials come from files, the environment or a command: what is on a command line can be read by every user of the
//! machine. They are never shown, and wiped when they are no longer needed.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use zeroize::Zeroizing;
use zoolock::Tls;

use crate::args::Global;
use crate::exit::{Exit, Failure};

/// Much more than any sensible credentials.
const LIMIT: u64 = 4096;

/// What the service knows us by: USER:PASSWORD, and how it is presented.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Auth {
    pub(crate) scheme: Scheme,
    user_and_password: Zeroizing<Vec<u8>>,
}

/// How credentials are presented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// ZooKeeper's own: as they are.
    Digest,
    /// By DIGEST-MD5: nobody sees the password.
    Sasl,
}

impl Auth {
    pub(crate) fn digest(user_and_password: Zeroizing<Vec<u8>>) -> Self {
        Self { scheme: Scheme::Digest, user_and_password }
    }

    /// The parts; the password may have colons.
    pub(crate) fn user_and_password(&self) -> Result<(&str, &str), Failure> {
        let text = str::from_utf8(&self.user_and_password);
        let parts = text.ok().and_then(|text| text.split_once(':'));
        parts.ok_or_else(|| Failure::usage("--auth sasl: user and password must be UTF-8 text"))
    }

    /// All of it.
    pub(crate) fn expose(&self) -> &Zeroizing<Vec<u8>> {
        &self.user_and_password
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}(..)", self.scheme)
    }
}

/// Gets what `SCHEME:SOURCE` names.
pub(crate) fn credentials(text: &str) -> Result<Auth, Failure> {
    let how =
        "write it as digest:@FILE, digest:env:NAME or digest:command:COMMAND; or sasl instead of digest";
    let Some((scheme, source)) = text.split_once(':') else {
        return Err(Failure::usage(format!("--auth: {how}")));
    };
    let scheme = match scheme {
        "digest" => Scheme::Digest,
        "sasl" => Scheme::Sasl,
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
    let auth = Auth { scheme, user_and_password: content };
    if scheme == Scheme::Sasl {
        auth.user_and_password()?;
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

/// For where something else keeps secrets, such as `pass show zoolock`. It may ask on the terminal.
fn of_command(command: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let failed =
        |why: &dyn fmt::Display| Failure::usage(format!("--auth: the command for the credentials {why}"));
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::inherit())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&format_args!("cannot be started: {error}")))?;
    let mut printed = Zeroizing::new(Vec::with_capacity(LIMIT as usize + 1));
    if let Some(output) = child.stdout.take() {
        // One that prints more is ended by its closed pipe.
        let read = output.take(LIMIT + 1).read_to_end(&mut printed);
        read.map_err(|error| failed(&format_args!("cannot be heard: {error}")))?;
    }
    let status = child.wait().map_err(|error| failed(&format_args!("was lost: {error}")))?;
    if printed.len() as u64 > LIMIT {
        return Err(failed(&format_args!("prints more than {LIMIT} bytes")));
    }
    if !status.success() {
        return Err(failed(&format_args!("ended with {status}; it says itself why")));
    }
    Ok(trimmed(std::mem::take(&mut *printed)))
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
    let size = metadata.len().min(limit);
    let mut content = Zeroizing::new(Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1));
    opened.by_ref().take(limit).read_to_end(&mut content).map_err(failed)?;
    Ok(trimmed(std::mem::take(&mut *content)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_had_from_a_command_and_never_shown() {
        let auth = credentials("digest:command:printf 'me:%s\\n' hunter2").expect("printed");
        assert_eq!(auth.expose().as_slice(), b"me:hunter2");
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
}
