//! Where semaphores in the layouts of others have their nodes.
#![allow(dead_code, reason = "those who use it come next")]

use zoolock_core::layout::{CURATOR_GUARD, CURATOR_LEASES, KAZOO_GUARD, Layout};

use crate::naming::Naming;
use crate::path::LockPath;

/// The directories of one semaphore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places {
    /// Its permits: every child is one, or is about to be.
    pub(crate) leases: LockPath,
    /// The lock that whoever takes permits holds meanwhile; those who wait for permits wait there.
    pub(crate) guard: LockPath,
}

/// Where the semaphore with this name has its nodes, in this layout.
pub(crate) fn places(layout: Layout, semaphore: &LockPath) -> Places {
    match layout {
        Layout::Curator => Places {
            leases: LockPath::from_server(semaphore.child(CURATOR_LEASES)),
            guard: LockPath::from_server(semaphore.child(CURATOR_GUARD)),
        },
        Layout::Kazoo => Places {
            leases: semaphore.clone(),
            guard: LockPath::from_server(format!("{semaphore}{KAZOO_GUARD}")),
        },
    }
}

/// The semaphore whose permits or guard are in this directory, if it is called like one. A lock may be called so, too.
pub(crate) fn semaphore_of(directory: &LockPath) -> Option<(Layout, LockPath)> {
    let path = directory.as_str();
    let kazoo = path.strip_suffix(KAZOO_GUARD).filter(|name| !name.ends_with('/'));
    if let Some(name) = kazoo {
        return Some((Layout::Kazoo, LockPath::from_server(name.to_owned())));
    }
    let (above, name) = path.rsplit_once('/')?;
    let curator = !above.is_empty() && (name == CURATOR_LEASES || name == CURATOR_GUARD);
    curator.then(|| (Layout::Curator, LockPath::from_server(above.to_owned())))
}

/// The layout of semaphores under this naming, if that is not our own.
pub(crate) fn layout_of(naming: Naming) -> Option<Layout> {
    match naming {
        Naming::CuratorSemaphore => Some(Layout::Curator),
        Naming::Kazoo => Some(Layout::Kazoo),
        Naming::Native | Naming::Curator | Naming::WriteLock => None,
    }
}

/// The naming under which a semaphore of this layout is taken.
pub(crate) fn naming_of(layout: Layout) -> Naming {
    match layout {
        Layout::Curator => Naming::CuratorSemaphore,
        Layout::Kazoo => Naming::Kazoo,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str) -> LockPath {
        LockPath::from_server(path.to_owned())
    }

    #[test]
    fn permits_and_guard_are_where_the_others_look_for_them() {
        let semaphore = path("/locks/encoders");
        let curator = places(Layout::Curator, &semaphore);
        assert_eq!(
            (curator.leases.as_str(), curator.guard.as_str()),
            ("/locks/encoders/leases", "/locks/encoders/locks")
        );
        let kazoo = places(Layout::Kazoo, &semaphore);
        assert_eq!(
            (kazoo.leases.as_str(), kazoo.guard.as_str()),
            ("/locks/encoders", "/locks/encoders-__lock__")
        );
        for (layout, places) in [(Layout::Curator, curator), (Layout::Kazoo, kazoo)] {
            assert_eq!(semaphore_of(&places.guard), Some((layout, semaphore.clone())));
        }
        assert_eq!(semaphore_of(&path("/locks/encoders/leases")), Some((Layout::Curator, semaphore)));
        for other in ["/locks", "/leases", "/locks/encoders", "/locks/-__lock__"] {
            assert_eq!(semaphore_of(&path(other)), None, "{other}");
        }
    }

    #[test]
    fn a_layout_has_the_naming_that_has_it() {
        for layout in [Layout::Curator, Layout::Kazoo] {
            assert_eq!(layout_of(naming_of(layout)), Some(layout));
        }
        assert_eq!(layout_of(Naming::Curator), None);
    }
}
