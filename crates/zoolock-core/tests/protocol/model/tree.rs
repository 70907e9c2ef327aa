//! The lock directories as the leader has them, and transactions as followers apply them.

use zoolock_core::acquisition::Node;
use zoolock_core::names::Prefix;
use zoolock_core::{Record, Sequence, Zxid};

/// The name of a contender's znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) prefix: Prefix,
    pub(crate) sequence: i32,
}

impl Name {
    pub(crate) fn text(self) -> String {
        self.prefix.name(Sequence(self.sequence))
    }

    pub(crate) fn of(node: &Node) -> Name {
        Name { prefix: node.prefix, sequence: node.sequence.0 }
    }

    /// Returns the znode of this name that a transaction created.
    pub(crate) fn node(self, czxid: i64) -> Node {
        Node { prefix: self.prefix, sequence: Sequence(self.sequence), czxid: Zxid(czxid) }
    }
}

/// A contender's znode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Child {
    pub(crate) name: Name,
    pub(crate) czxid: i64,
    /// The last transaction that wrote its data.
    pub(crate) mzxid: i64,
    /// The version of its data.
    pub(crate) version: i32,
    /// Set if its data has the flag that its permits were granted.
    pub(crate) granted: bool,
    /// Set if its data asks the owner to release.
    pub(crate) revoked: bool,
    /// The client that created it.
    pub(crate) owner: u8,
    /// The number of the acquisition that created it, among those of that client.
    pub(crate) round: u8,
    /// Its queue position: its own czxid, or the position of the writer that it replaced.
    pub(crate) position: i64,
}

/// The name of a child that is no contender.
pub(crate) const LASTING_CHILD: &str = "other-lock";

/// A lock directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Directory {
    pub(crate) czxid: i64,
    pub(crate) pzxid: i64,
    pub(crate) version: i32,
    pub(crate) record: Record,
    /// Set if a late write for an earlier directory of this name has arrived here.
    pub(crate) has_misdirected_write: bool,
    /// The sequence number of the next child.
    pub(crate) counter: i32,
    /// The znodes of its contenders, in the order of their creation.
    pub(crate) children: Vec<Child>,
    /// Set if it also has a child that is no contender, and that no client deletes.
    pub(crate) has_lasting_child: bool,
}

/// The directories; `None` for a missing one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tree(pub(crate) Vec<Option<Directory>>);

/// One transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Txn {
    pub(crate) zxid: i64,
    /// The operations, each with the index of its directory.
    pub(crate) ops: Vec<(usize, Op)>,
}

/// A part of a transaction. The leader has checked that it can be applied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Make(Record),
    Remove,
    /// Creates a contender's znode. `counts`: set if the create increases the directory's counter.
    /// The counter stays at the last sequence number.
    Create {
        name: Name,
        owner: u8,
        round: u8,
        position: Option<i64>,
        counts: bool,
    },
    Delete(Name),
    /// Writes the `granted` flag into a child.
    MarkGranted(Name),
    /// Writes a request to release into a child.
    Revoke(Name),
    /// Writes to a child; only before a delete in the same transaction.
    Touch(Name),
    Write(Record),
    /// Creates a child that is not a contender's, and deletes it.
    TouchChildren,
}

/// A change that watches report.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Deleted(Child),
    Written(Name),
    /// A child was created or deleted. `gone`: set if the directory itself was deleted.
    Children {
        gone: bool,
    },
}

impl Directory {
    fn new(czxid: i64, record: Record) -> Directory {
        let (version, has_misdirected_write, counter) = (0, false, 0);
        Directory {
            czxid,
            pzxid: czxid,
            version,
            record,
            has_misdirected_write,
            counter,
            children: Vec::new(),
            has_lasting_child: false,
        }
    }

    /// Returns the number of children.
    pub(crate) fn child_count(&self) -> usize {
        self.children.len() + usize::from(self.has_lasting_child)
    }

