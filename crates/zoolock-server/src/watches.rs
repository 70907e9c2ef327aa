//! The watches of all connections.
//!
//! As in ZooKeeper, there is a data side and a child side. `exists` and `getData` set watches on the data side,
//! `getChildren` sets them on the child side, and persistent watches are on both. A one-shot watch and a persistent one
//! on the same path are kept apart (ZOOKEEPER-4466), but a connection gets each event once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use zoolock_wire::EventKind;

use crate::ids::ConnId;

/// A set of kinds of watches, kept for each path and connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kinds(u8);

impl Kinds {
    /// Set by `getData` and `exists`.
    pub(crate) const DATA: Kinds = Kinds(1);
    /// Set by `getChildren`.
    pub(crate) const CHILD: Kinds = Kinds(2);
    /// Set by `addWatch`.
    pub(crate) const PERSISTENT: Kinds = Kinds(4 | 8);
    /// Set by `addWatch`, for all descendants too.
    pub(crate) const RECURSIVE: Kinds = Kinds(16 | 32);

    const DATA_SIDE: Kinds = Kinds(1 | 4 | 16);
    const CHILD_SIDE: Kinds = Kinds(2 | 8 | 32);
    const ONE_SHOT: Kinds = Kinds(1 | 2);

    /// Returns the kinds that `checkWatches` and `removeWatches` mean by this number.
    pub(crate) fn from_watcher_type(number: i32) -> Option<Kinds> {
        match number {
            1 => Some(Kinds::CHILD_SIDE),
            2 => Some(Kinds::DATA_SIDE),
            3 => Some(Kinds(Kinds::DATA_SIDE.0 | Kinds::CHILD_SIDE.0)),
            _ => None,
        }
    }

    /// Returns the kinds that `addWatch` means by this number.
    pub(crate) fn from_add_mode(number: i32) -> Option<Kinds> {
        match number {
            0 => Some(Kinds::PERSISTENT),
            1 => Some(Kinds::RECURSIVE),
            _ => None,
        }
    }

    fn and(self, other: Kinds) -> Kinds {
        Kinds(self.0 & other.0)
    }

    fn without(self, other: Kinds) -> Kinds {
        Kinds(self.0 & !other.0)
    }

    /// Returns the number of watches as ZooKeeper counts them.
    fn sides(self) -> usize {
        usize::from(self.and(Kinds::DATA_SIDE).any()) + usize::from(self.and(Kinds::CHILD_SIDE).any())
    }

    fn is_on_data(self) -> bool {
        self.and(Kinds::DATA_SIDE).any()
    }

    fn any(self) -> bool {
        self.0 != 0
    }
}

/// All watches.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    paths: HashMap<Arc<str>, Watchers>,
    conns: HashMap<ConnId, Watched>,
    /// Number of (path, connection) pairs with a recursive watch. If it is zero, no ancestor is looked up.
    recursive: usize,
    /// Number of watches as ZooKeeper counts them: data watches and child watches.
    sides: usize,
    on_data: OnData,
}

/// The watches on one path.
#[derive(Debug, Default)]
struct Watchers {
    conns: BTreeMap<ConnId, Kinds>,
    /// Number of connections that watch the data.
    on_data: usize,
}

/// Counts of watches on data. They are always up to date: any client may ask for them, and counting a million watches
/// takes seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OnData {
    /// Connections that watch the data of any path.
    pub connections: usize,
    /// Paths whose data is watched.
    pub paths: usize,
    /// Pairs of such a connection and path.
    pub total: usize,
}

/// The watches of one connection.
#[derive(Debug, Default)]
struct Watched {
    paths: HashSet<Arc<str>>,
    /// Number of paths whose data is watched.
    on_data: usize,
    /// Total cost of the paths.
    cost: usize,
}

/// Returns the cost of a path. A long path counts as several, because a path may have a million bytes.
fn cost(path: &str) -> usize {
    1 + path.len() / 128
}

impl Watches {
    /// Adds a watch.
    pub(crate) fn add(&mut self, path: &str, conn: ConnId, kinds: Kinds) {
        let path: Arc<str> = match self.paths.get_key_value(path) {
            Some((path, _)) => Arc::clone(path),
            None => path.into(),
        };
        let watchers = self.paths.entry(Arc::clone(&path)).or_default();
        let entry = watchers.conns.entry(conn).or_insert(Kinds(0));
        let before = *entry;
        entry.0 |= kinds.0;
        self.sides += entry.sides() - before.sides();
        if entry.is_on_data() && !before.is_on_data() {
            let watched = self.conns.entry(conn).or_default();
            self.on_data.connections += usize::from(watched.on_data == 0);
            self.on_data.paths += usize::from(watchers.on_data == 0);
            self.on_data.total += 1;
            watched.on_data += 1;
            watchers.on_data += 1;
        }
        if kinds.and(Kinds::RECURSIVE).any() && !before.and(Kinds::RECURSIVE).any() {
            self.recursive += 1;
        }
        if !before.any() {
            let watched = self.conns.entry(conn).or_default();
            watched.cost += cost(&path);
            watched.paths.insert(path);
        }
    }

