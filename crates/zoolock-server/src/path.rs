//! What ZooKeeper accepts as a path (`PathUtils.validatePath`), and how paths come apart.

use crate::code::Code;

/// Checks a path as ZooKeeper does.
///
/// # Errors
/// [`Code::BadArguments`] for a path that is empty, relative, ends in a slash, has an empty, `.` or `..` part, or a
/// character that ZooKeeper forbids. Java sees characters beyond the first 65,536 as surrogates, which are among
/// those.
pub fn validate(path: &str) -> Result<(), Code> {
    let ok = path == "/"
        || path.strip_prefix('/').is_some_and(|rest| {
            rest.split('/').all(|part| !matches!(part, "" | "." | "..")) && !rest.chars().any(forbidden)
        });
    if ok { Ok(()) } else { Err(Code::BadArguments) }
}

/// The parent of a path as a writer needs it: everything before the last slash, where nothing stands for the root.
///
/// # Errors
/// [`Code::BadArguments`] when there is no slash, or a NUL.
pub fn parent(path: &str) -> Result<&str, Code> {
    if path.contains('\0') {
        return Err(Code::BadArguments);
    }
    path.rsplit_once('/').map(|(parent, _)| normal(parent)).ok_or(Code::BadArguments)
}

/// The name that the tree uses; the empty path is another name of the root.
pub fn normal(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

/// Splits the path of a znode that exists, or is about to, into its parent and its name.
pub(crate) fn split(path: &str) -> (&str, &str) {
    let (parent, name) =
        path.rsplit_once('/').expect("every path in a transaction was validated and has a slash");
    (normal(parent), name)
}

fn forbidden(c: char) -> bool {
    matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{d7ff}'..='\u{f8ff}' | '\u{fff0}'..)
        && c != '\u{d7ff}'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_and_refuses_what_zookeeper_does() {
        for good in ["/", "/a", "/a/b", "/a.b", "/...", "/a/.b", "/é", "/\u{d7ff}", "/\u{f900}", "/ a "] {
            assert_eq!(validate(good), Ok(()), "{good:?}");
        }
        let bad =
            ["", "a", "//", "/a/", "/a//b", "/.", "/..", "/a/./b", "/a/..", "/a\0", "/\u{1}", "/\u{7f}"];
        for bad in bad.into_iter().chain(["/\u{9f}", "/\u{e000}", "/\u{f8ff}", "/\u{fff0}", "/\u{1f512}"]) {
            assert_eq!(validate(bad), Err(Code::BadArguments), "{bad:?}");
        }
    }

    #[test]
    fn parents() {
        assert_eq!(parent("/a/b"), Ok("/a"));
        assert_eq!(parent("/a"), Ok("/"));
        assert_eq!(parent("/"), Ok("/"));
        assert_eq!(parent("a"), Err(Code::BadArguments));
        assert_eq!(parent("/a\0/b"), Err(Code::BadArguments));
    }
}
