//! Tests that start the command `zoolock` or attack a server, and tests of the test support itself.

mod attackers;
mod crash;
mod harness;
mod manifests;
mod packaging;
