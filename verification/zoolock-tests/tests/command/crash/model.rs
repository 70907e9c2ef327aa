//! A model of a worker's part of the tree. It computes the state of this part after each write.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use zoolock_wire::{Acl, CreateRequest, Request, Stat, op, perms};

/// The index of a write among the writes of its worker.
pub(crate) type Number = u64;

pub(crate) const EPHEMERAL: i32 = 1;
pub(crate) const SEQUENTIAL: i32 = 2;

/// A write of a worker.
#[derive(Debug, Clone)]
pub(crate) enum Write {
    Create {
        path: String,
        data: Bytes,
        flags: i32,
    },
    Set {
        path: String,
        data: Bytes,
    },
    Delete {
        path: String,
    },
    /// A check that fails, and makes the multi that contains it fail.
    Fail,
    Multi(Vec<Write>),
    /// Closes the session.
    Close,
}

impl Write {
    /// Returns the request of the write.
    pub(crate) fn request(&self) -> Request {
        match self {
            Write::Create { path, data, flags } => Request::Create(CreateRequest {
                op: op::CREATE,
                path: path.clone(),
                data: Some(data.clone()),
                acl: vec![Acl::anyone(perms::ALL)],
                flags: *flags,
                ttl: -1,
            }),
            Write::Set { path, data } => {
                Request::SetData { path: path.clone(), data: Some(data.clone()), version: -1 }
            }
            Write::Delete { path } => Request::Delete { path: path.clone(), version: -1 },
            Write::Fail => Request::Check { path: "/".into(), version: 4711 },
            Write::Multi(writes) => Request::Multi(writes.iter().map(Write::request).collect()),
            Write::Close => Request::CloseSession,
        }
    }

