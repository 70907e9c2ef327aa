//! Asks each server of the connect string for its settings and its state.

use std::time::Duration;

use futures_util::future::join_all;
use zoolock::Tls;
use zoolock_server::Server;

use super::finding::Report;
use super::four_letter_words::{NoAnswer, ServerVersion, ask_word, parse_configuration};

const CHECK: &str = "server";
const CONNECTIONS: &str = "connections";
/// Maximum number of servers that are asked.
const MAX_SERVERS: usize = 16;
/// Maximum size of an answer in bytes. The expected answers are much shorter.
const MAX_ANSWER: usize = 1 << 20;
/// The first release with container znodes. On older servers, empty directories of free locks stay.
const CONTAINERS: (u32, u32, u32) = (3, 5, 3);

/// The facts from the answers of all servers.
#[derive(Debug, Default)]
pub(super) struct ServerFacts {
    /// Servers that accept connections and answer no four-letter word.
    pub(super) without_answer: Vec<String>,
    pub(super) tick: Option<Duration>,
    /// The shortest and the longest session timeout that all servers grant.
    pub(super) limits: (Option<Duration>, Option<Duration>),
    /// `Some(true)` if all servers with a known version are `zoolock serve`. `None` if no version
    /// is known.
    pub(super) zoolock: Option<bool>,
    /// Set if all addresses are Unix sockets.
    pub(super) is_socket: bool,
}

/// The program of the servers, which decides the words of a remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerKind {
    /// The server of local mode. It has no settings, and only processes of its user and of root can connect.
    Local,
    /// `zoolock serve` with options.
    Serve,
    /// Apache ZooKeeper, or another server that is not `zoolock serve`.
    Apache,
    /// No server tells its version.
    Unknown,
}

impl ServerKind {
    /// Names a setting. `apache` is its name in `zoo.cfg`, and `serve` is the option of `zoolock serve`.
    pub(super) fn name_setting(self, apache: &str, serve: &str) -> String {
        match self {
            ServerKind::Local | ServerKind::Serve => format!("`zoolock serve {serve}`"),
            ServerKind::Apache => format!("{apache} in zoo.cfg"),
            ServerKind::Unknown => format!("{apache} in zoo.cfg, or `zoolock serve {serve}`"),
        }
    }

    /// Names the log of the server.
    pub(super) fn name_log(self) -> &'static str {
        match self {
            ServerKind::Local => "see the file `log` in the directory that `zoolock serve --status` prints",
            ServerKind::Serve => "see the messages of `zoolock serve`",
            ServerKind::Apache | ServerKind::Unknown => "see the server's log",
        }
    }
}

/// The answers of one server.
struct ServerAnswers {
    host: String,
    version: Result<Option<ServerVersion>, NoAnswer>,
    conf: Option<String>,
    read_only: bool,
}

/// Returns the facts about this user's server in local mode, without asking it.
pub(super) fn local_server() -> ServerFacts {
    ServerFacts {
        tick: Some(Server::DEFAULT_TICK),
        limits: (Some(Server::DEFAULT_TICK * 2), Some(Server::DEFAULT_TICK * 20)),
        zoolock: Some(true),
        is_socket: true,
        ..ServerFacts::default()
    }
}

