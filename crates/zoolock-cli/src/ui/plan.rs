//! What `zoolock ui` is told, checked.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use axum::http::HeaderName;
use zeroize::Zeroizing;

use crate::args::{Global, UiArgs};
use crate::credentials::private;
use crate::exit::Failure;
use crate::plan::{Plan, Service, refuse_json, service};
use crate::serve_plan::address;

/// Fewer could be guessed.
const SHORTEST_TOKEN: usize = 16;
/// More than anybody types or pastes.
const TOKEN_LIMIT: u64 = 1024;

/// `zoolock ui`.
#[derive(Debug)]
pub(crate) struct Ui {
    pub(crate) service: Service,
    pub(crate) listen: SocketAddr,
    /// In lower case.
    pub(crate) hosts: Vec<String>,
    /// Who may change something; without it nobody.
    pub(crate) access: Option<Access>,
}

/// How an operator is known.
pub(crate) enum Access {
    /// By a token that he logs in with.
    Token(Zeroizing<Vec<u8>>),
    /// By what a reverse proxy says.
    Proxy { header: HeaderName, peers: Vec<IpAddr> },
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(_) => f.write_str("Token"),
            Self::Proxy { header, peers } => {
                f.debug_struct("Proxy").field("header", header).field("peers", peers).finish()
            }
        }
    }
}

/// Checks what was asked for.
pub(crate) fn plan(global: &Global, asked: UiArgs) -> Result<Plan, Failure> {
    refuse_json(global, "ui")?;
    let hosts = asked.host.iter().map(|host| name(host)).collect::<Result<_, _>>()?;
    let access = match (&asked.token_file, &asked.trusted_header) {
        (Some(path), _) => Some(Access::Token(token(path)?)),
        (None, Some(header)) => {
            let header = header.parse::<HeaderName>().map_err(|_| {
                Failure::usage(format!("--trusted-header {header:?}: is no name of a header"))
            })?;
            let peers = asked.trusted_proxy.iter().map(std::net::IpAddr::to_canonical).collect();
            Some(Access::Proxy { header, peers })
        }
        (None, None) if asked.allow_operate => {
            return Err(Failure::usage(
                "--allow-operate: nobody could log in; give --token-file FILE, or --trusted-header HEADER and \
                 --trusted-proxy IP",
            ));
        }
        (None, None) => None,
    };
    let listen = address("--listen", &asked.listen)?;
    Ok(Plan::Ui(Box::new(Ui { service: service(global, None)?, listen, hosts, access })))
}

/// A name without a port: the proxy's port is nobody's business.
fn name(host: &str) -> Result<String, Failure> {
    let host = host.to_ascii_lowercase();
    let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if host.is_empty() || !host.chars().all(sound) {
        return Err(Failure::usage(format!("--host {host:?}: write a name alone, as in locks.example.com")));
    }
    Ok(host)
}

fn token(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let token = private("--token-file", path, TOKEN_LIMIT + 1)?;
    if token.len() as u64 > TOKEN_LIMIT {
        return Err(Failure::usage(format!(
            "--token-file: {} holds more than {TOKEN_LIMIT} characters, which nobody can type",
            path.display()
        )));
    }
    // As what is typed into the form.
    let token = Zeroizing::new(token.trim_ascii().to_vec());
    if token.len() < SHORTEST_TOKEN {
        return Err(Failure::usage(format!(
            "--token-file: {} holds fewer than {SHORTEST_TOKEN} characters, which can be guessed; make one with: \
             head -c 24 /dev/urandom | base64",
            path.display()
        )));
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use clap::Parser;

    use super::*;
    use crate::args::Args;

    fn planned(line: &[&str]) -> Result<Ui, String> {
        let args = Args::try_parse_from(["zoolock", "ui"].iter().chain(line)).map_err(|e| e.to_string())?;
        match Plan::new(args).map_err(|failure| failure.to_string())? {
            Plan::Ui(plan) => Ok(*plan),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_can_be_changed_unless_that_is_asked_for() {
        let plan = planned(&[]).expect("nothing is wrong with it");
        assert!(plan.access.is_none() && plan.listen.ip().is_loopback());
    }

    #[test]
    fn who_may_operate_must_be_known() {
        assert!(planned(&["--allow-operate"]).expect_err("by whom?").contains("nobody could log in"));
        let header = ["--allow-operate", "--trusted-header", "X-Forwarded-User"];
        assert!(planned(&header).expect_err("from whom?").contains("--trusted-proxy"));
        assert!(planned(&["--token-file", "t"]).expect_err("read-only").contains("--allow-operate"));
        let proxy = [&header[..], &["--trusted-proxy", "::1"]].concat();
        assert!(matches!(planned(&proxy).expect("complete").access, Some(Access::Proxy { .. })));
    }

    #[test]
    fn a_token_is_private_and_long() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        let asked = |text: &str, mode: u32| {
            std::fs::write(&path, text).expect("writable");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("ours");
            let path = path.display().to_string();
            planned(&["--allow-operate", "--token-file", &path])
        };
        assert!(asked("0123456789abcdef\n", 0o644).expect_err("others read it").contains("chmod 600"));
        assert!(asked("0123456789abcde\n", 0o600).expect_err("short").contains("guessed"));
        let plan = asked("0123456789abcdef\n", 0o600).expect("long and private");
        assert!(!format!("{plan:?}").contains("0123456789"), "{plan:?}");
    }

    #[test]
    fn a_host_is_a_name_alone() {
        for bad in ["", "a:80", "http://a", "a/b", "a b", "[::1]"] {
            assert!(planned(&["--host", bad]).expect_err("no name").contains("--host"), "{bad}");
        }
        assert_eq!(planned(&["--host", "Locks.Example"]).expect("a name").hosts, ["locks.example"]);
    }
}
