//! Checks the file system of the state directory. If several machines share a file system, the file
//! locks of one machine may fail to exclude another machine.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// The numbers that `statfs` returns for file systems that other machines may share, each with a name.
const SHARED: [(u32, &str); 21] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x2003_0528, "OrangeFS"),
    (0xaad7_aaea, "PanFS"),
    (0xbeef_dead, "StorNext"),
    (0x6163_6673, "ACFS"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x786f_4256, "vboxsf"),
    (0xbacb_acbc, "vmhgfs"),
    (0x7c7c_6673, "prl_fs"),
];

/// The number that `statfs` returns for all file systems in user space, and for virtiofs.
const FUSE: u32 = 0x6573_5546;

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
    // If `statfs` fails, the file system counts as local. `machine.rs` has a second check.
    find_shared_type(rustix::fs::statfs(dir).ok()?.f_type as u32, || mount_type(dir))
}

/// Returns the type of the file system with this number of `statfs`, if other machines may share
/// it. All file systems in user space have one number, so `mount` reads their type from the list of
/// mounts.
fn find_shared_type(number: u32, mount: impl FnOnce() -> Option<String>) -> Option<String> {
    if number == FUSE {
        let mount = mount().unwrap_or_else(|| "FUSE".to_owned());
        return Some(mount).filter(|mount| !LOCAL.contains(&mount.as_str()));
    }
    SHARED.iter().find(|(shared, _)| *shared == number).map(|(_, name)| (*name).to_owned())
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
    fn shared_file_systems_are_known_by_number_or_mount() {
        const EXT4: u32 = 0xef53;
        for (number, mount, found) in [
            (0x6969, None, Some("NFS")),
            (0x0102_1997, None, Some("9p")),
            (EXT4, Some("ext4"), None),
            (FUSE, Some("fuse.sshfs"), Some("fuse.sshfs")),
            (FUSE, Some("virtiofs"), Some("virtiofs")),
            (FUSE, Some("fuseblk"), None),
            (FUSE, None, Some("FUSE")),
        ] {
            assert_eq!(
                find_shared_type(number, || mount.map(str::to_owned)).as_deref(),
                found,
                "{number:#x} {mount:?}"
            );
        }
    }

    #[test]
    fn local_file_system_is_accepted() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        assert_eq!(shared_type(dir.path()), None);
        assert_eq!(shared_type(Path::new("/dev/shm")), None);
    }
}
