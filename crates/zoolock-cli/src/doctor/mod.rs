//! `zoolock doctor`: checks whether locks work on the servers, and whether the existing locks are in order.
//!
//! * `servers.rs`, `words.rs`: the answers of each server to four-letter words, without a session.
//! * `session.rs`: the granted session timeout, compared with the needs of a lease.
//! * `timing.rs`: the latency of requests, and the clock.
//! * `acl.rs`: access without credentials, and access control lists.
//! * `chroots.rs`: locks of clients with another chroot.
//! * `tree.rs`, `locks.rs`: the lock directories, their sequence numbers and their queues.
//! * `orphans.rs`: znodes of contenders whose session has ended.
//! * `finding.rs`: the report.
//!
//! The command creates one ephemeral znode, and deletes it.

mod acl;
mod chroots;
mod finding;
mod locks;
mod orphans;
mod servers;
mod session;
mod timing;
mod tree;
mod words;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use zoolock::Tls;
use zoolock_client::{RequestError, Requests};
use zoolock_wire::Code;

use self::acl::Everybody;
use self::finding::Report;
use crate::args::ColorWhen;
use crate::base::exit::{Exit, Failure};
use crate::base::signals::Signals;
use crate::base::talk::Talk;
use crate::local;
use crate::plan::{Doctor, Endpoint, Service};
use crate::render::text::{Look, print};
use crate::run::acquire::interrupted;
use crate::service::connect::{self, chroot_of, connect_plainly};

/// Maximum time to close the session.
const FAREWELL: Duration = Duration::from_secs(5);

/// Examines the servers and the locks, and prints the findings. With `--strict`, the worst finding decides the exit code.
pub(crate) async fn doctor(plan: Doctor, color: ColorWhen, talk: &Arc<Talk>) -> Result<Exit, Failure> {
    let mut signals = Signals::listen().map_err(|error| Failure::unavailable(error.to_string()))?;
    let (named, chroot) = match &plan.service.endpoint {
        Endpoint::Remote { hosts, .. } => (hosts.clone(), chroot_of(hosts)),
        Endpoint::Local => ("local".to_owned(), String::new()),
    };
    let mut report = Report::new(&named, &plan.service.root);
    let looked = tokio::select! {
        biased;
        signal = signals.end() => return Err(interrupted(signal, "looking; the server ends the session by itself")),
        looked = examine(&plan, &chroot, &mut report, talk) => looked,
    };
    talk.clear_status();
    if let Err(failure) = &looked {
        report.failed(failure.to_string());
    }
    let printed = match plan.json {
        true => print(&report.json()),
        false => print(&report.table(&Look::of_stdout(color))),
    };
    talk.note(report.summary());
    looked?;
    printed?;
    Ok(report.exit(plan.strict))
}

/// Runs the checks and adds their findings to the report. The findings stay if a later check fails.
async fn examine(plan: &Doctor, chroot: &str, report: &mut Report, talk: &Talk) -> Result<(), Failure> {
    let service = &plan.service;
    talk.status("asking the servers");
    let (servers, tls) = servers_of(service).await?;
    let known = match &service.endpoint {
        Endpoint::Local => servers::our_own(servers),
        Endpoint::Remote { .. } => servers::look(&servers, tls.as_ref(), report).await,
    };
    talk.status("connecting");
    let client = match connect_plainly(service).await {
        Ok(client) => client,
        Err(failure) => {
            if failure.exit == Exit::UNAVAILABLE {
                known.judge_silent(report);
            }
            return Err(failure);
        }
    };
    known.is_there(report);
    let looked = examine_with(&client, plan, chroot, &known, report, talk).await;
    let _ = timeout(FAREWELL, client.close()).await;
    looked
}

