//! Checks queues for contenders that ignore each other's znodes, and directories for exhausted
//! sequence numbers.

use std::collections::BTreeSet;

use futures_util::{StreamExt as _, stream};
use zoolock::Zoolock;
use zoolock::admin::Snapshot;
use zoolock_core::Sequence;
use zoolock_core::names::Family;

use super::finding::{Level, Report};
use super::tree::{ListedDirectory, ListedTree};
use crate::render::text::and_more;

/// Maximum number of contenders of a lock that is read. A longer queue is only reported.
const MAX_READ_CONTENDERS: usize = 1000;
/// Maximum number of contenders of a lock that is read in parallel with other locks.
const MAX_PARALLEL_CONTENDERS: usize = 16;
/// Number of locks that are read in parallel, so that at most 64 requests are in flight.
const PARALLEL_LOCKS: usize = 4;
/// Maximum number of names in a list.
const MAX_NAMED: usize = 3;

/// Number of remaining sequence numbers below which a directory is reported. This many numbers last
/// for two years at one acquisition a second.
const MIN_LEFT: u32 = 1 << 26;
const NUMBERS: u32 = 1 << 31;

/// Checks the sequence numbers of the directories.
pub(super) fn check_sequence_numbers(tree: &ListedTree, chroot: &str, report: &mut Report) {
    let mut most = 0;
    for directory in &tree.directories {
        let last = directory.contenders.iter().map(|name| name.sequence.0.max(0) as u32 + 1).max();
        let used = directory.created_children.max(last.unwrap_or(0));
        most = most.max(used);
        let path = without_chroot(&directory.path, chroot);
        let left = NUMBERS.saturating_sub(used);
        let foreign = directory.families().iter().any(|family| *family != Family::Native);
        if used < Sequence::RETIRE_FROM.0 as u32 {
            if left < MIN_LEFT {
                report.note(
                    "numbers",
                    format!(
                        "{path}: {left} of {NUMBERS} sequence numbers are left; zoolock replaces the directory when \
                         they run out"
                    ),
                    "nothing if only zoolock uses it; otherwise delete the directory while it is empty",
                );
            }
        } else if directory.contenders.is_empty() && directory.children > 0 && directory.unlisted.is_none() {
            report.error(
                "numbers",
                format!(
                    "{path}: has no sequence numbers left, and children that keep it from getting new ones"
                ),
                "delete its children, which are no contenders",
            );
        } else if foreign {
            report.error(
                "numbers",
                format!(
                    "{path}: only {left} sequence numbers are left, and other client libraries use it; when they run out, \
                     several of those clients hold at once, and zoolock waits until they have left"
                ),
                "stop the clients of other libraries, and delete the directory when it is empty",
            );
        } else {
            report.warn(
                "numbers",
                format!(
                    "{path}: only {left} sequence numbers are left, so zoolock replaces the directory when it is \
                     empty"
                ),
                "wait until its holders have released it; use no other client library on it until then",
            );
        }
    }
    if most < NUMBERS - MIN_LEFT {
        report.ok(
            "numbers",
            format!("sequence numbers: at most {most} of {NUMBERS} used in any lock directory"),
        );
    }
}

/// Reads the queues that have contenders. Leaves out the directories of other libraries' semaphores, which look like
/// locks of their own.
pub(super) async fn read_queues(
    zoolock: &Zoolock,
    tree: &ListedTree,
    chroot: &str,
    report: &mut Report,
) -> Vec<Snapshot> {
    let (mut few, mut many, mut crowded) = (Vec::new(), Vec::new(), Vec::new());
    for directory in tree.directories.iter().filter(|it| it.has_contenders()) {
        let path = without_chroot(&directory.path, chroot).to_owned();
        match directory.contenders.len() {
            // The root directory of a Curator semaphore has no contenders of its own, and is read
            // here, too. Its snapshot also reads the directory `leases` in it.
            count if count <= MAX_PARALLEL_CONTENDERS => few.push(path),
            count if count <= MAX_READ_CONTENDERS => many.push(path),
            count => crowded.push(format!("{path} ({count})")),
        }
    }
    report.queues = few.len() + many.len() + crowded.len();
    let snapshot = |path: String| async move {
        let result = zoolock.admin().snapshot(&path).await;
        (path, result)
    };
    let mut found: Vec<_> = stream::iter(few).map(snapshot).buffered(PARALLEL_LOCKS).collect().await;
    for path in many {
        found.push(snapshot(path).await);
    }
    let mut locks = Vec::new();
    for (path, result) in found {
        match result {
            Ok(lock) => locks.push(lock),
            Err(error) => report.note("queues", format!("{path}: {error}"), "see it with `zoolock show`"),
        }
    }
    if !crowded.is_empty() {
        report.add_incomplete(
            "queues",
            format!(
                "more than {MAX_READ_CONTENDERS} contenders were not read one by one: {}",
                abbreviate_list(&crowded)
            ),
            "see them with `zoolock show`",
        );
    }
    report_unlisted(&tree.directories, chroot, report);
    let semaphore_parts: BTreeSet<String> = locks.iter().flat_map(semaphore_directories).cloned().collect();
    locks.retain(|lock| !semaphore_parts.contains(&lock.path));
    locks
}

