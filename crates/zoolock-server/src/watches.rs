//! The watches of all connections.
//!
//! As in ZooKeeper, a path has a data side and a child side. `exists` and `getData` set watches on
//! the data side, `getChildren` sets them on the child side, and persistent watches are on both
//! sides. A one-shot watch and a persistent watch on the same path do not replace each other
//! (ZOOKEEPER-4466). A connection with both gets each event once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use zoolock_wire::EventKind;

use crate::ids::ConnId;

/// A set of watch kinds. Each pair of path and connection has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WatchKinds(u8);

impl WatchKinds {
    /// A one-shot watch that `getData` or `exists` sets.
    pub(crate) const DATA: WatchKinds = WatchKinds(1);
    /// A one-shot watch that `getChildren` sets.
    pub(crate) const CHILD: WatchKinds = WatchKinds(2);
    /// A persistent watch that `addWatch` sets.
    pub(crate) const PERSISTENT: WatchKinds = WatchKinds(4 | 8);
    /// A persistent watch that `addWatch` sets. It also covers all descendants.
    pub(crate) const RECURSIVE: WatchKinds = WatchKinds(16 | 32);

    const DATA_SIDE: WatchKinds = WatchKinds(1 | 4 | 16);
    const CHILD_SIDE: WatchKinds = WatchKinds(2 | 8 | 32);
    const ONE_SHOT: WatchKinds = WatchKinds(1 | 2);

    /// Returns the kinds that `checkWatches` and `removeWatches` mean by this number.
    pub(crate) fn from_watcher_type(number: i32) -> Option<WatchKinds> {
        match number {
            1 => Some(WatchKinds::CHILD_SIDE),
            2 => Some(WatchKinds::DATA_SIDE),
            3 => Some(WatchKinds(WatchKinds::DATA_SIDE.0 | WatchKinds::CHILD_SIDE.0)),
            _ => None,
        }
    }

    /// Returns the kinds that `addWatch` means by this number.
    pub(crate) fn from_add_mode(number: i32) -> Option<WatchKinds> {
        match number {
            0 => Some(WatchKinds::PERSISTENT),
            1 => Some(WatchKinds::RECURSIVE),
            _ => None,
        }
    }

    fn and(self, other: WatchKinds) -> WatchKinds {
        WatchKinds(self.0 & other.0)
    }

    fn without(self, other: WatchKinds) -> WatchKinds {
        WatchKinds(self.0 & !other.0)
    }

    /// Returns the number of watches as ZooKeeper counts them.
    fn zookeeper_count(self) -> usize {
        usize::from(self.and(WatchKinds::DATA_SIDE).any())
            + usize::from(self.and(WatchKinds::CHILD_SIDE).any())
    }

    fn watches_data(self) -> bool {
        self.and(WatchKinds::DATA_SIDE).any()
    }

    fn any(self) -> bool {
        self.0 != 0
    }
}

/// All watches.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    paths: HashMap<Arc<str>, PathWatches>,
    conns: HashMap<ConnId, ConnectionWatches>,
    /// Number of (path, connection) pairs with a recursive watch. If it is zero, no ancestor is looked up.
    recursive: usize,
    /// Number of watches as ZooKeeper counts them: data watches and child watches.
    zookeeper_count: usize,
    data_counts: DataWatchCounts,
}

/// The watches on one path.
#[derive(Debug, Default)]
struct PathWatches {
    conns: BTreeMap<ConnId, WatchKinds>,
    /// Number of connections that watch the data.
    data_watchers: usize,
}

/// Counts of watches on data. They are updated with each change of a watch. To count a million
/// watches on request would take seconds, and any client may send such a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DataWatchCounts {
    /// Connections that watch the data of any path.
    pub connections: usize,
    /// Paths whose data is watched.
    pub paths: usize,
    /// Pairs of a connection and a path whose data the connection watches.
    pub total: usize,
}

/// The watches of one connection.
#[derive(Debug, Default)]
struct ConnectionWatches {
    paths: HashSet<Arc<str>>,
    /// Number of paths whose data is watched.
    data_paths: usize,
    /// Total number of the paths. A long path counts as several (see `cost`).
    cost: usize,
}

/// Returns the number of paths that one watched path counts as. A long path counts as several, because a path may have
/// a million bytes.
fn cost(path: &str) -> usize {
    1 + path.len() / 128
}

impl Watches {
    /// Adds a watch.
    pub(crate) fn add(&mut self, path: &str, conn: ConnId, kinds: WatchKinds) {
        let path: Arc<str> = match self.paths.get_key_value(path) {
            Some((path, _)) => Arc::clone(path),
            None => path.into(),
        };
        let watchers = self.paths.entry(Arc::clone(&path)).or_default();
        let entry = watchers.conns.entry(conn).or_insert(WatchKinds(0));
        let before = *entry;
        entry.0 |= kinds.0;
        self.zookeeper_count += entry.zookeeper_count() - before.zookeeper_count();
        if entry.watches_data() && !before.watches_data() {
            let watched = self.conns.entry(conn).or_default();
            self.data_counts.connections += usize::from(watched.data_paths == 0);
            self.data_counts.paths += usize::from(watchers.data_watchers == 0);
            self.data_counts.total += 1;
            watched.data_paths += 1;
            watchers.data_watchers += 1;
        }
        if kinds.and(WatchKinds::RECURSIVE).any() && !before.and(WatchKinds::RECURSIVE).any() {
            self.recursive += 1;
        }
        if !before.any() {
            let watched = self.conns.entry(conn).or_default();
            watched.cost += cost(&path);
            watched.paths.insert(path);
        }
    }

