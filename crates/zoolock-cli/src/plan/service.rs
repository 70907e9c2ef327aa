//! Which service, and what we are there.

use std::time::Duration;

use zoolock::{ConnectString, LockPath, Naming, Tls};

use super::access::{Access, access};
use crate::args::Global;
use crate::credentials::{Auth, credentials, tls};
use crate::duration::duration;
use crate::exit::Failure;

/// The shortest session that Apache ZooKeeper's default tick lets us keep.
const SHORTEST_SESSION: Duration = Duration::from_secs(6);
/// What the library takes at most.
const LONGEST_SESSION: Duration = Duration::from_secs(60 * 60);

/// Where the locks are.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    pub(crate) endpoint: Endpoint,
    pub(crate) session_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) root: String,
    pub(crate) note: Option<String>,
    pub(crate) program: Option<String>,
    pub(crate) owner: Option<String>,
    pub(crate) grace: Option<Duration>,
    pub(crate) token_epoch: u32,
    pub(crate) naming: Naming,
    pub(crate) kazoo_pattern: bool,
    pub(crate) strict_renewal: bool,
    pub(crate) metrics_by_lock: bool,
}

/// Which server keeps them.
#[derive(Clone)]
pub(crate) enum Endpoint {
    /// This user's, on this machine.
    Local,
    /// An ensemble, with the credentials it asks for.
    Remote { hosts: String, auth: Option<Auth>, tls: Option<Tls>, access: Access },
}

impl Endpoint {
    /// Whether the service knows us by a name.
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

pub(crate) fn service(global: &Global, note: Option<String>) -> Result<Service, Failure> {
    let session_timeout = duration("--session-timeout", &global.session_timeout)?;
    if !(SHORTEST_SESSION..=LONGEST_SESSION).contains(&session_timeout) {
        return Err(Failure::usage(format!(
            "--session-timeout {}: must be between 6s and 1h",
            global.session_timeout
        )));
    }
    let connect_timeout = duration("--connect-timeout", &global.connect_timeout)?;
    if connect_timeout.is_zero() {
        return Err(Failure::usage("--connect-timeout 0s: leaves no time to connect; the default is 10s"));
    }
    let tls = tls(global)?;
    if tls.is_some() && global.connect.is_none() {
        return Err(Failure::usage(
            "--cacert (or ZOOLOCK_CACERT) goes with --connect (or ZOOLOCK_CONNECT): this user's own server is on this \
             machine, and known by a key of its own",
        ));
    }
    // An empty variable is as none.
    let auth = global.auth.as_deref().filter(|auth| !auth.is_empty());
    let endpoint = match (&global.connect, auth) {
        (None, None) if global.world_writable || !global.reader.is_empty() => {
            return Err(Failure::usage(
                "--reader and --world-writable go with --connect (or ZOOLOCK_CONNECT): this user's own server is for \
                 this user",
            ));
        }
        (None, None) => Endpoint::Local,
        (None, Some(_)) => {
            return Err(Failure::usage(
                "--auth (or ZOOLOCK_AUTH) goes with --connect (or ZOOLOCK_CONNECT): this user's own server has its own secret",
            ));
        }
        (Some(hosts), _) if hosts.trim().is_empty() => {
            return Err(Failure::usage(
                "--connect (or ZOOLOCK_CONNECT) is empty: name the ensemble, or leave it out to use this \
                 machine's own server, which excludes nobody on other machines",
            ));
        }
        (Some(hosts), auth) => {
            ConnectString::parse(hosts)?;
            let access = access(global)?;
            let auth = auth.map(credentials).transpose()?;
            Endpoint::Remote { hosts: hosts.clone(), auth, tls, access }
        }
    };
    // The root alone is a path that any lock below it could have.
    LockPath::parse("x", &global.root).map_err(|_| {
        Failure::usage(format!("--root {:?}: is no directory that locks can be in", global.root))
    })?;
    Ok(Service {
        endpoint,
        session_timeout,
        connect_timeout,
        root: global.root.clone(),
        note,
        program: None,
        owner: None,
        grace: None,
        token_epoch: global.token_epoch,
        naming: Naming::Native,
        kazoo_pattern: false,
        strict_renewal: false,
        metrics_by_lock: false,
    })
}

pub(super) fn naming(text: &str) -> Result<Naming, Failure> {
    // An empty variable is as none.
    let text = if text.is_empty() { Naming::default().as_str() } else { text };
    text.parse().map_err(|error| Failure::usage(format!("--{error} (--naming, or ZOOLOCK_NAMING)")))
}

pub(super) fn check_name(name: &str, root: &str) -> Result<(), Failure> {
    LockPath::parse(name, root)?;
    Ok(())
}

pub(super) fn check_prefix(prefix: Option<&str>, root: &str) -> Result<(), Failure> {
    match prefix {
        None | Some("/") => Ok(()),
        Some(prefix) => check_name(prefix.strip_suffix('/').unwrap_or(prefix), root),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::super::lines::{plan, refused};
    use super::*;

    #[test]
    fn bad_names_are_refused_before_connecting() {
        for name in ["", "..", "a/../b", "a//b", "a/", "a\0b", "/"] {
            let message = refused(&["show", name]);
            assert!(!message.contains('\0'), "{message:?}");
        }
    }

    #[test]
    fn an_empty_connect_string_does_not_fall_back_to_this_machine() {
        assert!(refused(&["ls", "--connect", ""]).contains("empty"));
    }

    #[test]
    fn bad_ports_are_refused() {
        for bad in ["h:", "h:x", "h:70000", "h:0"] {
            refused(&["ls", "--connect", bad]);
        }
    }

    #[test]
    fn an_inline_password_is_refused_and_not_repeated() {
        let message = refused(&["ls", "--connect", "h:1", "--auth", "digest:me:hunter2"]);
        assert!(message.contains("@FILE") && !message.contains("hunter2"), "{message}");
        for text in ["hunter2", "me:hunter2", "digest:hunter2", "digest:env:"] {
            let message = refused(&["ls", "--connect", "h:1", "--auth", text]);
            assert!(message.contains("--auth") && !message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn certificates_come_whole_and_go_with_a_service() {
        for (flags, word) in [
            (&["--cert", "c", "--key", "k"][..], "--cacert"),
            (&["--cacert", "a", "--cert", "c"], "--key"),
            (&["--cacert", "a", "--key", "k"], "--cert"),
            (&["--cacert", "a", "--cert", "c", "--key", "/nonexistent"], "/nonexistent"),
            (&["--cacert", "a", "--reader", "world:anyone"], "--reader"),
        ] {
            let message = refused(&[&["ls", "--connect", "h:1"], flags].concat());
            assert!(message.contains(word), "{message}");
        }
        assert!(refused(&["ls", "--cacert", "a"]).contains("--connect"));
        let Ok(Plan::Ls { service, .. }) = plan(&["ls", "--connect", "h:1", "--cacert", ""]) else {
            panic!("nothing is wrong with it")
        };
        assert!(matches!(service.endpoint, Endpoint::Remote { tls: None, .. }));
    }
}