/// Checks the contenders of the queues.
pub(super) fn check_queues(locks: &[Snapshot], tree: &ListedTree, chroot: &str, report: &mut Report) {
    let unknown = tree.directories.iter().filter(|it| it.families().contains(&Family::Unknown));
    let unknown: Vec<String> = unknown.map(|it| without_chroot(&it.path, chroot).to_owned()).collect();
    for lock in locks.iter().filter(|lock| lock.clash.is_some()) {
        report.error(
            "neighbours",
            format!("{}: {}", lock.path, lock.clash.as_deref().unwrap_or_default()),
            "see docs/INTEROP.md for client libraries that see each other, and `zoolock show` for the contenders",
        );
    }
    // Adds a finding that names locks, if there are any.
    let mut list = |level, check, what: &str, paths: &[String], remedy: &str| {
        if !paths.is_empty() {
            report.add(check, level, format!("{what}: {}", abbreviate_list(paths)), Some(remedy.to_owned()));
        }
    };
    let paths_of = |is_wanted: fn(&Snapshot) -> bool| -> Vec<String> {
        locks.iter().filter(|lock| is_wanted(lock)).map(|lock| lock.path.clone()).collect()
    };
    let mixed: Vec<String> = locks
        .iter()
        .filter(|lock| lock.clash.is_none() && !unknown.contains(&lock.path))
        .filter_map(|lock| Some(format!("{} ({})", lock.path, mixed_libraries(lock)?)))
        .collect();
    list(
        Level::Note,
        "neighbours",
        "several client libraries share a queue, and see each other",
        &mixed,
        "nothing; each hand-over among them costs a listing",
    );
    list(
        Level::Note,
        "neighbours",
        "contenders of unknown client libraries count as exclusive, and may not see zoolock's",
        &unknown,
        "see them with `zoolock show`; make sure that they wait for every name that ends in ten digits, or give them another \
         lock",
    );
    list(
        Level::Warning,
        "orphans",
        "contenders without a session stay until a client deletes them",
        &paths_of(|lock| lock.queue().any(|entry| entry.persistent)),
        "see them with `zoolock show`; if they are directories of other locks, use another lock, otherwise delete them \
         (`zoolock break`)",
    );
    list(
        Level::Note,
        "neighbours",
        "semaphores of other client libraries, of which zoolock takes no permits",
        &locks.iter().filter_map(describe_semaphore).collect::<Vec<_>>(),
        "nothing; `zoolock run --permits` needs another name",
    );
    list(
        Level::Note,
        "record",
        "the directory has data of another program, so holders write no release marker",
        &paths_of(|lock| lock.foreign_record),
        "delete the data if no program needs it: waiters then read the marker instead of a listing",
    );
    list(
        Level::Warning,
        "neighbours",
        "no permission to read a part of these locks, so their contenders are unknown",
        &paths_of(|lock| !lock.unread.is_empty()),
        "give credentials that may read it (--auth)",
    );
    if !locks.is_empty() && unknown.is_empty() && locks.iter().all(|lock| lock.clash.is_none()) {
        report.ok(
            "neighbours",
            format!("all contenders that were read see each other, in {}", count_queues(locks.len())),
        );
    }
}

/// Returns a number of queues in words.
pub(super) fn count_queues(count: usize) -> String {
    if count == 1 { "1 queue".to_owned() } else { format!("{count} queues") }
}

