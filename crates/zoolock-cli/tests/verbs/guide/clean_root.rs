//! Runs the first chapter on a system that has only the zoolock package installed.

use std::path::PathBuf;

use crate::common::CommandOutput;
use crate::guide::blocks;
use crate::guide::book::Page;
use crate::guide::machine::Machine;

#[test]
#[ignore = "packaging/clean-root/run creates the system and runs this test"]
fn five_minutes_on_a_clean_root() {
    let root = std::env::var_os("ZOOLOCK_CLEAN_ROOT").expect("packaging/clean-root/run sets it");
    let machine = Machine::clean_root(PathBuf::from(root));
    blocks::run_on(&Page::read("guide/src/five-minutes.md"), &machine);
    for (name, connect) in [("deploys", &[][..]), ("nightly", &["--connect", "zk1:2181,zk2:2181,zk3:2181"])] {
        let mut show = machine.command("zoolock");
        let done = CommandOutput::from(
            show.args(connect).args(["show", name, "--json"]).output().expect("zoolock starts"),
        );
        assert_eq!(done.code, 0, "{done:?}");
        let lock: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
        assert!(lock["holder"].is_null(), "{name} is still held: {lock}");
    }
}
