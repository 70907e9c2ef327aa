//! Tests with clients of other libraries: Curator, kazoo, aiozk, the crate `zookeeper-client`, and
//! ZooKeeper's own lock recipe, C client and `zkCli.sh`.

mod clients;
mod interop;
mod mixed_queues;
mod other_client;
mod peers;
mod programs;
