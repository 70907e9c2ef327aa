//! Reads the directories at and below the root: sequence numbers, access control lists and contenders.

use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use zoolock_client::{RequestError, RequestSession};
use zoolock_core::layout::is_kazoo_lease;
use zoolock_core::names::{Family, Name};
use zoolock_wire::{Acl, Code, SessionId};

/// Number of directories read in parallel. Each takes two requests, and a third one if it has children.
const PARALLEL_READS: usize = 32;
/// The reason why children are not read, with its remedy.
pub(super) const TOO_MANY: (&str, &str) = (
    "too many for one listing",
    "a listing larger than jute.maxbuffer (1 MB) fails for every client that needs one; spread the names over several \
     directories",
);
const DENIED: (&str, &str) = ("no permission to list them", "give credentials that may list them (--auth)");

/// Maximum number of children that are listed. A longer listing may exceed a client's limit (`jute.maxbuffer`, 1 MB).
pub(super) const MAX_LISTED_CHILDREN: i32 = 10_000;
/// Maximum time to read all directories.
const PATIENCE: Duration = Duration::from_secs(30);

/// The directories in which zoolock keeps the history, and the slots of semaphores.
const OWN_DIRECTORIES: [&str; 2] = [".audit", ".slots"];

/// A directory at or below the root.
#[derive(Debug)]
pub(super) struct ListedDirectory {
    /// The path, with the chroot.
    pub(super) path: String,
    pub(super) children: u32,
    /// The number of children created so far, which is the sequence number of the next contender.
    pub(super) created_children: u32,
    /// The children that are contenders.
    pub(super) contenders: Vec<Name>,
    /// Set if the children show a semaphore of kazoo or Curator: znodes of kazoo's permits, or the directory `leases`.
    pub(super) has_foreign_leases: bool,
    /// The access control list. `None` if this client has no permission to read it.
    pub(super) acl: Option<Vec<Acl>>,
    /// The reason why the children were not listed. `None` if they were listed.
    pub(super) unlisted: Option<(&'static str, &'static str)>,
}

impl ListedDirectory {
    /// Returns whether a contender holds the lock of this directory or waits for it.
    pub(super) fn has_contenders(&self) -> bool {
        self.has_foreign_leases || !self.contenders.is_empty()
    }

    /// Returns the families of the contenders' names, each once. A family is the naming scheme of a
    /// client library.
    pub(super) fn families(&self) -> Vec<Family> {
        let mut families = Vec::new();
        for name in &self.contenders {
            if !families.contains(&name.family()) {
                families.push(name.family());
            }
        }
        families
    }
}

/// The directories that were read.
#[derive(Debug, Default)]
pub(super) struct ListedTree {
    pub(super) directories: Vec<ListedDirectory>,
    /// The reason why some directories were not read. `None` if all were read.
    pub(super) stopped: Option<String>,
}

impl ListedTree {
    /// Returns the number of directories whose children include contenders.
    pub(super) fn count_queues(&self) -> usize {
        self.directories.iter().filter(|directory| !directory.contenders.is_empty()).count()
    }
}

/// Reads `top` and the directories below it, at most `max_directories` of them.
pub(super) async fn read_tree(
    client: &RequestSession,
    top: String,
    max_directories: usize,
) -> Result<ListedTree, RequestError> {
    let until = Instant::now() + PATIENCE;
    let mut tree = ListedTree::default();
    // The tree is read level by level, so that a walk that stops early has read the directories near the top.
    let mut level = vec![top];
    while !level.is_empty() {
        let room = max_directories.saturating_sub(tree.directories.len());
        if level.len() > room {
            level.truncate(room);
            tree.stopped = Some(format!("only the first {max_directories} directories were read"));
        }
        let mut reads = stream::iter(std::mem::take(&mut level))
            .map(|path| read_directory(client, path))
            .buffered(PARALLEL_READS);
        while let Some(read) = reads.next().await {
            if Instant::now() > until {
                tree.stopped =
                    Some(format!("the checks of directories stopped after {} s", PATIENCE.as_secs()));
                return Ok(tree);
            }
            let Some((directory, below)) = read? else { continue };
            if tree.stopped.is_none() {
                level.extend(below);
            }
            tree.directories.push(directory);
        }
    }
    Ok(tree)
}

