//! A check of the ticket cache, so that libkrb5 does not read a damaged file.
//!
//! With a damaged file, MIT Kerberos 1.20.1 frees a principal that it has not read (`krb5_cccol_have_content`), which
//! ends the process. An empty file is enough, and a full disk may leave an empty file.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use zoolock_client::open_regular_file;

/// The largest number of bytes that are read from a cache. No principal is longer.
const LIMIT: u64 = 64 << 10;

/// Checks that the cache can be read. A missing cache is not an error here: libkrb5 reports it.
pub(crate) fn check_ticket_cache() -> Result<(), String> {
    let name = std::env::var_os("KRB5CCNAME");
    if name.is_none() && config_files().iter().any(|file| may_name_cache(file)) {
        return Ok(());
    }
    cache_file(name.as_deref()).map_or(Ok(()), |file| check_file(&file))
}

/// Returns the configuration files of libkrb5.
fn config_files() -> Vec<PathBuf> {
    match std::env::var_os("KRB5_CONFIG") {
        Some(files) => std::env::split_paths(&files).collect(),
        None => vec!["/etc/krb5.conf".into()],
    }
}

/// Returns whether the configuration file, or a file that it includes, may name another cache than
/// the default in `/tmp`. In that case libkrb5 does not read the default cache. So a damaged file
/// there, which any user can create, is no error.
fn may_name_cache(file: &Path) -> bool {
    std::fs::read(file).is_ok_and(|text| {
        let text = String::from_utf8_lossy(&text);
        ["default_ccache_name", "include"].iter().any(|word| text.contains(word))
    })
}

/// Returns the file of the cache with this name, or `None` for a cache that is not a file.
fn cache_file(name: Option<&OsStr>) -> Option<PathBuf> {
    let Some(name) = name else {
        return Some(format!("/tmp/krb5cc_{}", rustix::process::getuid().as_raw()).into());
    };
    let name = name.as_bytes();
    let file = name.strip_prefix(b"FILE:").or((!name.contains(&b':')).then_some(name))?;
    Some(Path::new(OsStr::from_bytes(file)).to_owned())
}

fn check_file(file: &Path) -> Result<(), String> {
    let mut bytes = Vec::new();
    match open_regular_file(file).and_then(|opened| opened.take(LIMIT).read_to_end(&mut bytes)) {
        Ok(_) if parse_principal(&bytes).is_some() => Ok(()),
        Ok(_) => Err(format!("the ticket cache {} is damaged; remove it and run kinit", file.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!(
            "the ticket cache {} cannot be read ({error}); check its owner, and KRB5CCNAME",
            file.display()
        )),
    }
}

/// Parses the header and the principal, which libkrb5 reads before it frees the principal. Returns `None` for a damaged
/// file.
fn parse_principal(mut bytes: &[u8]) -> Option<()> {
    let mut take = |length: usize| bytes.split_off(..length);
    match take(2)? {
        [5, 4] => {
            let header = u16::from_be_bytes(take(2)?.try_into().ok()?);
            take(header.into())?;
        }
        [5, 3] => {}
        // Versions 1 and 2 are in the byte order of the machine, and are not checked. No program has written them for
        // decades.
        [5, 1 | 2] => return Some(()),
        _ => return None,
    }
    let mut number = || Some(u32::from_be_bytes(take(4)?.try_into().ok()?));
    let (_kind, components) = (number()?, number()?);
    // The realm comes first, then the components.
    for _ in 0..=components {
        let length = u32::from_be_bytes(take(4)?.try_into().ok()?);
        take(usize::try_from(length).ok()?)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The start of a cache of `jobs@R`, as `kinit` writes it.
    const CACHE: &[u8] =
        b"\x05\x04\0\x0c\0\x01\0\x08\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0\x01R\0\0\0\x04jobs";

    #[test]
    fn cache_without_whole_principal_is_damaged() {
        for length in 0..CACHE.len() {
            assert_eq!(parse_principal(&CACHE[..length]), None, "{length}");
        }
        assert_eq!(parse_principal(CACHE), Some(()));
        assert_eq!(parse_principal(&[CACHE, b"tickets"].concat()), Some(()));
        assert_eq!(parse_principal(&[&b"\x05\x03"[..], &CACHE[16..]].concat()), Some(()));
        assert_eq!(parse_principal(b"junkjunkjunkjunk"), None);
    }

    #[test]
    fn only_file_caches_are_checked() {
        let of = |name: &str| cache_file(Some(OsStr::new(name)));
        assert_eq!(of("FILE:/a:b"), Some("/a:b".into()));
        assert_eq!(of("/a"), Some("/a".into()));
        assert_eq!(of("KCM:0"), None);
        assert_eq!(of("DIR:/a"), None);
        assert!(cache_file(None).is_some_and(|file| file.starts_with("/tmp")));
    }

    #[test]
    fn configuration_may_name_another_cache() {
        let file = std::env::temp_dir().join(format!("zoolock-krb5-{}", std::process::id()));
        let may_name_cache_in = |text: &str| {
            std::fs::write(&file, text).expect("file is written");
            may_name_cache(&file)
        };
        assert!(may_name_cache_in("[libdefaults]\n default_ccache_name = KCM:\n"));
        assert!(may_name_cache_in("includedir /etc/krb5.conf.d/\n"));
        assert!(!may_name_cache_in("[libdefaults]\n default_realm = R\n"));
        std::fs::remove_file(&file).expect("file is removed");
        assert!(!may_name_cache(&file));
    }

    #[test]
    fn damaged_cache_is_named_and_missing_cache_is_not() {
        let file = std::env::temp_dir().join(format!("zoolock-cache-{}", std::process::id()));
        check_file(&file).expect("missing cache is accepted");
        std::fs::write(&file, "").expect("file is written");
        let why = check_file(&file).expect_err("empty file is refused");
        assert!(why.contains("damaged") && why.contains(file.to_str().expect("UTF-8")), "{why}");
        let why = check_file(&std::env::temp_dir()).expect_err("directory is refused");
        assert!(why.contains("cannot be read"), "{why}");
        std::fs::write(&file, CACHE).expect("file is written");
        check_file(&file).expect("whole principal is accepted");
        std::fs::remove_file(&file).expect("file is removed");
    }
}
