//! Groups that this process shares with no other user, such as the group that Kubernetes gives to a volume (`fsGroup`).

use rustix::process::{getegid, geteuid, getgroups};

/// Returns the permissions that other users have on a file, as bits of its mode. The permissions of the group are among
/// them, unless no other user is in the group.
pub fn mode_of_others(mode: u32, group: u32) -> u32 {
    if is_own_group(group) { mode & 0o007 } else { mode & 0o077 }
}

/// Returns whether this process is in the group, and no other user of this machine is, except root.
fn is_own_group(group: u32) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let is_in = getegid().as_raw() == group
        || getgroups().is_ok_and(|groups| groups.iter().any(|other| other.as_raw() == group));
    is_in && !has_other_users(group, geteuid().as_raw(), &read("/etc/passwd"), &read("/etc/group"))
}

/// Returns whether the text of `/etc/passwd` or `/etc/group` puts a user other than `user` and root into the group.
fn has_other_users(group: u32, user: u32, passwd: &str, groups: &str) -> bool {
    let (group, ours) = (group.to_string(), [user.to_string(), "0".to_owned()]);
    // NAME:x:UID:GID:…
    let others = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut others = others.filter(|fields| fields.get(2).is_some_and(|id| ours.iter().all(|our| our != id)));
    // NAME:x:GID:MEMBER,MEMBER
    let line = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let members = line.filter(|fields| fields.get(2) == Some(&group.as_str()));
    let members: Vec<&str> =
        members.flat_map(|fields| fields.get(3).map_or("", |names| names).split(',')).collect();
    others.any(|fields| fields.get(3) == Some(&group.as_str()) || members.contains(&fields[0]))
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
    fn permissions_of_a_foreign_group_count() {
        let ours = getgroups().expect("the groups of this process");
        let foreign =
            (70_000..).find(|group| ours.iter().all(|our| our.as_raw() != *group)).expect("a group");
        assert_eq!([0o2770, 0o440, 0o604].map(|mode| mode_of_others(mode, foreign)), [0o070, 0o040, 0o004]);
    }
}
