//! The watches of all connections.
//!
//! As in ZooKeeper, a path has a data side and a child side. `exists` and `getData` set watches on
//! the data side, `getChildren` sets them on the child side, and persistent watches are on both
//! sides. A one-shot watch and a persistent watch on the same path do not replace each other
//! (ZOOKEEPER-4466). A connection with both gets each event once.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque, btree_set};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;

use siphasher::sip128::{Hasher128 as _, SipHasher13};
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
    /// The watched paths by their keys (see [`PathHasher`]). A hash map would stop the server when it grows beyond a
    /// million paths. A map by paths would compare the common beginnings of long paths.
    paths: BTreeMap<u128, PathWatches>,
    conns: HashMap<ConnId, ConnectionWatches>,
    /// The watches of connections that have ended, which [`Watches::forget_ended`] removes bit by bit.
    ended: VecDeque<(ConnId, btree_set::IntoIter<u128>)>,
    /// Recursive watches of connections, by the keys of the watched paths.
    recursive: BTreeMap<u128, BTreeMap<ConnId, WatchKinds>>,
    hasher: PathHasher,
    /// Total cost of the watches of all connections.
    cost: usize,
    /// Number of watches as ZooKeeper counts them: data watches and child watches.
    zookeeper_count: usize,
    data_counts: DataWatchCounts,
}

/// The watches on one path.
#[derive(Debug)]
struct PathWatches {
    path: Arc<str>,
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
    /// The keys of the paths.
    paths: BTreeSet<u128>,
    /// Number of paths whose data is watched.
    data_paths: usize,
    /// Total number of the paths. A long path counts as several (see `cost`).
    cost: usize,
}

/// Number of bytes of a path that take as long to free as the watch itself.
const FREED_BYTES: usize = 4096;

/// Returns the number of paths that one watched path counts as. A long path counts as several, because a path may have
/// a million bytes.
fn cost(path: &str) -> usize {
    1 + path.len() / 128
}

impl Watches {
    /// Adds a watch.
    pub(crate) fn add(&mut self, path: &str, conn: ConnId, kinds: WatchKinds) {
        let key = self.hasher.key(path);
        let new = || PathWatches { path: path.into(), conns: BTreeMap::new(), data_watchers: 0 };
        let watchers = self.paths.entry(key).or_insert_with(new);
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
        let recursive = entry.and(WatchKinds::RECURSIVE);
        if recursive != before.and(WatchKinds::RECURSIVE) {
            self.recursive.entry(key).or_default().insert(conn, recursive);
        }
        if !before.any() {
            let watched = self.conns.entry(conn).or_default();
            watched.cost += cost(path);
            self.cost += cost(path);
            watched.paths.insert(key);
        }
    }

    /// Returns whether the connection has a watch of any of these kinds.
    pub(crate) fn contains(&self, path: &str, conn: ConnId, kinds: WatchKinds) -> bool {
        self.has_kinds(self.hasher.key(path), conn, kinds)
    }

    fn has_kinds(&self, key: u128, conn: ConnId, kinds: WatchKinds) -> bool {
        let has = self.paths.get(&key).and_then(|watchers| watchers.conns.get(&conn));
        has.is_some_and(|has| has.and(kinds).any())
    }

    /// Removes the connection's watches of these kinds. Returns false if there was none.
    pub(crate) fn remove(&mut self, path: &str, conn: ConnId, kinds: WatchKinds) -> bool {
        let key = self.hasher.key(path);
        let had = self.has_kinds(key, conn, kinds);
        if had {
            self.remove_kinds(key, conn, kinds);
        }
        had
    }

    /// Ends all watches of a connection, which must get no event from now on. [`Watches::forget_ended`] frees their
    /// memory.
    pub(crate) fn end_connection(&mut self, conn: ConnId) {
        let Some(ConnectionWatches { paths, data_paths, cost }) = self.conns.remove(&conn) else { return };
        self.data_counts.connections -= usize::from(data_paths > 0);
        self.cost -= cost;
        self.ended.push_back((conn, paths.into_iter()));
    }

    /// Frees the memory of about `max` watches of connections that have ended. Returns their number. A path counts as one
    /// more for each [`FREED_BYTES`], because to free a long path takes long.
    pub(crate) fn forget_ended(&mut self, max: usize) -> usize {
        let mut forgotten = 0;
        while forgotten < max
            && let Some((conn, paths)) = self.ended.front_mut()
        {
            let conn = *conn;
            let Some(key) = paths.next() else {
                self.ended.pop_front();
                continue;
            };
            let len = self.paths.get(&key).map_or(0, |watchers| watchers.path.len());
            self.remove_kinds(key, conn, WatchKinds(u8::MAX));
            forgotten += 1 + len / FREED_BYTES;
        }
        forgotten
    }

