//! The harness itself does what tests rely on.

mod apache;
mod arms;
mod binary;
mod history;
mod proxy;
mod tree;
