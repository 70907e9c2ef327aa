//! The flags that a printed command needs to reach the same lock.

use std::ffi::OsStr;

use clap::ArgMatches;
use clap::parser::ValueSource;

/// Flags that select a lock, or the access to it.
const COPIED: [&str; 6] = ["connect", "root", "auth", "cacert", "cert", "key"];

/// The connection flags of the command line, each with its value. Values from the environment are left out: a copied
/// command reads them from there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CopiedFlags(pub(crate) Vec<(String, String)>);

impl CopiedFlags {
    /// Returns whether the command line has this flag.
    pub(crate) fn contain(&self, flag: &str) -> bool {
        self.0.iter().any(|(given, _)| given == flag)
    }

    /// Collects the flags of a command line.
    pub(super) fn new(matches: &ArgMatches) -> Self {
        let given =
            COPIED.into_iter().filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine));
        let flag = |id: &str| {
            let value = matches.get_raw(id)?.next()?;
            let value =
                if id == "auth" { without_secret(value) } else { value.to_string_lossy().into_owned() };
            Some((format!("--{}", id.replace('_', "-")), value))
        };
        Self(given.filter_map(flag).collect())
    }
}

/// Returns the value of `--auth` if it only names the place of the credentials. Otherwise returns a placeholder: a
/// command that prints the credentials may contain them.
fn without_secret(auth: &OsStr) -> String {
    let auth = auth.to_string_lossy();
    let (scheme, source) = auth.split_once(':').unwrap_or((&auth, ""));
    if scheme == "kerberos" || source.starts_with('@') || source.starts_with("env:") {
        return auth.into_owned();
    }
    match source.starts_with("command:") {
        true => format!("{scheme}:command:COMMAND"),
        false => "SCHEME:SOURCE".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use crate::args::Args;

    fn copied(line: &[&str]) -> Vec<(String, String)> {
        let line: Vec<OsString> = ["zoolock"].iter().chain(line).map(OsString::from).collect();
        Args::parse_line(&line, Ok(String::new())).expect("clap accepts the command line").global.copied.0
    }

    #[test]
    fn flags_on_either_side_of_subcommand_are_copied() {
        let pair = |flag: &str, value: &str| (flag.to_owned(), value.to_owned());
        let line = ["--root", "/a", "why", "x", "--connect", "h:1", "--session-timeout", "9s"];
        assert_eq!(copied(&line), [pair("--connect", "h:1"), pair("--root", "/a")]);
        let tls = copied(&["ls", "--cacert", "a", "--cert", "b", "--key", "c"]);
        assert_eq!(tls, [pair("--cacert", "a"), pair("--cert", "b"), pair("--key", "c")]);
        assert_eq!(copied(&["why", "x"]), []);
    }

    #[test]
    fn secrets_of_auth_are_not_copied() {
        let auth = |value: &str| copied(&["ls", "--auth", value])[0].1.clone();
        for value in ["digest:@file", "sasl:env:NAME", "kerberos", "kerberos:zookeeper/h"] {
            assert_eq!(auth(value), value);
        }
        assert_eq!(auth("digest:command:echo me:hunter2"), "digest:command:COMMAND");
        for value in ["digest:me:hunter2", "hunter2"] {
            assert_eq!(auth(value), "SCHEME:SOURCE");
        }
    }
}
