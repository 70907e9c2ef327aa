//! Parsers of the values of flags.
//!
//! A message about a refused value begins with the flag and the value, and says what to give instead. For this, the
//! parsers make errors of their own in place of clap's ([`refuse`]). `main.rs` prints them like every other failure.

use std::ffi::OsStr;
use std::fmt::Display;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::builder::{StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command};
use zoolock::{LockPath, Naming, Ticket};
use zoolock_server::FourLetterWord;

/// A parser that checks the value of another parser, and converts it.
#[derive(Clone)]
struct Checked<P, F> {
    parser: P,
    /// Gets the flag, for messages, and the value of `parser`.
    check: F,
}

impl<P, F, T> TypedValueParser for Checked<P, F>
where
    P: TypedValueParser,
    F: Fn(&str, P::Value) -> Result<T, clap::Error> + Clone + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, text: &OsStr) -> Result<T, clap::Error> {
        let value = self.parser.parse_ref(command, arg, text)?;
        let flag = format!("--{}", arg.and_then(Arg::get_long).unwrap_or_default());
        (self.check)(&flag, value)
    }
}

/// Returns a parser that converts the text of a flag with `convert`. The first argument of `convert` is the flag.
fn text<T>(
    convert: impl Fn(&str, &str) -> Result<T, clap::Error> + Clone + Send + Sync + 'static,
) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync + 'static,
{
    Checked { parser: StringValueParser::new(), check: move |flag: &str, text: String| convert(flag, &text) }
}

/// Creates the error of a refused value. The exit code is that of a wrong command line.
fn refuse(message: impl Display) -> clap::Error {
    clap::Error::raw(ErrorKind::ValueValidation, format!("{message}\n"))
}

/// Creates the error of an address that cannot be resolved now. The exit code is that of an unreachable server.
fn unavailable(message: impl Display) -> clap::Error {
    clap::Error::raw(ErrorKind::Io, format!("{message}\n"))
}

/// Parses a time, such as 30s, 500ms, 2m or 1h30m.
pub(super) fn time() -> impl TypedValueParser<Value = Duration> {
    text(parse_time)
}

/// Parses a time, and refuses a time outside `range`. `advice`: what to give instead.
pub(super) fn time_within(
    range: RangeInclusive<Duration>,
    advice: &'static str,
) -> impl TypedValueParser<Value = Duration> {
    text(move |flag, text| {
        let time = parse_time(flag, text)?;
        if !range.contains(&time) {
            return Err(refuse(format_args!("{flag} {text}: {advice}")));
        }
        Ok(time)
    })
}

fn parse_time(flag: &str, text: &str) -> Result<Duration, clap::Error> {
    let hint = "write it as 30s, 500ms, 2m or 1h30m";
    let signed: jiff::SignedDuration =
        text.trim().parse().map_err(|_| refuse(format_args!("{flag} {text:?}: not a time; {hint}")))?;
    Duration::try_from(signed)
        .map_err(|_| refuse(format_args!("{flag} {text:?}: a time cannot be negative; {hint}")))
}

/// The reason why a semaphore without permits is refused.
pub(super) const PERMITS: &str = "a semaphore has at least one permit";

/// Refuses the number 0. `why`: the reason, or what to give instead.
pub(super) fn positive<P>(number: P, why: &'static str) -> impl TypedValueParser<Value = P::Value>
where
    P: TypedValueParser<Value: Default + PartialEq>,
{
    let check = move |flag: &str, number: P::Value| match number == P::Value::default() {
        true => Err(refuse(format_args!("{flag} 0: {why}"))),
        false => Ok(number),
    };
    Checked { parser: number, check }
}

/// Parses an address, as HOST:PORT, and resolves the name of the host.
pub(super) fn address() -> impl TypedValueParser<Value = SocketAddr> {
    text(parse_address)
}

fn parse_address(flag: &str, text: &str) -> Result<SocketAddr, clap::Error> {
    let hint = "write it as HOST:PORT, as in 127.0.0.1:2181";
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    match text.rsplit_once(':') {
        None => return Err(refuse(format_args!("{flag} {text:?}: there is no port; {hint}"))),
        Some(("", _)) => {
            return Err(refuse(format_args!(
                "{flag} {text:?}: there is no host; {hint}, or as 0.0.0.0:2181 to be reached from everywhere"
            )));
        }
        Some((_, port)) if port.parse::<u16>().is_err() => {
            return Err(refuse(format_args!("{flag} {text:?}: {port:?} is no port; {hint}")));
        }
        Some((host, _)) if host.contains(':') && !host.starts_with('[') => {
            return Err(refuse(format_args!("{flag} {text:?}: write an IPv6 address as [::1]:2181")));
        }
        Some(_) => {}
    }
    match text.to_socket_addrs() {
        Ok(mut all) => all
            .next()
            .ok_or_else(|| unavailable(format_args!("{flag} {text:?}: the name has no address; {hint}"))),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            Err(refuse(format_args!("{flag} {text:?}: {error}; {hint}")))
        }
        Err(error) => Err(unavailable(format_args!("{flag} {text:?}: {error}; {hint}"))),
    }
}

/// Parses the token of a holder or waiter.
pub(super) fn token() -> impl TypedValueParser<Value = Ticket> {
    text(|flag, text| {
        text.parse().map_err(|error| refuse(format_args!("{flag} {error}; `zoolock show` prints it")))
    })
}

/// Parses the name of a znode naming scheme.
pub(super) fn naming() -> impl TypedValueParser<Value = Naming> {
    text(|_, text| {
        // An empty environment variable counts as unset.
        let text = if text.is_empty() { Naming::default().as_str() } else { text };
        text.parse().map_err(|error| refuse(format_args!("--{error} (--naming, or ZOOLOCK_NAMING)")))
    })
}

/// Parses an identity, SCHEME:ID. The library refuses readers if this client has no credentials.
pub(super) fn reader() -> impl TypedValueParser<Value = (String, String)> {
    text(|flag, text| match text.split_once(':') {
        Some((scheme, id)) => Ok((scheme.to_owned(), id.to_owned())),
        None => Err(refuse(format_args!(
            "{flag} {text:?}: write it as SCHEME:ID, such as digest:ops:DIGEST, x509:CN=ops or world:anyone"
        ))),
    })
}

/// Checks the parent path of locks. The path is valid if a lock below it has a valid path.
pub(super) fn root() -> impl TypedValueParser<Value = String> {
    text(|flag, text| match LockPath::parse("x", text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(refuse(format_args!(
            "{flag} {text:?}: not a valid parent path for locks; write one such as /locks"
        ))),
    })
}

/// Parses a four-letter word.
pub(super) fn word() -> impl TypedValueParser<Value = FourLetterWord> {
    text(|flag, text| text.trim().parse().map_err(|error: String| refuse(format_args!("{flag}: {error}"))))
}

/// Checks a host name, and converts it to lower case. Refuses a port, because requests are accepted with any port.
#[cfg(feature = "ui")]
pub(super) fn host_name() -> impl TypedValueParser<Value = String> {
    text(|flag, text| {
        let host = text.to_ascii_lowercase();
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if host.is_empty() || !host.chars().all(is_allowed) {
            return Err(refuse(format_args!(
                "{flag} {host:?}: write a host name without a port, such as locks.example.com"
            )));
        }
        Ok(host)
    })
}
