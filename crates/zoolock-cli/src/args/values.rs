//! Parsers of the values of flags.
//!
//! A message about a refused value begins with the flag, and says what to give instead. Only clap knows the flag. So a parser
//! returns the rest of the message as a [`Refusal`], and [`name_flag`] adds the flag.

use std::error::Error;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::ParseIntError;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use zoolock::{LockPath, Naming, Ticket};
use zoolock_server::FourLetterWord;

/// The reason why a value is refused.
#[derive(Debug)]
pub(super) struct Refusal {
    /// [`ErrorKind::Io`] if the name of a host cannot be resolved.
    kind: ErrorKind,
    /// The message, without the flag at its beginning.
    message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Refusal {}

fn refuse<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { kind: ErrorKind::ValueValidation, message: message.into() })
}

fn unresolved<T>(message: String) -> Result<T, Refusal> {
    Err(Refusal { kind: ErrorKind::Io, message })
}

/// Replaces clap's message about a refused value, if a parser of this file has refused it.
pub(super) fn name_flag(error: clap::Error) -> clap::Error {
    let refusal = error.source().and_then(|source| source.downcast_ref::<Refusal>());
    let (Some(Refusal { kind, message }), Some(ContextValue::String(arg))) =
        (refusal, error.get(ContextKind::InvalidArg))
    else {
        return error;
    };
    // clap names the flag with its value, as in `--timeout <TIME>`.
    let flag = arg.split(' ').next().unwrap_or_default();
    clap::Error::raw(*kind, format!("{flag}{message}\n"))
}

/// Parses a time, such as 30s, 500ms, 2m or 1h30m.
pub(super) fn time(text: &str) -> Result<Duration, Refusal> {
    let hint = "write it as 30s, 500ms, 2m or 1h30m";
    let Ok(signed) = text.trim().parse::<jiff::SignedDuration>() else {
        return refuse(format!(" {text:?}: not a time; {hint}"));
    };
    Duration::try_from(signed).or_else(|_| refuse(format!(" {text:?}: a time cannot be negative; {hint}")))
}

/// Returns a parser of times that refuses a time outside `range`. `advice`: what to give instead.
pub(super) fn time_within(
    range: RangeInclusive<Duration>,
    advice: &'static str,
) -> impl Fn(&str) -> Result<Duration, Refusal> + Clone {
    move |text| match time(text)? {
        time if range.contains(&time) => Ok(time),
        _ => refuse(format!(" {text}: {advice}")),
    }
}

/// Returns a parser of numbers that refuses 0. `why`: the reason, or what to give instead.
pub(super) fn at_least_one<N>(why: &'static str) -> impl Fn(&str) -> Result<N, Refusal> + Clone
where
    N: FromStr<Err = ParseIntError> + Default + PartialEq,
{
    move |text| match text.parse::<N>() {
        Ok(zero) if zero == N::default() => refuse(format!(" 0: {why}")),
        Ok(number) => Ok(number),
        Err(error) => refuse(format!(" {text:?}: {error}; write a number of at least 1")),
    }
}

/// The reason why a semaphore without permits is refused.
pub(super) const PERMITS: &str = "a semaphore has at least one permit";

/// Parses an address, as HOST:PORT, and resolves the name of the host.
pub(super) fn address(text: &str) -> Result<SocketAddr, Refusal> {
    let hint = "write it as HOST:PORT, as in 127.0.0.1:2181";
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    match text.rsplit_once(':') {
        None => return refuse(format!(" {text:?}: there is no port; {hint}")),
        Some(("", _)) => {
            return refuse(format!(
                " {text:?}: there is no host; {hint}, or as 0.0.0.0:2181 to be reached from everywhere"
            ));
        }
        Some((_, port)) if port.parse::<u16>().is_err() => {
            return refuse(format!(" {text:?}: {port:?} is no port; {hint}"));
        }
        Some((host, _)) if host.contains(':') && !host.starts_with('[') => {
            return refuse(format!(" {text:?}: write an IPv6 address as [::1]:2181"));
        }
        Some(_) => {}
    }
    match text.to_socket_addrs().map(|mut all| all.next()) {
        Ok(Some(address)) => Ok(address),
        Ok(None) => unresolved(format!(" {text:?}: the name has no address; {hint}")),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            refuse(format!(" {text:?}: {error}; {hint}"))
        }
        Err(error) => unresolved(format!(" {text:?}: {error}; {hint}")),
    }
}

/// Parses the token of a holder or waiter.
pub(super) fn token(text: &str) -> Result<Ticket, Refusal> {
    text.parse().or_else(|error| refuse(format!(" {error}; `zoolock show` prints it")))
}

