//! The service's side: the lock directories as the leader knows them, and their history as followers apply it.

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
    Create { sequence: i32, owner: u8, round: u8 },
    Delete(i32),
    Revoke(i32),
    Write(Record),
}

/// What watches may be waiting for.
pub(crate) struct Change {
    pub(crate) directory: usize,
    pub(crate) child: Child,
    pub(crate) deleted: bool,
}

impl Tree {
    pub(crate) fn child(&self, directory: usize, sequence: i32) -> Option<&Child> {
        self.children(directory).iter().find(|child| child.sequence == sequence)
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
                (&Op::Create { sequence, owner, round }, Some(directory)) => {
                    let child = Child { sequence, czxid: txn.zxid, owner, round, revoked: false };
                    directory.children.push(child);
                    directory.pzxid = txn.zxid;
                    directory.counter += 1;
                }
                (Op::Delete(sequence), Some(directory)) => {
                    let child = directory.children.remove(position(directory, *sequence));
                    changes.push(Change { directory: at, child, deleted: true });
                    directory.pzxid = txn.zxid;
                }
                (Op::Revoke(sequence), Some(directory)) => {
                    let position = position(directory, *sequence);
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

fn position(directory: &Directory, sequence: i32) -> usize {
    let position = directory.children.iter().position(|child| child.sequence == sequence);
    position.expect("the leader checked that it is there")
}
