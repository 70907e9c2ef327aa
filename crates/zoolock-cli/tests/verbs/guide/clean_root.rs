//! The first chapter on a newcomer's machine: a system that has only our package.

use std::path::PathBuf;

use crate::common::Done;
use crate::guide::blocks;
use crate::guide::book::Page;
use crate::guide::world::World;

#[test]
#[ignore = "packaging/clean-root/run makes the system, and runs this"]
fn five_minutes_on_a_clean_root() {
    let root = std::env::var_os("ZOOLOCK_CLEAN_ROOT").expect("packaging/clean-root/run sets it");
    let world = World::clean_root(PathBuf::from(root));
    blocks::run_in(&Page::read("guide/src/five-minutes.md"), &world);
    for (name, connect) in [("deploys", &[][..]), ("nightly", &["--connect", "zk1:2181,zk2:2181,zk3:2181"])] {
        let mut show = world.command("zoolock");
        let done = Done::from(show.args(connect).args(["show", name, "--json"]).output().expect("it starts"));
        assert_eq!(done.code, 0, "{done:?}");
        let lock: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
        assert!(lock["holder"].is_null(), "{name} was released: {lock}");
    }
}
