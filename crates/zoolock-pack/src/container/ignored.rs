//! What is never copied from the context: `.dockerignore`. What it names is left out, but for what comes after `!`; the last
//! line that speaks of a file decides.

use std::path::{Path, PathBuf};

use crate::Result;

/// What is left out.
#[derive(Debug, Default)]
pub(super) struct Ignored {
    /// From the context on, empty for all of it; and whether it is left out.
    lines: Vec<(PathBuf, bool)>,
}

impl Ignored {
    /// What the file says that is there. None at all is a mistake: whatever lies here would be sent to whoever builds.
    pub(super) fn of(context: &Path) -> Result<Self> {
        let file = context.join(".dockerignore");
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", file.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut lines = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (name, out) = line.strip_prefix('!').map_or((line, true), |name| (name, false));
            let path = match name {
                "*" => PathBuf::new(),
                name => PathBuf::from(super::path(name)?.trim_matches('/')),
            };
            lines.push((path, out));
        }
        Ok(Self { lines })
    }

    /// Whether a path of the context is left out.
    pub(super) fn has(&self, path: &Path) -> bool {
        let last = self.lines.iter().rev().find(|(named, _)| path.starts_with(named));
        last.is_some_and(|(_, out)| *out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_decides() {
        let ignored = Ignored::parse("# all\n*\n\n!src\nsrc/secret\n!/README.md\n").expect("plain");
        for (path, out) in [
            ("target/debug", true),
            ("src", false),
            ("src/a", false),
            ("src/secret", true),
            ("src/secret/key", true),
            ("src/secrets", false),
            ("srcs", true),
            ("README.md", false),
        ] {
            assert_eq!(ignored.has(Path::new(path)), out, "{path}");
        }
        assert!(!Ignored::default().has(Path::new("anything")));
        for pattern in ["**/target", "*.rs", "a b", "../other", "!a?"] {
            Ignored::parse(pattern).expect_err(pattern);
        }
    }
}
