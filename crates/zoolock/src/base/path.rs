//! Names of locks, and connect strings. Both are checked before a request is sent.

use zoolock_client::Host;
use zoolock_core::names::{Family, Name, looks_like_contender};

use crate::base::error::Error;

/// The default directory of locks with relative names.
pub const DEFAULT_ROOT: &str = "/locks";

/// The directory of the audit log, which has one znode for each operator action on a lock.
pub(crate) const AUDIT: &str = ".audit";

/// The directory beside a semaphore that has the slots of its holders.
pub(crate) const SLOTS: &str = ".slots";

/// The directory beside a lock that has the record of work that is done once for each key.
pub(crate) const ONCE: &str = ".once";

/// The longest path of a lock, in bytes. A request with such a path is far below the servers' limit
/// of 1 MB, and watches and listings stay small.
const MAX_PATH: usize = 1024;

/// The absolute path of a lock directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockPath(String);

impl LockPath {
    /// Returns the path of the lock with this name. The name is relative to `root`, or absolute if it starts with `/`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty name, `//`, a slash at the end, `.` or `..` between slashes, control
    /// characters, parts that are znode names of contenders (`lock-0000000000`), reserved names (`.audit`, `.slots`,
    /// `/zookeeper`), and paths over 1024 bytes. Other parts that end in ten digits (`order-0000000042`) are accepted
    /// here, but a lock with such a name is refused when it is acquired.
    pub fn parse(name: &str, root: &str) -> Result<LockPath, Error> {
        let shown = || format!("lock name {name:?}");
        if name.is_empty() {
            return Err(Error::invalid("lock name \"\"", "is empty; give the lock a name such as `nightly`"));
        }
        let absolute = name.starts_with('/');
        let relative = name.strip_prefix('/').unwrap_or(name);
        check_components(relative).map_err(|message| Error::invalid(shown(), message))?;
        let path = if absolute {
            name.to_owned()
        } else {
            check_root(root)?;
            if root == "/" { format!("/{name}") } else { format!("{root}/{name}") }
        };
        if path == "/zookeeper" || path.starts_with("/zookeeper/") {
            return Err(Error::invalid(
                shown(),
                "is below /zookeeper, which is reserved by ZooKeeper; choose another path",
            ));
        }
        if path.len() > MAX_PATH {
            return Err(Error::invalid(
                shown(),
                format!("is longer than {MAX_PATH} bytes; choose a shorter name"),
            ));
        }
        Ok(LockPath(path))
    }

    /// Refuses a lock whose directory would look like a contender of the lock above it.
    pub(crate) fn check_new(name: &str, root: &str) -> Result<(), Error> {
        // Does not check a name directly below `/`, because `/` is no lock, and has no queue.
        let is_below_root = name.starts_with('/') || root == "/";
        let mut below_a_lock = name.trim_start_matches('/').split('/').skip(usize::from(is_below_root));
        match below_a_lock.find(|name| looks_like_contender(name)) {
            None => Ok(()),
            Some(component) => Err(Error::invalid(
                format!("lock name {name:?}"),
                format!(
                    "has the part `{component}`, which ends in ten digits, as contenders do; use fewer digits"
                ),
            )),
        }
    }

    /// Returns the path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn from_server(path: String) -> LockPath {
        LockPath(path)
    }

    pub(crate) fn child(&self, name: &str) -> String {
        [self.0.trim_end_matches('/'), "/", name].concat()
    }
}

impl std::fmt::Display for LockPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks the directory of locks with relative names.
pub(crate) fn check_root(root: &str) -> Result<(), Error> {
    let shown = || format!("root {root:?}");
    let Some(relative) = root.strip_prefix('/') else {
        return Err(Error::invalid(
            shown(),
            "does not start with `/`; write an absolute path such as /locks",
        ));
    };
    if relative.is_empty() {
        return Ok(());
    }
    check_components(relative).map_err(|message| Error::invalid(shown(), message))
}

