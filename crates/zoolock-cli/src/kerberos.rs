//! Kerberos in a build with the feature `gssapi`. The other builds have `no_kerberos.rs` in its place.

pub(crate) use zoolock_gssapi::Kerberos;

use crate::exit::Failure;

/// Parses what follows `kerberos:` in `--auth`: SERVICE or SERVICE/HOST.
pub(crate) fn kerberos(principal: Option<&str>) -> Result<Kerberos, Failure> {
    if principal.is_some_and(|principal| principal.contains([':', '@'])) {
        // It may be a user and a password. The KDC must not see them.
        return Err(Failure::usage(
            "--auth kerberos: after the colon comes the service of the ensemble, as SERVICE or SERVICE/HOST, without a realm; \
             the client's own name is in the ticket of kinit",
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
    use crate::credentials::{Auth, credentials};

    #[test]
    fn service_and_host_are_parsed() {
        for (text, kerberos) in [
            ("kerberos", Kerberos::new()),
            ("kerberos:zk", Kerberos::new().service("zk")),
            ("kerberos:zk/elsewhere", Kerberos::new().service("zk").host("elsewhere")),
        ] {
            assert_eq!(credentials(text).expect(text), Auth::Kerberos(Arc::new(kerberos)));
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
            let message = credentials(wrong).expect_err(wrong).to_string();
            assert!(message.contains("SERVICE/HOST") && !message.contains("hunter2"), "{message}");
        }
    }
}