/// Reads one directory. Returns the directory and the paths of children that may be directories, or `None` if the znode
/// does not exist or is ephemeral.
async fn read_directory(
    client: &RequestSession,
    path: String,
) -> Result<Option<(ListedDirectory, Vec<String>)>, RequestError> {
    let (stat, acl) = (client.exists(&path), client.acl(&path));
    let (stat, acl) = futures_util::future::join(stat, acl).await;
    let Some(stat) = stat?.filter(|stat| !SessionId(stat.ephemeral_owner).is_session()) else {
        return Ok(None);
    };
    let acl = match acl {
        Ok(acl) => Some(acl),
        Err(error) => match error.code() {
            Some(Code::NoAuth) => None,
            Some(Code::NoNode) => return Ok(None),
            _ => return Err(error),
        },
    };
    let mut directory = ListedDirectory {
        children: u32::try_from(stat.num_children).unwrap_or(0),
        created_children: stat.created_children(),
        contenders: Vec::new(),
        has_foreign_leases: false,
        acl,
        unlisted: None,
        path,
    };
    let is_own = OWN_DIRECTORIES.iter().any(|own| directory.path.ends_with(&format!("/{own}")));
    if stat.num_children == 0 || is_own {
        return Ok(Some((directory, Vec::new())));
    }
    if stat.num_children > MAX_LISTED_CHILDREN {
        directory.unlisted = Some(TOO_MANY);
        return Ok(Some((directory, Vec::new())));
    }
    let names = match client.children(&directory.path).await {
        Ok(names) => names,
        Err(error) => match error.code() {
            Some(Code::NoNode) => return Ok(None),
            Some(Code::NoAuth) => {
                directory.unlisted = Some(DENIED);
                return Ok(Some((directory, Vec::new())));
            }
            _ => return Err(error),
        },
    };
    let (mut below, mut possible_directories) = (Vec::new(), Vec::new());
    for name in names {
        let parsed = Name::parse(&name).filter(|name| name.counts_below(directory.created_children));
        directory.contenders.extend(parsed);
        let path = || format!("{}/{name}", directory.path.trim_end_matches('/'));
        match parsed.map(|name| name.family()) {
            // This child is a contender of an unknown family, or a directory whose name ends in a number.
            Some(Family::Unknown) => {
                possible_directories.push(path());
                continue;
            }
            Some(_) => continue,
            None if is_kazoo_lease(&name) => {
                directory.has_foreign_leases = true;
                continue;
            }
            None => directory.has_foreign_leases |= name == "leases",
        }
        below.push(path());
    }
    below.sort_unstable();
    // The possible directories come last. There may be many, and most of them are contenders.
    below.extend(possible_directories);
    below.retain(|path| path != "/zookeeper");
    Ok(Some((directory, below)))
}

#[cfg(test)]
mod tests {
    use zoolock_wire::Stat;

    fn stat(created: i64, children: i32) -> Stat {
        // Apache ZooKeeper and `zoolock serve` compute `cversion` like this.
        let cversion = (created as i32).wrapping_mul(2).wrapping_sub(children);
        Stat {
            czxid: 1,
            mzxid: 1,
            pzxid: 1,
            ctime: 0,
            mtime: 0,
            version: 0,
            cversion,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children: children,
        }
    }

    #[test]
    fn created_children_follow_from_cversion() {
        for created in [0, 1, 7, (1 << 30) - 1, 1 << 30, (1 << 31) - (1 << 20), i64::from(i32::MAX)] {
            for children in [0, 1, 5] {
                assert_eq!(i64::from(stat(created, children).created_children()), created, "{children}");
            }
        }
    }
}
