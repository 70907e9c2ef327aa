//! What a part of the tree must look like after the first so many writes of its only writer.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use zoolock_server::acl::{Acl, perms};
use zoolock_server::wire::{CreateRequest, Request, Stat, op};

/// The place of a write among its writer's.
pub(crate) type Number = u64;

pub(crate) const EPHEMERAL: i32 = 1;
pub(crate) const SEQUENTIAL: i32 = 2;

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
    /// Fails, and so does the multi in which it stands.
    Fail,
    Multi(Vec<Write>),
    Close,
}

impl Write {
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

    /// The others do in every state in which they are made.
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
    /// Zxids, as numbers of writes.
    created: Number,
    changed: Number,
    children_changed: Number,
    version: i32,
    /// How many children it has ever had.
    births: i32,
    ephemeral: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Area {
    pub(crate) nodes: BTreeMap<String, Node>,
    /// Whether the writer's session lasts.
    pub(crate) open: bool,
}

/// The part of the tree as a client reads it.
pub(crate) type Found = BTreeMap<String, (Bytes, Stat)>;

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl Area {
    pub(crate) fn apply(&mut self, number: Number, write: &Write) {
        if !write.succeeds() {
            return;
        }
        match write {
            Write::Create { path, data, flags } => {
                let mut path = path.clone();
                if let Some(parent) = self.nodes.get_mut(parent(&path)) {
                    if flags & SEQUENTIAL != 0 {
                        path += &format!("{:010}", parent.births);
                    }
                    parent.births += 1;
                    parent.children_changed = number;
                }
                let node = Node {
                    data: data.clone(),
                    created: number,
                    changed: number,
                    children_changed: number,
                    version: 0,
                    births: 0,
                    ephemeral: flags & EPHEMERAL != 0,
                };
                let before = self.nodes.insert(path, node);
                assert!(before.is_none(), "a worker creates what is not there");
            }
            Write::Set { path, data } => {
                let node = self.nodes.get_mut(path).expect("a worker sets what is there");
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
        self.nodes.remove(path).expect("a worker deletes what is there");
        if let Some(parent) = self.nodes.get_mut(parent(path)) {
            parent.children_changed = number;
        }
    }

    /// Whether this is what was found, with the zxids that are known, and any for writes that were not answered.
    pub(crate) fn compare(&self, found: &Found, owner: i64, zxids: &Zxids) -> Result<Zxids, String> {
        if let Some(path) = self.nodes.keys().find(|path| !found.contains_key(*path)) {
            return Err(format!("{path} is missing"));
        }
        if let Some(path) = found.keys().find(|path| !self.nodes.contains_key(*path)) {
            return Err(format!("{path} is there"));
        }
        let mut children: HashMap<&str, i32> = HashMap::new();
        self.nodes.keys().for_each(|path| *children.entry(parent(path)).or_default() += 1);
        let mut learnt = zxids.clone();
        for (path, node) in &self.nodes {
            let (data, stat) = &found[path];
            if *data != node.data {
                return Err(format!("{path} has {:?}, not {:?}", head(data), head(&node.data)));
            }
            let count = children.get(path.as_str()).copied().unwrap_or(0);
            let wanted = Stat {
                version: node.version,
                cversion: 2 * node.births - count,
                aversion: 0,
                ephemeral_owner: if node.ephemeral { owner } else { 0 },
                data_length: node.data.len() as i32,
                num_children: count,
                ..*stat
            };
            if *stat != wanted {
                return Err(format!("{path} has {stat:?}, not {wanted:?}"));
            }
            for (what, number, zxid) in [
                ("czxid", node.created, stat.czxid),
                ("mzxid", node.changed, stat.mzxid),
                ("pzxid", node.children_changed, stat.pzxid),
            ] {
                learnt.learn(number, zxid).map_err(|why| format!("the {what} of {path}: {why}"))?;
            }
        }
        learnt.in_order()?;
        Ok(learnt)
    }
}

/// Enough to tell values apart.
fn head(data: &Bytes) -> String {
    format!("{} and so on, {} bytes", String::from_utf8_lossy(&data[..data.len().min(20)]), data.len())
}

/// Which write has which zxid.
#[derive(Debug, Clone, Default)]
pub(crate) struct Zxids(BTreeMap<Number, i64>);

impl Zxids {
    pub(crate) fn learn(&mut self, number: Number, zxid: i64) -> Result<(), String> {
        match self.0.insert(number, zxid) {
            Some(known) if known != zxid => Err(format!("{zxid:#x} where {known:#x} was told")),
            _ => Ok(()),
        }
    }

    pub(crate) fn in_order(&self) -> Result<(), String> {
        let all: Vec<_> = self.0.iter().collect();
        match all.windows(2).find(|two| two[0].1 >= two[1].1) {
            None => Ok(()),
            Some(two) => {
                Err(format!("write {} has {:#x}, write {} has {:#x}", two[0].0, two[0].1, two[1].0, two[1].1))
            }
        }
    }

    /// Forgets what nothing in the area shows, but for the last.
    pub(crate) fn prune(&mut self, area: &Area) {
        let shown: std::collections::BTreeSet<Number> = area
            .nodes
            .values()
            .flat_map(|node| [node.created, node.changed, node.children_changed])
            .chain(self.0.keys().next_back().copied())
            .collect();
        self.0.retain(|number, _| shown.contains(number));
    }
}
