//! The transport of connections to the server: plain or TLS, and authentication by SASL.

use zookeeper_client as zk;

/// The TLS and SASL options of a connection.
#[derive(Clone, Default)]
pub(crate) struct Transport {
    #[cfg(feature = "tls")]
    pub(crate) certificates: Option<crate::tls::Certificates>,
    #[cfg(feature = "sasl")]
    pub(crate) sasl: Option<Sasl>,
}

/// The SASL identity.
#[cfg(feature = "sasl")]
#[derive(Clone)]
pub(crate) enum Sasl {
    /// A user and a password.
    DigestMd5 { user: String, password: zeroize::Zeroizing<String> },
    /// A mechanism of another crate.
    Mechanism(std::sync::Arc<dyn crate::sasl::Authenticator>),
}

impl Transport {
    /// Returns a transport over TLS without SASL.
    #[cfg(feature = "tls")]
    pub(crate) fn over(certificates: crate::tls::Certificates) -> Transport {
        Transport {
            certificates: Some(certificates),
            #[cfg(feature = "sasl")]
            sasl: None,
        }
    }

    /// Returns whether connections use neither TLS nor SASL.
    pub(crate) fn is_plain(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.certificates.is_some() {
            return false;
        }
        !self.has_sasl()
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

    /// Opens a session.
    pub(crate) async fn connect(
        &self,
        connector: zk::Connector,
        endpoints: &str,
    ) -> Result<zk::Client, zk::Error> {
        #[cfg(feature = "sasl")]
        let connector = match &self.sasl {
            Some(Sasl::DigestMd5 { user, password }) => {
                connector.with_sasl(zk::SaslOptions::digest_md5(user.clone(), String::clone(password)))
            }
            Some(Sasl::Mechanism(mechanism)) => {
                let (transport, endpoints) = (self.clone(), endpoints.to_owned());
                let connector = connector.with_sasl(mechanism.options());
                let open = async move { transport.reach(connector, &endpoints).await };
                return crate::sasl::open_on(&mechanism.runtime(), open).await;
            }
            None => connector,
        };
        self.reach(connector, endpoints).await
    }

    async fn reach(&self, connector: zk::Connector, endpoints: &str) -> Result<zk::Client, zk::Error> {
        #[cfg(feature = "tls")]
        if let Some(certificates) = &self.certificates {
            return connector.with_tls(certificates.options()).secure_connect(endpoints).await;
        }
        connector.connect(endpoints).await
    }

    /// Fetches the credentials for a new session. [`Transport::trouble`] describes a failure.
    pub(crate) async fn prepare(&self) -> Result<(), zk::Error> {
        self.refresh_certificates().await;
        #[cfg(feature = "sasl")]
        if let Some(Sasl::Mechanism(mechanism)) = &self.sasl {
            return Ok(mechanism.fetch().await?);
        }
        Ok(())
    }

    /// Renews the credentials, for the next connections.
    pub(crate) async fn refresh(&self) {
        self.refresh_certificates().await;
        #[cfg(feature = "sasl")]
        if let Some(Sasl::Mechanism(mechanism)) = &self.sasl {
            mechanism.refresh().await;
        }
    }

    /// Reads the certificate files again.
    async fn refresh_certificates(&self) {
        #[cfg(feature = "tls")]
        if let Some(certificates) = &self.certificates {
            certificates.refresh().await;
        }
    }

    /// Returns the local problem that prevents authentication, if there is one.
    pub(crate) fn trouble(&self) -> Option<String> {
        #[cfg(feature = "sasl")]
        if let Some(Sasl::Mechanism(mechanism)) = &self.sasl {
            return mechanism.problem();
        }
        None
    }

    /// Returns the message for a server that refused the authentication.
    pub(crate) fn refusal(&self) -> String {
        if let Some(trouble) = self.trouble() {
            return trouble;
        }
        #[cfg(feature = "sasl")]
        match &self.sasl {
            Some(Sasl::DigestMd5 { .. }) => {
                return "the service does not know us by SASL; check user and password, and that it speaks DIGEST-MD5, \
                        which `zoolock serve` does not"
                    .to_owned();
            }
            Some(Sasl::Mechanism(mechanism)) => return mechanism.refusal(),
            None => {}
        }
        "the service does not accept the credentials; check the auth scheme and secret".to_owned()
    }
}