async fn examine_with(
    client: &Requests,
    plan: &Doctor,
    chroot: &str,
    known: &servers::Known,
    report: &mut Report,
    talk: &Talk,
) -> Result<(), Failure> {
    let service = &plan.service;
    let granted = client.timeout();
    session::judge(service.session_timeout, granted, known, report);
    let root = format!("{chroot}{}", if service.root == "/" { "" } else { &service.root });
    let root = if root.is_empty() { "/".to_owned() } else { root };
    let there = standing(client, chroot, &service.root, &root, report).await?;
    talk.status("measuring");
    timing::measure(client, &there, granted, report).await;
    let open = acl::judge_access(service, known, &there, report).await;
    talk.status("looking at the locks");
    let tree = tree::walk(client, root.clone(), plan.limit).await.map_err(|error| failed(&root, &error))?;
    report.directories = tree.directories.len();
    if let Some(why) = &tree.stopped {
        report.stopped_early("directories", why.clone(), "raise --limit, or name a --root with less in it");
    }
    let everybody = match (open, known.own) {
        (true, _) => Everybody::AtAll,
        (false, false) => Everybody::WithCredentials,
        (false, true) => Everybody::OfThisUser,
    };
    acl::judge(&tree, chroot, &service.root, everybody, report);
    locks::judge_numbers(&tree, chroot, report);
    if chroot.is_empty() || there.starts_with(chroot) {
        chroots::judge(client, chroot, &service.root, &tree, report).await;
    }
    match connect::connect(service, talk).await {
        Ok(zoolock) => {
            locks::look(&zoolock, &tree, chroot, report).await;
            connect::close(zoolock).await;
        }
        // The session was checked above. Here the library opens another one, for locks.
        Err(failure) => report.error("locks", failure.to_string(), "see what was found about the session"),
    }
    // `zoolock serve` ends a session and deletes its ephemeral znodes in one transaction, so it leaves no orphans.
    if !known.own {
        orphans::judge(known, &root, chroot, report).await;
    }
    Ok(())
}

/// Returns the servers of the connect string, each with its port, and the TLS settings.
async fn servers_of(service: &Service) -> Result<(Vec<String>, Option<Tls>), Failure> {
    match &service.endpoint {
        Endpoint::Local => {
            let server = local::running(service.connect_timeout).await?;
            Ok((vec![server.address()?], None))
        }
        Endpoint::Remote { hosts, .. } if servers::is_socket(hosts) => Ok((vec![hosts.clone()], None)),
        Endpoint::Remote { hosts, tls, .. } => {
            let hosts = hosts.split('/').next().unwrap_or_default().split(',');
            Ok((hosts.map(with_port).collect(), tls.clone()))
        }
    }
}

/// Adds the default port if there is none. An IPv6 address in brackets contains colons.
fn with_port(host: &str) -> String {
    let has_port =
        host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok() && !host.ends_with(']'));
    if has_port { host.to_owned() } else { format!("{host}:2181") }
}

/// Returns the deepest existing znode on the path to the root. Reports a missing chroot or root.
async fn standing(
    client: &Requests,
    chroot: &str,
    root_in_chroot: &str,
    root: &str,
    report: &mut Report,
) -> Result<String, Failure> {
    let exists = async |path: &str| match client.exists(path).await {
        Ok(stat) => Ok(stat.is_some()),
        Err(error) => Err(failed(path, &error)),
    };
    if !chroot.is_empty() && !exists(chroot).await? {
        chroots::judge_missing(client, chroot, root_in_chroot, report).await;
    } else if !exists(root).await? {
        report.note(
            "root",
            format!("{} does not exist: nobody has taken a lock there yet", locks::shown(root, chroot)),
            "nothing; check the spelling of --root if there should be locks",
        );
    } else {
        return Ok(root.to_owned());
    }
    let mut above = root;
    while let Some(at) = above.rfind('/').filter(|at| *at > 0) {
        above = &above[..at];
        if exists(above).await? {
            return Ok(above.to_owned());
        }
    }
    Ok("/".to_owned())
}

fn failed(path: &str, error: &RequestError) -> Failure {
    let exit = match error.code() {
        Some(Code::NoAuth | Code::AuthFailed) => Exit::DENIED,
        _ => Exit::UNAVAILABLE,
    };
    Failure::new(exit, format!("{path}: {error}; check --auth and the service"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_port_has_the_usual_one() {
        assert_eq!(with_port("zk1"), "zk1:2181");
        assert_eq!(with_port("zk1:2182"), "zk1:2182");
        assert_eq!(with_port("[::1]"), "[::1]:2181");
        assert_eq!(with_port("[::1]:2182"), "[::1]:2182");
    }
}