    /// Returns whether the connection has a watch of any of these kinds.
    pub(crate) fn contains(&self, path: &str, conn: ConnId, kinds: Kinds) -> bool {
        self.paths
            .get(path)
            .and_then(|watchers| watchers.conns.get(&conn))
            .is_some_and(|has| has.and(kinds).any())
    }

    /// Removes the connection's watches of these kinds. Returns false if there was none.
    pub(crate) fn remove(&mut self, path: &str, conn: ConnId, kinds: Kinds) -> bool {
        let had = self.contains(path, conn, kinds);
        if had {
            self.clear(path, conn, kinds);
        }
        had
    }

    /// Removes all watches of a connection.
    pub(crate) fn forget(&mut self, conn: ConnId) {
        let Watched { paths, on_data, .. } = self.conns.remove(&conn).unwrap_or_default();
        self.on_data.connections -= usize::from(on_data > 0);
        for path in paths {
            self.clear(&path, conn, Kinds(u8::MAX));
        }
    }

    /// Returns the connections that get an event, and removes the one-shot watches that fire.
    pub(crate) fn fire(&mut self, kind: EventKind, path: &str) -> Vec<ConnId> {
        let wanted = match kind {
            EventKind::Created | EventKind::DataChanged => Kinds::DATA_SIDE,
            EventKind::Deleted => Kinds(Kinds::DATA_SIDE.0 | Kinds::CHILD_SIDE.0),
            EventKind::ChildrenChanged => Kinds::CHILD_SIDE.without(Kinds::RECURSIVE),
        };
        let mut heard: Vec<ConnId> = match self.paths.get(path) {
            None => Vec::new(),
            Some(Watchers { conns, .. }) => {
                conns.iter().filter(|(_, has)| has.and(wanted).any()).map(|(&conn, _)| conn).collect()
            }
        };
        for &conn in &heard {
            self.clear(path, conn, wanted.and(Kinds::ONE_SHOT));
        }
        if self.recursive > 0 && kind != EventKind::ChildrenChanged {
            for ancestor in ancestors(path) {
                let Some(Watchers { conns, .. }) = self.paths.get(ancestor) else { continue };
                let recursive = conns.iter().filter(|(_, has)| has.and(wanted).and(Kinds::RECURSIVE).any());
                heard.extend(recursive.map(|(&conn, _)| conn));
            }
            heard.sort_unstable();
            heard.dedup();
        }
        heard
    }

    /// Returns the number of paths that a connection watches. A long path counts as several.
    pub(crate) fn cost(&self, conn: ConnId) -> usize {
        self.conns.get(&conn).map_or(0, |watched| watched.cost)
    }

    /// Returns the paths whose data is watched, each with its connections.
    pub(crate) fn on_data(&self) -> impl Iterator<Item = (&Arc<str>, impl Iterator<Item = ConnId>)> {
        self.paths.iter().map(|(path, watchers)| {
            let mine = watchers.conns.iter().filter(|(_, kinds)| kinds.is_on_data());
            (path, mine.map(|(&conn, _)| conn))
        })
    }

    /// Returns the counts of watches on data.
    pub(crate) fn count_on_data(&self) -> OnData {
        self.on_data
    }

    /// Returns the number of watches as ZooKeeper counts them: data watches and child watches.
    pub(crate) fn sides(&self) -> usize {
        self.sides
    }

    /// Returns the number of (path, connection) pairs that are watched.
    pub(crate) fn len(&self) -> usize {
        self.conns.values().map(|watched| watched.paths.len()).sum()
    }

    fn clear(&mut self, path: &str, conn: ConnId, kinds: Kinds) {
        let Some(watchers) = self.paths.get_mut(path) else { return };
        let Some(has) = watchers.conns.get_mut(&conn) else { return };
        let before = *has;
        *has = has.without(kinds);
        let after = *has;
        self.sides -= before.sides() - after.sides();
        if before.and(Kinds::RECURSIVE).any() && !after.and(Kinds::RECURSIVE).any() {
            self.recursive -= 1;
        }
        if before.is_on_data() && !after.is_on_data() {
            watchers.on_data -= 1;
            self.on_data.paths -= usize::from(watchers.on_data == 0);
            self.on_data.total -= 1;
            if let Some(watched) = self.conns.get_mut(&conn) {
                watched.on_data -= 1;
                self.on_data.connections -= usize::from(watched.on_data == 0);
            }
        }
        if after.any() {
            return;
        }
        watchers.conns.remove(&conn);
        if watchers.conns.is_empty() {
            self.paths.remove(path);
        }
        if let Some(watched) = self.conns.get_mut(&conn)
            && watched.paths.remove(path)
        {
            watched.cost -= cost(path);
            if watched.paths.is_empty() {
                self.conns.remove(&conn);
            }
        }
    }
}

