#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cache;
mod exchange;
mod tickets;

use std::sync::Arc;

use zoolock::Error;
use zoolock::sasl::{Authenticator, Mechanism};

use crate::tickets::Tickets;

/// The Kerberos service of the ensemble, for [`Builder::sasl_mechanism`](zoolock::Builder::sasl_mechanism).
///
/// The default principal is `zookeeper/HOST` for each host of the connect string. `krb5.conf` decides the realm of the
/// service, and whether the host name is looked up in DNS first.
///
/// # Identity
/// New znodes belong to the principal of the client, under the scheme `sasl`. The znodes of `jobs@EXAMPLE.ORG` can be
/// used from every host. The znodes of `jobs/a.example.org@EXAMPLE.ORG` can be used from that host alone, unless the
/// ensemble removes host names (`kerberos.removeHostFromPrincipal`). The rules of
/// [`Builder::auth`](zoolock::Builder::auth) on access apply.
///
/// # Tickets
/// The ticket is in the default cache, which `kinit` fills, or in the cache that `KRB5CCNAME`
/// names. An expired ticket is replaced if `KRB5_CLIENT_KTNAME` names a keytab. Each new connection
/// shows a ticket. If the connection is lost after the ticket expired, the client tries again until
/// there is a new ticket, or the lock is lost.
///
/// A ticket proves the identity of the client, and no more. Without TLS, requests are neither encrypted nor signed.
///
/// No ticket is forwarded to the server. The client asks the Kerberos server (KDC) only for tickets
/// that are not in the cache. If the KDC does not answer, a new connection is delayed by half a
/// minute, and the lock may be lost meanwhile.
///
/// # Errors
/// When connecting:
///
/// * [`Error::Denied`] at once if there is no ticket, or if the KDC does not know the service.
/// * [`Error::Unavailable`] if the KDC does not answer within the connect timeout.
/// * [`Error::Invalid`] for a service or host that cannot be part of a principal.
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), zoolock::Error> {
/// use zoolock::Zoolock;
/// use zoolock_gssapi::Kerberos;
///
/// let kerberos = Kerberos::new().service("zk").host("zk.example.org");
/// let zl = Zoolock::builder().sasl_mechanism(kerberos).connect("zk1.example.org:2181").await?;
/// # drop(zl); Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Kerberos {
    service: String,
    host: Option<String>,
}

impl Default for Kerberos {
    fn default() -> Kerberos {
        Kerberos::new()
    }
}

impl Kerberos {
    /// Returns the service `zookeeper` on each host of the connect string.
    pub fn new() -> Kerberos {
        Kerberos { service: "zookeeper".to_owned(), host: None }
    }

    /// Sets the name of the service: the part of its principal before the slash.
    pub fn service(mut self, name: impl Into<String>) -> Kerberos {
        self.service = name.into();
        self
    }

    /// Sets the host in the principal: the part after the slash. It is used for all hosts of the
    /// connect string.
    pub fn host(mut self, host: impl Into<String>) -> Kerberos {
        self.host = Some(host.into());
        self
    }

    /// Checks that service and host can be parts of a principal. The command `zoolock` calls this to check its flags
    /// before it connects.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), Error> {
        for part in [Some(&self.service), self.host.as_ref()].into_iter().flatten() {
            let is_odd = |c: char| matches!(c, '/' | '@') || c.is_whitespace() || c.is_control();
            if part.is_empty() || part.contains(is_odd) {
                let message = "cannot be part of a principal; a service is SERVICE/HOST, without a realm";
                return Err(Error::invalid(format!("{part:?}"), message));
            }
        }
        Ok(())
    }
}

impl Mechanism for Kerberos {
    fn authenticator(&self, hosts: Vec<String>) -> Result<Arc<dyn Authenticator>, Error> {
        self.check()?;
        let hosts = self.host.clone().map_or(hosts, |host| vec![host]);
        Ok(Arc::new(Tickets::new(self.clone(), hosts)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_part_of_a_principal_is_refused() {
        for wrong in ["", "a/b", "a@REALM", "a\0", " ", "a ", "a\n"] {
            assert!(Kerberos::new().service(wrong).check().is_err(), "{wrong:?}");
            let error = Kerberos::new().host(wrong).check().expect_err(wrong).to_string();
            assert!(error.contains("SERVICE/HOST"), "{error}");
        }
        Kerberos::new().service("zk").host("zk1.example.org").check().expect("service and host are valid");
    }
}
