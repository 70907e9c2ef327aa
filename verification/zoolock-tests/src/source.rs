//! The source files of this repository.

use std::path::{Path, PathBuf};

/// Returns the Rust files below a folder, or the path itself if it is a Rust file.
pub fn rust_files(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).expect("a folder of sources can be listed");
        return entries.flat_map(|entry| rust_files(&entry.expect("an entry can be read").path())).collect();
    }
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    if is_rust { vec![path.to_owned()] } else { Vec::new() }
}
