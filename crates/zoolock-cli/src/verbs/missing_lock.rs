//! Messages about a name without a lock, and about a root that does not exist.

use std::time::Duration;

use tokio::time::timeout;
use zoolock::admin::{PreviousEnd, Snapshot};
use zoolock::internals::DEFAULT_ROOT;
use zoolock::{Error, Zoolock};

use crate::base::exit::{Exit, Failure};
use crate::base::reporter::{Reporter, escape_unprintable};
use crate::plan::{ConnectionSettings, Endpoint};
use crate::render::text::lock_name;
use crate::service::connect::{chroot_of, connect_for_requests};

/// Minimum similarity of a name that is suggested, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.8;
/// Factor for the similarity of the last part of a name, so that a similar whole name is preferred.
const LAST_PART: f64 = 0.99;

/// Maximum time to search for a root with a similar name.
const PATIENCE: Duration = Duration::from_secs(5);

/// A name without a lock.
pub(crate) enum MissingLock {
    /// The root does not exist. Contains a root with a similar name.
    Root(Option<String>),
    /// The name is only a directory of other locks. Contains their number, and the name of one.
    Directory(usize, String),
    /// The name is not used. Contains the name of a similar lock.
    Name(Option<String>),
}

impl MissingLock {
    /// Returns why there is no lock with this name; `None` if there is one. `lock` is the snapshot of the name.
    pub(crate) async fn find(
        zoolock: &Zoolock,
        name: &str,
        lock: &Snapshot,
        service: &ConnectionSettings,
    ) -> Result<Option<Self>, Error> {
        if has_trace_of_use(lock) {
            return Ok(None);
        }
        if let Some(missing) = Self::find_root(zoolock, Some(name), service).await? {
            return Ok(Some(missing));
        }
        let elsewhere = Some(name).filter(|name| is_elsewhere(name, &service.root));
        let locks = match zoolock.admin().locks(elsewhere, 0).await {
            // A client may be permitted to read this lock alone.
            Err(Error::Denied { .. }) if lock.exists => return Ok(None),
            locks => locks?,
        };
        let below = format!("{}/", lock.path);
        let mut below = locks.iter().filter(|other| other.path.starts_with(&below)).peekable();
        Ok(match below.peek() {
            _ if locks.iter().any(|other| other.path == lock.path) => None,
            Some(first) => {
                let first = lock_name(&first.path, &service.root).to_owned();
                Some(Self::Directory(below.count(), first))
            }
            None if lock.exists => None,
            None => Some(Self::Name(most_similar_lock(&locks, name, service))),
        })
    }

    /// Returns that the root does not exist, unless `name` is a path elsewhere. The default root may be missing, because a
    /// new server has none.
    pub(crate) async fn find_root(
        zoolock: &Zoolock,
        name: Option<&str>,
        service: &ConnectionSettings,
    ) -> Result<Option<Self>, Error> {
        let root = service.root.as_str();
        if [DEFAULT_ROOT, "/"].contains(&root) || name.is_some_and(|name| is_elsewhere(name, root)) {
            return Ok(None);
        }
        if zoolock.admin().snapshot(root).await?.exists {
            return Ok(None);
        }
        let similar = timeout(PATIENCE, find_similar_root(service)).await;
        Ok(Some(Self::Root(similar.ok().flatten())))
    }

    /// Returns why the list of the locks at and below `prefix` is empty.
    pub(crate) async fn find_prefix(
        zoolock: &Zoolock,
        prefix: Option<&str>,
        service: &ConnectionSettings,
    ) -> Result<Self, Error> {
        if let Some(missing) = Self::find_root(zoolock, prefix, service).await? {
            return Ok(missing);
        }
        let Some(prefix) = prefix else { return Ok(Self::Name(None)) };
        Ok(Self::Name(most_similar_lock(&zoolock.admin().locks(None, 0).await?, prefix, service)))
    }

    /// Returns the failure of a command on the lock with this name.
    pub(crate) fn failure(&self, name: &str, service: &ConnectionSettings) -> Failure {
        let ConnectionSettings { endpoint, root, .. } = service;
        let address = endpoint.address();
        let below = if is_elsewhere(name, root) { String::new() } else { format!(" below {root}") };
        let message = match self {
            Self::Root(_) => format!(
                "the root {root} does not exist at {address}: no lock has been acquired there yet, or --root is \
                 misspelled{}",
                self.hint(service)
            ),
            Self::Directory(..) => format!(
                "no lock {name} at {address}{below}: it has no holder, waiter or record{}",
                self.hint(service)
            ),
            Self::Name(_) => format!(
                "no lock {name} at {address}{below}: it is free, or its name is misspelled{}",
                self.hint(service)
            ),
        };
        Failure::new(Exit::NO_SUCH_LOCK, message)
    }