fn check_components(relative: &str) -> Result<(), String> {
    if relative.is_empty() {
        return Err("is the root itself; name something below it".to_owned());
    }
    if let Some(c) = relative.chars().find(|&c| is_forbidden(c)) {
        return Err(format!("contains the character {c:?}, which ZooKeeper does not allow; leave it out"));
    }
    for component in relative.split('/') {
        match component {
            "" => return Err("has an empty part; write single slashes and none at the end".to_owned()),
            "." | ".." => {
                return Err(format!(
                    "has the part `{component}`, and ZooKeeper has no relative paths; write the path without it"
                ));
            }
            _ if Name::parse(component).is_some_and(|name| name.family() != Family::Unknown) => {
                return Err(format!(
                    "has the part `{component}`, which has the form of a contender; name the lock without it"
                ));
            }
            AUDIT | SLOTS | ONCE => {
                return Err(format!("contains `{component}`, which zoolock reserves; choose another name"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns whether ZooKeeper refuses a path with this character.
fn is_forbidden(c: char) -> bool {
    matches!(c, '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

/// A parsed connect string: `host:port,host:port/chroot`, or `unix:/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectString {
    hosts: Vec<Host>,
    chroot: String,
}

impl ConnectString {
    /// Parses a connect string: `host:port,host:port/chroot`, or `unix:/path` for a Unix socket.
    /// The default port is 2181. IPv6 addresses are in brackets.
    ///
    /// # Errors
    /// [`Error::Invalid`], naming the part that is wrong.
    pub fn parse(text: &str) -> Result<ConnectString, Error> {
        let shown = || format!("connect string {text:?}");
        if let Some(path) = text.strip_prefix("unix:").filter(|rest| rest.parse::<u16>().is_err()) {
            if !path.starts_with('/') || path.contains('\0') {
                return Err(Error::invalid(shown(), "needs the absolute path of a socket after unix:"));
            }
            return Ok(ConnectString { hosts: vec![Host::Unix(path.into())], chroot: String::new() });
        }
        if let Some((scheme, _)) = text.split_once("://").filter(|(scheme, _)| !scheme.contains('/')) {
            return Err(Error::invalid(
                shown(),
                format!("has {scheme}://; write host:port,host:port/chroot without it"),
            ));
        }
        let (hosts, chroot) = split_chroot(text).map_err(|message| Error::invalid(shown(), message))?;
        if hosts.is_empty() {
            return Err(Error::invalid(shown(), "names no host; write host:port,host:port/chroot"));
        }
        let chroot = if chroot == "/" { "" } else { chroot };
        if let Some(inside) = chroot.strip_prefix('/') {
            check_components(inside)
                .map_err(|message| Error::invalid(shown(), format!("the chroot {chroot:?} {message}")))?;
        }
        let hosts = hosts
            .iter()
            .map(|host| parse_host(host).map_err(|message| Error::invalid(shown(), message)))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(ConnectString { hosts, chroot: chroot.to_owned() })
    }

    pub(crate) fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Returns the chroot, the directory to which all paths are relative. It is empty if there is no chroot.
    pub fn chroot(&self) -> &str {
        &self.chroot
    }

    /// Returns the servers, each as `host:port` or `unix:/path`.
    pub fn servers(&self) -> Vec<String> {
        self.hosts.iter().map(Host::to_string).collect()
    }

    /// Returns the servers without the chroot, for messages.
    pub(crate) fn endpoints(&self) -> String {
        self.servers().join(",")
    }
}

/// Splits a connect string into its hosts and the chroot. The chroot follows the last host, or the same chroot follows
/// each host.
///
/// ZooKeeper's own client takes everything after the first slash as the chroot. For
/// `zk1/app,zk2/app`, this would be the directory `/app,zk2/app`, which the user did not mean. Then
/// two programs that write the same hosts and chroot differently could hold the same lock at once.
fn split_chroot(text: &str) -> Result<(Vec<&str>, &str), String> {
    let parts: Vec<(&str, &str)> =
        text.split(',').map(|part| part.find('/').map_or((part, ""), |at| part.split_at(at))).collect();
    let hosts: Vec<&str> = parts.iter().map(|(host, _)| *host).collect();
    if hosts.iter().any(|host| host.contains(|c: char| c == ';' || c.is_whitespace())) {
        return Err("has a semicolon or a space; separate servers by commas alone".to_owned());
    }
    let chroot = parts.last().map_or("", |(_, chroot)| *chroot);
    let named = parts.iter().filter(|(_, chroot)| !chroot.is_empty()).count();
    let is_at_the_end = named == usize::from(!chroot.is_empty());
    if !is_at_the_end && parts.iter().any(|(_, other)| *other != chroot) {
        let message = "has a chroot before the last host, or several; write one chroot without a comma, behind the \
                       last host: host:port,host:port/chroot";
        return Err(message.to_owned());
    }
    Ok((if text.is_empty() { Vec::new() } else { hosts }, chroot))
}

fn parse_host(text: &str) -> Result<Host, String> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(format!("{text:?} has no closing bracket"))?;
        if rest.is_empty() {
            (host, None)
        } else {
            (host, Some(rest.strip_prefix(':').ok_or(format!("{text:?}: a `:` must follow the bracket"))?))
        }
    } else {
        match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                let message = "has several colons; separate servers by commas, and write an IPv6 address in brackets, \
                               as [::1] or [::1]:2181";
                return Err(format!("{text:?} {message}"));
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    if host.is_empty() {
        return Err(format!("{text:?} names no host"));
    }
    if let Some(c) = host.chars().find(|c| c.is_whitespace() || c.is_control()) {
        return Err(format!("host {host:?} contains {c:?}"));
    }
    let port = match port {
        None => 2181,
        Some(port) => match port.parse::<u16>() {
            Ok(port) if port != 0 => port,
            _ => return Err(format!("port {port:?} is not a number from 1 to 65535")),
        },
    };
    Ok(Host::Tcp { name: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_names_are_refused_and_named() {
        for name in [
            "",
            "/",
            "a//b",
            "a/",
            "../x",
            "a/../b",
            ".",
            "a\0b",
            "a\nb",
            "x/.audit/y",
            ".slots/x",
            "a/lock-0000000000",
            "/zookeeper/quota",
        ] {
            let error = LockPath::parse(name, DEFAULT_ROOT).expect_err(name).to_string();
            assert!(error.contains(&format!("{name:?}")), "{error}");
        }
        assert!(LockPath::parse(&"x".repeat(2000), DEFAULT_ROOT).is_err());
    }

    #[test]
    fn contender_like_names_cannot_be_acquired() {
        for name in ["order-0000000042", "a/0000000042/b", "/a/order-0000000042"] {
            let error = LockPath::check_new(name, DEFAULT_ROOT).expect_err(name).to_string();
            assert!(error.contains(&format!("{name:?}")), "{error}");
        }
        for (name, root) in [("/run-0000000042/x", DEFAULT_ROOT), ("order-0000000042", "/"), ("a/b", "/")] {
            LockPath::check_new(name, root).expect(name);
        }
    }

    #[test]
    fn valid_names_become_paths_unchanged() {
        for (name, path) in [
            ("nightly", "/locks/nightly"),
            ("a/b.c", "/locks/a/b.c"),
            ("/x/y", "/x/y"),
            ("grüße", "/locks/grüße"),
            ("order-1234567890", "/locks/order-1234567890"),
            ("order-42", "/locks/order-42"),
            // The path is accepted, because it may be a lock of another client library.
            ("order-0000000042", "/locks/order-0000000042"),
        ] {
            assert_eq!(LockPath::parse(name, DEFAULT_ROOT).expect(name).as_str(), path);
        }
        assert_eq!(LockPath::parse("a", "/").expect("root").as_str(), "/a");
        assert!(LockPath::parse("a", "locks").is_err());
    }

    #[test]
    fn connect_strings_are_parsed() {
        let c = ConnectString::parse("zk1,zk2:2182,[::1]:2183/team/x").expect("valid connect string");
        assert_eq!(c.chroot(), "/team/x");
        assert_eq!(c.endpoints(), "zk1:2181,zk2:2182,[::1]:2183");
        assert_eq!(ConnectString::parse("h:1/").expect("valid connect string").chroot(), "");
        let each = ConnectString::parse("zk1:1/app,zk2:2/app").expect("the same chroot behind each host");
        assert_eq!(each.servers(), ["zk1:1", "zk2:2"]);
        assert_eq!((each.endpoints().as_str(), each.chroot()), ("zk1:1,zk2:2", "/app"));
        assert_eq!(ConnectString::parse("zk1:1/a;b").expect("valid connect string").chroot(), "/a;b");
        let socket = ConnectString::parse("unix:/run/a,b/socket").expect("valid connect string");
        assert_eq!((socket.endpoints().as_str(), socket.chroot()), ("unix:/run/a,b/socket", ""));
    }

    #[test]
    fn bad_connect_strings_are_refused_and_named() {
        for text in [
            "",
            "/x",
            "a:1/x,b:2",
            "a:1/x,b:2/y",
            "a:1,b:2/x,c:3/x",
            "a:1/x,b:2/x,c:3",
            "a:1/x,y",
            "a:1;b:1",
            "h:",
            "h:0",
            "h:65536",
            "h:port",
            "h:1,,i:2",
            ":2181",
            "::1",
            "[::1",
            "[::1]2181",
            "h:1//x",
            "h:1/..",
            "a b:1",
            "unix:",
            "unix:socket",
            "http://h:1",
        ] {
            let error = ConnectString::parse(text).expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn separator_errors_say_what_to_write() {
        for (text, advice) in [
            ("a:1;b:1", "commas"),
            ("a:1 b:1", "commas"),
            ("a:1, b:1", "commas"),
            ("a:1:b:1", "commas"),
            ("fe80::1", "as [::1] or [::1]:2181"),
            ("http://h:1", "write host:port,host:port/chroot without it"),
        ] {
            let error = ConnectString::parse(text).expect_err(text).to_string();
            assert!(error.contains(advice), "{error}");
        }
    }
}
