//! Tests with clients of other libraries: Curator, kazoo, ZooKeeper's own recipe, its C client and `zkCli.sh`.

mod everybody;
mod foreign;
mod interop;
mod peers;
