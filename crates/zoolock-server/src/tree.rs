//! The znodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use crate::acl::{self, Acl, AclList, perms};
use crate::ids::{SessionId, Zxid};
use crate::path;
use crate::wire::Stat;

/// The owner that marks a container.
pub const CONTAINER: i64 = i64::MIN;

/// One znode.
#[derive(Debug, Clone)]
pub struct Znode {
    /// The data; null is not the same as empty.
    pub data: Option<Bytes>,
    /// Who may do what.
    pub acl: AclList,
    /// The transaction that created it.
    pub czxid: Zxid,
    /// The transaction that wrote its data last.
    pub mzxid: Zxid,
    /// The transaction that changed its children last.
    pub pzxid: Zxid,
    /// Created, in milliseconds since 1970.
    pub ctime: i64,
    /// Data last written, in milliseconds since 1970.
    pub mtime: i64,
    /// How often the data was written.
    pub version: i32,
    /// How many children were ever created: the number of the next sequential one. (`Stat.cversion` counts
    /// deletions too.)
    pub created: i32,
    /// How often the access list was written.
    pub aversion: i32,
    /// 0, [`CONTAINER`], or the session of an ephemeral.
    pub owner: i64,
    /// The names of the children.
    pub children: BTreeSet<Box<str>>,
}

impl Znode {
    fn new(zxid: Zxid, time: i64) -> Self {
        Znode {
            data: None,
            acl: acl::open(),
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime: time,
            mtime: time,
            version: 0,
            created: 0,
            aversion: 0,
            owner: 0,
            children: BTreeSet::new(),
        }
    }

    /// The metadata as a client sees it.
    pub fn stat(&self) -> Stat {
        let num_children = as_i32(self.children.len());
        Stat {
            czxid: self.czxid.get(),
            mzxid: self.mzxid.get(),
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            // Creations plus deletions, wrapping as Java's arithmetic does.
            cversion: self.created.wrapping_mul(2).wrapping_sub(num_children),
            aversion: self.aversion,
            // A container does not show, as in DataNode.copyStat.
            ephemeral_owner: if self.owner == CONTAINER { 0 } else { self.owner },
            data_length: as_i32(self.data.as_ref().map_or(0, Bytes::len)),
            num_children,
            pzxid: self.pzxid.get(),
        }
    }
}

/// One znode by itself, as a snapshot keeps it. What is not here follows from the other znodes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the znode")]
pub struct NodeRecord {
    pub path: String,
    pub data: Option<Bytes>,
    pub acl: AclList,
    pub czxid: Zxid,
    pub mzxid: Zxid,
    pub pzxid: Zxid,
    pub ctime: i64,
    pub mtime: i64,
    pub version: i32,
    pub created: i32,
    pub aversion: i32,
    pub owner: i64,
}

/// All znodes, by path.
#[derive(Debug, Clone)]
pub struct Tree {
    nodes: HashMap<Arc<str>, Znode>,
    ephemerals: BTreeMap<SessionId, BTreeSet<Arc<str>>>,
    containers: BTreeSet<Arc<str>>,
}

/// What a new znode is made of.
#[derive(Debug)]
pub(crate) struct NewNode {
    pub(crate) path: Arc<str>,
    pub(crate) data: Option<Bytes>,
    pub(crate) acl: AclList,
    pub(crate) owner: i64,
    /// What the parent's count of creations becomes.
    pub(crate) parent_created: i32,
    pub(crate) zxid: Zxid,
    pub(crate) time: i64,
}

impl Default for Tree {
    fn default() -> Self {
        Tree::new()
    }
}

impl Tree {
    /// Makes the tree of a fresh server: the root and ZooKeeper's own three znodes.
    pub fn new() -> Self {
        let mut tree =
            Tree { nodes: HashMap::new(), ephemerals: BTreeMap::new(), containers: BTreeSet::new() };
        let zero = Zxid::from_wire(0);
        let nodes = [("/", "zookeeper"), ("/zookeeper", "config quota"), ("/zookeeper/quota", "")];
        for (path, children) in nodes {
            let mut node = Znode::new(zero, 0);
            node.data = Some(Bytes::new());
            node.children = children.split_whitespace().map(Box::from).collect();
            tree.nodes.insert(path.into(), node);
        }
        let mut config = Znode::new(zero, 0);
        config.data = Some(Bytes::new());
        config.acl = Arc::new([Acl::anyone(perms::READ)]);
        config.aversion = -1;
        tree.nodes.insert("/zookeeper/config".into(), config);
        tree
    }

    /// Looks a znode up; the empty path is the root.
    pub fn get(&self, path: &str) -> Option<&Znode> {
        self.nodes.get(path::normal(path))
    }

    pub(crate) fn get_mut(&mut self, path: &str) -> Option<&mut Znode> {
        self.nodes.get_mut(path::normal(path))
    }

    /// How many znodes there are, the root included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: there is always a root.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The ephemerals of a session, in order of their paths.
    pub fn ephemerals(&self, session: SessionId) -> impl Iterator<Item = &Arc<str>> {
        self.ephemerals.get(&session).into_iter().flatten()
    }

    /// The containers that had a child and have none now.
    pub fn emptied_containers(&self) -> Vec<Arc<str>> {
        let emptied = |path: &&Arc<str>| {
            self.nodes.get(&***path).is_some_and(|node| node.created > 0 && node.children.is_empty())
        };
        self.containers.iter().filter(emptied).cloned().collect()
    }

