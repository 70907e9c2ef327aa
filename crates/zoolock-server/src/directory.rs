//! An open directory, whose files are found relative to its descriptor.
//!
//! The path of the directory is used once, when it is opened. So the files stay in the same
//! directory if another process moves it or puts a link in its place.

use std::fs::{File, Metadata};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, renameat, unlinkat};

/// An open directory. A symbolic link in the place of one of its files is an error.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    handle: File,
}

impl Directory {
    /// Opens an existing directory.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Directory { path: path.to_owned(), handle: openat(CWD, path, flags, Mode::empty())?.into() })
    }

    /// Returns the path by which the directory was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open directory itself.
    pub(crate) fn handle(&self) -> &File {
        &self.handle
    }

    /// Returns whether the path still names this directory. Returns true if that is unknown.
    pub(crate) fn is_in_place(&self) -> bool {
        let id = |file: Metadata| (file.dev(), file.ino());
        match (self.handle.metadata(), std::fs::metadata(&self.path)) {
            (Ok(opened), Ok(named)) => id(opened) == id(named),
            (_, Err(error)) => {
                !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
            }
            (Err(_), Ok(_)) => true,
        }
    }

    /// Returns the names of all files. Skips names that are not UTF-8.
    pub(crate) fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.handle)? {
            names.extend(entry?.file_name().to_str().map(str::to_owned));
        }
        names.retain(|name| name != "." && name != "..");
        Ok(names)
    }

    /// Opens an existing file for reading and writing.
    pub(crate) fn open_file(&self, name: &str) -> io::Result<File> {
        self.open_with(name, OFlags::RDWR)
    }

    /// Creates an empty file. A file that had this name is removed and not changed.
    pub(crate) fn create_file(&self, name: &str) -> io::Result<File> {
        self.remove_if_exists(name)?;
        self.open_with(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    fn open_with(&self, name: &str, flags: OFlags) -> io::Result<File> {
        // NONBLOCK: a pipe in the place of the file must not block the server.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(openat(&self.handle, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Renames a file. Replaces an existing file with the new name.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.handle, from, &self.handle, to)?)
    }

    /// Removes a file.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.handle, name, AtFlags::empty())?)
    }

    /// Removes a file if it exists.
    pub(crate) fn remove_if_exists(&self, name: &str) -> io::Result<()> {
        match self.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Syncs the names of the files, so that they survive a crash.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    /// Reads a short text file. Returns `None` if it does not exist.
    pub(crate) fn read_text(&self, name: &str) -> io::Result<Option<String>> {
        let file = match self.open_with(name, OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut text = String::new();
        file.take(64).read_to_string(&mut text)?;
        Ok(Some(text))
    }

    /// Writes a line to a file. A crash leaves the old file or the new one, because the new file is
    /// complete on disk before it gets its name.
    pub(crate) fn write_line(&self, name: &str, line: &str) -> io::Result<()> {
        let tmp = format!("{name}.tmp");
        let mut out = self.create_file(&tmp)?;
        out.write_all(format!("{line}\n").as_bytes())?;
        out.sync_all()?;
        self.rename(&tmp, name)?;
        self.sync()
    }
}
