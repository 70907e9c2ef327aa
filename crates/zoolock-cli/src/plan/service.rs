//! Connection settings: the server, the session and the root directory.

use std::time::Duration;

use zoolock::{ConnectString, LockPath, Naming, Tls};

use crate::args::Global;
use crate::base::exit::Failure;
use crate::base::shell::quote_for_shell;
use crate::plan::credentials::{Auth, check_tls_flags, read_credentials};

/// Connection settings, and the defaults for the locks of the session.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionSettings {
    pub(crate) endpoint: Endpoint,
    pub(crate) session_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) root: String,
    pub(crate) note: Option<String>,
    /// The program that `run` runs.
    pub(crate) program: Option<String>,
    /// The command line for the history, without secrets. Set for commands of operators.
    pub(crate) command: Option<String>,
    pub(crate) owner: Option<String>,
    pub(crate) grace: Option<Duration>,
    pub(crate) token_epoch: u32,
    pub(crate) naming: Naming,
    pub(crate) kazoo_pattern: bool,
    pub(crate) metrics_by_lock: bool,
    /// The connection flags of the command line, for commands to copy: each flag after a blank, quoted for a shell.
    pub(crate) copied_flags: String,
}

impl ConnectionSettings {
    /// Returns a command for the user to copy, with the flags that it needs to reach the same locks. `words`: the
    /// subcommand and its arguments, quoted for a shell.
    pub(crate) fn command_to_copy(&self, words: &str) -> String {
        format!("zoolock {words}{}", self.copied_flags)
    }
}

/// The server to connect to.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "a process has only one value")]
pub(crate) enum Endpoint {
    /// This user's embedded server on this machine.
    Local,
    /// An ensemble.
    Remote {
        hosts: String,
        /// Credentials, if any.
        auth: Option<Auth>,
        tls: Option<Tls>,
        /// Identities that may read new znodes, as (scheme, id).
        readers: Vec<(String, String)>,
        /// Set if anyone may modify new znodes.
        world_writable: bool,
    },
}

impl Endpoint {
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
            Self::Remote { auth, tls, .. } => auth.is_some() || tls.as_ref().is_some_and(Tls::has_identity),
        }
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local => f.write_str("Local"),
            Self::Remote { hosts, .. } => {
                f.debug_struct("Remote").field("hosts", hosts).finish_non_exhaustive()
            }
        }
    }
}

/// Checks the global flags.
pub(crate) fn plan_connection(global: &Global, note: Option<String>) -> Result<ConnectionSettings, Failure> {
    let tls = check_tls_flags(global)?;
    if tls.is_some() && global.connect.is_none() {
        return Err(Failure::usage(
            "--cacert (or ZOOLOCK_CACERT) needs --connect (or ZOOLOCK_CONNECT): this user's own server has its own \
             certificate",
        ));
    }
    // An empty environment variable counts as unset.
    let auth = global.auth.as_deref().filter(|auth| !auth.is_empty());
    let endpoint = match (&global.connect, auth) {
        (None, None) if global.world_writable || !global.reader.is_empty() => {
            return Err(Failure::usage(
                "--reader and --world-writable need --connect (or ZOOLOCK_CONNECT): this user's own server admits only \
                 this user",
            ));
        }
        (None, None) => Endpoint::Local,
        (None, Some(_)) => {
            return Err(Failure::usage(
                "--auth (or ZOOLOCK_AUTH) needs --connect (or ZOOLOCK_CONNECT): this user's own server has its own secret",
            ));
        }
        (Some(hosts), _) if hosts.trim().is_empty() => {
            return Err(Failure::usage(
                "--connect (or ZOOLOCK_CONNECT) is empty: name the ensemble, or omit it to use this user's own \
                 server, whose locks do not exclude other machines",
            ));
        }
        (Some(hosts), auth) => {
            ConnectString::parse(hosts)?;
            let auth = auth.map(read_credentials).transpose()?;
            let world_writable = global.world_writable;
            Endpoint::Remote {
                hosts: hosts.clone(),
                auth,
                tls,
                readers: global.reader.clone(),
                world_writable,
            }
        }
    };
    Ok(ConnectionSettings {
        endpoint,
        session_timeout: global.session_timeout,
        connect_timeout: global.connect_timeout,
        root: global.root.clone(),
        note,
        program: None,
        command: None,
        owner: None,
        grace: None,
        token_epoch: global.token_epoch,
        naming: Naming::Native,
        kazoo_pattern: false,
        metrics_by_lock: false,
        copied_flags: global
            .copied
            .0
            .iter()
            .map(|(flag, value)| format!(" {flag} {}", quote_for_shell(value)))
            .collect(),
    })
}

/// Checks the name or path of a lock.
pub(super) fn check_name(name: &str, root: &str) -> Result<(), Failure> {
    LockPath::parse(name, root)?;
    Ok(())
}

/// Checks the prefix that `ls`, `top` and `deadlocks` filter by. Allows a slash at the end of the
/// prefix.
pub(super) fn check_prefix(prefix: Option<&str>, root: &str) -> Result<(), Failure> {
    match prefix {
        None | Some("/") => Ok(()),
        Some(prefix) => check_name(prefix.strip_suffix('/').unwrap_or(prefix), root),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::super::test_plans::{plan, refused};
    use super::*;

    #[test]
    fn bad_names_are_refused_before_connecting() {
        for name in ["", "..", "a/../b", "a//b", "a/", "a\0b", "/"] {
            let message = refused(&["show", name]);
            assert!(!message.contains('\0'), "{message:?}");
        }
    }

    #[test]
    fn command_to_copy_has_quoted_flags() {
        let Ok(Plan::Ls { service, .. }) = plan(&["--root", "/it's", "ls", "--connect", "h:1,i:2/c"]) else {
            panic!("expected a plan of ls")
        };
        assert_eq!(
            service.command_to_copy("show x"),
            "zoolock show x --connect h:1,i:2/c --root '/it'\\''s'"
        );
        let Ok(Plan::Ls { service, .. }) = plan(&["ls"]) else { panic!("expected a plan of ls") };
        assert_eq!(service.command_to_copy("show x"), "zoolock show x");
    }

    #[test]
    fn empty_connect_string_is_refused() {
        assert!(refused(&["ls", "--connect", ""]).contains("empty"));
    }

    #[test]
    fn bad_ports_are_refused() {
        for bad in ["h:", "h:x", "h:70000", "h:0"] {
            refused(&["ls", "--connect", bad]);
        }
    }

    #[test]
    fn inline_password_is_refused_and_not_echoed() {
        let message = refused(&["ls", "--connect", "h:1", "--auth", "digest:me:hunter2"]);
        assert!(message.contains("@FILE") && !message.contains("hunter2"), "{message}");
        for text in ["hunter2", "me:hunter2", "digest:hunter2", "digest:env:"] {
            let message = refused(&["ls", "--connect", "h:1", "--auth", text]);
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
            let message = refused(&[&["ls", "--connect", "h:1"], flags].concat());
            assert!(message.contains(fragment), "{message}");
        }
        assert!(refused(&["ls", "--cacert", "a"]).contains("--connect"));
        let Ok(Plan::Ls { service, .. }) = plan(&["ls", "--connect", "h:1", "--cacert", ""]) else {
            panic!("expected a plan of ls")
        };
        assert!(matches!(service.endpoint, Endpoint::Remote { tls: None, .. }));
    }
}
