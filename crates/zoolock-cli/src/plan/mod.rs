//! The settings of the connection and the credentials, which all commands share.
//!
//! * `context.rs`: the input of each command beside its own arguments.
//! * `service.rs`: server, identity, and access to created znodes.
//! * `credentials.rs`: the sources of credentials.

mod context;
pub(crate) mod credentials;
mod service;
#[cfg(test)]
pub(crate) mod test_lines;

pub(crate) use context::Context;
pub(crate) use service::{ConnectionSettings, Endpoint};
