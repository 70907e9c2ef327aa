//! Parsers of the values of flags.
//!
//! A message about a refused value begins with the flag, and says what to give instead. Only clap knows the flag. So a parser
//! returns the rest of the message as a [`Refusal`], and [`name_flag`] adds the flag.

use std::error::Error;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::IntErrorKind;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use zoolock::internals::LockPath;
use zoolock::{Naming, Ticket};
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

pub(super) fn refuse<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { kind: ErrorKind::ValueValidation, message: message.into() })
}

fn unresolved<T>(message: String) -> Result<T, Refusal> {
    Err(Refusal { kind: ErrorKind::Io, message })
}

/// Replaces clap's message about a refused value, if a parser of this file has refused it.
pub(super) fn name_flag(error: clap::Error) -> clap::Error {
    let refusal = error.source().and_then(|source| source.downcast_ref::<Refusal>());
    let (Some(refusal), Some(ContextValue::String(arg))) = (refusal, error.get(ContextKind::InvalidArg))
    else {
        return error;
    };
    // clap names the flag with its value, as in `--timeout <TIME>`.
    name_variable(arg.split(' ').next().unwrap_or_default(), refusal)
}

/// Returns the error for a refused value of a flag or an environment variable.
pub(super) fn name_variable(name: &str, Refusal { kind, message }: &Refusal) -> clap::Error {
    clap::Error::raw(*kind, format!("{name}{message}\n"))
}

/// One day.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Parses a time, such as 30s, 500ms, 2m, 1h30m or 2d07h.
pub(super) fn time(text: &str) -> Result<Duration, Refusal> {
    let hint = "write it as 30s, 500ms, 2m, 1h30m or 2d07h";
    // The parser of the library knows no days, and reads a comma as a decimal point.
    let whole = text.trim();
    let (days, rest) = match whole.split_once('d').map(|(days, rest)| (days.parse::<u32>(), rest)) {
        Some((Ok(days), "")) => return Ok(DAY * days),
        Some((Ok(days), rest)) => (DAY * days, rest),
        _ => (Duration::ZERO, whole),
    };
    match rest.parse::<jiff::SignedDuration>().map(Duration::try_from) {
        Ok(Ok(time)) if !rest.contains(',') => Ok(days + time),
        Ok(Err(_)) => refuse(format!(" {text:?}: a time cannot be negative; {hint}")),
        _ => refuse(format!(" {text:?}: not a time; {hint}")),
    }
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

/// Returns a parser of numbers that refuses 0, and more than `u32::MAX`. `why`: the reason, or what to give instead.
pub(super) fn at_least_one<N>(why: &'static str) -> impl Fn(&str) -> Result<N, Refusal> + Clone
where
    N: TryFrom<u32>,
{
    move |text| {
        let too_large = || refuse(format!(" {text}: too large; write at most {}", u32::MAX));
        match text.parse::<u32>() {
            Ok(0) => refuse(format!(" 0: {why}")),
            Ok(number) => N::try_from(number).or_else(|_| too_large()),
            Err(error) if *error.kind() == IntErrorKind::PosOverflow => too_large(),
            Err(_) => refuse(format!(" {text:?}: not a number; write a number of at least 1")),
        }
    }
}

/// The reason why a semaphore without permits is refused.
pub(super) const PERMITS: &str = "a semaphore has at least one permit";

/// An address to serve metrics on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MetricsAddress {
    pub(crate) address: SocketAddr,
    /// Set if zoolock must not run without metrics.
    pub(crate) is_required: bool,
}

/// Parses an address of metrics: HOST:PORT, perhaps with `,required` behind it.
pub(super) fn metrics_address(text: &str) -> Result<MetricsAddress, Refusal> {
    let required = text.strip_suffix(",required");
    Ok(MetricsAddress { address: address(required.unwrap_or(text))?, is_required: required.is_some() })
}

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

/// A znode naming scheme and its options.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NamingArg {
    pub(crate) naming: Naming,
    /// Set if a lock that is held alone is the writer of a read/write lock.
    pub(crate) is_rw: bool,
    pub(crate) kazoo_pattern: bool,
}

/// Parses a znode naming scheme, and its options after commas. An empty environment variable counts as unset.
pub(super) fn naming(text: &str) -> Result<NamingArg, Refusal> {
    let mut words = text.split(',');
    let mut parsed = NamingArg::default();
    if let Some(name) = words.next().filter(|_| !text.is_empty()) {
        parsed.naming = name.parse::<Naming>().or_else(|error| {
            let message = error.to_string();
            let message = message.trim_start_matches("naming");
            refuse(format!("{message} (--naming, or ZOOLOCK_NAMING)"))
        })?;
    }
    for word in words {
        match word {
            "rw" => parsed.is_rw = true,
            "kazoo-pattern" => parsed.kazoo_pattern = true,
            _ => return refuse(format!(" {text:?}: the words after the naming are rw and kazoo-pattern")),
        }
    }
    Ok(parsed)
}

/// Permits to acquire together, and the size of their semaphore.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Permits {
    pub(crate) take: u32,
    pub(crate) size: u32,
}

/// Parses a number of permits, as N or K/N.
pub(super) fn permits(text: &str) -> Result<Permits, Refusal> {
    let (take, size) = text.split_once('/').unwrap_or(("1", text));
    match (at_least_one("acquire at least one permit")(take)?, at_least_one(PERMITS)(size)?) {
        (take, size) if take > size => refuse(format!(" {text}: more than the {size} of the semaphore")),
        (take, size) => Ok(Permits { take, size }),
    }
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
            (&["hold", "x", "--timeout", "1,000s"], "--timeout \"1,000s\": not a time"),
            (&["hold", "x", "--timeout", "1d2d"], "not a time"),
            (&["ls", "--session-timeout", "1s"], "--session-timeout 1s: choose a time from 6s"),
            (&["ls", "--session-timeout", "61m"], "--session-timeout 61m: "),
            (&["top", "--interval", "99ms"], "--interval 99ms: must be between"),
            (&["top", "--interval", "2h"], "--interval 2h: must be between"),
            (&["serve", "--local", "--idle", "0s"], "ZOOLOCK_LOCAL_IDLE"),
            (&["hold", "x", "--permits", "0"], "--permits 0: a semaphore has at least one permit"),
            (&["hold", "x", "--permits", "0/3"], "--permits 0: acquire at least"),
            (&["hold", "x", "--permits", "4/3"], "--permits 4/3: more than the 3"),
            (&["hold", "x", "--permits", "2/"], "--permits \"\": "),
            (&["hold", "x", "--naming", "curator,reader"], "rw and kazoo-pattern"),
            (&["resize", "x", "--permits", "0"], "--permits 0: "),
            (&["history", "--last", "0"], "--last 0: must be at least 1"),
            (&["doctor", "--limit", "0"], "--limit 0: must be at least 1"),
            (&["doctor", "--limit", "many"], "--limit \"many\": not a number"),
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
        for line in [
            ["ls", "--session-timeout", "1h"],
            ["top", "--interval", "100ms"],
            ["ls", "--older", " 0s "],
            ["ls", "--older", "1 second"],
        ] {
            assert!(parse(&line).is_ok(), "{line:?}");
        }
    }
}
