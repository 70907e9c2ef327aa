//! `zoolock doctor`: checks whether locks work on the servers, and whether the existing locks are in order.
//!
//! * `servers.rs`, `four_letter_words.rs`: the answers of each server to four-letter words, without a session.
//! * `session.rs`: the granted session timeout, compared with the needs of a lease.
//! * `timing.rs`: the latency of requests, and the clock.
//! * `acl.rs`: directories that every client may change.
//! * `chroots.rs`: locks of clients with another chroot.
//! * `tree.rs`, `locks.rs`: the lock directories, their sequence numbers and their queues.
//! * `deadlocks.rs`: owners that wait for each other, and holders that do not react to a request to release.
//! * `finding.rs`: the report.
//!
//! `zoolock doctor` creates one ephemeral znode, and deletes it.

mod acl;
mod chroots;
mod deadlocks;
mod finding;
mod four_letter_words;
mod locks;
mod servers;
mod session;
mod timing;
mod tree;

use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};
use zoolock::Tls;
use zoolock::internals::{ConnectString, DEFAULT_ROOT};
use zoolock_client::{RequestError, RequestSession};
use zoolock_wire::Code;

use self::finding::Report;
use self::servers::ServerKind;
use crate::args::DoctorArgs;
use crate::base::exit::{Exit, Failure};
use crate::base::machine_file;
use crate::base::reporter::Reporter;
use crate::base::signals::Signals;
use crate::local;
use crate::plan::{ConnectionSettings, Context, Endpoint};
use crate::render::text::{TextStyle, print};
use crate::run::acquire::interruption_failure;
use crate::secrets::TlsFiles;
use crate::service::connect::{self, chroot_of, connect_for_requests};

/// Maximum time for all checks.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum time to close the session.
const CLOSE_BOUND: Duration = Duration::from_secs(1);

impl DoctorArgs {
    /// Examines the servers and the locks, and prints the findings. The worst finding decides the exit code.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let Context { global, reporter } = context;
        let service = &context.connection()?;
        let mut signals = Signals::listen()?;
        let (service_name, chroot) = match &service.endpoint {
            Endpoint::Remote { hosts, .. } => (hosts.clone(), chroot_of(hosts)),
            Endpoint::Local => ("local".to_owned(), String::new()),
        };
        let mut report = Report::new(&service_name, &service.root);
        if let Some(names) = global.machine.as_ref().ok().filter(|names| !names.is_empty()) {
            report.ok("settings", format!("{} sets {}", machine_file::path().display(), names.join(", ")));
        }
        let examined = tokio::select! {
            biased;
            signal = signals.next_end_signal() => return Err(interruption_failure(signal, "checking; the server expires the session")),
            examined = run_checks(&self, service, &chroot, &mut report, reporter) => examined,
        };
        reporter.clear_status();
        if let Err(failure) = &examined {
            let is_local = matches!(service.endpoint, Endpoint::Local);
            report.add_failure(failure.to_string(), is_local);
        }
        let printed = match global.json {
            true => print(&report.json()),
            false => print(&report.table(&TextStyle::of_stdout(global.color))),
        };
        reporter.note(report.summary());
        examined?;
        printed?;
        Ok(report.exit())
    }
}

/// Runs the checks and adds their findings to the report. The findings stay if a later check fails.
async fn run_checks(
    args: &DoctorArgs,
    service: &ConnectionSettings,
    chroot: &str,
    report: &mut Report,
    reporter: &Reporter,
) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    reporter.show_status("asking the servers");
    let (servers, tls) = servers_of(service).await?;
    let facts = match &service.endpoint {
        Endpoint::Local => servers::local_server(),
        Endpoint::Remote { .. } => servers::check_servers(&servers, tls.as_ref(), report).await,
    };
    reporter.show_status("connecting");
    let client = match connect_for_requests(service).await {
        Ok(client) => client,
        Err(failure) => {
            if failure.exit == Exit::UNAVAILABLE {
                facts.report_without_answer(report);
            }
            return Err(failure);
        }
    };
    if matches!(service.endpoint, Endpoint::Local) {
        let server = servers.join(", ");
        report.ok("server", format!("{server}: the local server of this user, `zoolock serve`"));
    }
    let checks = run_session_checks(&client, args, service, chroot, &facts, report, reporter);
    let examined = timeout_at(deadline, checks).await;
    let _ = timeout(CLOSE_BOUND, client.close()).await;
    examined.unwrap_or_else(|_| {
        let why = format!("the checks stopped after {} s: the servers answer slowly", PATIENCE.as_secs());
        report.add_incomplete("latency", why, "find out what is slow, or give a lower --limit");
        Ok(())
    })
}

