//! Checks which clients the servers admit, and which changes the access control lists allow to everyone.

use std::time::Duration;

use tokio::time::timeout;
use zoolock::Tls;
use zoolock_client::RequestError;
use zoolock_wire::{Acl, Code, perms};

use super::finding::{Level, Report};
use super::locks::{abbreviate_list, without_chroot};
use super::servers::{ServerFacts, ServerKind};
use super::tree::{ListedTree, OWN_DIRECTORIES};
use crate::base::exit::{Exit, Failure};
use crate::plan::{ConnectionSettings, Endpoint};
use crate::service::connect::connect_hosts_for_requests;

/// Maximum time to open a session without credentials.
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);

/// Maximum time to test whether a session without credentials has permission to read. It includes
/// the time in which the library diagnoses a refused connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reports whether the servers admit clients without credentials. Returns true if they do, or if
/// the test failed.
pub(super) async fn check_access(
    service: &ConnectionSettings,
    facts: &ServerFacts,
    place: &str,
    report: &mut Report,
) -> bool {
    let kind = facts.kind();
    if kind == ServerKind::Local {
        report.ok("access", "only processes of the server's user and of root can connect");
        return false;
    }
    let open = match &service.endpoint {
        endpoint if !endpoint.has_credentials() => Some(true),
        Endpoint::Remote { hosts, tls, .. } => admits_anonymous(hosts, tls.as_ref(), service, place).await,
        Endpoint::Local => None,
    };
    let Some(open) = open else {
        report.note(
            "access",
            "could not test access without credentials",
            "try `zoolock ls` without credentials, and see the findings about the servers",
        );
        return true;
    };
    let level = if facts.loopback { Level::Note } else { Level::Warning };
    let clients = if facts.loopback { "any local user" } else { "any client that can connect" };
    let over = if facts.tls.is_some() { "over TLS" } else { "over a plain connection" };
    let (level, what, remedy) = match (open, kind) {
        (true, ServerKind::Local | ServerKind::Serve) => {
            (level, format!("{clients} has access without credentials, {over}"), restrict_access(kind))
        }
        (true, ServerKind::Apache) => (
            level,
            format!(
                "{clients} has access without credentials, {over}; a client that knows a session id, which every \
                 ephemeral znode shows, can take that session over"
            ),
            restrict_access(kind),
        ),
        (true, ServerKind::Unknown) => (
            level,
            format!(
                "{clients} has access without credentials, {over}; if this is Apache ZooKeeper, a client that knows a \
                 session id, which every ephemeral znode shows, can take that session over"
            ),
            restrict_access(kind),
        ),
        (false, ServerKind::Local | ServerKind::Serve) => {
            (Level::Ok, "no access without credentials".to_owned(), "")
        }
        (false, _) if facts.tls.is_some() => (
            Level::Ok,
            "no access without a certificate or other credentials; an authenticated client that knows a session id can \
             take that session over, and on a plain port any client can: disable the plain port"
                .to_owned(),
            "",
        ),
        (false, _) => (
            Level::Note,
            "no access without credentials; but any client that can connect and knows a session id, which every \
             ephemeral znode shows, can take that session over"
                .to_owned(),
            restrict_access(ServerKind::Apache),
        ),
    };
    report.add("access", level, what, (!remedy.is_empty()).then(|| remedy.to_owned()));
    open
}

/// Names the ways to restrict access to a server.
fn restrict_access(kind: ServerKind) -> &'static str {
    match kind {
        ServerKind::Local | ServerKind::Serve => {
            "`zoolock serve --require-auth` with --users or client certificates, or a firewall"
        }
        ServerKind::Apache => {
            "restrict access with a firewall, or with TLS and client certificates (secureClientPort alone)"
        }
        ServerKind::Unknown => {
            "restrict access with a firewall, or with TLS and client certificates (secureClientPort alone, or \
             `zoolock serve --require-auth`)"
        }
    }
}