/// Returns all proper ancestors of a path, the root last.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = if path == "/" { None } else { Some(path) };
    std::iter::from_fn(move || {
        let (parent, _) = rest?.rsplit_once('/')?;
        rest = if parent.is_empty() { None } else { Some(parent) };
        Some(if parent.is_empty() { "/" } else { parent })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: ConnId = ConnId(1);
    const YOU: ConnId = ConnId(2);

    #[test]
    fn one_shot_watches_fire_once_and_leave_nothing() {
        let mut watches = Watches::default();
        watches.add("/a", ME, Kinds::DATA);
        watches.add("/a", ME, Kinds::CHILD);
        watches.add("/a", YOU, Kinds::CHILD);
        assert_eq!(watches.fire(EventKind::DataChanged, "/a"), [ME]);
        assert_eq!(watches.fire(EventKind::DataChanged, "/a"), []);
        assert_eq!(watches.fire(EventKind::ChildrenChanged, "/a"), [ME, YOU]);
        assert!(watches.paths.is_empty() && watches.conns.is_empty());
        assert_eq!((watches.len(), watches.sides()), (0, 0));
    }

    #[test]
    fn a_deletion_is_heard_once_by_whoever_watches_data_and_children() {
        let mut watches = Watches::default();
        watches.add("/a", ME, Kinds::DATA);
        watches.add("/a", ME, Kinds::CHILD);
        assert_eq!(watches.fire(EventKind::Deleted, "/a"), [ME]);
        assert!(watches.paths.is_empty() && watches.conns.is_empty());
    }

    #[test]
    fn recursive_watches_hear_of_descendants_but_not_of_lists() {
        let mut watches = Watches::default();
        watches.add("/a", ME, Kinds::RECURSIVE);
        watches.add("/", YOU, Kinds::RECURSIVE);
        assert_eq!(watches.fire(EventKind::Created, "/a/b/c"), [ME, YOU]);
        assert_eq!(watches.fire(EventKind::Created, "/ab"), [YOU]);
        assert_eq!(watches.fire(EventKind::ChildrenChanged, "/a/b"), []);
        assert_eq!(watches.fire(EventKind::ChildrenChanged, "/a"), []);
        assert!(watches.remove("/a", ME, Kinds::RECURSIVE));
        watches.forget(YOU);
        assert!(watches.paths.is_empty() && watches.conns.is_empty());
        assert_eq!((watches.recursive, watches.sides()), (0, 0));
    }

    #[test]
    fn those_on_data_are_counted_all_along() {
        let mut watches = Watches::default();
        let mut random = 1_u32;
        let mut next = |below: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) % below
        };
        let all = [Kinds::DATA, Kinds::CHILD, Kinds::PERSISTENT, Kinds::RECURSIVE];
        for _ in 0..5000 {
            let (conn, path) = (ConnId(u64::from(next(3))), ["/", "/a", "/a/b"][next(3) as usize]);
            match next(8) {
                0 => watches.forget(conn),
                1 => drop(watches.fire(EventKind::Deleted, path)),
                2 => drop(watches.fire(EventKind::DataChanged, path)),
                3 => drop(watches.remove(path, conn, Kinds::DATA_SIDE)),
                4 => drop(watches.remove(path, conn, Kinds::CHILD_SIDE)),
                _ => watches.add(path, conn, all[next(4) as usize]),
            }
            let pairs: Vec<(&Arc<str>, ConnId)> =
                watches.on_data().flat_map(|(path, conns)| conns.map(move |conn| (path, conn))).collect();
            let counted = OnData {
                connections: pairs.iter().map(|(_, conn)| conn).collect::<HashSet<_>>().len(),
                paths: pairs.iter().map(|(path, _)| path).collect::<HashSet<_>>().len(),
                total: pairs.len(),
            };
            assert_eq!(watches.count_on_data(), counted);
        }
    }

    #[test]
    fn a_long_path_counts_as_several() {
        let mut watches = Watches::default();
        let long = format!("/{}", "x".repeat(1279));
        for kinds in [Kinds::DATA, Kinds::CHILD] {
            watches.add("/a", ME, kinds);
            watches.add(&long, ME, kinds);
        }
        assert_eq!(watches.cost(ME), 12);
        watches.fire(EventKind::Deleted, &long);
        assert_eq!(watches.cost(ME), 1);
        watches.fire(EventKind::Deleted, "/a");
        assert_eq!(watches.cost(ME), 0);
    }

    #[test]
    fn a_persistent_watch_outlives_the_one_shot_beside_it() {
        let mut watches = Watches::default();
        watches.add("/a", ME, Kinds::PERSISTENT);
        watches.add("/a", ME, Kinds::DATA);
        for _ in 0..2 {
            assert_eq!(watches.fire(EventKind::DataChanged, "/a"), [ME]);
            assert_eq!(watches.fire(EventKind::ChildrenChanged, "/a"), [ME]);
        }
        assert!(!watches.contains("/a", ME, Kinds::DATA));
    }
}
