//! How connections to the service are made: plainly, or over TLS.

use zookeeper_client as zk;

/// See above.
#[derive(Clone, Default)]
pub(crate) struct Way {
    #[cfg(feature = "tls")]
    pub(crate) certificates: Option<crate::tls::Certificates>,
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

    #[cfg(feature = "tls")]
    pub(crate) fn tls(&self) -> Option<&crate::tls::Tls> {
        self.certificates.as_ref().map(crate::tls::Certificates::tls)
    }

    /// Opens a session.
    pub(crate) async fn connect(
        &self,
        connector: zk::Connector,
        endpoints: &str,
    ) -> Result<zk::Client, zk::Error> {
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