/// Returns whether a session without credentials has permission to read, or `None` if the test
/// failed.
async fn admits_anonymous(
    hosts: &str,
    tls: Option<&Tls>,
    service: &ConnectionSettings,
    place: &str,
) -> Option<bool> {
    let read = async {
        let anonymous = tls.map(Tls::anonymous);
        let connect_timeout = service.connect_timeout.min(CONNECT_PATIENCE);
        let service = ConnectionSettings { connect_timeout, ..service.clone() };
        let client = connect_hosts_for_requests(hosts, None, anonymous.as_ref(), &service).await?;
        client.exists(place).await.map(drop).map_err(|error| request_failure(place, &error))
    };
    timeout(PATIENCE, read).await.ok().and_then(|result| was_admitted(&result))
}

/// Returns whether the servers admitted the client. Returns `None` after an error that is no
/// refusal, because a later attempt may succeed.
fn was_admitted(result: &Result<(), Failure>) -> Option<bool> {
    match result {
        Ok(()) => Some(true),
        Err(failure) if failure.exit == Exit::DENIED => Some(false),
        Err(_) => None,
    }
}

/// The clients that an access control list entry for everyone (`world:anyone`) admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorldClients {
    All,
    /// All processes of this machine.
    AllLocal,
    Authenticated,
    /// Only processes of the server's user and of root can connect.
    OneUser,
}

impl WorldClients {
    /// Returns the clients of these servers. `open`: set if clients without credentials are admitted.
    pub(super) fn of(facts: &ServerFacts, open: bool) -> WorldClients {
        match (open, facts.kind()) {
            (_, ServerKind::Local) => WorldClients::OneUser,
            (true, _) if facts.loopback => WorldClients::AllLocal,
            (true, _) => WorldClients::All,
            (false, _) => WorldClients::Authenticated,
        }
    }
}

/// Reports the directories that everyone may change.
pub(super) fn check_acls(
    tree: &ListedTree,
    chroot: &str,
    root: &str,
    world_clients: WorldClients,
    kind: ServerKind,
    report: &mut Report,
) {
    let (clients, level) = match world_clients {
        WorldClients::All => ("any client", Level::Warning),
        WorldClients::AllLocal => ("any local user", Level::Note),
        WorldClients::Authenticated => ("any authenticated client", Level::Note),
        WorldClients::OneUser => {
            let count = tree.directories.len();
            if count > 0 {
                let what = format!(
                    "{count} directories: only processes of the server's user and of root may change them"
                );
                report.ok("acl", what);
            }
            return;
        }
    };
    let (mut owned, mut writable, mut creatable, mut hidden, mut closed) = (vec![], vec![], vec![], 0, 0);
    for directory in &tree.directories {
        let path = without_chroot(&directory.path, chroot);
        let Some(acl) = &directory.acl else {
            hidden += 1;
            continue;
        };
        let of_root = path == root
            || OWN_DIRECTORIES.iter().any(|own| path == format!("{}/{own}", root.trim_end_matches('/')));
        match world_rights(acl) {
            WorldRights::Write if of_root => owned.push(path.to_owned()),
            WorldRights::Write => writable.push(path.to_owned()),
            WorldRights::Create => creatable.push(path.to_owned()),
            WorldRights::None => closed += 1,
        }
    }
    let remedy = format!(
        "{}; or give all clients --auth: new znodes then belong to them; existing znodes keep their lists",
        restrict_access(kind)
    );
    if !owned.is_empty() {
        let what = format!("{clients} may delete or change what is in {}", abbreviate_list(&owned));
        report.add("acl", level, what, Some(remedy.clone()));
    }
    if !writable.is_empty() {
        let what = format!(
            "{clients} may change {} of {} directories, and break the locks there: {}",
            writable.len(),
            tree.directories.len(),
            abbreviate_list(&writable)
        );
        report.add("acl", level, what, Some(remedy));
    }
    if !creatable.is_empty() {
        let what = format!("{clients} may queue in {}", abbreviate_list(&creatable));
        report.add("acl", Level::Note, what, Some("nothing, if this is intended".to_owned()));
    }
    if hidden > 0 {
        let remedy = "give credentials that may read them (--auth)";
        report.note(
            "acl",
            format!("the access control lists of {hidden} directories may not be read"),
            remedy,
        );
    }
    if closed > 0 && owned.is_empty() && writable.is_empty() && creatable.is_empty() {
        report.ok("acl", format!("{closed} directories: only the identities in their lists may change them"));
    }
}