/// Returns the directories of a foreign semaphore, without the directory of `lock` itself.
fn semaphore_directories(lock: &Snapshot) -> impl Iterator<Item = &String> {
    let directories = lock
        .foreign_semaphore
        .iter()
        .flat_map(|foreign| [&foreign.lease_directory, &foreign.queue_directory]);
    directories.filter(|directory| **directory != lock.path)
}

/// Describes a foreign semaphore.
fn describe_semaphore(lock: &Snapshot) -> Option<String> {
    let foreign = lock.foreign_semaphore.as_ref()?;
    Some(format!("{} ({foreign}, {} waiting)", lock.path, lock.waiting))
}

/// Returns the client libraries in a queue, if there are several.
fn mixed_libraries(lock: &Snapshot) -> Option<String> {
    let families: BTreeSet<&str> = lock.queue().map(|entry| entry.family.as_str()).collect();
    (families.len() > 1).then(|| families.into_iter().collect::<Vec<_>>().join(" and "))
}

fn report_unlisted(directories: &[ListedDirectory], chroot: &str, report: &mut Report) {
    for directory in directories {
        let Some((why, remedy)) = directory.unlisted else { continue };
        report.add_incomplete(
            "queues",
            format!(
                "{}: its {} children were not read: {why}",
                without_chroot(&directory.path, chroot),
                directory.children
            ),
            remedy,
        );
    }
}

/// Joins the first names, and adds the number of the others.
pub(super) fn abbreviate_list(all: &[String]) -> String {
    let some = all.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    some + &and_more(all.len().saturating_sub(MAX_NAMED))
}

/// Returns the path without the chroot.
pub(super) fn without_chroot<'a>(path: &'a str, chroot: &str) -> &'a str {
    match path.strip_prefix(chroot) {
        Some("") => "/",
        Some(below) if below.starts_with('/') => below,
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use zoolock_core::names::Name;

    use super::super::finding::Level;
    use super::super::tree::TOO_MANY;
    use super::*;

    fn directory(path: &str, created_children: u32, contenders: &[&str]) -> ListedDirectory {
        ListedDirectory {
            path: path.to_owned(),
            children: u32::try_from(contenders.len()).expect("few names"),
            created_children,
            contenders: contenders.iter().map(|name| Name::parse(name).expect("valid name")).collect(),
            has_foreign_leases: false,
            acl: None,
            unlisted: None,
        }
    }

    fn levels(directory: ListedDirectory) -> Vec<Level> {
        let mut report = Report::new("h", "/locks");
        let tree = ListedTree { directories: vec![directory], stopped: None };
        check_sequence_numbers(&tree, "", &mut report);
        report.findings.iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn low_sequence_numbers_are_worse_with_foreign_contenders() {
        let retired = Sequence::RETIRE_FROM.0 as u32;
        let kazoo = "3f2504e04f8911d39a0c0305e82c3301__lock__0000000007";
        assert_eq!(levels(directory("/locks/x", 1000, &["lock-0000000999"])), [Level::Ok]);
        assert_eq!(levels(directory("/locks/x", NUMBERS - MIN_LEFT + 1, &[])), [Level::Note]);
        assert_eq!(levels(directory("/locks/x", retired, &[])), [Level::Warning]);
        assert_eq!(levels(directory("/locks/x", 7, &["lock-2147483640"])), [Level::Warning]);
        assert_eq!(levels(directory("/locks/x", retired, &[kazoo])), [Level::Error]);
        let occupied = ListedDirectory { children: 1, ..directory("/locks/x", retired, &[]) };
        assert_eq!(levels(occupied), [Level::Error], "a child that is no contender keeps the directory");
        let unlisted =
            ListedDirectory { children: 1, unlisted: Some(TOO_MANY), ..directory("/locks/x", retired, &[]) };
        assert_eq!(levels(unlisted), [Level::Warning], "its children are not known");
    }

    #[test]
    fn only_the_chroot_is_removed_from_paths() {
        assert_eq!(without_chroot("/team/locks/x", "/team"), "/locks/x");
        assert_eq!(without_chroot("/team", "/team"), "/");
        assert_eq!(without_chroot("/teams/x", "/team"), "/teams/x");
        assert_eq!(without_chroot("/locks", ""), "/locks");
    }

    #[test]
    fn long_lists_are_shortened() {
        let all: Vec<String> = (0..5).map(|n| format!("/{n}")).collect();
        assert_eq!(abbreviate_list(&all), "/0, /1, /2 and 2 more");
        assert_eq!(abbreviate_list(&all[..2]), "/0, /1");
    }
}
