//! Tests that compare the tree with a model: a plain map, which is slow but obviously right.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// The znodes by path. Everything else is computed on demand.
#[derive(Debug, Clone, Default)]
struct Model(BTreeMap<String, NodeRecord>);

impl Model {
    fn of(tree: &Tree) -> Self {
        Model(tree.records().map(|record| (record.path.clone(), record)).collect())
    }

    fn children(&self, path: &str) -> BTreeSet<&str> {
        let names = self.0.keys().filter(|other| other.as_str() != "/").map(|other| path::split(other));
        names.filter(|(parent, _)| *parent == path).map(|(_, name)| name).collect()
    }

    fn descendants(&self, path: &str) -> usize {
        let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        self.0.keys().filter(|other| other.starts_with(&prefix) && other.as_str() != "/").count()
    }

    fn paths_where(&self, is: impl Fn(&NodeRecord) -> bool) -> Vec<Arc<str>> {
        self.0.values().filter(|record| is(record)).map(|record| record.path.as_str().into()).collect()
    }

    fn emptied(&self, record: &NodeRecord) -> bool {
        record.meta.owner == CONTAINER && record.meta.created > 0 && self.children(&record.path).is_empty()
    }

    fn expired(&self, record: &NodeRecord, now: i64) -> bool {
        let NodeMeta { owner, mtime, .. } = record.meta;
        let ttl_ms = owner & 0xff_ffff_ffff;
        let has_ttl = (owner as u64) >> 40 == 0xff_0000 && ttl_ms != 0;
        self.emptied(record) || has_ttl && now - mtime > ttl_ms && self.children(&record.path).is_empty()
    }

