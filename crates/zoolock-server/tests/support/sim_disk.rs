//! An in-memory disk for tests and fuzz targets. It loses data in the same ways as a real disk.
//!
//! After a crash of the machine, each unsynced sector has any of the contents that it had since its
//! last sync. The length of a file is any length that the file had since its last sync. Any
//! unsynced change of a name may be kept or lost. After a failed sync, reads return the data in the
//! cache, of which some is possibly not on the disk. As on Linux, a second sync does not write that
//! data.
#![allow(unreachable_pub, reason = "the crate of the fuzz targets exports it")]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zoolock_server::log::{Disk, DiskFile, Nonce};

/// The error code for too many open files of a process.
const EMFILE: i32 = 24;

/// Size of a sector in bytes. A sector is written as a whole or not at all.
const SECTOR: usize = 512;

/// A reproducible random number generator: SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`, which must not be zero.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end as u64) as usize
    }

    /// Returns true with a probability of one in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A fault of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A power cut: this step and all later ones fail.
    PowerCut,
    /// An error of one step. A write or a sync is done in part.
    Error,
    /// A full disk. The effect is that of [`Fault::Error`], with the error `StorageFull`.
    Full,
}

/// A simulated disk. A clone is another handle of the same disk.
#[derive(Clone)]
pub struct SimDisk {
    inner: Arc<Mutex<Inner>>,
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimDisk({:?})", self.names())
    }
}

#[derive(Clone)]
struct Inner {
    files: Vec<Inode>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    pending_names: Vec<NameChange>,
    random: Random,
    steps: u64,
    fault: Option<(u64, Fault)>,
    is_off: bool,
    /// Set if no file can be opened, because too many files are open.
    lacks_descriptors: bool,
}

#[derive(Clone, Default)]
struct Inode {
    cache: Vec<u8>,
    synced: Vec<u8>,
    pending: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Length(usize),
}

#[derive(Clone)]
enum NameChange {
    Set(String, usize),
    Rename(String, String, usize),
    Remove(String),
}

impl Change {
    fn apply(&self, contents: &mut Vec<u8>) {
        match self {
            Change::Write { at, bytes } => {
                contents.resize(contents.len().max(at + bytes.len()), 0);
                contents[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Change::Length(len) => contents.resize(*len, 0),
        }
    }

    /// Returns the sectors that the change touches in a file of this length.
    fn sectors(&self, len: usize) -> std::ops::Range<usize> {
        let (from, to) = match self {
            Change::Write { at, bytes } => (*at, at + bytes.len()),
            Change::Length(to) => (len.min(*to), len.max(*to)),
        };
        from / SECTOR..to.div_ceil(SECTOR)
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            NameChange::Set(name, file) => {
                names.insert(name.clone(), *file);
            }
            NameChange::Rename(from, to, file) => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
            NameChange::Remove(name) => {
                names.remove(name);
            }
        }
    }
}

/// The unsynced changes that survive a crash.
#[derive(Debug, Clone, Copy)]
enum Survivors {
    Nothing,
    All,
    /// The first N changes. Some sectors of the next change may survive, too.
    First(usize),
    /// A random choice for each sector and for each change of a name.
    Any,
    /// For contents, the changed sectors that are at least N sectors after the first changed one.
    /// For names, all changes except the first N.
    Later(usize),
}

impl Survivors {
    fn choose(random: &mut Random, changes: usize) -> Self {
        match random.below(6) {
            0 => Survivors::Nothing,
            1 => Survivors::All,
            2 => Survivors::First(random.below(changes + 1)),
            3 => Survivors::Later(random.below(64)),
            _ => Survivors::Any,
        }
    }
}

fn sector(contents: &[u8], index: usize) -> Vec<u8> {
    let end = contents.len().min((index + 1) * SECTOR);
    let mut bytes = contents.get(index * SECTOR..end).unwrap_or_default().to_vec();
    bytes.resize(SECTOR, 0);
    bytes
}

impl Inode {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.cache);
        self.pending.push(change);
    }

    fn sync(&mut self) {
        let mut len = self.synced.len();
        let mut touched = Vec::new();
        let mut contents = self.synced.clone();
        for change in std::mem::take(&mut self.pending) {
            touched.extend(change.sectors(len));
            change.apply(&mut contents);
            len = contents.len();
        }
        // Writes the changed sectors as a whole, from the cache. A sector that an earlier sync failed to write stays
        // unwritten.
        self.synced.resize(self.cache.len(), 0);
        for index in touched {
            let from = index * SECTOR;
            let to = self.cache.len().min(from + SECTOR);
            if from < to {
                self.synced[from..to].copy_from_slice(&self.cache[from..to]);
            }
        }
    }

    /// Returns contents that the disk may have after a crash.
    fn contents_after_crash(&self, random: &mut Random) -> Vec<u8> {
        let survivors = Survivors::choose(random, self.pending.len());
        let mut contents = self.synced.clone();
        let mut lengths = vec![contents.len()];
        let mut versions: BTreeMap<usize, Vec<(usize, Vec<u8>)>> = BTreeMap::new();
        for (i, change) in self.pending.iter().enumerate() {
            let touched = change.sectors(contents.len());
            change.apply(&mut contents);
            lengths.push(contents.len());
            for index in touched {
                versions.entry(index).or_default().push((i, sector(&contents, index)));
            }
        }
        let longest = lengths.iter().copied().max().unwrap_or_default();
        let len = match survivors {
            Survivors::Nothing => self.synced.len(),
            Survivors::All => contents.len(),
            Survivors::First(n) => lengths[n],
            Survivors::Any | Survivors::Later(_) => lengths[random.below(lengths.len())],
        };
        let mut kept = self.synced.clone();
        kept.resize(longest.next_multiple_of(SECTOR), 0);
        let first = versions.keys().next().copied().unwrap_or_default();
        for (index, versions) in versions {
            let version = match survivors {
                Survivors::Nothing => None,
                Survivors::All => versions.last(),
                Survivors::First(n) => {
                    versions.iter().rev().find(|(i, _)| *i < n || (*i == n && random.one_in(2)))
                }
                Survivors::Later(n) if index < first + n => None,
                Survivors::Later(_) => versions.last(),
                Survivors::Any => match random.below(versions.len() + 1) {
                    0 => None,
                    n => versions.get(n - 1),
                },
            };
            if let Some((_, bytes)) = version {
                kept[index * SECTOR..(index + 1) * SECTOR].copy_from_slice(bytes);
            }
        }
        kept.resize(len, 0);
        kept
    }
}