    /// Formats the end of a message about the name.
    pub(crate) fn hint(&self, service: &ConnectionSettings) -> String {
        match self {
            Self::Directory(1, lock) => format!("; one lock is below it: {}", escape_unprintable(lock)),
            Self::Directory(count, lock) => {
                format!("; {count} locks are below it, such as {}", escape_unprintable(lock))
            }
            Self::Root(None) | Self::Name(None) => service.endpoint.ensemble_hint().to_owned(),
            Self::Root(Some(root)) => suggestion(&format!("--root {root}")),
            Self::Name(Some(lock)) => suggestion(lock),
        }
    }
}

/// Returns whether the directory of a lock has a contender, a record of an earlier holder, or a part that cannot be read.
fn has_trace_of_use(lock: &Snapshot) -> bool {
    let has_contender = lock.is_held() || lock.waiting > 0 || lock.foreign_semaphore.is_some();
    has_contender
        || lock.previous != PreviousEnd::Unknown
        || lock.permits.is_some()
        || !lock.unread.is_empty()
}

/// Returns whether a name is a path that is not below the root.
fn is_elsewhere(name: &str, root: &str) -> bool {
    root != "/" && name != root && name.starts_with('/') && lock_name(name, root) == name
}

/// Returns the lock whose name is most similar to `name`, if one is similar.
fn most_similar_lock(locks: &[Snapshot], name: &str, service: &ConnectionSettings) -> Option<String> {
    let names = locks.iter().map(|lock| lock_name(&lock.path, &service.root));
    most_similar(names, name).map(str::to_owned)
}

/// Returns a sibling of the root with a similar name. The library lists only locks, so this needs a session of its own.
async fn find_similar_root(service: &ConnectionSettings) -> Option<String> {
    let (parent, _) = service.root.rsplit_once('/')?;
    let chroot = match &service.endpoint {
        Endpoint::Remote { hosts, .. } => chroot_of(hosts),
        Endpoint::Local => String::new(),
    };
    let directory = Some(format!("{chroot}{parent}")).filter(|path| !path.is_empty());
    let client = connect_for_requests(service).await.ok()?;
    let siblings = client.children(directory.as_deref().unwrap_or("/")).await;
    client.close().await;
    let roots: Vec<String> = siblings.ok()?.iter().map(|name| format!("{parent}/{name}")).collect();
    most_similar(roots.iter().map(String::as_str), &service.root).map(str::to_owned)
}

/// Notes that a lock is free only at this user's server, if this server was asked. An ensemble can have a lock of the
/// same name.
pub(crate) fn note_free_locally(name: &str, service: &ConnectionSettings, reporter: &Reporter) {
    if let Endpoint::Local = service.endpoint {
        reporter.note(format_args!(
            "{name} is free at {}{}",
            service.endpoint.address(),
            service.endpoint.ensemble_hint()
        ));
    }
}

/// Formats a question whether the similar name was meant.
fn suggestion(similar: &str) -> String {
    format!("; did you mean {}?", escape_unprintable(similar))
}

/// Returns the name that is most similar to `wanted`, if one is similar. A `wanted` without a slash may be the last part of
/// a name.
fn most_similar<'a>(names: impl Iterator<Item = &'a str>, wanted: &str) -> Option<&'a str> {
    let rate_part = |part: &str| match part.starts_with(wanted) {
        true => 1.0,
        false => strsim::jaro_winkler(part, wanted),
    };
    let rate = |name: &str| match name.rsplit_once('/') {
        Some((_, last)) if !wanted.contains('/') => rate_part(name).max(LAST_PART * rate_part(last)),
        _ => rate_part(name),
    };
    let best = names.map(|name| (rate(name), name)).filter(|(similarity, _)| *similarity >= MIN_SIMILARITY);
    best.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_name_is_suggested() {
        let names = || ["db/main", "nightly", "old/nightly", "weekly"].into_iter();
        assert_eq!(most_similar(names(), "nihgtly"), Some("nightly"));
        assert_eq!(most_similar(names(), "night"), Some("nightly"));
        assert_eq!(most_similar(names(), "db/mian"), Some("db/main"));
        assert_eq!(most_similar(names(), "main"), Some("db/main"));
        assert_eq!(most_similar(names(), "mian"), Some("db/main"));
        assert_eq!(most_similar(names(), "reports"), None);
        assert_eq!(most_similar(["/locks", "/zookeeper"].into_iter(), "/lokcs"), Some("/locks"));
        assert_eq!(suggestion("a\u{7}"), "; did you mean a\\u{7}?");
    }
}
