//! Connection settings: the server, the session and the root directory.

use std::ffi::OsString;
use std::time::Duration;

use zoolock::internals::{ConnectString, LockPath};
use zoolock::{Builder, Zoolock};

use crate::args::{CopiedFlags, Global};
use crate::base::exit::Failure;
use crate::base::shell::quote_for_shell;
use crate::plan::credentials::{Auth, check_tls_flags, read_credentials};
use crate::secrets::TlsFiles;

/// Connection settings, and the defaults for the locks of the session.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionSettings {
    pub(crate) endpoint: Endpoint,
    /// The settings of the library, without credentials and without the time to connect.
    pub(crate) builder: Builder,
    pub(crate) session_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) root: String,
    /// The connection flags of the command line, for commands to copy: each flag after a blank, quoted for a shell.
    pub(crate) copied_flags: String,
    /// The variables that a command of `run` gets, so that a zoolock in it uses the same server. `None` removes a variable.
    pub(crate) passed_variables: Vec<(String, Option<OsString>)>,
    /// Set if the command line names the server.
    pub(crate) is_named: bool,
    /// Set if no place names a server, so that it is this user's own.
    pub(crate) is_default: bool,
}

impl ConnectionSettings {
    /// Checks the flags of every command, and reads the credentials.
    pub(super) fn new(global: &Global) -> Result<Self, Failure> {
        let copied = global.copied.0.iter();
        let endpoint = Endpoint::new(global)?;
        Ok(Self {
            passed_variables: passed_variables(&endpoint, &global.copied),
            is_named: global.copied.contain("--connect"),
            is_default: global.connect.is_none(),
            builder: builder(global, &endpoint),
            endpoint,
            session_timeout: global.session_timeout,
            connect_timeout: global.environment.connect_timeout,
            root: global.root.clone(),
            copied_flags: copied.map(|(flag, value)| format!(" {flag} {}", quote_for_shell(value))).collect(),
        })
    }

    /// Checks the name or path of a lock.
    pub(crate) fn check_name(&self, name: &str) -> Result<(), Failure> {
        LockPath::parse(name, &self.root)?;
        Ok(())
    }

    /// Returns a command for the user to copy, with the flags that it needs to reach the same locks. `words`: the
    /// subcommand and its arguments, quoted for a shell.
    pub(crate) fn command_to_copy(&self, words: &str) -> String {
        format!("zoolock {words}{}", self.copied_flags)
    }
}

/// Returns the settings of the library that all commands share.
fn builder(global: &Global, endpoint: &Endpoint) -> Builder {
    let builder = Zoolock::builder()
        .session_timeout(global.session_timeout)
        .root(&global.root)
        .token_epoch(global.environment.token_epoch)
        .metrics_by_lock();
    let Endpoint::Remote { tls, .. } = endpoint else { return builder };
    let mut builder = tls.iter().map(TlsFiles::load).fold(builder, Builder::tls);
    for (scheme, id) in &global.reader {
        builder = builder.allow_read(scheme, id);
    }
    if global.environment.world_writable { builder.world_writable() } else { builder }
}

/// Returns the variables for a zoolock in the command of `run`: the server, and the connection flags of the command line.
/// Paths become absolute, because the command may change its directory. A command that prints credentials is left out,
/// because it may contain them.
fn passed_variables(endpoint: &Endpoint, flags: &CopiedFlags) -> Vec<(String, Option<OsString>)> {
    let absolute = |path: &str| std::path::absolute(path).unwrap_or_else(|_| path.into()).into_os_string();
    let value = |flag: &str, value: &str| match (flag, value.split_once(":@")) {
        ("--cacert" | "--cert" | "--key", _) => Some(absolute(value)),
        ("--auth", Some((scheme, file))) => {
            Some([scheme.into(), ":@".into(), absolute(file)].into_iter().collect())
        }
        ("--auth", None) if value.contains(":command:") => None,
        _ => Some(value.into()),
    };
    let name = |flag: &str| flag.replace("--", "ZOOLOCK_").replace('-', "_").to_uppercase();
    let local = matches!(endpoint, Endpoint::Local).then_some(LOCAL);
    let connect = ("ZOOLOCK_CONNECT".to_owned(), Some(local.unwrap_or(endpoint.address()).into()));
    flags.0.iter().map(|(flag, text)| (name(flag), value(flag, text))).chain([connect]).collect()
}

/// The value of `--connect` that names this user's server.
const LOCAL: &str = "local";

/// The server to connect to.
#[derive(Debug, Clone)]
pub(crate) enum Endpoint {
    /// This user's embedded server on this machine.
    Local,
    /// An ensemble.
    Remote {
        hosts: String,
        /// Credentials, if any.
        auth: Option<Auth>,
        tls: Option<TlsFiles>,
    },
}

