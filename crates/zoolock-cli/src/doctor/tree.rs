//! The directories at and below the root: how far they have counted, who may write there, who stands in them.

use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use zoolock_client::{RequestError, Requests};
use zoolock_core::layout::is_kazoo_lease;
use zoolock_core::names::{Family, Name};
use zoolock_wire::{Acl, Code, Stat};

/// What is under way at once: each directory takes two requests, and one more where it has children.
const AT_ONCE: usize = 32;
/// A listing of more than this may be larger than a client takes (`jute.maxbuffer`, 1 MB), and is left alone.
pub(super) const MOST_CHILDREN: i32 = 10_000;
/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// What ZooKeeper writes for the owner of a container, which has none.
const CONTAINER: i64 = i64::MIN;
/// And what those begin with that live for a while.
const TTL: u8 = 0xff;

/// The directories of zoolock itself in the root.
pub(super) const OWN: [&str; 1] = [".audit"];

/// One directory.
#[derive(Debug)]
pub(super) struct Directory {
    /// With the chroot.
    pub(super) path: String,
    pub(super) children: u32,
    /// How many children it has ever had: the number of the next contender.
    pub(super) counted: u32,
    /// Those of its children that stand in a queue.
    pub(super) contenders: Vec<Name>,
    /// Whether somebody holds permits here as kazoo and Curator do, in a directory of their own.
    pub(super) leases: bool,
    /// `None` where we may not read it.
    pub(super) acl: Option<Vec<Acl>>,
    /// Whether its children were too many to be listed, or may not be.
    pub(super) unlisted: Option<&'static str>,
}

impl Directory {
    /// Returns whether a lock has a holder or a waiter here.
    pub(super) fn has_contenders(&self) -> bool {
        self.leases || !self.contenders.is_empty()
    }

    /// The makes of those who stand there.
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

/// What there is.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) directories: Vec<Directory>,
    /// Why not all of it was looked at.
    pub(super) stopped: Option<String>,
}

impl Tree {
    /// Returns the number of directories with contenders.
    pub(super) fn queues(&self) -> usize {
        self.directories.iter().filter(|directory| !directory.contenders.is_empty()).count()
    }
}

/// Looks at `top` and what is below it, at so many directories at most.
pub(super) async fn walk(client: &Requests, top: String, most: usize) -> Result<Tree, RequestError> {
    let until = Instant::now() + PATIENCE;
    let mut tree = Tree::default();
    // Level by level: whoever is stopped early has seen what is near the top.
    let mut level = vec![top];
    while !level.is_empty() {
        let room = most.saturating_sub(tree.directories.len());
        if level.len() > room {
            level.truncate(room);
            tree.stopped = Some(format!("only the first {most} directories were looked at"));
        }
        let mut looks =
            stream::iter(std::mem::take(&mut level)).map(|path| look(client, path)).buffered(AT_ONCE);
        while let Some(looked) = looks.next().await {
            if Instant::now() > until {
                tree.stopped = Some(format!("it was stopped after {} s", PATIENCE.as_secs()));
                return Ok(tree);
            }
            let Some((directory, below)) = looked? else { continue };
            if tree.stopped.is_none() {
                level.extend(below);
            }
            tree.directories.push(directory);
        }
    }
    Ok(tree)
}

/// Looks at one node: what it is, and which of its children may be directories. `None` where there is none.
async fn look(client: &Requests, path: String) -> Result<Option<(Directory, Vec<String>)>, RequestError> {
    let (stat, acl) = (client.exists(&path), client.acl(&path));
    let (stat, acl) = futures_util::future::join(stat, acl).await;
    let Some(stat) = stat?.filter(|stat| !is_ephemeral(stat)) else { return Ok(None) };
    let acl = match acl {
        Ok(acl) => Some(acl),
        Err(error) => match error.code() {
            Some(Code::NoAuth) => None,
            Some(Code::NoNode) => return Ok(None),
            _ => return Err(error),
        },
    };
    let mut directory = Directory {
        children: u32::try_from(stat.num_children).unwrap_or(0),
        counted: stat.created_children(),
        contenders: Vec::new(),
        leases: false,
        acl,
        unlisted: None,
        path,
    };
    let own = OWN.iter().any(|own| directory.path.ends_with(&format!("/{own}")));
    if stat.num_children == 0 || own {
        return Ok(Some((directory, Vec::new())));
    }
    if stat.num_children > MOST_CHILDREN {
        directory.unlisted = Some("it has too many to be listed");
        return Ok(Some((directory, Vec::new())));
    }
    let names = match client.children(&directory.path).await {
        Ok(names) => names,
        Err(error) => match error.code() {
            Some(Code::NoNode) => return Ok(None),
            Some(Code::NoAuth) => {
                directory.unlisted = Some("they may not be listed");
                return Ok(Some((directory, Vec::new())));
            }
            _ => return Err(error),
        },
    };
    let (mut below, mut perhaps) = (Vec::new(), Vec::new());
    for name in names {
        let parsed = Name::parse(&name).filter(|name| name.counts_below(directory.counted));
        directory.contenders.extend(parsed);
        let path = || format!("{}/{name}", directory.path.trim_end_matches('/'));
        match parsed.map(|name| name.family()) {
            // A directory may have a name that ends in a number.
            Some(Family::Unknown) => {
                perhaps.push(path());
                continue;
            }
            Some(_) => continue,
            None if is_kazoo_lease(&name) => {
                directory.leases = true;
                continue;
            }
            None => directory.leases |= name == "leases",
        }
        below.push(path());
    }
    below.sort_unstable();
    // After the others: there may be many, and most are znodes without children.
    below.extend(perhaps);
    below.retain(|path| path != "/zookeeper");
    Ok(Some((directory, below)))
}

/// Of a node that only a session has.
fn is_ephemeral(stat: &Stat) -> bool {
    let owner = stat.ephemeral_owner;
    owner != 0 && owner != CONTAINER && owner.to_be_bytes()[0] != TTL
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(created: i64, children: i32) -> Stat {
        // As both servers make it.
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
    fn how_far_a_directory_has_counted_is_known_to_the_last_number() {
        for created in [0, 1, 7, (1 << 30) - 1, 1 << 30, (1 << 31) - (1 << 20), i64::from(i32::MAX)] {
            for children in [0, 1, 5] {
                assert_eq!(i64::from(stat(created, children).created_children()), created, "{children}");
            }
        }
    }

    #[test]
    fn a_container_and_what_lives_for_a_while_are_directories() {
        let owned = |owner| Stat { ephemeral_owner: owner, ..stat(0, 0) };
        assert!(!is_ephemeral(&owned(0)) && !is_ephemeral(&owned(CONTAINER)));
        assert!(!is_ephemeral(&owned(0xff00_0000_0000_1000_u64 as i64)));
        assert!(is_ephemeral(&owned(0x0100_0000_0000_0001)));
    }
}