    /// Returns whether the write succeeds. All writes do, except `Fail` and a multi that contains it.
    pub(crate) fn succeeds(&self) -> bool {
        match self {
            Write::Fail => false,
            Write::Multi(writes) => writes.iter().all(Write::succeeds),
            _ => true,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    data: Bytes,
    /// Index of the write that set the znode's `czxid`.
    created: Number,
    /// Index of the write that set the znode's `mzxid`.
    changed: Number,
    /// Index of the write that set the znode's `pzxid`.
    children_changed: Number,
    version: i32,
    /// Number of children ever created.
    created_children: i32,
    ephemeral: bool,
}

/// A worker's part of the tree.
#[derive(Debug, Clone, Default)]
pub(crate) struct Area {
    pub(crate) nodes: BTreeMap<String, Node>,
    /// True if the worker's session is open.
    pub(crate) open: bool,
}

/// A worker's part of the tree as a client reads it from the server.
pub(crate) type Found = BTreeMap<String, (Bytes, Stat)>;

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl Area {
    /// Applies a write to the model.
    pub(crate) fn apply(&mut self, number: Number, write: &Write) {
        if !write.succeeds() {
            return;
        }
        match write {
            Write::Create { path, data, flags } => {
                let mut path = path.clone();
                if let Some(parent) = self.nodes.get_mut(parent(&path)) {
                    if flags & SEQUENTIAL != 0 {
                        path += &format!("{:010}", parent.created_children);
                    }
                    parent.created_children += 1;
                    parent.children_changed = number;
                }
                let node = Node {
                    data: data.clone(),
                    created: number,
                    changed: number,
                    children_changed: number,
                    version: 0,
                    created_children: 0,
                    ephemeral: flags & EPHEMERAL != 0,
                };
                let before = self.nodes.insert(path, node);
                assert!(before.is_none(), "a worker creates only znodes that do not exist");
            }
            Write::Set { path, data } => {
                let node = self.nodes.get_mut(path).expect("a worker sets only znodes that exist");
                node.data = data.clone();
                node.changed = number;
                node.version += 1;
            }
            Write::Delete { path } => self.remove(number, path),
            Write::Multi(writes) => writes.iter().for_each(|write| self.apply(number, write)),
            Write::Close => {
                let ephemerals = self.nodes.iter().filter(|(_, node)| node.ephemeral);
                let paths: Vec<String> = ephemerals.map(|(path, _)| path.clone()).collect();
                paths.iter().for_each(|path| self.remove(number, path));
                self.open = false;
            }
            Write::Fail => {}
        }
    }

    fn remove(&mut self, number: Number, path: &str) {
        self.nodes.remove(path).expect("a worker deletes only znodes that exist");
        if let Some(parent) = self.nodes.get_mut(parent(path)) {
            parent.children_changed = number;
        }
    }

    /// Compares the model with the tree on the server, and returns the zxids of the writes.
    ///
    /// An answered write must have the zxid of its reply. An unanswered write may have any zxid that keeps the order.
    pub(crate) fn compare(&self, found: &Found, owner: i64, zxids: &Zxids) -> Result<Zxids, String> {
        if let Some(path) = self.nodes.keys().find(|path| !found.contains_key(*path)) {
            return Err(format!("{path} is missing"));
        }
        if let Some(path) = found.keys().find(|path| !self.nodes.contains_key(*path)) {
            return Err(format!("{path} exists and should not"));
        }
        let mut children: HashMap<&str, i32> = HashMap::new();
        self.nodes.keys().for_each(|path| *children.entry(parent(path)).or_default() += 1);
        let mut learned = zxids.clone();
        for (path, node) in &self.nodes {
            let (data, stat) = &found[path];
            if *data != node.data {
                return Err(format!("{path} has {:?}, not {:?}", head(data), head(&node.data)));
            }
            let count = children.get(path.as_str()).copied().unwrap_or(0);
            let expected = Stat {
                version: node.version,
                cversion: 2 * node.created_children - count,
                aversion: 0,
                ephemeral_owner: if node.ephemeral { owner } else { 0 },
                data_length: node.data.len() as i32,
                num_children: count,
                ..*stat
            };
            if *stat != expected {
                return Err(format!("{path} has {stat:?}, not {expected:?}"));
            }
            for (field, number, zxid) in [
                ("czxid", node.created, stat.czxid),
                ("mzxid", node.changed, stat.mzxid),
                ("pzxid", node.children_changed, stat.pzxid),
            ] {
                learned.record(number, zxid).map_err(|why| format!("the {field} of {path}: {why}"))?;
            }
        }
        learned.check_order()?;
        Ok(learned)
    }
}

/// Returns the start of some data, enough to tell values apart.
fn head(data: &Bytes) -> String {
    format!("{}… ({} bytes)", String::from_utf8_lossy(&data[..data.len().min(20)]), data.len())
}

/// The zxids of writes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Zxids(BTreeMap<Number, i64>);

impl Zxids {
    /// Records the zxid of a write. Returns an error if another zxid is known.
    pub(crate) fn record(&mut self, number: Number, zxid: i64) -> Result<(), String> {
        match self.0.insert(number, zxid) {
            Some(known) if known != zxid => Err(format!("{zxid:#x}, but the reply had {known:#x}")),
            _ => Ok(()),
        }
    }

    /// Checks that each write has a higher zxid than the writes before it.
    fn check_order(&self) -> Result<(), String> {
        let all: Vec<_> = self.0.iter().collect();
        match all.windows(2).find(|pair| pair[0].1 >= pair[1].1) {
            None => Ok(()),
            Some(pair) => Err(format!(
                "write {} has {:#x}, write {} has {:#x}",
                pair[0].0, pair[0].1, pair[1].0, pair[1].1
            )),
        }
    }

    /// Removes the zxids that no znode of the area has. Keeps the zxid of the last write.
    pub(crate) fn prune(&mut self, area: &Area) {
        let used: BTreeSet<Number> = area
            .nodes
            .values()
            .flat_map(|node| [node.created, node.changed, node.children_changed])
            .chain(self.0.keys().next_back().copied())
            .collect();
        self.0.retain(|number, _| used.contains(number));
    }
}