async fn run_session_checks(
    client: &RequestSession,
    args: &DoctorArgs,
    service: &ConnectionSettings,
    chroot: &str,
    facts: &servers::ServerFacts,
    report: &mut Report,
    reporter: &Reporter,
) -> Result<(), Failure> {
    let granted = client.timeout();
    session::check_session(service.session_timeout, granted, facts, report);
    let root = format!("{chroot}{}", if service.root == "/" { "" } else { &service.root });
    let root = if root.is_empty() { "/".to_owned() } else { root };
    let existing = deepest_existing(client, chroot, &service.root, &root, facts.kind(), report).await?;
    reporter.show_status("measuring");
    timing::measure_latency(client, &existing, granted, facts.kind(), report).await;
    reporter.show_status("checking the locks");
    let tree = tree::read_tree(client, root.clone(), args.limit)
        .await
        .map_err(|error| request_failure(&root, &error))?;
    report.directories = tree.directories.len();
    if let Some(why) = &tree.stopped {
        report.add_incomplete("directories", why.clone(), "raise --limit, or name a --root with less in it");
    }
    // Only processes of this user and of root reach the server of local mode, whatever its lists allow.
    let has_credentials = facts.kind() != ServerKind::Local && service.endpoint.has_credentials();
    acl::check_acls(&tree, chroot, has_credentials, report);
    locks::check_sequence_numbers(&tree, chroot, report);
    if chroot.is_empty() || existing.starts_with(chroot) {
        chroots::check_chroot(client, chroot, &service.root, &tree, report).await;
    }
    match connect::connect(service, reporter).await {
        Ok(zoolock) => {
            let locks = locks::read_queues(&zoolock, &tree, chroot, report).await;
            locks::check_queues(&locks, &tree, chroot, report);
            deadlocks::check_deadlocks(&zoolock, &locks, service, report).await;
            deadlocks::check_revocations(&locks, service, report);
            connect::close(zoolock).await;
        }
        // A failure is reported, but does not end the checks, because the checks so far used
        // another session.
        Err(failure) => report.error("locks", failure.to_string(), "see the findings about the session"),
    }
    Ok(())
}

/// Returns the servers of the connect string, each with its port, and the TLS settings.
async fn servers_of(service: &ConnectionSettings) -> Result<(Vec<String>, Option<Tls>), Failure> {
    match &service.endpoint {
        Endpoint::Local => {
            let server = local::find_or_start_server(service.connect_timeout).await?;
            Ok((vec![server.address()?], None))
        }
        Endpoint::Remote { hosts, tls, .. } => {
            Ok((ConnectString::parse(hosts)?.servers(), tls.as_ref().map(TlsFiles::load)))
        }
    }
}

/// Returns the deepest existing znode on the path to the root. Reports a missing chroot or root.
async fn deepest_existing(
    client: &RequestSession,
    chroot: &str,
    root_in_chroot: &str,
    root: &str,
    kind: ServerKind,
    report: &mut Report,
) -> Result<String, Failure> {
    let exists = async |path: &str| match client.exists(path).await {
        Ok(stat) => Ok(stat.is_some()),
        Err(error) => Err(request_failure(path, &error)),
    };
    if !chroot.is_empty() && !exists(chroot).await? {
        chroots::report_missing_chroot(client, chroot, root_in_chroot, report).await;
    } else if !exists(root).await? {
        let what = format!(
            "{} does not exist: no lock has been acquired there yet",
            locks::without_chroot(root, chroot)
        );
        // On a new server with the default root, there is nothing to check.
        if chroot.is_empty()
            && root_in_chroot == DEFAULT_ROOT
            && matches!(kind, ServerKind::Local | ServerKind::Serve)
        {
            report.ok("root", what);
        } else {
            report.note("root", what, "nothing; check the spelling of --root if there should be locks");
        }
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

/// Returns the failure of a request for a path.
fn request_failure(path: &str, error: &RequestError) -> Failure {
    let exit = match error.code() {
        Some(Code::NoAuth | Code::AuthFailed) => Exit::DENIED,
        _ => Exit::UNAVAILABLE,
    };
    Failure::new(exit, format!("{path}: {error}; check --auth and the server"))
}
