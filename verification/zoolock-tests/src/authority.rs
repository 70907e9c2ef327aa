//! A certificate authority for tests, with certificates for a server and for clients.

use std::fmt;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DistinguishedName,
    DnType, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};
use tempfile::TempDir;

/// The years in which a valid certificate is valid.
const VALID: Range<i32> = 2000..2100;
/// The years in which an expired certificate was valid.
const EXPIRED: Range<i32> = 2000..2001;
/// The years in which a certificate that is not valid yet will be valid.
const NOT_YET_VALID: Range<i32> = 2099..2100;

/// A certificate authority and a directory with the certificates that it signed. Its functions panic on errors.
pub struct Authority {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
    demands_certificates: bool,
}

/// A certificate and its key, as PEM files.
#[derive(Clone, Debug)]
pub struct SignedCertificate {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key, readable only by this user.
    pub key: PathBuf,
}

impl Authority {
    /// Creates an authority whose server, at 127.0.0.1, demands client certificates.
    pub fn new() -> Self {
        Self::named("tests")
    }

    /// Creates an authority with this name, for tests that must tell authorities apart.
    pub fn named(name: &str) -> Self {
        Self::with_server(name, VALID, true, IsCa::NoCa)
    }

    /// Creates an authority whose server demands no client certificates.
    pub fn of_a_server_for_everybody() -> Self {
        Self::with_server("tests", VALID, false, IsCa::NoCa)
    }

    /// Creates an authority whose server has an expired certificate.
    pub fn of_an_expired_server() -> Self {
        Self::with_server("tests", EXPIRED, true, IsCa::NoCa)
    }

    /// Creates an authority whose server has a certificate that is not valid yet.
    pub fn of_a_not_yet_valid_server() -> Self {
        Self::with_server("tests", NOT_YET_VALID, true, IsCa::NoCa)
    }

    /// Creates an authority whose server has a CA certificate instead of a server certificate.
    pub fn of_a_server_that_is_an_authority() -> Self {
        Self::with_server("tests", VALID, true, IsCa::Ca(BasicConstraints::Unconstrained))
    }

    fn with_server(name: &str, years: Range<i32>, demands_certificates: bool, is_ca: IsCa) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("key generated"));
        let issuer = issuer.expect("certificate signed");
        let authority =
            Self { dir: TempDir::new().expect("directory created"), issuer, demands_certificates };
        std::fs::write(authority.ca(), authority.issuer.pem()).expect("file written");
        let server = authority.sign("server", None, "127.0.0.1", years, is_ca);
        let [certificate, key] =
            [&server.certificate, &server.key].map(|path| std::fs::read_to_string(path).expect("file read"));
        std::fs::write(authority.key_and_certificate(), format!("{key}{certificate}")).expect("file written");
        authority
    }

    /// Returns the path of the authority's own certificate.
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Returns the certificate and the key of the server.
    pub fn server(&self) -> SignedCertificate {
        self.paths_of("server")
    }

    /// Returns the path of a file with both the key and the certificate of the server. Apache
    /// ZooKeeper needs both in one file.
    pub fn key_and_certificate(&self) -> PathBuf {
        self.dir.path().join("store.pem")
    }

    /// Returns whether the server demands client certificates.
    pub fn demands_client_certificates(&self) -> bool {
        self.demands_certificates
    }

    /// Signs a client certificate for `CN=name`. Overwrites an earlier certificate with this name.
    pub fn client(&self, name: &str) -> SignedCertificate {
        self.sign(name, None, "client.example.org", VALID, IsCa::NoCa)
    }

    /// Signs a client certificate for `CN=name,O=organization`.
    pub fn client_of(&self, organization: &str, name: &str) -> SignedCertificate {
        self.sign(name, Some(organization), "client.example.org", VALID, IsCa::NoCa)
    }

    /// Signs an expired client certificate for `CN=name`.
    pub fn expired_client(&self, name: &str) -> SignedCertificate {
        self.sign(name, None, "client.example.org", EXPIRED, IsCa::NoCa)
    }

    /// Returns an outdated revocation list in PEM that revokes the certificates with these names.
    ///
    /// The certificate of the server has the name `server`.
    pub fn revocation_list(&self, names: &[&str]) -> String {
        let at = date_time_ymd(2000, 1, 2);
        let revoked = |name: &&str| RevokedCertParams {
            serial_number: serial(name),
            revocation_time: at,
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: at,
            next_update: date_time_ymd(2001, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: names.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).and_then(|list| list.pem()).expect("list signed")
    }

    fn paths_of(&self, name: &str) -> SignedCertificate {
        let file = |end| self.dir.path().join(format!("{name}.{end}"));
        SignedCertificate { certificate: file("pem"), key: file("key") }
    }

    fn sign(
        &self,
        name: &str,
        organization: Option<&str>,
        host: &str,
        years: Range<i32>,
        is_ca: IsCa,
    ) -> SignedCertificate {
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("valid host name");
        params.distinguished_name = DistinguishedName::new();
        if let Some(organization) = organization {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(serial(name));
        params.is_ca = is_ca;
        params.not_before = date_time_ymd(years.start, 1, 1);
        params.not_after = date_time_ymd(years.end, 1, 1);
        let key = KeyPair::generate().expect("key generated");
        let certificate = params.signed_by(&key, &self.issuer).expect("certificate signed");
        let signed = self.paths_of(name);
        std::fs::write(&signed.certificate, certificate.pem()).expect("file written");
        std::fs::write(&signed.key, key.serialize_pem()).expect("file written");
        std::fs::set_permissions(&signed.key, PermissionsExt::from_mode(0o600)).expect("mode set");
        signed
    }
}

fn serial(name: &str) -> SerialNumber {
    SerialNumber::from(name.as_bytes().to_vec())
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("dir", &self.dir).finish_non_exhaustive()
    }
}
