//! Checks the file system of the state directory. If several machines share a file system, the file
//! locks of one machine may fail to exclude another machine.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// The types of file systems that other machines may share. Those in user space may be shared, too.
const SHARED: [&str; 21] = [
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "cvfs", "gfs2", "gpfs", "lustre", "nfs", "nfs4",
    "ocfs2", "panfs", "prl_fs", "pvfs2", "smb3", "vboxsf", "virtiofs", "vmhgfs",
];

/// The types of file systems in user space whose files are on a disk of this machine.
const LOCAL: [&str; 9] = [
    "fuseblk",
    "fuse.fuse-overlayfs",
    "fuse.bindfs",
    "fuse.mergerfs",
    "fuse.unionfs",
    "fuse.gocryptfs",
    "fuse.encfs",
    "fuse.cryfs",
    "fuse.ecryptfs",
];

/// Returns the type of the file system of a directory, if other machines may share it.
pub(super) fn shared_type(dir: &Path) -> Option<String> {
    // If the type is unknown, the file system counts as local. `machine.rs` has a second check.
    mount_type(dir).filter(|kind| is_shared(kind))
}

fn is_shared(kind: &str) -> bool {
    SHARED.contains(&kind) || kind.starts_with("fuse") && !LOCAL.contains(&kind)
}

fn mount_type(dir: &Path) -> Option<String> {
    let dir = File::open(dir).ok()?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", dir.as_raw_fd())).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    type_of(id, &std::fs::read_to_string("/proc/self/mountinfo").ok()?)
}

/// Returns the type of the mount with this id, from the text of `/proc/self/mountinfo`.
fn type_of(id: &str, mounts: &str) -> Option<String> {
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(id))?;
    line.split_once(" - ")?.1.split(' ').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_type_is_found_by_its_id() {
        let mounts = "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      7 27 0:52 / /home rw master:1 - fuse.sshfs build:/home rw,user_id=0\n\
                      8 27 0:53 /a /b rw - virtiofs home rw\n";
        assert_eq!(type_of("27", mounts).as_deref(), Some("ext4"));
        assert_eq!(type_of("7", mounts).as_deref(), Some("fuse.sshfs"));
        assert_eq!(type_of("8", mounts).as_deref(), Some("virtiofs"));
        assert_eq!(type_of("2", mounts), None);
        assert!(mount_type(Path::new("/proc")).is_some_and(|mount| mount == "proc"));
    }

    #[test]
    fn shared_file_systems_are_known_by_their_type() {
        for kind in ["nfs4", "9p", "virtiofs", "fuse.sshfs"] {
            assert!(is_shared(kind), "{kind}");
        }
        for kind in ["ext4", "overlay", "fuseblk"] {
            assert!(!is_shared(kind), "{kind}");
        }
    }

    #[test]
    fn local_file_system_is_accepted() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        assert_eq!(shared_type(dir.path()), None);
        assert_eq!(shared_type(Path::new("/dev/shm")), None);
    }
}
