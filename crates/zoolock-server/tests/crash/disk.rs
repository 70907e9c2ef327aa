//! A disk whose syncs take their time, so that an answer that does not wait for one is early.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use zoolock_server::log::sim::Random;
use zoolock_server::log::{Disk, DiskFile, Nonce};

#[derive(Debug)]
pub(crate) struct Slow {
    disk: Arc<dyn Disk>,
    random: Arc<Mutex<Random>>,
}

impl Slow {
    pub(crate) fn port(disk: Arc<dyn Disk>, seed: u64) -> Arc<dyn Disk> {
        Arc::new(Slow { disk, random: Arc::new(Mutex::new(Random(seed))) })
    }

    fn file(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(SlowFile { file, random: Arc::clone(&self.random) })
    }
}

impl Disk for Slow {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(self.disk.open(name)?))
    }
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(self.disk.create(name)?))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
    fn nonce(&self) -> io::Result<Nonce> {
        self.disk.nonce()
    }
    fn describe(&self, name: &str) -> String {
        self.disk.describe(name)
    }
}

#[derive(Debug)]
struct SlowFile {
    file: Box<dyn DiskFile>,
    random: Arc<Mutex<Random>>,
}

impl DiskFile for SlowFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(buffer, offset)
    }
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }
    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(offset, len)
    }
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn sync_data(&mut self) -> io::Result<()> {
        let micros = self.random.lock().unwrap_or_else(PoisonError::into_inner).below(3000);
        std::thread::sleep(Duration::from_micros(micros as u64));
        self.file.sync_data()
    }
    fn sync_all(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}
