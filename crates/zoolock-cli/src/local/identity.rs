//! How clients know this user's server: it has a key that nobody else can read. Without that, whoever listens on the port of
//! a server that crashed would be told the secret.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt as _;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use zeroize::Zeroizing;
use zoolock::Tls;
use zoolock_server::TlsConfig;

use super::paths::StateDir;
use crate::exit::Failure;

/// Certificate and key, in one file, lest they become those of two.
const FILE: &str = "identity";

/// What the server shows. Made once, by the one server: clients that wait for its return know it by that.
pub(super) fn of_server(dir: &StateDir) -> Result<TlsConfig, Failure> {
    let path = dir.file(FILE);
    if !path.exists() {
        make(dir)?;
    }
    Ok(TlsConfig::new(&path, &path))
}

/// Whom a client believes.
pub(super) fn of_client(dir: &StateDir) -> Tls {
    Tls::with_ca_file(dir.file(FILE))
}

fn make(dir: &StateDir) -> Result<(), Failure> {
    let made = || -> Result<Zeroizing<String>, rcgen::Error> {
        let mut params = CertificateParams::new(vec![Ipv4Addr::LOCALHOST.to_string()])?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "zoolock, this user's server");
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        let secret = Zeroizing::new(key.serialize_pem());
        Ok(Zeroizing::new(format!("{}{}", *secret, certificate.pem())))
    };
    let text = made().map_err(|error| Failure::unavailable(format!("cannot make a certificate: {error}")))?;
    let draft = dir.file("identity.new");
    let written = || -> io::Result<()> {
        // Left by one that did not get far.
        let _ = std::fs::remove_file(&draft);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&draft, dir.file(FILE))
    };
    written().map_err(|error| dir.failed("make", FILE, &error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn it_is_made_once_and_for_nobody_else() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let state = StateDir::for_tests(dir.path());
        let _ = of_server(&state).expect("made");
        let path = state.file(FILE);
        let first = std::fs::read_to_string(&path).expect("there");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let _ = of_server(&state).expect("read");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), first);
        assert!(first.contains("BEGIN CERTIFICATE") && first.contains("PRIVATE KEY"));
    }
}
