//! The service's side: one lock directory as the leader knows it, and its history as followers apply it.

use zoolock_core::Record;

/// A contender's znode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Child {
    pub(crate) sequence: i32,
    pub(crate) czxid: i64,
    /// The client whose session it belongs to.
    pub(crate) owner: u8,
    /// Which acquisition of that client created it.
    pub(crate) round: u8,
}

/// The lock directory.
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
    Create { sequence: i32, owner: u8, round: u8 },
    Delete(i32),
    Write(Record),
}

impl Tree {
    pub(crate) fn child(&self, sequence: i32) -> Option<&Child> {
        self.children().iter().find(|child| child.sequence == sequence)
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

    /// Applies a transaction and tells which children it deleted.
    pub(crate) fn apply(&mut self, txn: &Txn) -> Vec<Child> {
        let mut deleted = Vec::new();
        for op in &txn.ops {
            match (op, &mut self.0) {
                (Op::Make(record), slot) => {
                    *slot = Some(Directory {
                        czxid: txn.zxid,
                        pzxid: txn.zxid,
                        version: 0,
                        record: *record,
                        counter: 0,
                        children: Vec::new(),
                    });
                }
                (Op::Remove, slot) => *slot = None,
                (&Op::Create { sequence, owner, round }, Some(directory)) => {
                    directory.children.push(Child { sequence, czxid: txn.zxid, owner, round });
                    directory.pzxid = txn.zxid;
                    if directory.counter == sequence {
                        directory.counter += 1;
                    }
                }
                (Op::Delete(sequence), Some(directory)) => {
                    let at = directory.children.iter().position(|child| child.sequence == *sequence);
                    deleted.push(directory.children.remove(at.expect("the leader checked that it is there")));
                    directory.pzxid = txn.zxid;
                }
                (Op::Write(record), Some(directory)) => {
                    directory.record = *record;
                    directory.version += 1;
                }
                (_, None) => unreachable!("the leader checked that the directory is there"),
            }
        }
        deleted
    }
}
