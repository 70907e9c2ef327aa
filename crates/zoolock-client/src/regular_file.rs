//! Opens files with secrets, certificates and keys.

use std::fs::{File, FileType, OpenOptions, metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading, and refuses any other file. A read of a pipe or a terminal can wait for ever, and a
/// read of a device such as `/dev/zero` never ends.
///
/// # Errors
/// The error of the system; or [`io::ErrorKind::InvalidInput`], which names the kind of the file and the next step.
pub fn open_regular_file(path: &Path) -> io::Result<File> {
    // The system refuses to open a socket with an unclear error, and opening a device can have effects.
    check_type(metadata(path)?.file_type())?;
    // The file may be another one by now. Without NONBLOCK, opening a pipe waits for its writer.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    check_type(file.metadata()?.file_type())?;
    Ok(file)
}

fn check_type(file: FileType) -> io::Result<()> {
    let kind = match file {
        _ if file.is_file() => return Ok(()),
        _ if file.is_dir() => "a directory",
        _ if file.is_fifo() => "a pipe",
        _ if file.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {kind}; name a regular file")))
}
