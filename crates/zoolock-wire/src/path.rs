//! Paths: validation by ZooKeeper's rules (`PathUtils.validatePath`), and the parts of a path.

use crate::Code;

/// Checks a path by ZooKeeper's rules.
///
/// # Errors
/// [`Code::BadArguments`] for a path that is empty, relative, ends in a slash, has an empty, `.` or
/// `..` part, or has a character that ZooKeeper forbids. Java encodes characters beyond the first
/// 65,536 as surrogates, which are forbidden.
pub fn validate(path: &str) -> Result<(), Code> {
    let ok = path == "/"
        || path.strip_prefix('/').is_some_and(|rest| {
            rest.split('/').all(|part| !matches!(part, "" | "." | "..")) && !rest.chars().any(is_forbidden)
        });
    if ok { Ok(()) } else { Err(Code::BadArguments) }
}

/// Returns the parent of a path: the text before the last slash, or `/` if that text is empty. Does
/// not check the path by ZooKeeper's rules.
///
/// # Errors
/// [`Code::BadArguments`] if the path has no slash, or has a NUL character.
pub fn parent(path: &str) -> Result<&str, Code> {
    if path.contains('\0') {
        return Err(Code::BadArguments);
    }
    path.rsplit_once('/').map(|(parent, _)| normalize(parent)).ok_or(Code::BadArguments)
}

/// Returns the path under which the tree stores a znode. The empty path is another name of the root `/`.
pub fn normalize(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

/// Splits a valid path into its parent and its last part.
///
/// # Panics
/// The path has no slash.
pub fn split(path: &str) -> (&str, &str) {
    let (parent, name) = path.rsplit_once('/').expect("a valid path has a slash");
    (normalize(parent), name)
}

fn is_forbidden(c: char) -> bool {
    matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{d7ff}'..='\u{f8ff}' | '\u{fff0}'..)
        && c != '\u{d7ff}'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_validated_by_zookeepers_rules() {
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
    fn parent_is_the_text_before_the_last_slash() {
        assert_eq!(parent("/a/b"), Ok("/a"));
        assert_eq!(parent("/a"), Ok("/"));
        assert_eq!(parent("/"), Ok("/"));
        assert_eq!(parent("a"), Err(Code::BadArguments));
        assert_eq!(parent("/a\0/b"), Err(Code::BadArguments));
    }
}
