//! Tests of the search for the owner of a znode (`zoolock/src/session/znode_owner.rs`), under many thread schedules.

#[path = "../../../../crates/zoolock/src/session/znode_owner.rs"]
mod search;

use std::sync::Arc;

use search::{ZnodeOwner, find_znode_owner};
use shuttle::sync::Mutex;
use shuttle::thread;
use zoolock_core::ContenderId;

use crate::toy::lock;

/// An acquisition that handles the reply to its create while another acquisition looks for its own znodes.
#[derive(Default)]
struct Creator {
    registered: Mutex<Option<ContenderId>>,
    has_reply: Mutex<bool>,
}

impl Creator {
    fn handle_reply(&self) {
        *lock(&self.registered) = Some(ContenderId(1));
        *lock(&self.has_reply) = true;
    }

    fn find_owner(&self) -> ZnodeOwner {
        find_znode_owner(|| *lock(&self.registered), || !*lock(&self.has_reply))
    }
}

/// During a search, the reply to the create of the znode is handled. The znode has an owner or is in doubt at all times,
/// because another acquisition would take a znode without an owner.
#[test]
fn znode_of_a_reply_during_a_search_has_an_owner() {
    shuttle::check_dfs(
        || {
            let creator = Arc::new(Creator::default());
            let handler = {
                let creator = creator.clone();
                thread::spawn(move || creator.handle_reply())
            };
            assert_ne!(creator.find_owner(), ZnodeOwner::Nobody);
            handler.join().expect("the reply is handled");
            assert_eq!(creator.find_owner(), ZnodeOwner::Acquisition(ContenderId(1)));
        },
        None,
    );
}

#[test]
fn znode_without_a_creator_is_of_nobody() {
    assert_eq!(find_znode_owner(|| None, || false), ZnodeOwner::Nobody);
    assert_eq!(find_znode_owner(|| None, || true), ZnodeOwner::InDoubt);
}