    /// Returns whether [`Watches::forget_ended`] has something to do.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Returns whether a connection has a recursive watch.
    pub(crate) fn has_recursive(&self) -> bool {
        !self.recursive.is_empty()
    }

    /// Returns the connections that get an event, in order, and the number of visited watches; or `None` if more than `max`
    /// watches on the path and its ancestors are to be visited. `kind` and `path` are those of the event. The result may
    /// contain connections whose watches have ended.
    pub(crate) fn audience(&self, kind: EventKind, path: &str, max: usize) -> Option<(Vec<ConnId>, usize)> {
        let wanted = wanted_kinds(kind);
        let mut visited = 0;
        let mut audience = Vec::new();
        let mut visit = |watchers: &BTreeMap<ConnId, WatchKinds>| {
            visited += watchers.len();
            if visited > max {
                return None;
            }
            audience.extend(watchers.iter().filter(|(_, has)| has.and(wanted).any()).map(|(&conn, _)| conn));
            Some(())
        };
        if let Some(watchers) = self.watchers(path) {
            visit(&watchers.conns)?;
        }
        if !self.recursive.is_empty() && kind != EventKind::ChildrenChanged {
            let above = self.hasher.ancestor_keys(path).filter_map(|key| self.recursive.get(&key));
            above.map(&mut visit).collect::<Option<()>>()?;
            audience.sort_unstable();
            audience.dedup();
        }
        Some((audience, visited))
    }

    /// Removes the one-shot watches of connections that an event uses up.
    pub(crate) fn use_up(&mut self, kind: EventKind, path: &str, conns: &[ConnId]) {
        let key = self.hasher.key(path);
        for &conn in conns {
            self.remove_kinds(key, conn, wanted_kinds(kind).and(WatchKinds::ONE_SHOT));
        }
    }

    /// Returns whether a connection gets an event, and removes its one-shot watches that fire.
    pub(crate) fn fire_for(&mut self, conn: ConnId, kind: EventKind, path: &str) -> bool {
        let (key, wanted) = (self.hasher.key(path), wanted_kinds(kind));
        if self.has_kinds(key, conn, wanted) {
            self.remove_kinds(key, conn, wanted.and(WatchKinds::ONE_SHOT));
            return true;
        }
        kind != EventKind::ChildrenChanged
            && self.hasher.ancestor_keys(path).any(|key| {
                let has = self.recursive.get(&key).and_then(|conns| conns.get(&conn));
                has.is_some_and(|has| has.and(wanted).any())
            })
    }

    /// Returns the paths that a connection watches. The flag is set if the watch covers the descendants.
    pub(crate) fn watched_by(&self, conn: ConnId) -> impl Iterator<Item = (&Arc<str>, bool)> {
        let keys = self.conns.get(&conn).into_iter().flat_map(|watched| &watched.paths);
        keys.filter_map(move |key| {
            let watchers = self.paths.get(key)?;
            let has = watchers.conns.get(&conn)?;
            Some((&watchers.path, has.and(WatchKinds::RECURSIVE).any()))
        })
    }

    fn watchers(&self, path: &str) -> Option<&PathWatches> {
        self.paths.get(&self.hasher.key(path))
    }

    /// Returns at most `max` connections that watch a path itself.
    pub(crate) fn watchers_of(&self, path: &str, max: usize) -> Vec<ConnId> {
        self.watchers(path)
            .into_iter()
            .flat_map(|watchers| watchers.conns.keys().copied())
            .take(max)
            .collect()
    }

    /// Returns the number of paths that a connection watches.
    pub(crate) fn count(&self, conn: ConnId) -> usize {
        self.conns.get(&conn).map_or(0, |watched| watched.paths.len())
    }

    /// Returns the number of paths that a connection watches. A long path counts as several.
    pub(crate) fn cost(&self, conn: ConnId) -> usize {
        self.conns.get(&conn).map_or(0, |watched| watched.cost)
    }

    /// Returns the total number of paths that connections watch. A long path counts as several.
    pub(crate) fn total_cost(&self) -> usize {
        self.cost
    }

