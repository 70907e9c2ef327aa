//! How connections to the service are made: plainly or over TLS, and who we say that we are by SASL.

use zookeeper_client as zk;

/// See above.
#[derive(Clone, Default)]
pub(crate) struct Way {
    #[cfg(feature = "tls")]
    pub(crate) certificates: Option<crate::tls::Certificates>,
    #[cfg(feature = "sasl")]
    pub(crate) sasl: Option<Sasl>,
}

/// A user and the password.
#[cfg(feature = "sasl")]
#[derive(Clone)]
pub(crate) struct Sasl {
    pub(crate) user: String,
    pub(crate) password: zeroize::Zeroizing<String>,
}

impl Way {
    /// Over TLS, and no more.
    #[cfg(feature = "tls")]
    pub(crate) fn over(certificates: crate::tls::Certificates) -> Way {
        Way {
            certificates: Some(certificates),
            #[cfg(feature = "sasl")]
            sasl: None,
        }
    }

    /// Whether we are known by it.
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
            Some(Sasl { user, password }) => {
                connector.with_sasl(zk::SaslOptions::digest_md5(user.clone(), String::clone(password)))
            }
            None => connector,
        };
        #[cfg(feature = "tls")]
        if let Some(certificates) = &self.certificates {
            return connector.with_tls(certificates.options()).secure_connect(endpoints).await;
        }
        connector.connect(endpoints).await
    }

    /// Reads again what certificates there are, for the connections that are made from now on.
    pub(crate) async fn refresh(&self) {
        #[cfg(feature = "tls")]
        if let Some(certificates) = &self.certificates {
            certificates.refresh().await;
        }
    }
}
