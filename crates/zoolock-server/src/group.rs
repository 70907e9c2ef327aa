//! Groups that this process shares with no other user, such as the group that Kubernetes gives to a volume (`fsGroup`).

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::fgetxattr;
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgroups};

/// Returns the permissions that other users have on a file, as bits of its mode. The permissions of the group are among
/// them, unless no other user is in the group. With an access list, the bits of the group are those of all its entries.
pub fn mode_of_others(file: &File, metadata: &Metadata) -> u32 {
    let is_own = is_own_group(metadata.gid()) && !has_access_list(file);
    metadata.mode() & if is_own { 0o007 } else { 0o077 }
}

fn has_access_list(file: &File) -> bool {
    let list = fgetxattr(file, "system.posix_acl_access", &mut [0; 0]);
    !matches!(list, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

/// Returns whether this process is in the group, and no other user of this machine is, except root.
fn is_own_group(group: u32) -> bool {
    let is_in = getegid().as_raw() == group
        || getgroups().is_ok_and(|groups| groups.iter().any(|other| other.as_raw() == group));
    // A directory service may have users that the files do not name.
    let texts = ["/etc/nsswitch.conf", "/etc/passwd", "/etc/group"].map(read);
    let [Some(sources), Some(passwd), Some(groups)] = texts else { return false };
    is_in && only_files(&sources) && !has_other_users(group, geteuid().as_raw(), &passwd, &groups)
}

/// Reads a file, which may be missing, as in a small container.
fn read(path: &str) -> Option<String> {
    match std::fs::read(path) {
        Ok(text) => Some(String::from_utf8_lossy(&text).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(String::new()),
        Err(_) => None,
    }
}

/// Returns whether the text of `/etc/nsswitch.conf` names no source of users and groups but this machine.
fn only_files(sources: &str) -> bool {
    let lines = sources.lines().filter_map(|line| line.trim().split_once(':'));
    let mut named = lines.filter(|(what, _)| ["passwd", "group", "initgroups"].contains(what));
    named.all(|(_, from)| {
        from.split_whitespace()
            .all(|word| ["files", "compat", "systemd"].contains(&word) || word.starts_with('['))
    })
}

/// Returns whether the text of `/etc/passwd` or `/etc/group` puts a user other than `user` and root into the group.
fn has_other_users(group: u32, user: u32, passwd: &str, groups: &str) -> bool {
    let (group, ours) = (group.to_string(), [user.to_string(), "0".to_owned()]);
    // NAME:x:UID:GID:…
    let users: Vec<Vec<&str>> = passwd.lines().map(|line| line.split(':').collect()).collect();
    let is_ours = |fields: &&Vec<&str>| fields.get(2).is_some_and(|id| ours.iter().any(|our| our == id));
    let our_names: Vec<&str> = users.iter().filter(is_ours).map(|fields| fields[0]).collect();
    // NAME:x:GID:MEMBER,MEMBER
    let lines = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let lines = lines.filter(|fields| fields.get(2) == Some(&group.as_str()));
    let mut members = lines.flat_map(|fields| fields.get(3).map_or("", |names| names).split(','));
    members.any(|name| !name.is_empty() && name != "root" && !our_names.contains(&name))
        || users.iter().any(|fields| fields.get(3) == Some(&group.as_str()) && !is_ours(&fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_of_other_users_is_recognized() {
        let passwd = "root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/:/bin/sh\nyou:x:1001:100::/:/bin/sh\n";
        let groups = "root:x:0:\nme:x:1000:\nusers:x:100:\nteam:x:2000:me,you\nours:x:2001:root,me\n";
        // 3000 is in neither file, as the group of a Kubernetes volume.
        for (group, has_others) in
            [(1000, false), (100, true), (2000, true), (2001, false), (3000, false), (0, false)]
        {
            assert_eq!(has_other_users(group, 1000, passwd, groups), has_others, "{group}");
        }
        assert!(has_other_users(1000, 1001, passwd, groups), "the group of another user");
    }

    #[test]
    fn member_that_the_files_do_not_know_is_another_user() {
        assert!(has_other_users(2000, 1000, "me:x:1000:1000::/:/bin/sh\n", "team:x:2000:me,somebody\n"));
        for (sources, only) in [
            ("", true),
            ("passwd: files systemd\ngroup: files [SUCCESS=merge] systemd\n", true),
            ("passwd: files systemd\ngroup: files systemd\nhosts: files dns\n", true),
            ("passwd: files sss\n", false),
        ] {
            assert_eq!(only_files(sources), only, "{sources}");
        }
    }

    #[test]
    fn group_without_this_process_is_foreign() {
        let groups = getgroups().expect("the groups of this process");
        let foreign = (70_000..).find(|group| groups.iter().all(|our| our.as_raw() != *group));
        assert!(!is_own_group(foreign.expect("a group")));
    }
}
