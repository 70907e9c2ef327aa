//! Finds directories that every client may change, although this client has credentials.

use zoolock_wire::{Acl, perms};

use super::finding::Report;
use super::locks::{abbreviate_list, without_chroot};
use super::tree::ListedTree;

const CHECK: &str = "acl";

/// Reports the directories that every client may change. A client with credentials creates directories that belong to it, so
/// an open directory comes from a client without credentials. Without credentials, all directories are open on purpose.
pub(super) fn check_acls(tree: &ListedTree, chroot: &str, has_credentials: bool, report: &mut Report) {
    if !has_credentials {
        return;
    }
    let known = tree.directories.iter().filter_map(|directory| Some((directory, directory.acl.as_ref()?)));
    let open = known.clone().filter(|(_, acl)| may_everyone_change(acl));
    let open: Vec<String> =
        open.map(|(directory, _)| without_chroot(&directory.path, chroot).to_owned()).collect();
    let count = known.count();
    if count == 0 {
        return;
    }
    if open.is_empty() {
        let what = format!("{count} directories: only the identities in their lists may change them");
        return report.ok(CHECK, what);
    }
    report.warn(
        CHECK,
        format!(
            "clients without these credentials may change {} of {count} directories, and break the locks there: {}",
            open.len(),
            abbreviate_list(&open)
        ),
        "give all clients --auth, and delete these directories while they are free: znodes keep the list with which they \
         were created",
    );
}

/// Returns whether an access control list allows everyone to delete or overwrite znodes, or to change the list.
fn may_everyone_change(acl: &[Acl]) -> bool {
    let world = acl.iter().filter(|acl| acl.identity.scheme == "world" && acl.identity.id == "anyone");
    world.fold(0, |may, acl| may | acl.perms) & (perms::WRITE | perms::DELETE | perms::ADMIN) != 0
}

#[cfg(test)]
mod tests {
    use zoolock_wire::Identity;

    use super::*;

    #[test]
    fn rights_of_everyone_are_the_union_of_entries() {
        let world = Acl::anyone;
        let digest = Acl { perms: perms::ALL, identity: Identity::new("digest", "me:x") };
        assert!(!may_everyone_change(std::slice::from_ref(&digest)));
        assert!(!may_everyone_change(&[digest.clone(), world(perms::READ), world(perms::CREATE)]));
        for write in [perms::WRITE, perms::DELETE, perms::ADMIN, perms::ALL] {
            assert!(may_everyone_change(&[digest.clone(), world(write)]));
        }
    }
}
