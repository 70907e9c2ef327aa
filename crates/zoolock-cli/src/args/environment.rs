//! Settings that have a variable, but no flag. An empty variable counts as unset.

use std::ffi::OsString;
use std::time::Duration;

use super::values::{Refusal, name_variable, refuse, time_within};

/// Minimum of the time to connect. It is more than 0s.
const SHORTEST_CONNECT: Duration = Duration::from_nanos(1);

/// The variables that the file of a machine may set, too.
pub(super) const OF_MACHINES: [&str; 4] =
    ["ZOOLOCK_CONNECT_TIMEOUT", "ZOOLOCK_TOKEN_EPOCH", "ZOOLOCK_OTLP", "ZOOLOCK_WORLD_WRITABLE"];

/// The settings.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    /// Maximum time to connect to a server.
    pub(crate) connect_timeout: Duration,
    /// First part of every fencing token.
    pub(crate) token_epoch: u32,
    /// Owner id.
    pub(crate) owner: Option<String>,
    /// URL of the OpenTelemetry collector to push metrics to.
    pub(crate) otlp: Option<String>,
    /// Set if anyone may modify new znodes.
    pub(crate) world_writable: bool,
}

impl Environment {
    /// Checks the values of the variables, which `variable` returns.
    pub(super) fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, clap::Error> {
        let value = |name: &'static str| (name, variable(name));
        let connect_time =
            time_within(SHORTEST_CONNECT..=Duration::MAX, "no time to connect; the default is 10s");
        let number = |text: &str| text.parse().or_else(|error| refuse(format!(" {text:?}: {error}")));
        let text = |text: &str| Ok(text.to_owned());
        Ok(Self {
            connect_timeout: parse(value("ZOOLOCK_CONNECT_TIMEOUT"), connect_time)?
                .unwrap_or(Duration::from_secs(10)),
            token_epoch: parse(value("ZOOLOCK_TOKEN_EPOCH"), number)?.unwrap_or_default(),
            owner: parse(value("ZOOLOCK_OWNER"), text)?,
            otlp: parse(value("ZOOLOCK_OTLP"), text)?,
            world_writable: parse(value("ZOOLOCK_WORLD_WRITABLE"), number)? == Some(1),
        })
    }
}

/// Parses the value of a variable. Returns `None` if the variable is unset or empty.
fn parse<T>(
    (name, value): (&str, Option<OsString>),
    parse: impl FnOnce(&str) -> Result<T, Refusal>,
) -> Result<Option<T>, clap::Error> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    let parsed = value.to_str().map_or_else(|| refuse(": not UTF-8"), parse);
    parsed.map(Some).map_err(|refusal| name_variable(name, &refusal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_values_are_named_with_their_variables() {
        for (name, value, fragment) in [
            ("ZOOLOCK_CONNECT_TIMEOUT", "0s", "0s: no time to connect"),
            ("ZOOLOCK_CONNECT_TIMEOUT", "soon", "\"soon\": not a time"),
            ("ZOOLOCK_TOKEN_EPOCH", "-1", "\"-1\": invalid digit"),
            ("ZOOLOCK_WORLD_WRITABLE", "yes", "\"yes\": invalid digit"),
        ] {
            let read = Environment::read(|given| (given == name).then(|| value.into()));
            let message = read.expect_err("a bad value").to_string();
            assert!(message.contains(&format!("{name} {fragment}")), "{message}");
        }
        let empty = Environment::read(|_| Some(OsString::new())).expect("empty counts as unset");
        assert_eq!((empty.connect_timeout, empty.token_epoch), (Duration::from_secs(10), 0));
    }
}
