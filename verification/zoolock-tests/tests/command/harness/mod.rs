//! Tests of the test support.

mod apache;
mod binary;
mod both_servers;
mod judge;
mod proxy;
mod tree;
