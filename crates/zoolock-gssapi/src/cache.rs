//! The file where tickets are: what is none must not come to libkrb5.
//!
//! Asked whether there are tickets, MIT's 1.20.1 frees a principal that it could not read and never had
//! (`krb5_cccol_have_content`), which ends the process. An empty file is enough, as it is left on a full disk.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// More than any principal needs.
const LIMIT: u64 = 64 << 10;

/// Whether what is there can be read. What is not there, libkrb5 says itself.
pub(super) fn check() -> Result<(), String> {
    let name = std::env::var_os("KRB5CCNAME");
    if name.is_none() && configuration().iter().any(|file| names_a_cache(file)) {
        return Ok(());
    }
    file(name.as_deref()).map_or(Ok(()), |file| look(&file))
}

/// Where libkrb5 reads how it is to be.
fn configuration() -> Vec<PathBuf> {
    match std::env::var_os("KRB5_CONFIG") {
        Some(files) => std::env::split_paths(&files).collect(),
        None => vec!["/etc/krb5.conf".into()],
    }
}

/// Whether it says, or a file that it includes may say, that tickets are kept elsewhere than in `/tmp`. What is damaged
/// there, anybody may have left there, and nobody reads it.
fn names_a_cache(file: &Path) -> bool {
    std::fs::read(file).is_ok_and(|text| {
        let text = String::from_utf8_lossy(&text);
        ["default_ccache_name", "include"].iter().any(|word| text.contains(word))
    })
}

/// `None`: it is kept otherwise.
fn file(name: Option<&OsStr>) -> Option<PathBuf> {
    let Some(name) = name else {
        return Some(format!("/tmp/krb5cc_{}", rustix::process::getuid().as_raw()).into());
    };
    let name = name.as_bytes();
    let file = name.strip_prefix(b"FILE:").or((!name.contains(&b':')).then_some(name))?;
    Some(Path::new(OsStr::from_bytes(file)).to_owned())
}

fn look(file: &Path) -> Result<(), String> {
    let mut bytes = Vec::new();
    match File::open(file).and_then(|opened| opened.take(LIMIT).read_to_end(&mut bytes)) {
        Ok(_) if principal(&bytes).is_some() => Ok(()),
        Ok(_) => Err(format!("the cache {} is damaged; remove it, and run kinit", file.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!(
            "the cache {} cannot be read ({error}); check whose it is, and KRB5CCNAME",
            file.display()
        )),
    }
}

/// Whether its principal is there: all that is read of it when that happens.
fn principal(mut bytes: &[u8]) -> Option<()> {
    let mut take = |length: usize| bytes.split_off(..length);
    match take(2)? {
        [5, 4] => {
            let header = u16::from_be_bytes(take(2)?.try_into().ok()?);
            take(header.into())?;
        }
        [5, 3] => {}
        // The bytes are in the order of the machine; nobody has written them for decades.
        [5, 1 | 2] => return Some(()),
        _ => return None,
    }
    let mut number = || Some(u32::from_be_bytes(take(4)?.try_into().ok()?));
    let (_kind, components) = (number()?, number()?);
    // And the realm.
    for _ in 0..=components {
        let length = u32::from_be_bytes(take(4)?.try_into().ok()?);
        take(usize::try_from(length).ok()?)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `kinit` began one, for `jobs@R`.
    const CACHE: &[u8] =
        b"\x05\x04\0\x0c\0\x01\0\x08\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0\x01R\0\0\0\x04jobs";

    #[test]
    fn a_cache_has_its_principal_or_is_damaged() {
        for length in 0..CACHE.len() {
            assert_eq!(principal(&CACHE[..length]), None, "{length}");
        }
        assert_eq!(principal(CACHE), Some(()));
        assert_eq!(principal(&[CACHE, b"tickets"].concat()), Some(()));
        assert_eq!(principal(&[&b"\x05\x03"[..], &CACHE[16..]].concat()), Some(()));
        assert_eq!(principal(b"junkjunkjunkjunk"), None);
    }

    #[test]
    fn only_files_are_looked_at() {
        let of = |name: &str| file(Some(OsStr::new(name)));
        assert_eq!(of("FILE:/a:b"), Some("/a:b".into()));
        assert_eq!(of("/a"), Some("/a".into()));
        assert_eq!(of("KCM:0"), None);
        assert_eq!(of("DIR:/a"), None);
        assert!(file(None).is_some_and(|file| file.starts_with("/tmp")));
    }

    #[test]
    fn where_the_configuration_may_name_another_one_it_is_not_known() {
        let at = std::env::temp_dir().join(format!("zoolock-krb5-{}", std::process::id()));
        let says = |text: &str| {
            std::fs::write(&at, text).expect("writable");
            names_a_cache(&at)
        };
        assert!(says("[libdefaults]\n default_ccache_name = KCM:\n"));
        assert!(says("includedir /etc/krb5.conf.d/\n"));
        assert!(!says("[libdefaults]\n default_realm = R\n"));
        std::fs::remove_file(&at).expect("it is ours");
        assert!(!names_a_cache(&at));
    }

    #[test]
    fn what_is_damaged_is_named_and_what_is_missing_is_not() {
        let at = std::env::temp_dir().join(format!("zoolock-cache-{}", std::process::id()));
        look(&at).expect("libkrb5 says it");
        std::fs::write(&at, "").expect("writable");
        let why = look(&at).expect_err("it is empty");
        assert!(why.contains("damaged") && why.contains(at.to_str().expect("of a test")), "{why}");
        let why = look(&std::env::temp_dir()).expect_err("it is a directory");
        assert!(why.contains("cannot be read"), "{why}");
        std::fs::write(&at, CACHE).expect("writable");
        look(&at).expect("nothing is wrong with it");
        std::fs::remove_file(&at).expect("it is ours");
    }
}
