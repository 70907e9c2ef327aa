//! What a look makes of what changes while it looks.

use std::sync::Mutex;
use std::time::Duration;

use zoolock_core::record::{Left, Marker};
use zoolock_core::{Sequence, SessionId, Zxid};

use super::reader::Reader;
use super::{View, read};
use crate::keeper::{Answer, Created, Interruptions, Keeper, Op, Stat, Watch};
use crate::path::LockPath;
use crate::session::lock;

/// A directory in which something happens when its children were listed.
struct Changing {
    record: Mutex<Marker>,
    later: Marker,
    children: Vec<String>,
}

const DIRECTORY: Zxid = Zxid(1);
const LAST: Sequence = Sequence(4);

fn unused<T>() -> Answer<T> {
    unreachable!("a look only reads")
}

fn stat() -> Stat {
    let owner = SessionId(0);
    Stat { czxid: DIRECTORY, pzxid: Zxid(9), version: 1, children: 0, owner, created_ms: 0 }
}

impl Keeper for Changing {
    fn session(&self) -> SessionId {
        SessionId(1)
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn interruptions(&self) -> Interruptions {
        Box::new(|| false)
    }

    fn read(&self, path: &str) -> Answer<(Vec<u8>, Stat)> {
        let data = match path {
            "/locks/x" => lock(&self.record).encode().into_bytes(),
            _ => Vec::new(),
        };
        Box::pin(async move { Ok((data, stat())) })
    }

    fn children(&self, _: &str) -> Answer<(Vec<String>, Stat)> {
        *lock(&self.record) = self.later;
        let children = self.children.clone();
        Box::pin(async move { Ok((children, stat())) })
    }

    fn exists(&self, _: &str) -> Answer<Option<Stat>> {
        unused()
    }

    fn join(&self, _: &str, _: &[u8]) -> Answer<(Sequence, Zxid)> {
        unused()
    }

    fn join_as(&self, _: &str, _: &[u8]) -> Answer<(Sequence, Zxid)> {
        unused()
    }

    fn create_ephemeral(&self, _: &str, _: &[u8]) -> Answer<()> {
        unused()
    }

    fn create_container(&self, _: &str) -> Answer<()> {
        unused()
    }

    fn create_persistent(&self, _: &str) -> Answer<()> {
        unused()
    }

    fn delete(&self, _: &str) -> Answer<()> {
        unused()
    }

    fn watch(&self, _: &str) -> Answer<(Vec<u8>, Stat, Watch)> {
        unused()
    }

    fn write(&self, _: &str, _: &[u8], _: Option<i32>) -> Answer<Stat> {
        unused()
    }

    fn watch_children(&self, _: &str) -> Answer<(Vec<String>, Stat, Watch)> {
        unused()
    }

    fn sync(&self, _: &str) -> Answer<()> {
        unused()
    }

    fn ephemerals(&self, _: &str) -> Answer<Vec<String>> {
        unused()
    }

    fn commit(&self, _: Vec<Op>) -> Answer<Vec<Created>> {
        unused()
    }

    fn commit_soon(&self, _: Vec<Op>) -> Answer<()> {
        unused()
    }
}

fn marker(left: Left, sequence: Sequence) -> Marker {
    Marker { directory: DIRECTORY, left, sequence, tracked: true }
}

/// What is told where the record said that the last one holds, then the queue was read, and meanwhile it changed.
fn told(later: Left, by: Sequence, children: &[&str]) -> (&'static str, Option<u32>) {
    let children = children.iter().map(|&child| child.to_owned()).collect();
    let record = Mutex::new(marker(Left::Held, LAST));
    let keeper = Changing { record, later: marker(later, by), children };
    let view = View { chroot: "", epoch: 0, waiters: usize::MAX };
    let path = LockPath::from_server("/locks/x".to_owned());
    let seen = futures_lite::future::block_on(read(&Reader::new(&keeper), path, &view)).expect("a look");
    (seen.previous, seen.previous_number)
}

#[test]
fn one_who_let_go_between_record_and_queue_has_not_crashed() {
    assert_eq!(told(Left::Released, LAST, &[]), ("clean", Some(4)));
    assert_eq!(told(Left::Panicked, LAST, &["lock-0000000005"]), ("panicked", Some(4)));
    assert_eq!(told(Left::Broken, LAST, &["lock-0000000005"]), ("broken", Some(4)));
    // Somebody came and begun after that; how the one before it left is written over.
    assert_eq!(told(Left::Held, Sequence(5), &[]), ("unknown", None));
}

#[test]
fn one_who_went_without_a_word_has_crashed() {
    assert_eq!(told(Left::Held, LAST, &[]), ("crashed", Some(4)));
    assert_eq!(told(Left::Held, LAST, &["lock-0000000005"]), ("crashed", Some(4)));
    assert_eq!(told(Left::Held, LAST, &["lock-0000000004"]), ("unknown", None));
}
