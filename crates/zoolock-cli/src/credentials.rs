//! Credentials come from files: what is on a command line can be read by every user of the machine.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use zoolock::Tls;

use crate::args::Global;
use crate::exit::{Exit, Failure};

/// Much more than any sensible credentials.
const FILE_LIMIT: u64 = 4096;

/// Reads what `digest:@FILE` names: the scheme, and USER:PASSWORD.
pub(crate) fn credentials(text: &str) -> Result<(String, Vec<u8>), Failure> {
    let Some((scheme, value)) = text.split_once(':') else {
        return Err(Failure::usage("--auth: write it as digest:@FILE, with USER:PASSWORD in the file"));
    };
    if scheme != "digest" {
        return Err(Failure::usage(format!(
            "--auth {scheme}:…: the only scheme is digest, as in digest:@FILE"
        )));
    }
    let Some(file) = value.strip_prefix('@') else {
        return Err(Failure::usage(
            "--auth: a password on the command line can be read by every user of this machine; put \
             USER:PASSWORD in a file of your own (mode 0600) and write digest:@FILE",
        ));
    };
    let path = Path::new(file);
    let content = private("--auth", path, FILE_LIMIT)?;
    let colon = content.iter().position(|byte| *byte == b':');
    if colon.is_none_or(|at| at == 0) || content.contains(&b'\n') {
        return Err(Failure::usage(format!("--auth: {} must hold one line, USER:PASSWORD", path.display())));
    }
    Ok((scheme.to_owned(), content))
}

/// How to speak TLS; what is wrong with the certificates themselves is said before anything is sent.
pub(crate) fn tls(global: &Global) -> Result<Option<Tls>, Failure> {
    // An empty variable is as none.
    let file = |path: &Option<PathBuf>| path.clone().filter(|path| named(Some(path)));
    let (authorities, certificate, key) = (file(&global.cacert), file(&global.cert), file(&global.key));
    let Some(authorities) = authorities else {
        if certificate.is_some() || key.is_some() {
            return Err(Failure::usage(
                "--cert and --key go with --cacert: name the file of the authority that signed the service's certificate",
            ));
        }
        return Ok(None);
    };
    let tls = Tls::with_ca_file(authorities);
    match (certificate, key) {
        (None, None) => Ok(Some(tls)),
        (Some(certificate), Some(key)) => {
            is_ours("--key", &key)?;
            Ok(Some(tls.identity_files(certificate, key)))
        }
        (Some(_), None) => Err(Failure::usage("--cert goes with --key, the file of its private key")),
        (None, Some(_)) => Err(Failure::usage("--key goes with --cert, the file of its certificate")),
    }
}

pub(crate) fn named(path: Option<&PathBuf>) -> bool {
    path.is_some_and(|path| !path.as_os_str().is_empty())
}

/// Refuses a private key that everybody may read; a group of its own is how Debian keeps them.
fn is_ours(flag: &str, path: &Path) -> Result<(), Failure> {
    let metadata = std::fs::metadata(path)
        .map_err(|error| Failure::usage(format!("{flag}: cannot read {}: {error}", path.display())))?;
    if metadata.permissions().mode() & 0o007 != 0 {
        return Err(Failure::new(
            Exit::DENIED,
            format!(
                "{flag}: {path} can be read by everybody (mode {mode:04o}); run: chmod o= {path}",
                path = path.display(),
                mode = metadata.mode() & 0o7777,
            ),
        ));
    }
    Ok(())
}

/// Reads a file that nobody else may read; the newlines at its end are left out.
pub(crate) fn private(flag: &str, path: &Path, limit: u64) -> Result<Vec<u8>, Failure> {
    let failed = |error: std::io::Error| {
        let exit =
            if error.kind() == std::io::ErrorKind::PermissionDenied { Exit::DENIED } else { Exit::USAGE };
        Failure::new(exit, format!("{flag}: cannot read {}: {error}", path.display()))
    };
    let mut opened = File::open(path).map_err(failed)?;
    let metadata = opened.metadata().map_err(failed)?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(Failure::new(
            Exit::DENIED,
            format!(
                "{flag}: {} can be read by others (mode {:04o}); run: chmod 600 {}",
                path.display(),
                metadata.mode() & 0o7777,
                path.display()
            ),
        ));
    }
    let mut content = Vec::new();
    opened.by_ref().take(limit).read_to_end(&mut content).map_err(failed)?;
    while content.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        content.pop();
    }
    Ok(content)
}
