//! The file with the settings of this machine.

use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use zoolock_client::open_regular_file;

const DEFAULT: &str = "/etc/zoolock.conf";

/// Returns the path of the file: the value of `ZOOLOCK_CONFIG`, or the default.
pub(crate) fn path() -> PathBuf {
    std::env::var_os("ZOOLOCK_CONFIG").filter(|path| !path.is_empty()).map_or(DEFAULT.into(), PathBuf::from)
}

/// Reads the file, which may be missing at the default path. Refuses a file that users other than this user and root can
/// change, because they could lead zoolock to another server.
pub(crate) fn read() -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let mut file = match open_regular_file(&path()) {
        Err(error) if error.kind() == ErrorKind::NotFound && path() == Path::new(DEFAULT) => {
            return Ok(String::new());
        }
        file => file.map_err(unreadable)?,
    };
    let metadata = file.metadata().map_err(unreadable)?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if ![0, geteuid().as_raw()].contains(&owner) || mode & 0o022 != 0 {
        return Err(format!(
            "other users can change it (user {owner} owns it, mode {mode:04o}); run: chmod go-w, and let root or this user own \
             it; in a user namespace, name another file with ZOOLOCK_CONFIG"
        ));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}
