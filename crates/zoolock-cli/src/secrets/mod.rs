//! Credentials and certificates that are known, in the form in which zoolock passes them to its reaper.
//!
//! * `kerberos.rs`, `no_kerberos.rs`: Kerberos, in builds with and without it.

#[cfg(feature = "gssapi")]
mod kerberos;
#[cfg(not(feature = "gssapi"))]
#[path = "no_kerberos.rs"]
mod kerberos;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;
use zoolock::{Builder, Tls};

use crate::base::exit::Failure;
pub(crate) use kerberos::parse_kerberos;

/// Credentials, with the scheme that sends them.
#[derive(Serialize, Deserialize)]
pub(crate) enum Credentials {
    /// USER:PASSWORD for ZooKeeper's digest scheme.
    Digest(Zeroizing<Vec<u8>>),
    /// USER:PASSWORD for SASL DIGEST-MD5.
    Sasl(Zeroizing<Vec<u8>>),
    /// The Kerberos ticket that libkrb5 finds, for this service. See [`parse_kerberos`].
    Kerberos(Option<String>),
}

impl Credentials {
    /// Adds the credentials to the settings of the library.
    pub(crate) fn apply(self, builder: Builder) -> Result<Builder, Failure> {
        Ok(match self {
            Self::Digest(secret) => builder.auth("digest", secret.to_vec()),
            Self::Sasl(secret) => {
                let (user, password) = split_user_and_password(&secret)?;
                builder.sasl_digest_md5(user, password)
            }
            Self::Kerberos(principal) => builder.sasl_mechanism(parse_kerberos(principal.as_deref())?),
        })
    }
}

/// Splits USER:PASSWORD at the first colon.
pub(crate) fn split_user_and_password(secret: &[u8]) -> Result<(&str, &str), Failure> {
    let parts = str::from_utf8(secret).ok().and_then(|text| text.split_once(':'));
    parts.ok_or_else(|| Failure::usage("--auth sasl: user and password must be UTF-8 text"))
}

/// The files of `--cacert`, `--cert` and `--key`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TlsFiles {
    pub(crate) authorities: PathBuf,
    /// The certificate of the client and its private key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// Returns the settings of the library. The library reads the files.
    pub(crate) fn load(&self) -> Tls {
        let tls = Tls::with_ca_file(&self.authorities);
        match &self.identity {
            Some((certificate, key)) => tls.identity_files(certificate, key),
            None => tls,
        }
    }

    /// Returns the absolute paths, for a process with another directory.
    pub(crate) fn to_absolute(&self) -> Self {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let identity =
            self.identity.as_ref().map(|(certificate, key)| (absolute(certificate), absolute(key)));
        Self { authorities: absolute(&self.authorities), identity }
    }
}
