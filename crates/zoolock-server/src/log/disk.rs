//! The disk that the log uses, as a trait, and its implementation by a directory.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use crate::directory::Directory;

/// A random number that clients cannot know.
pub type Nonce = [u8; 16];

/// A flat directory of files.
///
/// Written bytes survive a crash after a sync of the file. Names survive after a sync of the directory. Before the
/// sync, any part of the bytes or of the names may survive.
pub trait Disk: Debug + Send + Sync {
    /// Returns the names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Creates an empty file. It replaces an existing file of this name.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Renames a file. Replaces an existing file with the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Syncs the directory, so that the names survive a crash.
    fn sync_dir(&self) -> io::Result<()>;
    /// Returns whether the path of the directory still names this directory.
    fn is_in_place(&self) -> bool {
        true
    }
    /// Generates a random number that clients cannot know.
    fn nonce(&self) -> io::Result<Nonce>;
    /// Returns the path of a file, for messages.
    fn describe(&self, name: &str) -> String;
}

/// An open file.
pub trait DiskFile: Debug + Send {
    /// Returns the size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Reads exactly as many bytes as `buffer` holds.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all bytes. The file grows if necessary.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Allocates space that reads as zeros, and extends the file to the end of this space. Fails with `Unsupported` if
    /// the disk does not support allocation.
    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()>;
    /// Sets the length of the file.
    fn set_len(&mut self, len: u64) -> io::Result<()>;
    /// Syncs the contents and the length, so that they survive a crash.
    fn sync_data(&mut self) -> io::Result<()>;
    /// Syncs like [`DiskFile::sync_data`], and the remaining metadata too.
    fn sync_all(&mut self) -> io::Result<()>;
}

/// A directory of the operating system. The caller must lock the directory. The server locks it in
/// `data_dir.rs`.
#[derive(Debug)]
pub struct RealDisk(Arc<Directory>);

impl RealDisk {
    /// Returns a disk for an existing directory.
    ///
    /// # Errors
    /// If the directory cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::from_directory(Arc::new(Directory::open(path)?)))
    }

    pub(crate) fn from_directory(directory: Arc<Directory>) -> Self {
        RealDisk(directory)
    }
}

impl Disk for RealDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile(self.0.open_file(name)?)))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile(self.0.create_file(name)?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn is_in_place(&self) -> bool {
        self.0.is_in_place()
    }

    fn nonce(&self) -> io::Result<Nonce> {
        let mut nonce = Nonce::default();
        getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(nonce)
    }

    fn describe(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    #[cfg(target_os = "linux")]
    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        // KEEP_SIZE is not set, so that later writes do not change the length. A changed length costs the sync a second
        // write, for metadata (measured: 175 µs instead of 131 µs).
        Ok(rustix::fs::fallocate(&self.0, rustix::fs::FallocateFlags::empty(), offset, len)?)
    }

    #[cfg(not(target_os = "linux"))]
    fn allocate(&mut self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn sync_all(&mut self) -> io::Result<()> {
        self.0.sync_all()
    }
}
