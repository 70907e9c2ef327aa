//! Tests of the test support.

mod apache;
mod arms;
mod binary;
mod history;
mod proxy;
mod tree;