    /// Returns whether the connection has a watch of any of these kinds.
    pub(crate) fn contains(&self, path: &str, conn: ConnId, kinds: WatchKinds) -> bool {
        self.paths
            .get(path)
            .and_then(|watchers| watchers.conns.get(&conn))
            .is_some_and(|has| has.and(kinds).any())
    }

    /// Removes the connection's watches of these kinds. Returns false if there was none.
    pub(crate) fn remove(&mut self, path: &str, conn: ConnId, kinds: WatchKinds) -> bool {
        let had = self.contains(path, conn, kinds);
        if had {
            self.remove_kinds(path, conn, kinds);
        }
        had
    }

    /// Removes all watches of a connection.
    pub(crate) fn remove_connection(&mut self, conn: ConnId) {
        let ConnectionWatches { paths, data_paths, .. } = self.conns.remove(&conn).unwrap_or_default();
        self.data_counts.connections -= usize::from(data_paths > 0);
        for path in paths {
            self.remove_kinds(&path, conn, WatchKinds(u8::MAX));
        }
    }

    /// Returns the connections that get an event, and removes the one-shot watches that fire.
    pub(crate) fn fire(&mut self, kind: EventKind, path: &str) -> Vec<ConnId> {
        let wanted = match kind {
            EventKind::Created | EventKind::DataChanged => WatchKinds::DATA_SIDE,
            EventKind::Deleted => WatchKinds(WatchKinds::DATA_SIDE.0 | WatchKinds::CHILD_SIDE.0),
            EventKind::ChildrenChanged => WatchKinds::CHILD_SIDE.without(WatchKinds::RECURSIVE),
        };
        let mut notified: Vec<ConnId> = match self.paths.get(path) {
            None => Vec::new(),
            Some(PathWatches { conns, .. }) => {
                conns.iter().filter(|(_, has)| has.and(wanted).any()).map(|(&conn, _)| conn).collect()
            }
        };
        for &conn in &notified {
            self.remove_kinds(path, conn, wanted.and(WatchKinds::ONE_SHOT));
        }
        if self.recursive > 0 && kind != EventKind::ChildrenChanged {
            for ancestor in ancestors(path) {
                let Some(PathWatches { conns, .. }) = self.paths.get(ancestor) else { continue };
                let recursive =
                    conns.iter().filter(|(_, has)| has.and(wanted).and(WatchKinds::RECURSIVE).any());
                notified.extend(recursive.map(|(&conn, _)| conn));
            }
            notified.sort_unstable();
            notified.dedup();
        }
        notified
    }

    /// Returns the number of paths that a connection watches. A long path counts as several.
    pub(crate) fn cost(&self, conn: ConnId) -> usize {
        self.conns.get(&conn).map_or(0, |watched| watched.cost)
    }

    /// Returns the paths whose data is watched, each with its connections.
    pub(crate) fn data_watches(&self) -> impl Iterator<Item = (&Arc<str>, impl Iterator<Item = ConnId>)> {
        self.paths.iter().map(|(path, watchers)| {
            let watching = watchers.conns.iter().filter(|(_, kinds)| kinds.watches_data());
            (path, watching.map(|(&conn, _)| conn))
        })
    }

    /// Returns the counts of watches on data.
    pub(crate) fn data_watch_counts(&self) -> DataWatchCounts {
        self.data_counts
    }

    /// Returns the number of watches as ZooKeeper counts them: data watches and child watches.
    pub(crate) fn zookeeper_count(&self) -> usize {
        self.zookeeper_count
    }

    /// Returns the number of (path, connection) pairs that are watched.
    pub(crate) fn len(&self) -> usize {
        self.conns.values().map(|watched| watched.paths.len()).sum()
    }

