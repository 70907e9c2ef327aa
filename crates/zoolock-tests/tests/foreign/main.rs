//! Tests with clients of other libraries: Curator, kazoo, ZooKeeper's own recipe, its C client and `zkCli.sh`.

mod everybody;
mod foreign;
mod interop;
mod peers;
#[path = "../top/tmux.rs"]
#[allow(dead_code, reason = "the tests of `zoolock top` use the rest")]
mod tmux;
