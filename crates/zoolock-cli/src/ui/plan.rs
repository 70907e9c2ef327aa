//! What `zoolock ui` is told, checked.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

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
    /// The token that operators log in with. `None`: nobody can change anything.
    pub(crate) token: Option<Token>,
}

/// The token that operators log in with. `Debug` does not print it.
pub(crate) struct Token(pub(crate) Zeroizing<Vec<u8>>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Checks what was asked for.
pub(crate) fn plan(global: &Global, asked: UiArgs) -> Result<Plan, Failure> {
    refuse_json(global, "ui")?;
    let hosts = asked.host.iter().map(|host| name(host)).collect::<Result<_, _>>()?;
    let token = asked.token_file.as_deref().map(token).transpose()?;
    let listen = address("--listen", &asked.listen)?;
    Ok(Plan::Ui(Box::new(Ui { service: service(global, None)?, listen, hosts, token })))
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

fn token(path: &Path) -> Result<Token, Failure> {
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
    Ok(Token(token))
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
        assert!(plan.token.is_none() && plan.listen.ip().is_loopback());
    }

    #[test]
    fn who_may_operate_must_be_known() {
        assert!(planned(&["--allow-operate"]).expect_err("by whom?").contains("--token-file"));
        assert!(planned(&["--token-file", "t"]).expect_err("read-only").contains("--allow-operate"));
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
