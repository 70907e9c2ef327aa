//! Where semaphores in the layouts of others have their nodes.

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

/// Whose layout it is.
pub(crate) fn made_by(layout: Layout) -> &'static str {
    match layout {
        Layout::Curator => "Curator",
        Layout::Kazoo => "kazoo",
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
    }

    #[test]
    fn a_layout_has_the_naming_that_has_it() {
        for layout in [Layout::Curator, Layout::Kazoo] {
            assert_eq!(layout_of(naming_of(layout)), Some(layout));
        }
        assert_eq!(layout_of(Naming::Curator), None);
    }
}