/// The rights that an access control list gives to everyone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorldRights {
    /// No right that changes anything.
    None,
    /// The right to create znodes, and so to queue.
    Create,
    /// The right to delete or overwrite znodes, or to change the list.
    Write,
}

fn world_rights(acl: &[Acl]) -> WorldRights {
    let world = acl.iter().filter(|acl| acl.identity.scheme == "world" && acl.identity.id == "anyone");
    let may = world.fold(0, |may, acl| may | acl.perms);
    match may {
        _ if may & (perms::WRITE | perms::DELETE | perms::ADMIN) != 0 => WorldRights::Write,
        _ if may & perms::CREATE != 0 => WorldRights::Create,
        _ => WorldRights::None,
    }
}

/// Returns the failure of a request for a path.
pub(super) fn request_failure(path: &str, error: &RequestError) -> Failure {
    let exit = match error.code() {
        Some(Code::NoAuth | Code::AuthFailed) => Exit::DENIED,
        _ => Exit::UNAVAILABLE,
    };
    Failure::new(exit, format!("{path}: {error}; check --auth and the server"))
}

#[cfg(test)]
mod tests {
    use zoolock_wire::Identity;

    use super::super::servers::local_server;
    use super::super::tree::ListedDirectory;
    use super::*;

    #[test]
    fn only_refusal_means_not_admitted() {
        assert_eq!(was_admitted(&Ok(())), Some(true));
        for refusal in [Code::NoAuth, Code::AuthFailed] {
            let refusal = RequestError::Refused(refusal.number());
            assert_eq!(was_admitted(&Err(request_failure("/", &refusal))), Some(false));
        }
        for other in [
            request_failure("/", &RequestError::ConnectionLoss),
            Failure::unavailable("no session"),
            Failure::usage("?"),
        ] {
            assert_eq!(was_admitted(&Err(other)), None);
        }
    }

    #[test]
    fn open_directories_are_a_warning_beyond_this_machine() {
        let finding = |facts: ServerFacts, open| {
            let mut report = Report::new("h", "/locks");
            let directory = ListedDirectory {
                path: "/locks/x".to_owned(),
                children: 0,
                created_children: 0,
                contenders: Vec::new(),
                has_foreign_leases: false,
                acl: Some(vec![Acl::anyone(perms::ALL)]),
                unlisted: None,
            };
            let tree = ListedTree { directories: vec![directory], stopped: None };
            check_acls(&tree, "", "/locks", WorldClients::of(&facts, open), facts.kind(), &mut report);
            report.findings.pop().expect("one finding")
        };
        let facts = |loopback| ServerFacts { zoolock: Some(false), loopback, ..ServerFacts::default() };
        let remote = finding(facts(false), true);
        assert_eq!(remote.level, Level::Warning);
        assert!(remote.what.contains("may change 1 of 1 directories"), "{}", remote.what);
        assert!(!remote.remedy.expect("a warning has a remedy").contains("zoolock serve"));
        assert_eq!(finding(facts(true), true).level, Level::Note);
        assert_eq!(finding(facts(false), false).level, Level::Note);
        assert_eq!(finding(local_server(Vec::new()), false).level, Level::Ok);
    }

    #[test]
    fn world_rights_are_the_union_of_entries() {
        let world = Acl::anyone;
        let digest = Acl { perms: perms::ALL, identity: Identity::new("digest", "me:x") };
        assert_eq!(world_rights(std::slice::from_ref(&digest)), WorldRights::None);
        assert_eq!(world_rights(&[digest.clone(), world(perms::READ)]), WorldRights::None);
        assert_eq!(world_rights(&[world(perms::READ), world(perms::CREATE)]), WorldRights::Create);
        for write in [perms::WRITE, perms::DELETE, perms::ADMIN, perms::ALL] {
            assert_eq!(world_rights(&[digest.clone(), world(write)]), WorldRights::Write);
        }
    }
}
