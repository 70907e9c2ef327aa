//! The service's side: one lock directory as the leader knows it, and its history as followers apply it.

use zoolock_core::names::Prefix;
use zoolock_core::{Record, Sequence};

/// What a contender's znode is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) prefix: Prefix,
    pub(crate) sequence: i32,
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
    /// Whether its data says that it was granted.
    pub(crate) granted: bool,
    /// The client that created it.
    pub(crate) owner: u8,
    /// Which acquisition of that client created it.
    pub(crate) round: u8,
    /// Where it stands: its creation, or that of the writer whose place it took over.
    pub(crate) place: i64,
}

/// The lock directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Directory {
    pub(crate) czxid: i64,
    pub(crate) pzxid: i64,
    pub(crate) version: i32,
    pub(crate) record: Record,
    /// Something was written here that was meant for a directory which is gone, and hung until this one had come to the
    /// same version.
    pub(crate) astray: bool,
    /// The number that the next child gets.
    pub(crate) counter: i32,
    /// In the order of their creation.
    pub(crate) children: Vec<Child>,
}

/// The directory, or that there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tree(pub(crate) Option<Directory>);

/// One transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Txn {
    pub(crate) zxid: i64,
    pub(crate) ops: Vec<Op>,
}

/// A part of a transaction. That it can be applied was made sure of when it was made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Make(Record),
    Remove,
    /// `counts`: whether the directory's counter goes on, as with every create until the end of the numbers.
    Create {
        name: Name,
        owner: u8,
        round: u8,
        place: Option<i64>,
        counts: bool,
    },
    Delete(Name),
    /// Write into a child that it was granted.
    SayGranted(Name),
    /// Write to a child.
    Touch(Name),
    Write(Record),
    /// Create a child that is no contender, and delete it.
    Ring,
}

/// What a transaction changed, as watches see it.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Deleted(Child),
    Written(Name),
    /// A child came or went, or with `gone` the directory did.
    Children {
        gone: bool,
    },
}

impl Name {
    pub(crate) fn text(self) -> String {
        self.prefix.name(Sequence(self.sequence))
    }

    pub(crate) fn of(node: &zoolock_core::contender::Node) -> Name {
        Name { prefix: node.prefix, sequence: node.sequence.0 }
    }
}

fn meant_for(record: &Record) -> Option<i64> {
    match record {
        Record::Marker(marker) => Some(marker.directory.0),
        Record::Semaphore(size) => Some(size.directory.0),
        Record::Empty | Record::Leases(_) | Record::Foreign => None,
    }
}

impl Tree {
    pub(crate) fn child(&self, name: Name) -> Option<&Child> {
        self.children().iter().find(|child| child.name == name)
    }

    pub(crate) fn children(&self) -> &[Child] {
        self.0.as_ref().map_or(&[], |directory| &directory.children)
    }

    pub(crate) fn created(&self) -> Option<i64> {
        self.0.as_ref().map(|directory| directory.czxid)
    }

    pub(crate) fn holds(&self, czxid: i64) -> bool {
        self.children().iter().any(|child| child.czxid == czxid)
    }

    /// The size of the semaphore that lives here.
    pub(crate) fn size(&self) -> Option<u32> {
        match self.0.as_ref()? {
            Directory { czxid, record: Record::Semaphore(size), .. } if size.directory.0 == *czxid => {
                Some(size.permits)
            }
            _ => None,
        }
    }

    /// Applies a transaction and tells what it changed.
    pub(crate) fn apply(&mut self, txn: &Txn) -> Vec<Change> {
        let mut changes = Vec::new();
        let zxid = txn.zxid;
        for op in &txn.ops {
            match (op, &mut self.0) {
                (Op::Make(record), slot) => {
                    *slot = Some(Directory {
                        czxid: zxid,
                        pzxid: zxid,
                        version: 0,
                        record: *record,
                        astray: false,
                        counter: 0,
                        children: Vec::new(),
                    });
                }
                (Op::Remove, slot) => {
                    *slot = None;
                    changes.push(Change::Children { gone: true });
                }
                (&Op::Create { name, owner, round, place, counts }, Some(directory)) => {
                    let place = place.unwrap_or(zxid);
                    let (version, granted) = (0, false);
                    directory.children.push(Child {
                        name,
                        czxid: zxid,
                        mzxid: zxid,
                        version,
                        granted,
                        owner,
                        round,
                        place,
                    });
                    directory.pzxid = zxid;
                    directory.counter += i32::from(counts);
                    changes.push(Change::Children { gone: false });
                }
                (Op::Delete(name), Some(directory)) => {
                    let at = directory.children.iter().position(|child| child.name == *name);
                    let child = directory.children.remove(at.expect("the leader checked that it is there"));
                    changes.extend([Change::Deleted(child), Change::Children { gone: false }]);
                    directory.pzxid = zxid;
                }
                (Op::SayGranted(name), Some(directory)) => {
                    let child = directory.children.iter_mut().find(|child| child.name == *name);
                    let child = child.expect("the leader checked that it is there");
                    (child.granted, child.version, child.mzxid) = (true, child.version + 1, zxid);
                    changes.push(Change::Written(*name));
                }
                // Only before a delete in the same transaction.
                (Op::Touch(name), Some(_)) => changes.push(Change::Written(*name)),
                (Op::Write(record), Some(directory)) => {
                    directory.record = *record;
                    directory.version += 1;
                    directory.astray |= meant_for(record).is_some_and(|meant| meant != directory.czxid);
                }
                (Op::Ring, Some(directory)) => {
                    directory.pzxid = zxid;
                    directory.counter += 1;
                    changes.push(Change::Children { gone: false });
                }
                (_, None) => unreachable!("the leader checked that the directory is there"),
            }
        }
        changes
    }
}