impl Inner {
    /// Counts a step. Returns its fault, if it has one.
    fn count_step(&mut self) -> io::Result<Option<Fault>> {
        self.check_power()?;
        let now = self.steps;
        self.steps += 1;
        match self.fault {
            Some((at, Fault::PowerCut)) if at == now => {
                self.is_off = true;
                self.check_power().map(|()| None)
            }
            Some((at, fault)) if at == now => Ok(Some(fault)),
            _ => Ok(None),
        }
    }

    fn check_power(&self) -> io::Result<()> {
        if self.is_off { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }

    fn check_descriptors(&self) -> io::Result<()> {
        if self.lacks_descriptors { Err(io::Error::from_raw_os_error(EMFILE)) } else { Ok(()) }
    }

    fn rename_step(&mut self, change: NameChange) -> io::Result<()> {
        if let Some(fault) = self.count_step()? {
            return Err(fault.error());
        }
        change.apply(&mut self.names);
        self.pending_names.push(change);
        Ok(())
    }

    fn lookup(&self, name: &str) -> io::Result<usize> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn surviving_names(&mut self) -> BTreeMap<String, usize> {
        let changes = std::mem::take(&mut self.pending_names);
        let survivors = Survivors::choose(&mut self.random, changes.len());
        let mut names = self.synced_names.clone();
        for (i, change) in changes.iter().enumerate() {
            let kept = match survivors {
                Survivors::Nothing => false,
                Survivors::All => true,
                Survivors::First(n) => i < n,
                Survivors::Later(n) => i >= n,
                Survivors::Any => self.random.one_in(2),
            };
            if kept {
                change.apply(&mut names);
            }
        }
        names
    }
}

impl Fault {
    fn error(self) -> io::Error {
        match self {
            Fault::PowerCut => io::Error::other("the power is off"),
            Fault::Error => io::Error::other("input/output error"),
            Fault::Full => io::ErrorKind::StorageFull.into(),
        }
    }
}

impl SimDisk {
    /// Creates an empty disk.
    pub fn new(seed: u64) -> Self {
        let inner = Inner {
            files: Vec::new(),
            names: BTreeMap::new(),
            synced_names: BTreeMap::new(),
            pending_names: Vec::new(),
            random: Random(seed),
            steps: 0,
            fault: None,
            is_off: false,
            lacks_descriptors: false,
        };
        SimDisk { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Returns the disk as the interface that the log uses.
    pub fn dyn_disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// Returns the number of steps so far. A step is an operation that changes the disk, or that
    /// fails to change it.
    pub fn steps(&self) -> u64 {
        self.lock().steps
    }

    /// Injects a fault at the step with this number, counted from the creation of this disk.
    pub fn fail_at(&self, step: u64, fault: Fault) {
        self.lock().fault = Some((step, fault));
    }

    /// Sets whether no file can be opened, because too many files are open.
    pub fn set_lack_of_descriptors(&self, lacks_descriptors: bool) {
        self.lock().lacks_descriptors = lacks_descriptors;
    }

    /// Returns one possible disk after a crash. This disk stays as it is.
    pub fn after_crash(&self, seed: u64) -> SimDisk {
        let mut inner = self.lock().clone();
        inner.random = Random(seed);
        inner.names = inner.surviving_names();
        inner.synced_names = inner.names.clone();
        for file in &mut inner.files {
            let kept = file.contents_after_crash(&mut inner.random);
            *file = Inode { cache: kept.clone(), synced: kept, pending: Vec::new() };
        }
        (inner.steps, inner.fault, inner.is_off) = (0, None, false);
        SimDisk { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Returns an independent disk with the visible files of this one. All of them are synced.
    pub fn copy(&self) -> SimDisk {
        let mut inner = self.lock().clone();
        inner.pending_names.clear();
        inner.synced_names = inner.names.clone();
        for file in &mut inner.files {
            *file = Inode { cache: file.cache.clone(), synced: file.cache.clone(), pending: Vec::new() };
        }
        (inner.steps, inner.fault, inner.is_off) = (0, None, false);
        SimDisk { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Returns the visible names.
    pub fn names(&self) -> Vec<String> {
        self.lock().names.keys().cloned().collect()
    }

    /// Returns the visible contents of a file, or nothing if it does not exist.
    pub fn contents(&self, name: &str) -> Vec<u8> {
        let inner = self.lock();
        inner.names.get(name).map(|&file| inner.files[file].cache.clone()).unwrap_or_default()
    }

    /// Creates or replaces a file, and syncs it.
    pub fn write_synced(&self, name: &str, contents: Vec<u8>) {
        let mut inner = self.lock();
        inner.files.push(Inode { cache: contents.clone(), synced: contents, pending: Vec::new() });
        let file = inner.files.len() - 1;
        inner.names.insert(name.to_owned(), file);
        inner.synced_names.insert(name.to_owned(), file);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.lock().check_power()?;
        Ok(self.names())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let inner = self.lock();
        inner.check_power()?;
        inner.check_descriptors()?;
        Ok(Box::new(SimFile { disk: self.clone(), file: inner.lookup(name)? }))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut inner = self.lock();
        inner.check_descriptors()?;
        if let Some(&file) = inner.names.get(name) {
            inner.count_step()?.map_or(Ok(()), |fault| Err(fault.error()))?;
            inner.files[file].change(Change::Length(0));
            return Ok(Box::new(SimFile { disk: self.clone(), file }));
        }
        let file = inner.files.len();
        inner.rename_step(NameChange::Set(name.to_owned(), file))?;
        inner.files.push(Inode::default());
        Ok(Box::new(SimFile { disk: self.clone(), file }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.lock();
        let file = inner.lookup(from)?;
        inner.rename_step(NameChange::Rename(from.to_owned(), to.to_owned(), file))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.lock();
        inner.lookup(name)?;
        inner.rename_step(NameChange::Remove(name.to_owned()))
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut inner = self.lock();
        if let Some(fault) = inner.count_step()? {
            return Err(fault.error());
        }
        inner.pending_names.clear();
        inner.synced_names = inner.names.clone();
        Ok(())
    }

    fn nonce(&self) -> io::Result<Nonce> {
        let mut inner = self.lock();
        let mut nonce = Nonce::default();
        nonce[..8].copy_from_slice(&inner.random.number().to_be_bytes());
        nonce[8..].copy_from_slice(&inner.random.number().to_be_bytes());
        Ok(nonce)
    }

    fn describe(&self, name: &str) -> String {
        name.to_owned()
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    file: usize,
}

impl DiskFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        let inner = self.disk.lock();
        inner.check_power()?;
        Ok(inner.files[self.file].cache.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let inner = self.disk.lock();
        inner.check_power()?;
        let from = offset as usize;
        let bytes = inner.files[self.file].cache.get(from..from + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut inner = self.disk.lock();
        let fault = inner.count_step()?;
        let done = if fault.is_some() { inner.random.below(bytes.len() + 1) } else { bytes.len() };
        let change = Change::Write { at: offset as usize, bytes: bytes[..done].to_vec() };
        inner.files[self.file].change(change);
        fault.map_or(Ok(()), |fault| Err(fault.error()))
    }

    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let mut inner = self.disk.lock();
        if let Some(fault) = inner.count_step()? {
            return Err(fault.error());
        }
        let len = (offset + len) as usize;
        let file = &mut inner.files[self.file];
        let len = len.max(file.cache.len());
        file.change(Change::Length(len));
        Ok(())
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        let mut inner = self.disk.lock();
        if let Some(fault) = inner.count_step()? {
            return Err(fault.error());
        }
        inner.files[self.file].change(Change::Length(len as usize));
        Ok(())
    }

    fn sync_data(&mut self) -> io::Result<()> {
        let mut inner = self.disk.lock();
        let fault = inner.count_step()?;
        let Inner { files, random, .. } = &mut *inner;
        let file = &mut files[self.file];
        let Some(fault) = fault else {
            file.sync();
            return Ok(());
        };
        // Some changes are on the disk, and the rest are lost. The cache still shows all of them.
        file.synced = file.contents_after_crash(random);
        file.pending.clear();
        Err(fault.error())
    }

    fn sync_all(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}