    /// Returns the connection whose watches have the highest cost.
    pub(crate) fn most_expensive(&self) -> Option<ConnId> {
        self.conns.iter().max_by_key(|(_, watched)| watched.cost).map(|(&conn, _)| conn)
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

    fn remove_kinds(&mut self, key: u128, conn: ConnId, kinds: WatchKinds) {
        let Some(watchers) = self.paths.get_mut(&key) else { return };
        let Some(has) = watchers.conns.get_mut(&conn) else { return };
        let before = *has;
        *has = has.without(kinds);
        let after = *has;
        self.zookeeper_count -= before.zookeeper_count() - after.zookeeper_count();
        let recursive = after.and(WatchKinds::RECURSIVE);
        if recursive != before.and(WatchKinds::RECURSIVE) {
            let conns = self.recursive.entry(key).or_default();
            match recursive.any() {
                true => conns.insert(conn, recursive),
                false => conns.remove(&conn),
            };
            if conns.is_empty() {
                self.recursive.remove(&key);
            }
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
        let cost = cost(&watchers.path);
        if watchers.conns.is_empty() {
            self.paths.remove(&key);
        }
        if let Some(watched) = self.conns.get_mut(&conn)
            && watched.paths.remove(&key)
        {
            watched.cost -= cost;
            self.cost -= cost;
            if watched.paths.is_empty() {
                self.conns.remove(&conn);
            }
        }
    }
}

fn wanted_kinds(kind: EventKind) -> WatchKinds {
    match kind {
        EventKind::Created | EventKind::DataChanged => WatchKinds::DATA_SIDE,
        EventKind::Deleted => WatchKinds(WatchKinds::DATA_SIDE.0 | WatchKinds::CHILD_SIDE.0),
        EventKind::ChildrenChanged => WatchKinds::CHILD_SIDE.without(WatchKinds::RECURSIVE),
    }
}

/// A hash of paths, keyed at random. The keys of all ancestors of a path take one pass over the path. A search by their
/// names would take a time that grows with the square of the depth.
#[derive(Debug)]
struct PathHasher(SipHasher13);

impl Default for PathHasher {
    fn default() -> Self {
        let random = RandomState::new();
        PathHasher(SipHasher13::new_with_keys(random.hash_one(0), random.hash_one(1)))
    }
}

impl PathHasher {
    /// Returns the key of a path. The hash has 128 bits, so no two paths have the same key.
    fn key(&self, path: &str) -> u128 {
        let mut hasher = self.0;
        hasher.write(path.as_bytes());
        hasher.finish128().as_u128()
    }

    /// Returns the keys of all proper ancestors of a path, the root first.
    fn ancestor_keys(&self, path: &str) -> impl Iterator<Item = u128> {
        let mut hasher = self.0;
        let ends = path.bytes().enumerate().filter(|(_, byte)| *byte == b'/').map(|(at, _)| at);
        let mut hashed = 0;
        // The root is its own slash. The path of another ancestor ends before a slash.
        ends.filter(move |_| path != "/").map(move |end| {
            let end = end.max(1);
            hasher.write(&path.as_bytes()[hashed..end]);
            hashed = end;
            hasher.finish128().as_u128()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: ConnId = ConnId(1);
    const SECOND: ConnId = ConnId(2);

    impl Watches {
        /// Returns the connections that get an event, and removes the one-shot watches that it uses up.
        fn fire(&mut self, kind: EventKind, path: &str) -> Vec<ConnId> {
            let (audience, _) =
                self.audience(kind, path, usize::MAX).expect("a number below the largest one");
            self.use_up(kind, path, &audience);
            audience
        }
    }

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
        watches.end_connection(SECOND);
        assert_eq!(watches.forget_ended(usize::MAX), 1);
        assert!(watches.paths.is_empty() && watches.conns.is_empty() && watches.recursive.is_empty());
        assert_eq!((watches.total_cost(), watches.zookeeper_count()), (0, 0));
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
                0 => {
                    watches.end_connection(conn);
                    watches.forget_ended(usize::MAX);
                }
                1 => drop(watches.fire(EventKind::Deleted, path)),
                2 => drop(watches.fire(EventKind::DataChanged, path)),
                3 => drop(watches.remove(path, conn, WatchKinds::DATA_SIDE)),
                4 => drop(watches.remove(path, conn, WatchKinds::CHILD_SIDE)),
                _ => watches.add(path, conn, all[next(4) as usize]),
            }
            let mut pairs: Vec<(&Arc<str>, ConnId)> = Vec::new();
            for watchers in watches.paths.values() {
                let watching = watchers.conns.iter().filter(|(_, kinds)| kinds.watches_data());
                pairs.extend(watching.map(|(&conn, _)| (&watchers.path, conn)));
            }
            let counted = DataWatchCounts {
                connections: pairs.iter().map(|(_, conn)| conn).collect::<BTreeSet<_>>().len(),
                paths: pairs.iter().map(|(path, _)| path).collect::<BTreeSet<_>>().len(),
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