    fn child_mut(&mut self, name: Name) -> &mut Child {
        let child = self.children.iter_mut().find(|child| child.name == name);
        child.expect("the leader checked that it exists")
    }
}

/// Returns the czxid of the directory for which a record was written, if the record names one.
fn meant_for(record: &Record) -> Option<i64> {
    match record {
        Record::Marker(marker) => Some(marker.directory.0),
        Record::Semaphore(size) => Some(size.directory.0),
        Record::Empty | Record::KazooSize(_) | Record::Foreign => None,
    }
}

impl Tree {
    pub(crate) fn child(&self, at: usize, name: Name) -> Option<&Child> {
        self.children(at).iter().find(|child| child.name == name)
    }

    pub(crate) fn children(&self, at: usize) -> &[Child] {
        self.0[at].as_ref().map_or(&[], |directory| &directory.children)
    }

    pub(crate) fn created(&self, at: usize) -> Option<i64> {
        self.0[at].as_ref().map(|directory| directory.czxid)
    }

    /// Returns the znode that a transaction created in this directory.
    pub(crate) fn created_by(&self, at: usize, czxid: i64) -> Option<&Child> {
        self.children(at).iter().find(|child| child.czxid == czxid)
    }

    pub(crate) fn holds(&self, at: usize, czxid: i64) -> bool {
        self.created_by(at, czxid).is_some()
    }

    /// Returns the size of the semaphore in this directory.
    pub(crate) fn size(&self, at: usize) -> Option<u32> {
        match self.0[at].as_ref()? {
            Directory { czxid, record: Record::Semaphore(size), .. } if size.directory.0 == *czxid => {
                Some(size.permits)
            }
            _ => None,
        }
    }

    /// Applies a transaction. Returns its changes in order, each with its directory.
    pub(crate) fn apply(&mut self, txn: &Txn) -> Vec<(usize, Change)> {
        let mut changes = Vec::new();
        let zxid = txn.zxid;
        for &(at, ref op) in &txn.ops {
            match (op, &mut self.0[at]) {
                (Op::Make(record), slot) => *slot = Some(Directory::new(zxid, *record)),
                (Op::Remove, slot) => {
                    *slot = None;
                    changes.push((at, Change::Children { gone: true }));
                }
                (&Op::Create { name, owner, round, position, counts }, Some(directory)) => {
                    directory.children.push(Child {
                        name,
                        czxid: zxid,
                        mzxid: zxid,
                        version: 0,
                        granted: false,
                        revoked: false,
                        owner,
                        round,
                        position: position.unwrap_or(zxid),
                    });
                    directory.pzxid = zxid;
                    directory.counter += i32::from(counts);
                    changes.push((at, Change::Children { gone: false }));
                }
                (Op::Delete(name), Some(directory)) => {
                    let position = directory.children.iter().position(|child| child.name == *name);
                    let position = position.expect("the leader checked that it exists");
                    let child = directory.children.remove(position);
                    changes.push((at, Change::Deleted(child)));
                    changes.push((at, Change::Children { gone: false }));
                    directory.pzxid = zxid;
                }
                (Op::MarkGranted(name) | Op::Revoke(name), Some(directory)) => {
                    let child = directory.child_mut(*name);
                    child.granted |= matches!(op, Op::MarkGranted(_));
                    child.revoked |= matches!(op, Op::Revoke(_));
                    (child.version, child.mzxid) = (child.version + 1, zxid);
                    changes.push((at, Change::Written(*name)));
                }
                (Op::Touch(name), Some(_)) => changes.push((at, Change::Written(*name))),
                (Op::Write(record), Some(directory)) => {
                    directory.record = *record;
                    directory.version += 1;
                    directory.has_misdirected_write |=
                        meant_for(record).is_some_and(|meant| meant != directory.czxid);
                }
                (Op::TouchChildren, Some(directory)) => {
                    directory.pzxid = zxid;
                    directory.counter += 1;
                    changes.push((at, Change::Children { gone: false }));
                }
                (_, None) => unreachable!("the leader checked that the directory exists"),
            }
        }
        changes
    }
}