/// Asks the servers for their settings and their state, and reports findings about each.
pub(super) async fn check_servers(hosts: &[String], tls: Option<&Tls>, report: &mut Report) -> ServerFacts {
    let answers = join_all(hosts.iter().take(MAX_SERVERS).map(|host| query_server(host, tls))).await;
    let is_socket = hosts.iter().all(|host| is_socket(host));
    let mut facts = ServerFacts { is_socket, ..ServerFacts::default() };
    let mut modes = Vec::new();
    let mut releases = Vec::new();
    let (mut reachable, mut serving, mut is_serving_known) = (0, 0, hosts.len() <= MAX_SERVERS);
    for ServerAnswers { host, version, conf, read_only } in answers {
        is_serving_known &= matches!(version, Ok(_) | Err(NoAnswer::Unreachable(_)));
        serving += usize::from(matches!(version, Ok(Some(_))) && !read_only);
        match version {
            Err(NoAnswer::Unreachable(why)) => {
                report.warn(
                    CHECK,
                    format!("{host}: cannot be reached ({why})"),
                    "start it, allow connections to it, or remove it from --connect",
                );
                continue;
            }
            Err(NoAnswer::Tls(why)) => {
                report.error(
                    CHECK,
                    format!("{host}: {why}"),
                    "correct its certificate, or --cacert, --cert and --key",
                );
                continue;
            }
            Ok(None) => {
                report.warn(
                    CHECK,
                    format!("{host}: answers, but serves no requests: it has no quorum"),
                    "restore its connection to the ensemble",
                );
            }
            Err(NoAnswer::Refused | NoAnswer::TooLong) => {
                if conf.is_none() {
                    facts.without_answer.push(host.clone());
                }
                report.note(
                    CHECK,
                    format!("{host}: accepts connections, but does not tell its version and mode"),
                    format!("add `srvr` to {}", name_words(ServerKind::Unknown)),
                );
            }
            Ok(Some(version)) => {
                if let (Some(conf), Some(open)) = (&conf, version.connections) {
                    let is_zoolock = version.zoolock_version().is_some();
                    let kind = if is_zoolock { ServerKind::Serve } else { ServerKind::Apache };
                    check_connection_limit(&host, conf, open, kind, report);
                }
                facts.zoolock = Some(facts.zoolock.unwrap_or(true) && version.zoolock_version().is_some());
                if version.numbers().is_some_and(|numbers| numbers < CONTAINERS) {
                    report.warn(
                        CHECK,
                        format!(
                            "{host}: {}, which has no container znodes, so directories of free locks stay",
                            version.description()
                        ),
                        "upgrade it to 3.5.3 or later",
                    );
                } else {
                    report.ok(CHECK, format!("{host}: {}", version.description()));
                }
                modes.extend(version.mode.clone());
                releases.push(version.release().to_owned());
            }
        }
        if read_only {
            report.warn(
                CHECK,
                format!("{host}: is read-only: it has no quorum"),
                "restore its connection to the ensemble; no lock can be acquired there",
            );
        }
        if let Some(conf) = conf {
            facts.add_configuration(&conf);
        }
        reachable += 1;
    }
    if reachable > 1 && modes.iter().any(|mode| mode == "standalone") {
        report.error(
            CHECK,
            "--connect names several servers, and one is standalone, so they are no ensemble: clients of different \
             servers do not exclude each other",
            "name one server, or the members of one ensemble; ignore this if all names mean one server",
        );
    }
    // Without standalone servers and observers, the servers are the voters of one ensemble.
    let are_voters = !modes.iter().any(|mode| ["standalone", "observer"].contains(&mode.as_str()));
    if is_serving_known && are_voters && is_smallest_majority(serving, hosts.len()) {
        report.warn(
            CHECK,
            format!(
                "{serving} of {} servers are in service: the failure of one more stops all locks",
                hosts.len()
            ),
            "start the others; ignore this if --connect names only a part of the ensemble",
        );
    }
    releases.sort();
    releases.dedup();
    if releases.len() > 1 {
        report.note(
            CHECK,
            format!("the servers are of different releases: {}", releases.join(", ")),
            "finish the upgrade",
        );
    }
    if hosts.len() > MAX_SERVERS {
        report.add_incomplete(
            CHECK,
            format!("only the first {MAX_SERVERS} of {} servers were asked", hosts.len()),
            "name fewer servers in --connect",
        );
    }
    facts
}

/// Returns whether so many of the voters are a majority that the failure of one ends.
fn is_smallest_majority(serving: usize, voters: usize) -> bool {
    serving == voters / 2 + 1 && serving < voters
}

async fn query_server(host: &str, tls: Option<&Tls>) -> ServerAnswers {
    let ask = async |word| ask_word(host, tls, word, MAX_ANSWER).await;
    let version = match ask("srvr").await {
        Ok(text) => Ok(ServerVersion::of_srvr(&text)),
        Err(error @ (NoAnswer::Unreachable(_) | NoAnswer::Tls(_))) => Err(error),
        // A server may allow `mntr` but not `srvr`.
        Err(error) => match ask("mntr").await {
            Ok(text) => Ok(ServerVersion::of_mntr(&text)),
            Err(_) => Err(error),
        },
    };
    let (mut conf, mut read_only) = (None, false);
    if !matches!(version, Err(NoAnswer::Unreachable(_) | NoAnswer::Tls(_))) {
        conf = ask("conf").await.ok();
        read_only = ask("isro").await.is_ok_and(|answer| answer.trim() == "ro");
    }
    ServerAnswers { host: host.to_owned(), version, conf, read_only }
}

