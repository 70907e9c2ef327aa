//! Where things are put and taken from: below a directory, whatever symbolic links are in it.

use std::path::{Path, PathBuf};

use super::ignored::Ignored;
use crate::Result;

/// What is, or would be, at this path, if it is below the root. A link may lead elsewhere inside, and nowhere outside: an
/// absolute one does, since it is this machine that follows it.
pub(super) fn below(root: &Path, path: &Path) -> Result<PathBuf> {
    let told = |error: std::io::Error| format!("{}: {error}", path.display());
    let root = root.canonicalize().map_err(told)?;
    // What is not there yet has no links in it.
    let there = path.ancestors().find(|part| part.symlink_metadata().is_ok()).unwrap_or(path);
    let real = there.canonicalize().map_err(told)?;
    let rest = path.strip_prefix(there).map_err(|_| format!("{}: where is that?", path.display()))?;
    if !real.starts_with(&root) {
        return Err(format!("{} leads out of {}", path.display(), root.display()));
    }
    // An empty rest would leave a slash behind.
    Ok(if rest.as_os_str().is_empty() { real } else { real.join(rest) })
}

/// Where to copy from and to.
pub(super) struct Copying<'a> {
    pub(super) from: &'a Path,
    pub(super) to: &'a Path,
    pub(super) ignored: &'a Ignored,
}

impl Copying<'_> {
    /// A file, or what is in a directory.
    pub(super) fn copy(&self, source: &Path, target: &Path, into_directory: bool) -> Result<()> {
        if self.is_ignored(source) {
            return Err(format!("{}: .dockerignore keeps it out", source.display()));
        }
        // By its own name from here on, since that is what may be left out.
        if below(self.from, source)?.is_dir() {
            return self.directory(source, target);
        }
        match source.file_name() {
            Some(name) if into_directory => self.file(source, &target.join(name)),
            _ => self.file(source, target),
        }
    }

    fn is_ignored(&self, source: &Path) -> bool {
        source.strip_prefix(self.from).is_ok_and(|inside| self.ignored.has(inside))
    }

    fn file(&self, source: &Path, target: &Path) -> Result<()> {
        let target = below(self.to, target)?;
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent).map_err(|error| told(parent, &error))?;
        }
        std::fs::copy(source, &target).map(drop).map_err(|error| told(source, &error))
    }

    fn directory(&self, source: &Path, target: &Path) -> Result<()> {
        let target = below(self.to, target)?;
        std::fs::create_dir_all(&target).map_err(|error| told(&target, &error))?;
        for entry in std::fs::read_dir(source).map_err(|error| told(source, &error))? {
            let entry = entry.map_err(|error| told(source, &error))?;
            let (from, to) = (entry.path(), target.join(entry.file_name()));
            if self.is_ignored(&from) {
                continue;
            }
            let kind = entry.file_type().map_err(|error| told(&from, &error))?;
            if kind.is_dir() {
                self.directory(&from, &to)?;
            } else if kind.is_symlink() {
                let _ = std::fs::remove_file(&to);
                let linked =
                    std::fs::read_link(&from).and_then(|there| std::os::unix::fs::symlink(there, &to));
                linked.map_err(|error| told(&from, &error))?;
            } else {
                self.file(&from, &to)?;
            }
        }
        Ok(())
    }
}

fn told(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_lead_nowhere_outside() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let (root, outside) = (place.path().join("root"), place.path().join("outside"));
        std::fs::create_dir_all(root.join("usr/bin")).expect("a new directory");
        std::fs::create_dir(&outside).expect("a new directory");
        for (link, there) in [
            ("bin", Path::new("usr/bin")),
            ("up", Path::new("../outside")),
            ("out", &outside),
            ("dangling", Path::new("nowhere")),
        ] {
            symlink(there, root.join(link)).expect("a new link");
        }
        let real = root.canonicalize().expect("it is there");
        for (path, there) in
            [("bin/new", "usr/bin/new"), ("new/and/newer", "new/and/newer"), ("usr", "usr"), ("", "")]
        {
            assert_eq!(below(&root, &root.join(path)).as_deref(), Ok(&*real.join(there)), "{path}");
        }
        for path in ["out", "out/new", "up/new", "dangling", "dangling/new"] {
            below(&root, &root.join(path)).expect_err(path);
        }

        let from = place.path().join("from");
        std::fs::create_dir_all(from.join("tree/out")).expect("a new directory");
        std::fs::write(from.join("tree/out/file"), "").expect("a new file");
        std::fs::write(from.join("file"), "").expect("a new file");
        symlink(outside.join("secret"), from.join("taken")).expect("a new link");
        std::fs::write(outside.join("secret"), "").expect("a new file");
        let copying = Copying { from: &from, to: &root, ignored: &Ignored::default() };
        for (source, target, into) in
            [("file", "out/", true), ("tree", ".", true), ("tree/out", "out", false), ("taken", "a", false)]
        {
            let error = copying.copy(&from.join(source), &root.join(target), into).expect_err(source);
            assert!(error.contains("leads out of"), "{source}: {error}");
        }
        let names = std::fs::read_dir(&outside).expect("it is there");
        assert_eq!(names.count(), 1, "nothing was written there");
    }
}
