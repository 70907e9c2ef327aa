//! Checks which clients the servers admit, and which changes the access control lists allow to everyone.

use std::time::Duration;

use tokio::time::timeout;
use zoolock::Tls;
use zoolock_wire::{Acl, perms};

use super::failed;
use super::finding::{Level, Report};
use super::locks::{named, shown};
use super::servers::Known;
use super::tree::{OWN, Tree};
use crate::base::exit::{Exit, Failure};
use crate::plan::{Endpoint, Service};
use crate::service::connect::connect_as;

/// Maximum time to open a session without credentials.
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);

/// Maximum time until it is known whether a session without credentials may read. Includes the diagnosis of a refusal.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reports whether clients without credentials are admitted. Returns true if they are, or if that could not be tried.
pub(super) async fn judge_access(service: &Service, known: &Known, place: &str, report: &mut Report) -> bool {
    if known.own {
        report.ok("access", "only processes of this user and of root can connect".to_owned());
        return false;
    }
    let open = match &service.endpoint {
        endpoint if !endpoint.has_credentials() => Some(true),
        Endpoint::Remote { hosts, tls, .. } => gets_in(hosts, tls.as_ref(), service, place).await,
        Endpoint::Local => None,
    };
    let Some(open) = open else {
        report.note(
            "access",
            "whether somebody gets in without credentials could not be tried",
            "try `zoolock ls` without them, and see what was found about the servers",
        );
        return true;
    };
    let zoolock = known.zoolock == Some(true);
    let level = if known.loopback { Level::Note } else { Level::Warning };
    let whoever = if known.loopback { "whoever is on this machine" } else { "whoever reaches the service" };
    let over = if known.tls.is_some() { "over TLS" } else { "over a plain connection" };
    let (level, what, remedy) = match (open, zoolock) {
        (true, true) => (
            level,
            format!("{whoever} gets in without credentials, {over}"),
            "`zoolock serve --require-auth` with --users or client certificates, or a firewall",
        ),
        (true, false) => (
            level,
            format!(
                "{whoever} gets in without credentials, {over}; and who knows the id of a session, which \
                 every node of it shows, can take the session over"
            ),
            "let a firewall choose who reaches it, or TLS with client certificates (secureClientPort alone)",
        ),
        (false, true) => (Level::Ok, "nobody gets in without credentials".to_owned(), ""),
        (false, false) if known.tls.is_some() => (
            Level::Ok,
            "nobody gets in without a certificate or other credentials; whoever has one and knows the id of a session can \
             take it over, and on a plain port beside this one everybody can: see to it that there is none"
                .to_owned(),
            "",
        ),
        (false, false) => (
            Level::Note,
            "nobody gets in without credentials; but who reaches the service and knows the id of a session, which every \
             node of it shows, can take the session over without any"
                .to_owned(),
            "let a firewall choose who reaches it, or TLS with client certificates (secureClientPort alone)",
        ),
    };
    report.add("access", level, what, (!remedy.is_empty()).then(|| remedy.to_owned()));
    open
}

/// Returns whether a session without credentials may read. `None` if that is not known.
async fn gets_in(hosts: &str, tls: Option<&Tls>, service: &Service, place: &str) -> Option<bool> {
    let look = async {
        let anonymous = tls.map(Tls::anonymous);
        let connect_timeout = service.connect_timeout.min(CONNECT_PATIENCE);
        let service = Service { connect_timeout, ..service.clone() };
        let client = connect_as(hosts, None, anonymous.as_ref(), &service).await?;
        client.exists(place).await.map(drop).map_err(|error| failed(place, &error))
    };
    timeout(PATIENCE, look).await.ok().and_then(|looked| admitted(&looked))
}

/// Returns whether the client was admitted. Only a refusal means that it was not: after another
/// error, a later attempt may succeed.
fn admitted(looked: &Result<(), Failure>) -> Option<bool> {
    match looked {
        Ok(()) => Some(true),
        Err(failure) if failure.exit == Exit::DENIED => Some(false),
        Err(_) => None,
    }
}

/// The clients to which an access control list entry for everyone applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Everybody {
    AtAll,
    WithCredentials,
    /// Only processes of this user can connect.
    OfThisUser,
}

