//! Tests that start the command `zoolock` or attack it, and tests of the test support itself.

mod attackers;
mod crash;
mod harness;
mod manifests;
mod packaging;
