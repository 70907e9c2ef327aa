//! A test of the memory that a znode takes.

use std::process::Command;

use bytes::Bytes;
use zoolock_server::txn::{Change, Create, Txn};
use zoolock_server::{SessionId, State, Zxid, acl, commit};

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("there is a VmRSS line");
    let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib * 1024
}

fn create(path: &str, state: &mut State) {
    let data = Some(Bytes::copy_from_slice(&[7; 100]));
    let (path, acl) = (path.into(), acl::open_list());
    let create = Create { path, data, acl, owner: 0, parent_created: -1, with_stat: false };
    let zxid = Zxid(1);
    commit(&Txn { zxid, session: SessionId::NONE, time: 0, change: Change::Create(create) }, state);
}

/// Environment variable of the process that measures itself.
const MEASURE: &str = "ZOOLOCK_MEASURE_MEMORY";

#[test]
fn a_small_znode_takes_less_than_300_bytes() {
    const COUNT: usize = 300_000;
    if std::env::var_os(MEASURE).is_none() {
        // The measurement runs in a separate process, because other tests would change the resident
        // set.
        let mut alone = Command::new(std::env::current_exe().expect("this program"));
        alone.args(["--exact", "memory::a_small_znode_takes_less_than_300_bytes"]).env(MEASURE, "1");
        assert!(alone.status().expect("it starts").success());
        return;
    }
    let mut state = State::new(1);
    create("/bench", &mut state);
    let before = resident();
    for number in 0..COUNT {
        create(&format!("/bench/n{number:010}"), &mut state);
    }
    let each = (resident() - before) / COUNT;
    assert!(each < 300, "{each} bytes for each znode");
    assert_eq!(state.tree.len(), COUNT + 5);
}
