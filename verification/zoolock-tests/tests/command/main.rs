//! Tests that start or attack the command `zoolock`, checks of the manifests and of `packaging`,
//! and tests of the test support.

mod attackers;
mod crash;
mod harness;
mod manifests;
mod packaging;