    fn stat(&self, path: &str) -> Stat {
        let (NodeRecord { data, meta, .. }, children) = (&self.0[path], self.children(path).len() as i32);
        Stat {
            czxid: meta.czxid.0,
            mzxid: meta.mzxid.0,
            ctime: meta.ctime,
            mtime: meta.mtime,
            version: meta.version,
            cversion: meta.created.wrapping_mul(2).wrapping_sub(children),
            aversion: meta.aversion,
            ephemeral_owner: meta.owner.max(0),
            data_length: data.as_ref().map_or(0, Bytes::len) as i32,
            num_children: children,
            pzxid: meta.pzxid.0,
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Create { path: String, data: Option<Bytes>, acl: AclList, owner: i64, parent_created: i32 },
    Delete(Index),
    SetData(Index, Option<Bytes>),
    SetAcl(Index, AclList),
    SetCreated(Index, i32),
    Reload(Vec<Index>),
    Begin,
    Chunk(usize),
    Abandon,
}

fn data() -> impl Strategy<Value = Option<Bytes>> {
    proptest::option::of(vec(any::<u8>(), 0..4).prop_map(Bytes::from))
}

fn list() -> impl Strategy<Value = AclList> {
    (0..3).prop_map(|perms| AclList::from([Acl::anyone(perms)]))
}

fn step() -> impl Strategy<Value = Step> {
    let owner = prop_oneof![
        3 => Just(0),
        2 => Just(CONTAINER),
        2 => 1..3_i64,
        2 => (0..20_i64).prop_map(|ttl| ttl_owner(ttl).unwrap_or(0xff_i64 << 56)),
    ];
    let parent_created = prop_oneof![Just(-1), 0..9, Just(i32::MIN)];
    let create = ("(/[abé]){1,4}", data(), list(), owner, parent_created).prop_map(
        |(path, data, acl, owner, parent_created)| Step::Create { path, data, acl, owner, parent_created },
    );
    let any = any::<Index>;
    prop_oneof![
        12 => create,
        5 => any().prop_map(Step::Delete),
        3 => (any(), data()).prop_map(|(at, data)| Step::SetData(at, data)),
        2 => (any(), list()).prop_map(|(at, acl)| Step::SetAcl(at, acl)),
        1 => (any(), proptest::sample::select(vec![0, 1, -3, i32::MAX])).prop_map(|(at, count)| Step::SetCreated(at, count)),
        1 => vec(any(), 30).prop_map(Step::Reload),
        2 => Just(Step::Begin),
        6 => (0..5_usize).prop_map(Step::Chunk),
        1 => Just(Step::Abandon),
    ]
}

/// A tree, its model, and the expected and actual records of a snapshot.
struct TreeAndModel {
    tree: Tree,
    model: Model,
    snapshot: Option<(Model, Vec<NodeRecord>)>,
    now: i64,
}

impl TreeAndModel {
    fn new() -> Self {
        let tree = Tree::new();
        TreeAndModel { model: Model::of(&tree), tree, snapshot: None, now: 0 }
    }

    fn pick_path(&self, at: Index) -> String {
        self.model.0.keys().nth(at.index(self.model.0.len())).cloned().unwrap_or_default()
    }

    /// Takes the step if a server would allow it.
    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        self.now += 1;
        let (now, zxid) = (self.now, Zxid(self.now));
        match step {
            Step::Create { path, data, acl, owner, parent_created } => {
                let (parent_path, _) = path::split(&path);
                let Some(parent) = self.model.0.get_mut(parent_path) else { return Ok(()) };
                if self.tree.get(&path).is_some() || parent.meta.owner > 0 {
                    return Ok(());
                }
                let count =
                    if parent_created == -1 { parent.meta.created.wrapping_add(1) } else { parent_created };
                if count > parent.meta.created {
                    (parent.meta.created, parent.meta.pzxid) = (count, zxid);
                }
                let record = NodeRecord {
                    path: path.clone(),
                    data: data.clone(),
                    acl: acl.clone(),
                    meta: NodeMeta::new(zxid, now, owner),
                };
                self.model.0.insert(path.clone(), record);
                let new =
                    NewNode { path: path.as_str().into(), data, acl, owner, parent_created, zxid, time: now };
                prop_assert_eq!(self.tree.create(new), self.model.stat(&path));
            }
            Step::Delete(at) => {
                let path = self.pick_path(at);
                if path.starts_with("/zookeeper") || path == "/" || self.model.descendants(&path) > 0 {
                    return Ok(());
                }
                self.tree.delete(&path, zxid);
                self.model.0.remove(&path);
                let parent = self.model.0.get_mut(path::split(&path).0).expect("parent exists in the model");
                parent.meta.pzxid = zxid;
            }
            Step::SetData(at, data) => {
                let path = self.pick_path(at);
                let stat = self.tree.set_data(&path, data.as_deref(), 7, zxid, now);
                let record = self.model.0.get_mut(&path).expect("znode exists in the model");
                let meta = &mut record.meta;
                (record.data, meta.version, meta.mzxid, meta.mtime) = (data, 7, zxid, now);
                prop_assert_eq!(stat, self.model.stat(&path));
            }
            Step::SetAcl(at, acl) => {
                let path = self.pick_path(at);
                let stat = self.tree.set_acl(&path, &acl, 8);
                let record = self.model.0.get_mut(&path).expect("znode exists in the model");
                (record.acl, record.meta.aversion) = (acl, 8);
                prop_assert_eq!(stat, self.model.stat(&path));
            }
            Step::SetCreated(at, count) => {
                let path = self.pick_path(at);
                prop_assert!(self.tree.set_created_children(&path, count));
                self.model.0.get_mut(&path).expect("znode exists in the model").meta.created = count;
            }
            Step::Reload(order) => {
                let mut records: Vec<NodeRecord> = self.tree.records().collect();
                for (at, other) in order.into_iter().enumerate().take(records.len()) {
                    let other = other.index(records.len());
                    records.swap(at, other);
                }
                self.tree = Tree::from_records(records).map_err(TestCaseError::fail)?;
                self.snapshot = None;
            }
            Step::Begin => {
                self.tree.begin_snapshot();
                self.snapshot = Some((self.model.clone(), Vec::new()));
            }
            Step::Chunk(max) => return self.chunk(max),
            Step::Abandon => {
                self.tree.abandon_snapshot();
                self.snapshot = None;
            }
        }
        Ok(())
    }

    fn chunk(&mut self, max: usize) -> Result<(), TestCaseError> {
        let chunk = self.tree.snapshot_chunk(max);
        match (chunk, self.snapshot.take()) {
            (None, None) => {}
            (Some(chunk), Some((wanted, mut got))) => {
                prop_assert!(chunk.len() <= max.max(1));
                got.extend(chunk);
                self.snapshot = Some((wanted, got));
            }
            (None, Some((wanted, got))) => {
                prop_assert_eq!(got.len(), wanted.0.len());
                let got: BTreeMap<_, _> =
                    got.into_iter().map(|record| (record.path.clone(), record)).collect();
                prop_assert_eq!(got, wanted.0);
            }
            (Some(_), None) => prop_assert!(false, "a chunk without a snapshot"),
        }
        Ok(())
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        let TreeAndModel { tree, model, now, .. } = self;
        prop_assert_eq!(&Model::of(tree).0, &model.0);
        prop_assert_eq!(tree.len(), model.0.len());
        for (path, record) in &model.0 {
            let node = tree.get(path).ok_or_else(|| TestCaseError::fail(format!("no {path}")))?;
            prop_assert_eq!(node.stat(), model.stat(path));
            prop_assert_eq!((node.data(), node.acl()), (record.data.as_deref(), &record.acl));
            prop_assert_eq!(node.children().count(), node.child_count());
            prop_assert_eq!(node.children().collect::<BTreeSet<_>>(), model.children(path));
            prop_assert_eq!(tree.count_descendants(path), Some(model.descendants(path)));
            for no_path in [format!("{path}/c"), format!("{path}/"), format!("/{path}"), path[1..].to_owned()]
            {
                prop_assert!(tree.get(&no_path).is_none() || no_path.is_empty() || path == "/");
            }
        }
        let owners = model.0.values().map(|record| record.meta.owner).filter(|owner| *owner > 0);
        let sessions: BTreeSet<SessionId> = owners.map(SessionId).collect();
        prop_assert_eq!(tree.sessions_with_ephemerals().collect::<BTreeSet<_>>(), sessions);
        for session in 1..3 {
            let mine = model.paths_where(|record| record.meta.owner == session);
            prop_assert_eq!(tree.ephemerals(SessionId(session)), mine);
        }
        prop_assert_eq!(tree.ephemerals_count(), model.paths_where(|record| record.meta.owner > 0).len());
        prop_assert_eq!(tree.emptied_containers(), model.paths_where(|record| model.emptied(record)));
        for now in [0, *now, now + 7, now + 1000] {
            prop_assert_eq!(
                tree.expired_paths(now, usize::MAX),
                model.paths_where(|record| model.expired(record, now))
            );
        }
        let size = |r: &NodeRecord| r.path.encode_utf16().count() + r.data.as_ref().map_or(0, Bytes::len);
        prop_assert_eq!(tree.approximate_data_size(), model.0.values().map(size).sum::<usize>());
        let lists: BTreeSet<i32> =
            model.0.values().map(|record| record.acl.iter().map(|acl| acl.perms).sum()).collect();
        prop_assert_eq!(tree.acls.len(), lists.len());
        Ok(())
    }
}

proptest! {
    #[test]
    fn tree_matches_model(steps in vec(step(), 0..120)) {
        let mut both = TreeAndModel::new();
        for step in steps {
            both.step(step)?;
            both.compare()?;
        }
        both.tree.begin_snapshot();
        both.snapshot = Some((both.model.clone(), Vec::new()));
        while both.snapshot.is_some() {
            both.chunk(3)?;
        }
    }

    #[test]
    fn snapshot_is_unaffected_by_later_changes(
        before in vec(step(), 0..60),
        during in vec((step(), proptest::option::of(0..4_usize)), 0..80),
    ) {
        let mut both = TreeAndModel::new();
        for step in before {
            both.step(step)?;
        }
        both.step(Step::Begin)?;
        for (step, chunk) in during {
            if !matches!(step, Step::Reload(_) | Step::Begin | Step::Abandon) {
                both.step(step)?;
            }
            if let Some(max) = chunk {
                both.chunk(max)?;
            }
        }
        while both.snapshot.is_some() {
            both.chunk(2)?;
        }
        both.compare()?;
    }

    #[test]
    fn records_load_if_all_parents_exist(steps in vec(step(), 0..40), missing in vec(any::<Index>(), 0..2)) {
        let mut both = TreeAndModel::new();
        for step in steps {
            both.step(step)?;
        }
        let mut records: Vec<NodeRecord> = both.tree.records().collect();
        for at in missing {
            records.swap_remove(at.index(records.len()));
        }
        let paths: BTreeSet<&str> = records.iter().map(|record| record.path.as_str()).collect();
        let whole = paths.contains("/") && paths.iter().all(|path| paths.contains(path::split(path).0));
        prop_assert_eq!(Tree::from_records(records.clone()).is_ok(), whole);
    }
}

fn record(path: &str, owner: i64) -> NodeRecord {
    let meta = NodeMeta::new(Zxid(0), 0, owner);
    NodeRecord { path: path.to_owned(), data: Some(Bytes::new()), acl: acl::open_list(), meta }
}

fn load(records: &[(&str, i64)]) -> Result<Tree, String> {
    Tree::from_records(records.iter().map(|(path, owner)| record(path, *owner)))
}

#[test]
fn damaged_records_are_refused() {
    let refused = |records: &[(&str, i64)]| load(records).err().unwrap_or_default();
    assert_eq!(refused(&[]), "there is no root");
    assert_eq!(refused(&[("/a", 0)]), "there is no root");
    assert_eq!(refused(&[("/", 0), ("/a", 0), ("/a", 0)]), "\"/a\" occurs twice");
    assert_eq!(refused(&[("/", 0), ("/", 0)]), "\"/\" occurs twice");
    assert_eq!(refused(&[("/a/b/c", 0), ("/", 0)]), "\"/a\" is missing but has children");
    assert_eq!(refused(&[("/", 0), ("/a/", 0)]), "\"/a/\" is not a valid path");
    assert_eq!(refused(&[("/", 0), ("", 0)]), "\"\" is not a valid path");
    assert_eq!(refused(&[("/", 0), ("/a/b", 0), ("/a", 1)]), "\"/a\" is an ephemeral and has children");
    assert_eq!(refused(&[("/", 7)]), "the root has the owner 0x7");
    assert!(load(&[("/a/b", 1), ("/a", CONTAINER), ("/", 0)]).is_ok());
}

#[test]
fn deep_tree_does_not_overflow_the_stack() {
    let deep = "/a".repeat(20_000);
    assert!(load(&[("/", 0), (&deep, 0)]).is_err());
    let mut arena = load(&[("/", 0)]).expect("a root").arena;
    let meta = arena.node(0).meta;
    let add = |parent, _| arena.insert(parent, "a", None, 0, meta, 0).expect("no child has this name");
    let last = (0..20_000).fold(0, add);
    assert_eq!(arena.path(last), deep);
    assert_eq!(arena.find(&deep), Some(last));
    assert_eq!(arena.count_descendants(1), 19_999);
}

#[test]
fn chunk_visits_at_most_max_slots() {
    let paths: Vec<String> = (1..100).map(|number| format!("/{number}")).collect();
    let records = paths.iter().map(|path| (path.as_str(), 0)).chain([("/", 0)]);
    let mut tree = load(&records.collect::<Vec<_>>()).expect("a tree");
    paths.iter().take(90).for_each(|path| tree.delete(path, Zxid(1)));
    tree.begin_snapshot();
    let chunks: Vec<usize> = std::iter::from_fn(|| tree.snapshot_chunk(5)).map(|chunk| chunk.len()).collect();
    assert_eq!((chunks.len(), chunks.iter().sum()), (20, 10));
}

#[test]
fn chunk_data_is_bounded() {
    let paths: Vec<String> = (1..20).map(|number| format!("/{number}")).collect();
    let records = paths.iter().map(|path| (path.as_str(), 0)).chain([("/", 0)]);
    let mut tree = load(&records.collect::<Vec<_>>()).expect("a tree");
    let large = vec![0; 1 << 20];
    for path in &paths {
        tree.set_data(path, Some(&large), 1, Zxid(1), 0);
    }
    tree.begin_snapshot();
    let mut records = 0;
    while let Some(chunk) = tree.snapshot_chunk(1000) {
        let bytes: usize = chunk.iter().map(|record| record.data.as_ref().map_or(0, Bytes::len)).sum();
        assert!(bytes <= 5 << 20, "{bytes}");
        records += chunk.len();
    }
    assert_eq!(records, 20);
}

#[test]
fn fresh_tree_has_zookeepers_data_size() {
    assert_eq!(Tree::new().approximate_data_size(), 44);
}

#[test]
fn children_are_listed_oldest_first() {
    let mut tree = load(&[("/", 0)]).expect("a root");
    for name in ["/c", "/a", "/d", "/b"] {
        let (zxid, path) = (Zxid(1), name.into());
        let (data, acl) = (None, acl::open_list());
        tree.create(NewNode { path, data, acl, owner: 0, parent_created: -1, zxid, time: 0 });
    }
    tree.delete("/d", Zxid(2));
    let names: Option<Vec<&str>> = tree.get("/").map(|root| root.children().collect());
    assert_eq!(names, Some(vec!["c", "a", "b"]));
}

#[test]
fn growth_of_an_index_moves_few_entries() {
    let mut index = slot_index::SlotIndex::default();
    let hash = |slot: u32| slot.wrapping_mul(0x9e37_79b9);
    for slot in 0..100_000 {
        assert_eq!(index.find_or_insert(hash(slot), slot, |_| false), None);
    }
    assert_eq!((index.len(), index.find(hash(7), |slot| slot == 7)), (100_000, Some(7)));
    let (smallest, largest) = index.table_sizes();
    assert!(smallest < 350 && largest > 500 && largest < 1000, "{smallest} to {largest}");
    index.remove(hash(7), 7);
    assert_eq!((index.len(), index.find(hash(7), |slot| slot == 7)), (99_999, None));
}

#[test]
fn snapshot_shares_large_data() {
    let mut tree = load(&[("/", 0), ("/large", 0), ("/small", 0)]).expect("a tree");
    let large = vec![7; 1 << 20];
    tree.set_data("/large", Some(&large), 1, Zxid(1), 0);
    tree.set_data("/small", Some(&large[..10]), 1, Zxid(1), 0);
    let address = |tree: &Tree, path| tree.get(path).and_then(Znode::data).expect("data").as_ptr();
    let (large_at, small_at) = (address(&tree, "/large"), address(&tree, "/small"));
    tree.begin_snapshot();
    tree.set_data("/large", Some(b"new"), 2, Zxid(2), 0);
    tree.set_data("/small", Some(&[8; 10]), 2, Zxid(2), 0);
    assert_eq!(address(&tree, "/small"), small_at, "small data is written in place");
    let records: Vec<NodeRecord> = std::iter::from_fn(|| tree.snapshot_chunk(1)).flatten().collect();
    let data = |path: &str| {
        let record = records.iter().find(|record| record.path == path).expect("a record");
        record.data.clone().expect("data")
    };
    assert_eq!((data("/large"), data("/small")), (large.clone().into(), large[..10].to_vec().into()));
    assert_eq!(data("/large").as_ptr(), large_at, "the record has the old data, not a copy");
    assert_eq!(tree.get("/large").and_then(Znode::data), Some(&b"new"[..]));
}
