//! The service's side: the lock directories as the leader knows them, and their history as followers apply it.

use zoolock_core::contender::Node;
use zoolock_core::names::Prefix;
use zoolock_core::{Record, Sequence, Zxid};

/// What a contender is called in its directory.
pub(crate) type Called = (Prefix, i32);

pub(crate) fn called(node: &Node) -> Called {
    (node.prefix, node.sequence.0)
}

/// A contender's znode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Child {
    pub(crate) called: Called,
    pub(crate) czxid: i64,
    /// The client whose session it belongs to.
    pub(crate) owner: u8,
    /// Which acquisition of that client created it.
    pub(crate) round: u8,
    /// Somebody wrote into it that its holder should let go.
    pub(crate) revoked: bool,
}

/// A lock directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Directory {
    pub(crate) czxid: i64,
    pub(crate) pzxid: i64,
    pub(crate) version: i32,
    pub(crate) record: Record,
    /// The number that the next child gets.
    pub(crate) counter: i32,
    /// In the order of their creation.
    pub(crate) children: Vec<Child>,
}

/// The directories, each where it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tree(pub(crate) Vec<Option<Directory>>);

/// One transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Txn {
    pub(crate) zxid: i64,
    pub(crate) ops: Vec<(usize, Op)>,
}

/// A part of a transaction, for one directory. That it can be applied was made sure of when it was made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Make,
    Remove,
    Create { called: Called, owner: u8, round: u8 },
    Delete(Called),
    Revoke(Called),
    Write(Record),
}

/// What watches may be waiting for.
pub(crate) struct Change {
    pub(crate) directory: usize,
    pub(crate) child: Child,
    pub(crate) deleted: bool,
}

impl Child {
    pub(crate) fn is_reader(&self) -> bool {
        self.called.0 == Prefix::Read
    }

    pub(crate) fn node(&self) -> Node {
        let (prefix, number) = self.called;
        Node { prefix, sequence: Sequence(number), czxid: Zxid(self.czxid) }
    }
}

impl Tree {
    pub(crate) fn child(&self, directory: usize, called: Called) -> Option<&Child> {
        self.children(directory).iter().find(|child| child.called == called)
    }

    pub(crate) fn children(&self, directory: usize) -> &[Child] {
        self.0[directory].as_ref().map_or(&[], |directory| &directory.children)
    }

    pub(crate) fn created(&self, directory: usize) -> Option<i64> {
        self.0[directory].as_ref().map(|directory| directory.czxid)
    }

    pub(crate) fn holds(&self, directory: usize, czxid: i64) -> bool {
        self.children(directory).iter().any(|child| child.czxid == czxid)
    }

    /// Applies a transaction and tells which children it changed, in the order of its parts.
    pub(crate) fn apply(&mut self, txn: &Txn) -> Vec<Change> {
        let mut changes = Vec::new();
        for &(at, ref op) in &txn.ops {
            match (op, &mut self.0[at]) {
                (Op::Make, slot) => {
                    *slot = Some(Directory {
                        czxid: txn.zxid,
                        pzxid: txn.zxid,
                        version: 0,
                        record: Record::Empty,
                        counter: 0,
                        children: Vec::new(),
                    });
                }
                (Op::Remove, slot) => *slot = None,
                (&Op::Create { called, owner, round }, Some(directory)) => {
                    let child = Child { called, czxid: txn.zxid, owner, round, revoked: false };
                    directory.children.push(child);
                    directory.pzxid = txn.zxid;
                    directory.counter += 1;
                }
                (Op::Delete(called), Some(directory)) => {
                    let child = directory.children.remove(position(directory, *called));
                    changes.push(Change { directory: at, child, deleted: true });
                    directory.pzxid = txn.zxid;
                }
                (Op::Revoke(called), Some(directory)) => {
                    let position = position(directory, *called);
                    let child = &mut directory.children[position];
                    child.revoked = true;
                    changes.push(Change { directory: at, child: child.clone(), deleted: false });
                }
                (Op::Write(record), Some(directory)) => {
                    directory.record = *record;
                    directory.version += 1;
                }
                (_, None) => unreachable!("the leader checked that the directory is there"),
            }
        }
        changes
    }
}

fn position(directory: &Directory, called: Called) -> usize {
    let position = directory.children.iter().position(|child| child.called == called);
    position.expect("the leader checked that it is there")
}
