//! Replaces `kerberos.rs` in builds without the feature `gssapi`.

use std::sync::Arc;

use zoolock::Error;
use zoolock::sasl::{Authenticator, Mechanism};

use crate::base::exit::Failure;

/// Kerberos settings. There are none in this build.
#[derive(PartialEq, Eq)]
pub(crate) enum Kerberos {}

impl Mechanism for Kerberos {
    fn authenticator(&self, _: Vec<String>) -> Result<Arc<dyn Authenticator>, Error> {
        match *self {}
    }
}

/// Returns an error that says how to build with Kerberos.
pub(crate) fn parse_kerberos(_: Option<&str>) -> Result<Kerberos, Failure> {
    Err(Failure::usage(
        "--auth kerberos: this zoolock was built without Kerberos; in the repository, run: cargo install --locked \
         --path crates/zoolock-cli --features gssapi",
    ))
}

#[cfg(test)]
mod tests {
    #[test]
    fn message_says_how_to_build_with_kerberos() {
        let failure = super::parse_kerberos(Some("zk/elsewhere")).err().expect("there is no Kerberos");
        assert!(failure.to_string().contains("--features gssapi"), "{failure}");
    }
}