    /// How many znodes lie below this one, or `None` where it does not exist.
    pub fn descendants(&self, path: &str) -> Option<usize> {
        let path = path::normal(path);
        if path == "/" {
            return Some(self.nodes.len() - 1);
        }
        let mut todo = vec![(path.to_owned(), self.nodes.get(path)?)];
        let mut count = 0;
        while let Some((path, node)) = todo.pop() {
            count += node.children.len();
            for name in &node.children {
                let child = format!("{path}/{name}");
                if let Some(node) = self.nodes.get(child.as_str()) {
                    todo.push((child, node));
                }
            }
        }
        Some(count)
    }

    /// All znodes by themselves, in no particular order.
    pub fn records(&self) -> impl Iterator<Item = NodeRecord> {
        self.nodes.iter().map(|(path, node)| NodeRecord {
            path: path.as_ref().to_owned(),
            data: node.data.clone(),
            acl: node.acl.clone(),
            czxid: node.czxid,
            mzxid: node.mzxid,
            pzxid: node.pzxid,
            ctime: node.ctime,
            mtime: node.mtime,
            version: node.version,
            created: node.created,
            aversion: node.aversion,
            owner: node.owner,
        })
    }

    /// Makes a tree of its znodes, in whatever order they come.
    ///
    /// # Errors
    /// They make no tree: one comes twice, a parent is missing, a path is no path.
    pub fn from_records(records: impl IntoIterator<Item = NodeRecord>) -> Result<Self, String> {
        let mut nodes: HashMap<Arc<str>, Znode> = HashMap::new();
        let mut ephemerals: BTreeMap<SessionId, BTreeSet<Arc<str>>> = BTreeMap::new();
        let mut containers = BTreeSet::new();
        for record in records {
            path::validate(&record.path).map_err(|_| format!("{:?} is no path", record.path))?;
            let path: Arc<str> = record.path.into();
            match record.owner {
                0 => {}
                CONTAINER => {
                    containers.insert(Arc::clone(&path));
                }
                session => {
                    ephemerals.entry(SessionId::from_wire(session)).or_default().insert(Arc::clone(&path));
                }
            }
            let node = Znode {
                data: record.data,
                acl: record.acl,
                czxid: record.czxid,
                mzxid: record.mzxid,
                pzxid: record.pzxid,
                ctime: record.ctime,
                mtime: record.mtime,
                version: record.version,
                created: record.created,
                aversion: record.aversion,
                owner: record.owner,
                children: BTreeSet::new(),
            };
            if nodes.insert(Arc::clone(&path), node).is_some() {
                return Err(format!("{path} comes twice"));
            }
        }
        let paths: Vec<Arc<str>> = nodes.keys().cloned().collect();
        for path in paths.iter().filter(|path| &***path != "/") {
            let (parent, name) = path::split(path);
            let parent = nodes.get_mut(parent).ok_or_else(|| format!("{path} has no parent"))?;
            parent.children.insert(name.into());
        }
        if !nodes.contains_key("/") {
            return Err("there is no root".to_owned());
        }
        Ok(Tree { nodes, ephemerals, containers })
    }

    /// Adds a znode that [`crate::prepare`] allowed.
    pub(crate) fn create(&mut self, new: NewNode) -> Stat {
        let (parent, name) = path::split(&new.path);
        let parent = self.nodes.get_mut(parent).expect("prepare saw the parent, and nothing came between");
        // ZooKeeper sticks at the end of the numbers for this very comparison: the wrapped, negative count never
        // is the larger one, so neither the count nor pzxid move again. -1 means "count for yourself" there.
        let created =
            if new.parent_created == -1 { parent.created.wrapping_add(1) } else { new.parent_created };
        if created > parent.created {
            parent.created = created;
            parent.pzxid = new.zxid;
        }
        parent.children.insert(name.into());
        let mut node = Znode::new(new.zxid, new.time);
        (node.data, node.acl, node.owner) = (new.data, new.acl, new.owner);
        let stat = node.stat();
        match new.owner {
            0 => {}
            CONTAINER => {
                self.containers.insert(Arc::clone(&new.path));
            }
            session => {
                let session = SessionId::from_wire(session);
                self.ephemerals.entry(session).or_default().insert(Arc::clone(&new.path));
            }
        }
        self.nodes.insert(new.path, node);
        stat
    }

    /// Removes a znode that [`crate::prepare`] allowed to go.
    pub(crate) fn delete(&mut self, path: &Arc<str>, zxid: Zxid) {
        let (parent, name) = path::split(path);
        let node = self.nodes.remove(path).expect("prepare saw the znode, and nothing came between");
        let parent = self.nodes.get_mut(parent).expect("a znode that exists has a parent");
        parent.children.remove(name);
        parent.pzxid = parent.pzxid.max(zxid);
        match node.owner {
            0 => {}
            CONTAINER => {
                self.containers.remove(path);
            }
            session => {
                let session = SessionId::from_wire(session);
                if let Some(paths) = self.ephemerals.get_mut(&session) {
                    paths.remove(path);
                    if paths.is_empty() {
                        self.ephemerals.remove(&session);
                    }
                }
            }
        }
    }
}

fn as_i32(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}
