//! Certificates for tests: an authority, a server that it has signed, and clients.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DistinguishedName,
    DnType, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};
use tempfile::TempDir;

/// An authority, and a directory with what it has signed. Anything else than that is an error of the test, and panics.
pub struct Authority {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
    asks: bool,
}

/// Two files in PEM.
#[derive(Clone, Debug)]
pub struct Signed {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key, which nobody else may read.
    pub key: PathBuf,
}

impl Authority {
    /// Makes an authority; its server is at 127.0.0.1, and demands certificates of clients.
    pub fn new() -> Self {
        Self::named("tests")
    }

    /// The same by another name, for where it must not be taken for one of the others.
    pub fn named(name: &str) -> Self {
        Self::with_server(name, 2100, true, IsCa::NoCa)
    }

    /// The same with a server that asks for none.
    pub fn of_a_server_for_everybody() -> Self {
        Self::with_server("tests", 2100, false, IsCa::NoCa)
    }

    /// The same with a server whose certificate is no longer valid.
    pub fn of_an_expired_server() -> Self {
        Self::with_server("tests", 2001, true, IsCa::NoCa)
    }

    /// The same with a server whose certificate is one of an authority.
    pub fn of_a_server_that_is_an_authority() -> Self {
        Self::with_server("tests", 2100, true, IsCa::Ca(BasicConstraints::Unconstrained))
    }

    fn with_server(name: &str, until: i32, asks: bool, server_is: IsCa) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"));
        let issuer = issuer.expect("a certificate");
        let authority = Self { dir: TempDir::new().expect("a directory"), issuer, asks };
        std::fs::write(authority.ca(), authority.issuer.pem()).expect("writable");
        let server = authority.sign("server", None, "127.0.0.1", until, server_is);
        let [certificate, key] =
            [&server.certificate, &server.key].map(|path| std::fs::read_to_string(path).expect("readable"));
        std::fs::write(authority.store(), format!("{key}{certificate}")).expect("writable");
        authority
    }

    /// The file of the authority itself.
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// What the server shows.
    pub fn server(&self) -> Signed {
        self.files("server")
    }

    /// The same in one file, as ZooKeeper wants it.
    pub fn store(&self) -> PathBuf {
        self.dir.path().join("store.pem")
    }

    /// Whether the server demands certificates of clients.
    pub fn asks(&self) -> bool {
        self.asks
    }

    /// Signs a client's certificate for `CN=name`. Signed again, it is written over the old one.
    pub fn client(&self, name: &str) -> Signed {
        self.sign(name, None, "client.example.org", 2100, IsCa::NoCa)
    }

    /// Signs a client's certificate for `CN=name,O=organization`.
    pub fn client_of(&self, organization: &str, name: &str) -> Signed {
        self.sign(name, Some(organization), "client.example.org", 2100, IsCa::NoCa)
    }

    /// The same, no longer valid.
    pub fn expired_client(&self, name: &str) -> Signed {
        self.sign(name, None, "client.example.org", 2001, IsCa::NoCa)
    }

    /// A list of what was revoked, in PEM and past its date: the certificates of these names, of which `server` is one.
    pub fn revoked(&self, names: &[&str]) -> String {
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
        params.signed_by(&self.issuer).and_then(|list| list.pem()).expect("a list")
    }

    fn files(&self, name: &str) -> Signed {
        let file = |end| self.dir.path().join(format!("{name}.{end}"));
        Signed { certificate: file("pem"), key: file("key") }
    }

    fn sign(&self, name: &str, organization: Option<&str>, host: &str, until: i32, is_ca: IsCa) -> Signed {
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("a name");
        params.distinguished_name = DistinguishedName::new();
        if let Some(organization) = organization {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(serial(name));
        params.is_ca = is_ca;
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let signed = self.files(name);
        std::fs::write(&signed.certificate, certificate.pem()).expect("writable");
        std::fs::write(&signed.key, key.serialize_pem()).expect("writable");
        std::fs::set_permissions(&signed.key, PermissionsExt::from_mode(0o600)).expect("ours");
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
