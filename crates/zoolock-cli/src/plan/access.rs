//! Who may use what we create.

use zoolock::Naming;

use super::service::{Endpoint, Service};
use crate::args::{Global, KindArgs};
use crate::credentials::named;
use crate::exit::Failure;

/// Who may use what we create, beside those who have our credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nobody; these may look: scheme and id.
    Readers(Vec<(String, String)>),
    Everybody,
    /// These may queue, and nobody may take a lock from its holder.
    Hardened(Box<Queuers>),
}

/// Who may do what with hardened locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Queuers {
    pub(crate) members: Vec<(String, String)>,
    pub(crate) readers: Vec<(String, String)>,
}

pub(super) fn access(global: &Global) -> Result<Access, Failure> {
    if !global.member.is_empty() && !global.hardened {
        return Err(Failure::usage(
            "--member goes with --hardened: elsewhere all who share a lock have the same credentials",
        ));
    }
    if global.world_writable && global.hardened {
        return Err(Failure::usage(
            "--world-writable and --hardened (or ZOOLOCK_HARDENED) exclude each other; to let everybody queue for a \
             hardened lock: --member world:anyone",
        ));
    }
    if global.world_writable {
        return Ok(Access::Everybody);
    }
    let readers = identities("--reader", &global.reader)?;
    let members = identities("--member", &global.member)?;
    // An empty variable is as none.
    let auth = global.auth.as_ref().is_some_and(|auth| !auth.is_empty());
    let known = auth || named(global.cert.as_ref());
    if !readers.is_empty() && !known {
        return Err(Failure::usage(
            "--reader goes with --auth or --cert: without credentials everybody may do everything with what we create",
        ));
    }
    if !members.is_empty() && !known {
        return Err(Failure::usage(
            "--member goes with --auth or --cert: without credentials everybody may queue for what we create",
        ));
    }
    Ok(match global.hardened {
        true => Access::Hardened(Box::new(Queuers { members, readers })),
        false => Access::Readers(readers),
    })
}

fn identities(flag: &str, texts: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let identity = |text: &String| match text.split_once(':') {
        Some((scheme, id)) if !scheme.is_empty() && !id.is_empty() => Ok((scheme.to_owned(), id.to_owned())),
        _ => Err(Failure::usage(format!(
            "{flag} {text:?}: write it as SCHEME:ID, such as digest:ops:DIGEST, x509:CN=ops or world:anyone"
        ))),
    };
    texts.iter().map(identity).collect()
}

/// What a hardened lock cannot have, before anybody is connected to.
pub(super) fn check_hardened(asked: &KindArgs, service: &Service) -> Result<(), Failure> {
    let Endpoint::Remote { access: Access::Hardened(_), .. } = service.endpoint else { return Ok(()) };
    let wrong = |flag: &str, why: &str| {
        Err(Failure::usage(format!("{flag} and --hardened (or ZOOLOCK_HARDENED) exclude each other: {why}")))
    };
    if asked.crash_detection {
        return wrong("--crash-detection", "nobody may write there that a holder begins");
    }
    if service.naming != Naming::Native || service.kazoo_pattern {
        return wrong(
            "--naming, or --kazoo-pattern,",
            "clients of other makes let go by deleting, which nobody may there",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::super::lines::{args, plan, refused};
    use super::*;

    #[test]
    fn what_a_hardened_lock_cannot_have_is_refused_before_connecting() {
        for (line, word) in [
            (&["hold", "x", "--hardened"][..], "--connect"),
            (&["hold", "x", "--connect", "h:1", "--hardened", "--world-writable"], "--world-writable"),
            (&["hold", "x", "--connect", "h:1", "--member", "x509:CN=ci"], "--hardened"),
            (&["hold", "x", "--connect", "h:1", "--hardened", "--member", "ci"], "--member"),
            (&["hold", "x", "--connect", "h:1", "--hardened", "--crash-detection"], "--crash-detection"),
            (&["hold", "x", "--connect", "h:1", "--hardened", "--naming", "curator"], "--naming"),
        ] {
            let message = refused(line);
            assert!(message.contains(word), "{line:?}: {message}");
        }
        assert!(plan(&["hold", "x", "--connect", "h:1", "--hardened", "--lock-delay", "1s"]).is_ok());
    }

    #[test]
    fn the_variable_for_hardened_locks_speaks_of_a_service() {
        let by_variable = |line: &[&str]| {
            let mut args = args(line);
            (args.global.hardened, args.global.hardened_by_variable) = (true, true);
            Plan::new(args).unwrap_or_else(|failure| panic!("{line:?}: {failure}"))
        };
        let Plan::Hold(hold) = by_variable(&["hold", "x"]) else { panic!("it holds") };
        assert!(matches!(hold.service.endpoint, Endpoint::Local));
        let Plan::Hold(hold) = by_variable(&["hold", "x", "--connect", "h:1"]) else { panic!("it holds") };
        assert!(
            matches!(hold.service.endpoint, Endpoint::Remote { access: Access::Hardened(_), .. }),
            "that is what it is for"
        );
    }
}
