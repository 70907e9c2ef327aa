//! A build without Kerberos, in place of `kerberos.rs`.

use std::sync::Arc;

use zoolock::Error;
use zoolock::sasl::{Authenticator, Mechanism};

use crate::exit::Failure;

/// The settings of Kerberos. This build has none.
#[derive(PartialEq, Eq)]
pub(crate) enum Kerberos {}

impl Mechanism for Kerberos {
    fn authenticator(&self, _: Vec<String>) -> Result<Arc<dyn Authenticator>, Error> {
        match *self {}
    }
}

/// Says how to get a build with Kerberos.
pub(crate) fn kerberos(_: Option<&str>) -> Result<Kerberos, Failure> {
    Err(Failure::usage(
        "--auth kerberos: this build of the command has no Kerberos; build one, in the repository: cargo install --locked \
         --path crates/zoolock-cli --features gssapi",
    ))
}

#[cfg(test)]
mod tests {
    use crate::credentials::credentials;

    #[test]
    fn message_says_how_to_build_with_kerberos() {
        for text in ["kerberos", "kerberos:zk/elsewhere"] {
            let message = credentials(text).expect_err(text).to_string();
            assert!(message.contains("--features gssapi"), "{message}");
        }
        let message = credentials("kerberos5:@f").expect_err("an unknown scheme").to_string();
        assert!(message.contains("digest:@FILE"), "{message}");
    }
}
