//! Security of connections to the servers: TLS, and authentication by SASL.

use zoolock_client::{Host, Servers};

/// Pause between two attempts to fetch credentials.
#[cfg(feature = "sasl")]
const BETWEEN_FETCHES: std::time::Duration = std::time::Duration::from_millis(100);

/// The TLS and SASL options of a client.
#[derive(Clone, Default)]
pub(crate) struct Transport {
    #[cfg(feature = "tls")]
    pub(crate) certificates: Option<crate::zk::tls::Certificates>,
    #[cfg(feature = "sasl")]
    pub(crate) sasl: Option<SaslIdentity>,
}

/// The SASL mechanism of a client, with its credentials.
#[cfg(feature = "sasl")]
#[derive(Clone)]
pub(crate) enum SaslIdentity {
    DigestMd5(std::sync::Arc<zoolock_client::sasl::DigestMd5>),
    /// A mechanism that another crate implements.
    Mechanism(std::sync::Arc<dyn crate::zk::sasl::Authenticator>),
}

impl Transport {
    /// Returns whether connections use TLS.
    pub(crate) fn has_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        {
            self.certificates.is_some()
        }
        #[cfg(not(feature = "tls"))]
        {
            false
        }
    }

    /// Returns whether connections authenticate by SASL.
    pub(crate) fn has_sasl(&self) -> bool {
        #[cfg(feature = "sasl")]
        {
            self.sasl.is_some()
        }
        #[cfg(not(feature = "sasl"))]
        {
            false
        }
    }

    /// Returns the servers, with these options for each connection.
    pub(crate) fn servers(&self, hosts: &[Host]) -> Servers {
        Servers {
            hosts: hosts.to_vec(),
            #[cfg(feature = "tls")]
            tls: self.certificates.clone().map(|certificates| std::sync::Arc::new(certificates) as _),
            #[cfg(feature = "sasl")]
            sasl: match &self.sasl {
                None => None,
                Some(SaslIdentity::DigestMd5(mechanism)) => Some(mechanism.clone()),
                Some(SaslIdentity::Mechanism(authenticator)) => Some(authenticator.clone().mechanism()),
            },
            #[cfg(not(feature = "sasl"))]
            sasl: None,
        }
    }

    /// Fetches the credentials for a new session. Returns `false` if no attempt can succeed.
    /// [`Transport::local_problem`] describes a failure.
    pub(crate) async fn fetch_credentials(&self) -> bool {
        #[cfg(feature = "sasl")]
        if let Some(SaslIdentity::Mechanism(authenticator)) = &self.sasl {
            while let Err(missing) = authenticator.fetch().await {
                if missing.is_final {
                    return false;
                }
                tokio::time::sleep(BETWEEN_FETCHES).await;
            }
        }
        true
    }

    /// Returns the local problem that prevents authentication, if there is one.
    pub(crate) fn local_problem(&self) -> Option<String> {
        #[cfg(feature = "sasl")]
        if let Some(SaslIdentity::Mechanism(authenticator)) = &self.sasl {
            return authenticator.problem();
        }
        None
    }

    /// Returns the message of the error after a server has refused the authentication.
    pub(crate) fn refusal(&self) -> String {
        if let Some(trouble) = self.local_problem() {
            return trouble;
        }
        #[cfg(feature = "sasl")]
        match &self.sasl {
            Some(SaslIdentity::DigestMd5(_)) => {
                return "SASL authentication failed; check user and password, and that the server supports DIGEST-MD5 \
                        (`zoolock serve` does not)"
                    .to_owned();
            }
            Some(SaslIdentity::Mechanism(authenticator)) => return authenticator.refusal(),
            None => {}
        }
        "the server does not accept the credentials; check the auth scheme and secret".to_owned()
    }
}
