//! Kerberos, in builds with the feature `gssapi`. `no_kerberos.rs` replaces this file in other builds.

pub(crate) use zoolock_gssapi::Kerberos;

use crate::base::exit::Failure;

/// Parses the part of `--auth` after `kerberos:`: SERVICE or SERVICE/HOST.
pub(crate) fn parse_kerberos(principal: Option<&str>) -> Result<Kerberos, Failure> {
    if principal.is_some_and(|principal| principal.contains([':', '@'])) {
        // The text may be a user name and a password, which must not be sent to the KDC.
        return Err(Failure::usage(
            "--auth kerberos: write the service of the ensemble after the colon, as SERVICE or SERVICE/HOST, without a \
             realm; the client's own name comes from the ticket of kinit",
        ));
    }
    let kerberos = Kerberos::new();
    let kerberos = match principal.map(|principal| (principal, principal.split_once('/'))) {
        None => kerberos,
        Some((_, Some((service, host)))) => kerberos.service(service).host(host),
        Some((service, None)) => kerberos.service(service),
    };
    kerberos.check().map_err(|error| Failure::usage(format!("--auth kerberos: {error}")))?;
    Ok(kerberos)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::plan::credentials::{Auth, read_credentials};

    #[test]
    fn service_and_host_are_parsed() {
        for (text, kerberos) in [
            ("kerberos", Kerberos::new()),
            ("kerberos:zk", Kerberos::new().service("zk")),
            ("kerberos:zk/elsewhere", Kerberos::new().service("zk").host("elsewhere")),
        ] {
            assert_eq!(read_credentials(text).expect(text), Auth::Kerberos(Arc::new(kerberos)));
        }
        for wrong in [
            "kerberos:",
            "kerberos:zk/",
            "kerberos:zk/elsewhere@REALM",
            "kerberos:zk ",
            "kerberos:me:hunter2",
            "kerberos:me@REALM:hunter2",
            "Kerberos",
        ] {
            let message = read_credentials(wrong).expect_err(wrong).to_string();
            assert!(message.contains("SERVICE/HOST") && !message.contains("hunter2"), "{message}");
        }
    }
}