impl Endpoint {
    /// Checks the flags that choose the server, and reads the credentials.
    fn new(global: &Global) -> Result<Self, Failure> {
        let connect = global.connect.as_ref().filter(|hosts| *hosts != LOCAL);
        // If `local` was asked for, the settings of the environment and of the file are for another server. No command line
        // has those without a flag.
        let counts = |flag: &str| connect == global.connect.as_ref() || global.copied.contain(flag);
        let tls = if counts("--cacert") { check_tls_flags(global)? } else { None };
        if tls.is_some() && connect.is_none() {
            return Err(Failure::usage(
                "--cacert (or ZOOLOCK_CACERT) needs --connect (or ZOOLOCK_CONNECT): this user's own server has its own \
                 certificate",
            ));
        }
        // An empty environment variable counts as unset.
        let auth = global.auth.as_deref().filter(|auth| !auth.is_empty() && counts("--auth"));
        match (connect, auth) {
            (None, None) if global.environment.world_writable && counts("") || !global.reader.is_empty() => {
                Err(Failure::usage(
                    "--reader and ZOOLOCK_WORLD_WRITABLE need --connect (or ZOOLOCK_CONNECT): this user's own server admits only \
                 this user",
                ))
            }
            (None, None) => Ok(Self::Local),
            (None, Some(_)) => Err(Failure::usage(
                "--auth (or ZOOLOCK_AUTH) needs --connect (or ZOOLOCK_CONNECT): this user's own server has its own secret",
            )),
            (Some(hosts), _) if hosts.trim().is_empty() => Err(Failure::usage(
                "--connect (or ZOOLOCK_CONNECT) is empty: name the ensemble, or omit it to use this user's own \
                 server, whose locks do not exclude other machines",
            )),
            (Some(hosts), auth) => {
                ConnectString::parse(hosts)?;
                let auth = auth.map(read_credentials).transpose()?;
                Ok(Self::Remote { hosts: hosts.clone(), auth, tls })
            }
        }
    }

    /// Returns whether the command that prints the credentials has not printed them yet.
    pub(crate) fn awaits_credentials(&self) -> bool {
        let Self::Remote { auth: Some(Auth::Digest(secret) | Auth::Sasl(secret)), .. } = self else {
            return false;
        };
        !secret.is_known()
    }

    /// Returns the address of the server for messages.
    pub(crate) fn address(&self) -> &str {
        match self {
            Self::Local => "this user's server",
            Self::Remote { hosts, .. } => hosts,
        }
    }

    /// Returns the end of a message that this server has nothing to report. It is empty unless the server is this user's
    /// own, which zoolock also asks by mistake if ZOOLOCK_CONNECT is missing.
    pub(crate) fn ensemble_hint(&self) -> &'static str {
        match self {
            Self::Local => "; to ask an ensemble, give --connect or set ZOOLOCK_CONNECT",
            Self::Remote { .. } => "",
        }
    }

    /// Returns whether this client authenticates, so that the server knows its identity.
    pub(crate) fn has_credentials(&self) -> bool {
        match self {
            Self::Local => true,
            Self::Remote { auth, tls, .. } => {
                auth.is_some() || tls.as_ref().is_some_and(|tls| tls.identity.is_some())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::test_lines::connection;

    fn refused(flags: &[&str]) -> String {
        connection(flags).expect_err("the flags are refused")
    }

    #[test]
    fn bad_names_are_refused_before_connecting() {
        let service = connection(&[]).expect("the defaults are valid");
        for name in ["", "..", "a/../b", "a//b", "a/", "a\0b", "/"] {
            let message = service.check_name(name).expect_err(name).to_string();
            assert!(!message.contains('\0'), "{message:?}");
        }
    }

    #[test]
    fn command_to_copy_has_quoted_flags() {
        let service = connection(&["--root", "/it's", "--connect", "h:1,i:2/c"]).expect("valid flags");
        assert_eq!(
            service.command_to_copy("show x"),
            "zoolock show x --connect h:1,i:2/c --root '/it'\\''s'"
        );
        let service = connection(&[]).expect("the defaults are valid");
        assert_eq!(service.command_to_copy("show x"), "zoolock show x");
    }

    #[test]
    fn bad_ports_are_refused() {
        for bad in ["h:", "h:x", "h:70000", "h:0"] {
            refused(&["--connect", bad]);
        }
    }

    #[test]
    fn inline_password_is_refused_and_not_echoed() {
        let message = refused(&["--connect", "h:1", "--auth", "digest:me:hunter2"]);
        assert!(message.contains("@FILE") && !message.contains("hunter2"), "{message}");
        for text in ["hunter2", "me:hunter2", "digest:hunter2", "digest:env:"] {
            let message = refused(&["--connect", "h:1", "--auth", text]);
            assert!(message.contains("--auth") && !message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn incomplete_tls_flags_are_refused() {
        for (flags, fragment) in [
            (&["--cert", "c", "--key", "k"][..], "--cacert"),
            (&["--cacert", "a", "--cert", "c"], "--key"),
            (&["--cacert", "a", "--key", "k"], "--cert"),
            (&["--cacert", "a", "--cert", "c", "--key", "/nonexistent"], "/nonexistent"),
        ] {
            let message = refused(&[&["--connect", "h:1"], flags].concat());
            assert!(message.contains(fragment), "{message}");
        }
        assert!(refused(&["--cacert", "a"]).contains("--connect"));
        let service =
            connection(&["--connect", "h:1", "--cacert", ""]).expect("an empty flag counts as unset");
        assert!(matches!(service.endpoint, Endpoint::Remote { tls: None, .. }));
    }
}