/// Reports the number of open connections, and the limit for one client address.
fn check_connection_limit(host: &str, conf: &str, open: u32, kind: ServerKind, report: &mut Report) {
    let limit = parse_configuration(conf).get("maxClientCnxns").and_then(|limit| limit.parse::<u32>().ok());
    let Some(limit) = limit.filter(|limit| *limit > 0) else { return };
    let what = format!(
        "{host}: allows {limit} connections from one client address; {open} are open from all addresses"
    );
    if u64::from(open) * 5 < u64::from(limit) * 4 {
        return report.ok(CONNECTIONS, what);
    }
    let what = format!(
        "{what}; if most come from one host, it is near the limit, at which the server disconnects holders, too"
    );
    let remedy = format!(
        "raise {} above the number of clients on one host; 0 means no limit",
        name_connection_limit(kind)
    );
    report.note(CONNECTIONS, what, remedy);
}

/// Names the setting that lists the four-letter words to answer.
pub(super) fn name_words(kind: ServerKind) -> String {
    kind.name_setting("4lw.commands.whitelist", "--words")
}

/// Names the setting that limits the connections of one client address.
fn name_connection_limit(kind: ServerKind) -> String {
    kind.name_setting("maxClientCnxns", "--max-connections-per-address")
}

impl ServerFacts {
    /// Returns the program of the servers. Returns `Apache` if some of them are `zoolock serve`.
    pub(super) fn kind(&self) -> ServerKind {
        match self.zoolock {
            // `zoolock serve` listens on a Unix socket only in local mode.
            Some(true) if self.is_socket => ServerKind::Local,
            Some(true) => ServerKind::Serve,
            Some(false) => ServerKind::Apache,
            None => ServerKind::Unknown,
        }
    }

    /// Reports servers that accept connections, but answer no four-letter word and open no session.
    pub(super) fn report_without_answer(&self, report: &mut Report) {
        for host in &self.without_answer {
            report.error(
                CONNECTIONS,
                format!(
                    "{host}: accepts connections, but answers no words and opens no session; it may be at its limit \
                     of connections from this address (maxClientCnxns)"
                ),
                format!(
                    "end clients on this host, or raise {}; otherwise see the server's log",
                    name_connection_limit(self.kind())
                ),
            );
        }
    }

    /// Adds a server's answer to `conf`. The longest tick and the narrowest limits count, because any server may become
    /// the leader.
    fn add_configuration(&mut self, conf: &str) {
        let conf = parse_configuration(conf);
        let number = |name: &str| conf.get(name).and_then(|text| text.parse::<u64>().ok());
        let time = |name: &str| number(name).map(Duration::from_millis);
        self.tick = self.tick.max(time("tickTime"));
        self.limits.0 = self.limits.0.max(time("minSessionTimeout"));
        self.limits.1 = match (self.limits.1, time("maxSessionTimeout")) {
            (Some(known), Some(said)) => Some(known.min(said)),
            (known, said) => known.or(said),
        };
    }
}

/// Returns whether a connect string names a Unix socket.
fn is_socket(hosts: &str) -> bool {
    hosts.starts_with("unix:/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_failure_ends_the_smallest_majority() {
        let smallest = [(2, 3), (3, 4), (3, 5)];
        assert!(smallest.iter().all(|&(serving, voters)| is_smallest_majority(serving, voters)));
        let others = [(1, 1), (2, 2), (3, 3), (1, 3), (4, 5), (2, 5)];
        assert!(!others.iter().any(|&(serving, voters)| is_smallest_majority(serving, voters)));
    }

    #[test]
    fn longest_tick_and_narrowest_limits_count() {
        let mut facts = ServerFacts::default();
        facts.add_configuration("tickTime=2000\nminSessionTimeout=4000\nmaxSessionTimeout=40000\n");
        facts.add_configuration("tickTime=3000\nminSessionTimeout=6000\nmaxSessionTimeout=60000\n");
        assert_eq!(facts.tick, Some(Duration::from_secs(3)));
        assert_eq!(facts.limits, (Some(Duration::from_secs(6)), Some(Duration::from_secs(40))));
    }

    #[test]
    fn server_kind_follows_version_and_socket() {
        let kind = |zoolock, is_socket| ServerFacts { zoolock, is_socket, ..ServerFacts::default() }.kind();
        assert_eq!(kind(None, false), ServerKind::Unknown);
        // A server behind a socket that does not tell its version may be any server.
        assert_eq!(kind(None, true), ServerKind::Unknown);
        assert_eq!(kind(Some(false), false), ServerKind::Apache);
        assert_eq!(kind(Some(true), false), ServerKind::Serve);
        assert_eq!(kind(Some(true), true), ServerKind::Local);
        assert_eq!(local_server().kind(), ServerKind::Local);
    }
}
