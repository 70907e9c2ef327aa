//! What every client of this user's server presents.

use std::fmt::{self, Write as _};
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use zeroize::Zeroizing;

use super::paths::StateDir;
use crate::exit::{Exit, Failure};

const FILE: &str = "secret";
const BYTES: usize = 32;

/// The secret, as hexadecimal digits; never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Zeroizing<String>);

impl Secret {
    /// Reads the secret, and makes it if there is none. Of several who make it at once, all get the same.
    pub(crate) fn of(dir: &StateDir) -> Result<Self, Failure> {
        match Self::read(dir)? {
            Some(secret) => Ok(secret),
            None => {
                Self::make(dir)?;
                Self::read(dir)?.ok_or_else(|| {
                    Failure::unavailable(format!(
                        "{} was deleted just after it was made",
                        dir.file(FILE).display()
                    ))
                })
            }
        }
    }

    /// The digits themselves.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    fn read(dir: &StateDir) -> Result<Option<Self>, Failure> {
        let path = dir.file(FILE);
        let failed = |error: &io::Error| dir.failed("read", FILE, error);
        let metadata = match std::fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            metadata => metadata.map_err(|error| failed(&error))?,
        };
        if metadata.mode() & 0o077 != 0 {
            return Err(Failure::new(
                Exit::DENIED,
                format!(
                    "{} can be read by others (mode {:04o}); stop the server (zoolock serve --stop), delete \
                     the file, and a new secret is made",
                    path.display(),
                    metadata.mode() & 0o7777
                ),
            ));
        }
        let text = Zeroizing::new(std::fs::read_to_string(&path).map_err(|error| failed(&error))?);
        let digits = text.trim_end();
        if digits.len() != 2 * BYTES || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Failure::unavailable(format!(
                "{} is damaged; stop the server (zoolock serve --stop), delete the file, and a new secret is made",
                path.display()
            )));
        }
        Ok(Some(Self(Zeroizing::new(digits.to_owned()))))
    }

    /// The file appears under its name only when it is complete, and the first one stays.
    fn make(dir: &StateDir) -> Result<(), Failure> {
        let mut random = Zeroizing::new([0; BYTES]);
        getrandom::fill(&mut *random).map_err(|error| {
            Failure::unavailable(format!("the operating system gives no random numbers: {error}"))
        })?;
        // Of the right size at once: what is moved is not wiped.
        let mut text = Zeroizing::new(String::with_capacity(2 * BYTES + 1));
        for byte in random.iter() {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
        let draft_name = format!("secret.{}", std::process::id());
        let draft = dir.file(&draft_name);
        let written = (|| {
            // Left by a process of the same number that did not get far.
            let _ = std::fs::remove_file(&draft);
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            match std::fs::hard_link(&draft, dir.file(FILE)) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
                _ => Ok(()),
            }
        })();
        let _ = std::fs::remove_file(&draft);
        written.map_err(|error| dir.failed("make", FILE, &error))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_made_once_and_kept() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let state = StateDir::for_tests(dir.path());
        let first = Secret::of(&state).expect("made");
        assert_eq!(first.expose().len(), 2 * BYTES);
        assert_eq!(Secret::of(&state).expect("read"), first);
        Secret::make(&state).expect("the second to make it gives way");
        assert_eq!(Secret::of(&state).expect("read"), first);
        let left: Vec<_> = std::fs::read_dir(dir.path()).expect("readable").collect();
        assert_eq!(left.len(), 1, "no draft is left: {left:?}");
    }

    #[test]
    fn it_is_refused_when_others_can_read_it_or_it_is_damaged() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let state = StateDir::for_tests(dir.path());
        Secret::of(&state).expect("made");
        let path = state.file(FILE);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("ours");
        assert_eq!(Secret::of(&state).expect_err("readable by all").exit, Exit::DENIED);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("ours");
        std::fs::write(&path, "short").expect("writable");
        let failure = Secret::of(&state).expect_err("damaged");
        assert!(!failure.to_string().contains("short"), "{failure}");
    }

    #[test]
    fn it_is_not_shown() {
        assert_eq!(format!("{:?}", Secret(Zeroizing::new("abc".to_owned()))), "Secret(..)");
    }
}
