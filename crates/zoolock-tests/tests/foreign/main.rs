//! Tests with clients of other libraries: Curator, kazoo, ZooKeeper's own recipe, its C client and `zkCli.sh`.

mod clients;
mod interop;
mod mixed_queues;
mod other_client;
mod peers;
mod programs;