/// Reports the directories that everyone may change.
pub(super) fn judge(tree: &Tree, chroot: &str, root: &str, everybody: Everybody, report: &mut Report) {
    let (everybody, level) = match everybody {
        Everybody::AtAll => ("anybody", Level::Warning),
        Everybody::WithCredentials => ("whoever has credentials", Level::Note),
        Everybody::OfThisUser => {
            let count = tree.directories.len();
            if count > 0 {
                let what = format!("{count} directories can be changed by processes of this user alone");
                report.ok("acl", what);
            }
            return;
        }
    };
    let (mut owned, mut writable, mut creatable, mut hidden, mut closed) = (vec![], vec![], vec![], 0, 0);
    for directory in &tree.directories {
        let path = shown(&directory.path, chroot);
        let Some(acl) = &directory.acl else {
            hidden += 1;
            continue;
        };
        let of_root =
            path == root || OWN.iter().any(|own| path == format!("{}/{own}", root.trim_end_matches('/')));
        match of_everybody(acl) {
            Open::Writable if of_root => owned.push(path.to_owned()),
            Open::Writable => writable.push(path.to_owned()),
            Open::Creatable => creatable.push(path.to_owned()),
            Open::No => closed += 1,
        }
    }
    let remedy = "let only those reach the service who may (a firewall, `zoolock serve --require-auth`), or give all \
                  clients --auth: what they make from then on is theirs alone; what is there keeps its list";
    if !owned.is_empty() {
        let what = format!("{everybody} may delete or change what is in {}", named(&owned));
        report.add("acl", level, what, Some(remedy.to_owned()));
    }
    if !writable.is_empty() {
        let what = format!(
            "{everybody} may take away locks in {} of {} directories: {}",
            writable.len(),
            tree.directories.len(),
            named(&writable)
        );
        report.add("acl", level, what, Some(remedy.to_owned()));
    }
    if !creatable.is_empty() {
        let what = format!("{everybody} may queue in {}", named(&creatable));
        report.add("acl", Level::Note, what, Some("nothing, if that is what you want".to_owned()));
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
        report.ok("acl", format!("{closed} directories can be changed only by those who were named"));
    }
}

/// The rights that an access control list gives to everyone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    /// None that changes anything.
    No,
    /// The right to create znodes, and so to queue.
    Creatable,
    /// The right to delete or overwrite znodes, or to change the list.
    Writable,
}

fn of_everybody(acl: &[Acl]) -> Open {
    let world = acl.iter().filter(|acl| acl.who.scheme == "world" && acl.who.id == "anyone");
    let may = world.fold(0, |may, acl| may | acl.perms);
    match may {
        _ if may & (perms::WRITE | perms::DELETE | perms::ADMIN) != 0 => Open::Writable,
        _ if may & perms::CREATE != 0 => Open::Creatable,
        _ => Open::No,
    }
}

#[cfg(test)]
mod tests {
    use zoolock_client::RequestError;
    use zoolock_wire::{Code, Identity};

    use super::*;

    #[test]
    fn only_who_is_refused_does_not_get_in() {
        assert_eq!(admitted(&Ok(())), Some(true));
        for refusal in [Code::NoAuth, Code::AuthFailed] {
            let refusal = RequestError::Refused(refusal.number());
            assert_eq!(admitted(&Err(failed("/", &refusal))), Some(false));
        }
        for other in [
            failed("/", &RequestError::ConnectionLoss),
            Failure::unavailable("no session"),
            Failure::usage("?"),
        ] {
            assert_eq!(admitted(&Err(other)), None);
        }
    }

    #[test]
    fn what_everybody_may_do_is_what_all_entries_for_the_world_grant() {
        let world = Acl::anyone;
        let digest = Acl { perms: perms::ALL, who: Identity::new("digest", "me:x") };
        assert_eq!(of_everybody(std::slice::from_ref(&digest)), Open::No);
        assert_eq!(of_everybody(&[digest.clone(), world(perms::READ)]), Open::No);
        assert_eq!(of_everybody(&[world(perms::READ), world(perms::CREATE)]), Open::Creatable);
        for write in [perms::WRITE, perms::DELETE, perms::ADMIN, perms::ALL] {
            assert_eq!(of_everybody(&[digest.clone(), world(write)]), Open::Writable);
        }
    }
}
