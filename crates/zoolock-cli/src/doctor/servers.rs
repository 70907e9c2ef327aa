//! Asks each server of the connect string for its settings and its state.

use std::net::IpAddr;
use std::time::Duration;

use futures_util::future::join_all;
use zoolock::Tls;
use zoolock_server::Server;

use super::finding::Report;
use super::words::{Identity, Silence, ask, configuration};

const CHECK: &str = "server";
const CONNECTIONS: &str = "connections";
/// Maximum number of servers that are asked.
const MOST: usize = 16;
/// Maximum size of an answer in bytes. The expected answers are much shorter.
const ANSWER: usize = 1 << 20;
/// The first release with container znodes. On older servers, empty directories of free locks stay.
const CONTAINERS: (u32, u32, u32) = (3, 5, 3);

/// The facts from the answers of all servers.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Addresses of servers that accept connections.
    pub(super) there: Vec<String>,
    /// Servers that accept connections and answer no four-letter word.
    pub(super) silent: Vec<String>,
    pub(super) tick: Option<Duration>,
    /// The shortest and the longest session timeout that all servers grant.
    pub(super) limits: (Option<Duration>, Option<Duration>),
    /// True if all servers with a known version are `zoolock serve`. `None` if no version is known.
    pub(super) zoolock: Option<bool>,
    /// True if all servers are on this machine.
    pub(super) loopback: bool,
    /// The TLS settings with which the servers are asked.
    pub(super) tls: Option<Tls>,
    /// Set for the server of local mode. Only processes of this user can connect to its socket.
    pub(super) own: bool,
}

/// The answers of one server.
struct Answers {
    host: String,
    identity: Result<Option<Identity>, Silence>,
    conf: Option<String>,
    read_only: bool,
}

/// Returns the facts about the server of local mode, which is not asked.
pub(super) fn our_own(there: Vec<String>) -> Known {
    Known {
        there,
        tick: Some(Server::DEFAULT_TICK),
        zoolock: Some(true),
        loopback: true,
        own: true,
        ..Known::default()
    }
}

