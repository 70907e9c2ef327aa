//! Kerberos, in builds with the feature `gssapi`. `no_kerberos.rs` replaces this file in other builds.

use zoolock_gssapi::Kerberos;

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
    use super::*;

    #[test]
    fn service_and_host_are_parsed() {
        for (text, kerberos) in [
            (None, Kerberos::new()),
            (Some("zk"), Kerberos::new().service("zk")),
            (Some("zk/elsewhere"), Kerberos::new().service("zk").host("elsewhere")),
        ] {
            assert_eq!(parse_kerberos(text).expect("a service"), kerberos);
        }
        for wrong in ["", "zk/", "zk/elsewhere@REALM", "zk ", "me:hunter2", "me@REALM:hunter2"] {
            let message = parse_kerberos(Some(wrong)).expect_err(wrong).to_string();
            assert!(message.contains("SERVICE/HOST") && !message.contains("hunter2"), "{message}");
        }
    }
}