/// Parses the name of a znode naming scheme. An empty environment variable counts as unset.
pub(super) fn naming(text: &str) -> Result<Naming, Refusal> {
    if text.is_empty() {
        return Ok(Naming::default());
    }
    text.parse::<Naming>().or_else(|error| {
        let message = error.to_string();
        let message = message.trim_start_matches("naming");
        refuse(format!("{message} (--naming, or ZOOLOCK_NAMING)"))
    })
}

/// Parses an identity, SCHEME:ID. The library refuses readers if this client has no credentials.
pub(super) fn reader(text: &str) -> Result<(String, String), Refusal> {
    match text.split_once(':') {
        Some((scheme, id)) => Ok((scheme.to_owned(), id.to_owned())),
        None => refuse(format!(
            " {text:?}: write it as SCHEME:ID, such as digest:ops:DIGEST, x509:CN=ops or world:anyone"
        )),
    }
}

/// Checks the parent path of locks. The path is valid if a lock below it has a valid path.
pub(super) fn root(text: &str) -> Result<String, Refusal> {
    match LockPath::parse("x", text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => refuse(format!(" {text:?}: not a valid parent path for locks; write one such as /locks")),
    }
}

/// Parses a four-letter word.
pub(super) fn word(text: &str) -> Result<FourLetterWord, Refusal> {
    text.trim().parse().or_else(|error| refuse(format!(": {error}")))
}

/// Checks a host name, and converts it to lower case. Refuses a port, because requests are accepted with any port.
#[cfg(feature = "ui")]
pub(super) fn host_name(text: &str) -> Result<String, Refusal> {
    let host = text.to_ascii_lowercase();
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if host.is_empty() || !host.chars().all(is_allowed) {
        return refuse(format!(" {host:?}: write a host name without a port, such as locks.example.com"));
    }
    Ok(host)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use crate::args::Args;

    fn parse(line: &[&str]) -> Result<Args, clap::Error> {
        let line: Vec<OsString> = ["zoolock"].iter().chain(line).map(OsString::from).collect();
        Args::parse_line(&line, Ok(String::new()))
    }

    /// Returns the message about a refused value.
    fn refused(line: &[&str]) -> String {
        parse(line).expect_err("a refused value").to_string()
    }

    #[test]
    fn refused_values_are_named_with_their_flags() {
        for (line, fragment) in [
            (&["hold", "x", "--timeout="][..], "--timeout \"\": not a time"),
            (&["hold", "x", "--timeout", "soon"], "--timeout \"soon\": not a time"),
            (&["hold", "x", "--timeout", "-5s"], "--timeout \"-5s\": a time cannot be negative"),
            (&["hold", "x", "--timeout", "5"], "--timeout \"5\": not a time"),
            (&["hold", "x", "--timeout", "5 parsecs"], "write it as 30s"),
            (&["ls", "--session-timeout", "1s"], "--session-timeout 1s: choose a time from 6s"),
            (&["ls", "--session-timeout", "61m"], "--session-timeout 61m: "),
            (&["ls", "--connect-timeout", "0s"], "--connect-timeout 0"),
            (&["top", "--interval", "99ms"], "--interval 99ms: must be between"),
            (&["top", "--interval", "2h"], "--interval 2h: must be between"),
            (&["serve", "--local", "--idle", "0s"], "ZOOLOCK_LOCAL_IDLE"),
            (&["hold", "x", "--permits", "0"], "--permits 0: a semaphore has at least one permit"),
            (&["hold", "x", "--permits", "3", "--take", "0"], "--take 0: "),
            (&["resize", "x", "--permits", "0"], "--permits 0: "),
            (&["history", "--last", "0"], "--last 0: must be at least 1"),
            (&["doctor", "--limit", "0"], "--limit 0: must be at least 1"),
            (&["doctor", "--limit", "many"], "--limit \"many\": invalid digit found"),
            (&["break", "x", "--token", "17"], "--token `17`"),
            (&["revoke", "x", "--token", "17"], "`zoolock show` prints it"),
            (&["hold", "x", "--metrics", "9090"], "--metrics \"9090\": there is no port"),
            (&["hold", "x", "--naming", "frob"], "--naming \"frob\""),
            (&["ls", "--root", "no/slash"], "--root \"no/slash\""),
            (&["ls", "--reader", "ops"], "--reader \"ops\""),
        ] {
            let message = refused(line);
            assert!(message.contains(fragment), "{fragment}: {message}");
        }
    }

    #[cfg(feature = "ui")]
    #[test]
    fn host_must_be_a_name_without_port() {
        for bad in ["", "a:80", "http://a", "a/b", "a b", "[::1]"] {
            assert!(refused(&["ui", "--host", bad]).contains("--host"), "{bad}");
        }
    }

    #[test]
    fn limits_of_times_are_accepted() {
        for line in
            [["ls", "--session-timeout", "1h"], ["top", "--interval", "100ms"], ["ls", "--older", " 0s "]]
        {
            assert!(parse(&line).is_ok(), "{line:?}");
        }
    }
}