/// Asks the servers for their settings and their state, and reports findings about each.
pub(super) async fn look(hosts: &[String], tls: Option<&Tls>, report: &mut Report) -> Known {
    let answers =
        join_all(hosts.iter().filter(|host| !is_socket(host)).take(MOST).map(|host| interview(host, tls)))
            .await;
    let loopback = hosts.iter().all(|host| is_loopback(host));
    let mut known = Known { loopback, tls: tls.cloned(), ..Known::default() };
    let mut modes = Vec::new();
    let mut releases = Vec::new();
    for Answers { host, identity, conf, read_only } in answers {
        match identity {
            Err(Silence::Unreachable(why)) => {
                report.warn(
                    CHECK,
                    format!("{host}: cannot be reached ({why})"),
                    "start it, open the way to it, or take it out of --connect",
                );
                continue;
            }
            Err(Silence::Tls(why)) => {
                report.error(
                    CHECK,
                    format!("{host}: {why}"),
                    "correct its certificate, or our options of TLS (--cacert, --cert, --key)",
                );
                continue;
            }
            Err(Silence::Refused | Silence::TooLong) | Ok(None) => {
                if conf.is_none() {
                    known.silent.push(host.clone());
                }
                report.note(
                    CHECK,
                    format!("{host}: is there, but says neither its version nor its mode"),
                    "have it answer `srvr` (4lw.commands.whitelist; `zoolock serve --words`)",
                );
            }
            Ok(Some(identity)) => {
                if let (Some(conf), Some(open)) = (&conf, identity.connections) {
                    judge_connections(&host, conf, open, report);
                }
                known.zoolock = Some(known.zoolock.unwrap_or(true) && identity.zoolock().is_some());
                if identity.numbers().is_some_and(|numbers| numbers < CONTAINERS) {
                    report.warn(
                        CHECK,
                        format!(
                            "{host}: {}, which has no containers: directories of free locks stay",
                            identity.described()
                        ),
                        "upgrade it to 3.5.3 or later",
                    );
                } else {
                    report.ok(CHECK, format!("{host}: {}", identity.described()));
                }
                modes.extend(identity.mode.clone());
                releases.push(identity.release().to_owned());
            }
        }
        if read_only {
            report.warn(
                CHECK,
                format!("{host}: serves reads only, since it sees no majority of its ensemble"),
                "find out what cut it off: no lock can be taken there",
            );
        }
        if let Some(conf) = conf {
            known.learn(&conf);
        }
        known.there.push(host);
    }
    if known.there.len() > 1 && modes.iter().any(|mode| mode == "standalone") {
        report.error(
            CHECK,
            "several servers are named and one of them is standalone: they are no ensemble, and clients of one do \
             not exclude those of another",
            "name one server, or the members of one ensemble; all is well if they are names of the same server",
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
    if hosts.len() > MOST {
        report.stopped_early(
            CHECK,
            format!("only the first {MOST} of {} servers were asked", hosts.len()),
            "name fewer",
        );
    }
    known
}

async fn interview(host: &str, tls: Option<&Tls>) -> Answers {
    let ask = async |word| ask(host, tls, word, ANSWER).await;
    let identity = match ask("srvr").await {
        Ok(text) => Ok(Identity::of_srvr(&text)),
        Err(silence @ (Silence::Unreachable(_) | Silence::Tls(_))) => Err(silence),
        // A server may allow only one of the two words.
        Err(silence) => match ask("mntr").await {
            Ok(text) => Ok(Identity::of_mntr(&text)),
            Err(_) => Err(silence),
        },
    };
    let (mut conf, mut read_only) = (None, false);
    if !matches!(identity, Err(Silence::Unreachable(_) | Silence::Tls(_))) {
        conf = ask("conf").await.ok();
        read_only = ask("isro").await.is_ok_and(|answer| answer.trim() == "ro");
    }
    Answers { host: host.to_owned(), identity, conf, read_only }
}

/// Compares the number of open connections with the limit for one client address.
fn judge_connections(host: &str, conf: &str, open: u32, report: &mut Report) {
    let limit = configuration(conf).get("maxClientCnxns").and_then(|limit| limit.parse::<u32>().ok());
    let Some(limit) = limit.filter(|limit| *limit > 0) else { return };
    let what = format!(
        "{host}: allows {limit} connections from one client address (maxClientCnxns); {open} are open from all addresses"
    );
    if u64::from(open) * 5 < u64::from(limit) * 4 {
        return report.ok(CONNECTIONS, what);
    }
    let what = format!(
        "{what}; if most come from one host, that one is near the limit, at which the server hangs up on holders, too"
    );
    let remedy = format!("raise {RAISE} above the number of clients on one host; 0 means no limit");
    report.note(CONNECTIONS, what, remedy);
}

/// The settings that limit the connections of one client address.
const RAISE: &str = "maxClientCnxns (`zoolock serve --max-connections-per-address`)";

impl Known {
    /// Reports servers that accept connections, but answer no word and open no session.
    pub(super) fn judge_silent(&self, report: &mut Report) {
        for host in &self.silent {
            report.error(
                CONNECTIONS,
                format!(
                    "{host}: accepts connections, but answers no words and opens no session; it may be at its limit \
                     of connections from this address (maxClientCnxns)"
                ),
                format!("end clients on this host, or raise {RAISE}; otherwise see the server's log"),
            );
        }
    }

    /// Reports that a session was opened, if the server is this user's server.
    pub(super) fn is_there(&self, report: &mut Report) {
        if self.own {
            let there = self.there.join(", ");
            report.ok(CHECK, format!("{there}: the local server of this user, `zoolock serve`"));
        }
    }

    /// Adds an answer to `conf`. The longest tick and the narrowest limits count, because any of the
    /// servers may become the leader.
    fn learn(&mut self, conf: &str) {
        let conf = configuration(conf);
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

/// Returns whether a connect string names a Unix socket. It is not asked four-letter words.
pub(super) fn is_socket(hosts: &str) -> bool {
    hosts.starts_with("unix:/")
}

/// Returns whether an address is on this machine.
fn is_loopback(host: &str) -> bool {
    if is_socket(host) {
        return true;
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_ticks_and_the_narrowest_limits_count() {
        let mut known = Known::default();
        known.learn("tickTime=2000\nminSessionTimeout=4000\nmaxSessionTimeout=40000\n");
        known.learn("tickTime=3000\nminSessionTimeout=6000\nmaxSessionTimeout=60000\n");
        assert_eq!(known.tick, Some(Duration::from_secs(3)));
        assert_eq!(known.limits, (Some(Duration::from_secs(6)), Some(Duration::from_secs(40))));
    }

    #[test]
    fn only_this_machine_is_this_machine() {
        for host in ["127.0.0.1:2181", "localhost:1", "[::1]:2181", "unix:/run/socket"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["10.0.0.1:2181", "zk1:2181", "[fe80::1]:2181"] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
