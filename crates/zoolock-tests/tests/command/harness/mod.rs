//! Tests of the test support.

mod apache;
mod binary;
mod both_servers;
mod history;
mod proxy;
mod tree;