    fn remove_kinds(&mut self, path: &str, conn: ConnId, kinds: WatchKinds) {
        let Some(watchers) = self.paths.get_mut(path) else { return };
        let Some(has) = watchers.conns.get_mut(&conn) else { return };
        let before = *has;
        *has = has.without(kinds);
        let after = *has;
        self.zookeeper_count -= before.zookeeper_count() - after.zookeeper_count();
        if before.and(WatchKinds::RECURSIVE).any() && !after.and(WatchKinds::RECURSIVE).any() {
            self.recursive -= 1;
        }
        if before.watches_data() && !after.watches_data() {
            watchers.data_watchers -= 1;
            self.data_counts.paths -= usize::from(watchers.data_watchers == 0);
            self.data_counts.total -= 1;
            if let Some(watched) = self.conns.get_mut(&conn) {
                watched.data_paths -= 1;
                self.data_counts.connections -= usize::from(watched.data_paths == 0);
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

    const FIRST: ConnId = ConnId(1);
    const SECOND: ConnId = ConnId(2);

    #[test]
    fn one_shot_watches_fire_once_and_leave_nothing() {
        let mut watches = Watches::default();
        watches.add("/a", FIRST, WatchKinds::DATA);
        watches.add("/a", FIRST, WatchKinds::CHILD);
        watches.add("/a", SECOND, WatchKinds::CHILD);
        assert_eq!(watches.fire(EventKind::DataChanged, "/a"), [FIRST]);
        assert_eq!(watches.fire(EventKind::DataChanged, "/a"), []);
        assert_eq!(watches.fire(EventKind::ChildrenChanged, "/a"), [FIRST, SECOND]);
        assert!(watches.paths.is_empty() && watches.conns.is_empty());
        assert_eq!((watches.len(), watches.zookeeper_count()), (0, 0));
    }

    #[test]
    fn deletion_is_sent_once_per_connection() {
        let mut watches = Watches::default();
        watches.add("/a", FIRST, WatchKinds::DATA);
        watches.add("/a", FIRST, WatchKinds::CHILD);
        assert_eq!(watches.fire(EventKind::Deleted, "/a"), [FIRST]);
        assert!(watches.paths.is_empty() && watches.conns.is_empty());
    }

    #[test]
    fn recursive_watch_gets_no_child_events() {
        let mut watches = Watches::default();
        watches.add("/a", FIRST, WatchKinds::RECURSIVE);
        watches.add("/", SECOND, WatchKinds::RECURSIVE);
        assert_eq!(watches.fire(EventKind::Created, "/a/b/c"), [FIRST, SECOND]);
        assert_eq!(watches.fire(EventKind::Created, "/ab"), [SECOND]);
        assert_eq!(watches.fire(EventKind::ChildrenChanged, "/a/b"), []);
        assert_eq!(watches.fire(EventKind::ChildrenChanged, "/a"), []);
        assert!(watches.remove("/a", FIRST, WatchKinds::RECURSIVE));
        watches.remove_connection(SECOND);
        assert!(watches.paths.is_empty() && watches.conns.is_empty());
        assert_eq!((watches.recursive, watches.zookeeper_count()), (0, 0));
    }

    #[test]
    fn data_watch_counts_stay_correct() {
        let mut watches = Watches::default();
        let mut random = 1_u32;
        let mut next = |below: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) % below
        };
        let all = [WatchKinds::DATA, WatchKinds::CHILD, WatchKinds::PERSISTENT, WatchKinds::RECURSIVE];
        for _ in 0..5000 {
            let (conn, path) = (ConnId(u64::from(next(3))), ["/", "/a", "/a/b"][next(3) as usize]);
            match next(8) {
                0 => watches.remove_connection(conn),
                1 => drop(watches.fire(EventKind::Deleted, path)),
                2 => drop(watches.fire(EventKind::DataChanged, path)),
                3 => drop(watches.remove(path, conn, WatchKinds::DATA_SIDE)),
                4 => drop(watches.remove(path, conn, WatchKinds::CHILD_SIDE)),
                _ => watches.add(path, conn, all[next(4) as usize]),
            }
            let pairs: Vec<(&Arc<str>, ConnId)> = watches
                .data_watches()
                .flat_map(|(path, conns)| conns.map(move |conn| (path, conn)))
                .collect();
            let counted = DataWatchCounts {
                connections: pairs.iter().map(|(_, conn)| conn).collect::<HashSet<_>>().len(),
                paths: pairs.iter().map(|(path, _)| path).collect::<HashSet<_>>().len(),
                total: pairs.len(),
            };
            assert_eq!(watches.data_watch_counts(), counted);
        }
    }

    #[test]
    fn a_long_path_counts_as_several() {
        let mut watches = Watches::default();
        let long = format!("/{}", "x".repeat(1279));
        for kinds in [WatchKinds::DATA, WatchKinds::CHILD] {
            watches.add("/a", FIRST, kinds);
            watches.add(&long, FIRST, kinds);
        }
        assert_eq!(watches.cost(FIRST), 12);
        watches.fire(EventKind::Deleted, &long);
        assert_eq!(watches.cost(FIRST), 1);
        watches.fire(EventKind::Deleted, "/a");
        assert_eq!(watches.cost(FIRST), 0);
    }

    #[test]
    fn persistent_watch_survives_one_shot_watch() {
        let mut watches = Watches::default();
        watches.add("/a", FIRST, WatchKinds::PERSISTENT);
        watches.add("/a", FIRST, WatchKinds::DATA);
        for _ in 0..2 {
            assert_eq!(watches.fire(EventKind::DataChanged, "/a"), [FIRST]);
            assert_eq!(watches.fire(EventKind::ChildrenChanged, "/a"), [FIRST]);
        }
        assert!(!watches.contains("/a", FIRST, WatchKinds::DATA));
    }
}
