//! Checks the flags of `zoolock ui`.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use zeroize::Zeroizing;

use crate::args::{Global, UiArgs};
use crate::base::exit::Failure;
use crate::plan::credentials::read_private_file;
use crate::plan::serve::resolve_address;
use crate::plan::{ConnectionSettings, Plan, plan_connection, refuse_json};

/// Minimum length of the login token. A shorter token could be guessed.
const MIN_TOKEN: usize = 16;
/// Maximum length of the login token.
const TOKEN_LIMIT: u64 = 1024;

/// Checked settings of `zoolock ui`.
#[derive(Debug)]
pub(crate) struct UiPlan {
    pub(crate) service: ConnectionSettings,
    pub(crate) listen: SocketAddr,
    /// Accepted host names, in lower case.
    pub(crate) hosts: Vec<String>,
    /// Login token of the operators. `None` if the pages are read-only.
    pub(crate) token: Option<Token>,
}

/// Login token of the operators. `Debug` does not print it.
pub(crate) struct Token(pub(crate) Zeroizing<Vec<u8>>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Checks the flags.
pub(crate) fn plan(global: &Global, args: UiArgs) -> Result<Plan, Failure> {
    refuse_json(global, "ui")?;
    let hosts = args.host.iter().map(|host| host_name(host)).collect::<Result<_, _>>()?;
    let token = args.token_file.as_deref().map(token).transpose()?;
    let listen = resolve_address("--listen", &args.listen)?;
    let service =
        ConnectionSettings { command: Some("zoolock ui".to_owned()), ..plan_connection(global, None)? };
    Ok(Plan::Ui(Box::new(UiPlan { service, listen, hosts, token })))
}

/// Checks a host name, and converts it to lower case. Refuses a port, because requests are accepted with any port.
fn host_name(host: &str) -> Result<String, Failure> {
    let host = host.to_ascii_lowercase();
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if host.is_empty() || !host.chars().all(is_allowed) {
        return Err(Failure::usage(format!(
            "--host {host:?}: write a host name without a port, such as locks.example.com"
        )));
    }
    Ok(host)
}

/// Reads the login token.
fn token(path: &Path) -> Result<Token, Failure> {
    let token = read_private_file("--token-file", path, TOKEN_LIMIT + 1)?;
    if token.len() as u64 > TOKEN_LIMIT {
        return Err(Failure::usage(format!(
            "--token-file: {} contains more than {TOKEN_LIMIT} characters; choose a shorter token",
            path.display()
        )));
    }
    // The login form trims its input in the same way.
    let token = Zeroizing::new(token.trim_ascii().to_vec());
    if token.len() < MIN_TOKEN {
        return Err(Failure::usage(format!(
            "--token-file: {} contains fewer than {MIN_TOKEN} characters and could be guessed; create one with: \
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

    fn planned(line: &[&str]) -> Result<UiPlan, String> {
        let args = Args::try_parse_from(["zoolock", "ui"].iter().chain(line)).map_err(|e| e.to_string())?;
        match Plan::new(args).map_err(|failure| failure.to_string())? {
            Plan::Ui(plan) => Ok(*plan),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pages_are_read_only_on_loopback_by_default() {
        let plan = planned(&[]).expect("the plan is valid");
        assert!(plan.token.is_none() && plan.listen.ip().is_loopback());
    }

    #[test]
    fn operating_requires_a_token_file() {
        assert!(planned(&["--allow-operate"]).expect_err("token file is missing").contains("--token-file"));
        assert!(
            planned(&["--token-file", "t"])
                .expect_err("operating is not allowed")
                .contains("--allow-operate")
        );
    }

    #[test]
    fn token_must_be_private_and_long() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let path = dir.path().join("token");
        let with_token = |text: &str, mode: u32| {
            std::fs::write(&path, text).expect("token file is written");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("mode is set");
            let path = path.display().to_string();
            planned(&["--allow-operate", "--token-file", &path])
        };
        assert!(
            with_token("0123456789abcdef\n", 0o644)
                .expect_err("others can read the file")
                .contains("chmod 600")
        );
        assert!(
            with_token("0123456789abcde\n", 0o600).expect_err("the token is too short").contains("guessed")
        );
        let plan = with_token("0123456789abcdef\n", 0o600).expect("the token is valid");
        assert!(!format!("{plan:?}").contains("0123456789"), "{plan:?}");
    }

    #[test]
    fn host_must_be_a_name_without_port() {
        for bad in ["", "a:80", "http://a", "a/b", "a b", "[::1]"] {
            assert!(planned(&["--host", bad]).expect_err("not a host name").contains("--host"), "{bad}");
        }
        assert_eq!(planned(&["--host", "Locks.Example"]).expect("a host name").hosts, ["locks.example"]);
    }
}
