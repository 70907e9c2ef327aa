//! Finds locks of clients whose connect string has another chroot: those clients do not exclude clients of this chroot.

use std::cmp::Reverse;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::{StreamExt as _, stream};
use tokio::time::timeout;
use zoolock_client::RequestSession;

use super::finding::{Level, Report};
use super::locks::abbreviate_list;
use super::tree::{self, ListedTree, MAX_LISTED_CHILDREN};
use crate::base::duration::format_duration;

const CHECK: &str = "chroot";
/// Maximum number of other chroots that are read.
const MAX_CHROOTS: usize = 100;
/// Maximum number of directories that are read in each other chroot.
const MAX_DIRECTORIES: usize = 50;
/// Maximum number of other chroots with locks that are reported.
const MAX_REPORTED: usize = 3;
/// Maximum time to read other chroots.
const PATIENCE: Duration = Duration::from_secs(10);
/// Age below which a chroot is new.
const MAX_NEW_AGE: Duration = Duration::from_secs(3600);
/// Maximum time between the creation of a chroot and the creation of the lock root in it, if one
/// client created both.
const MAX_CREATION_GAP_MS: i64 = 10_000;

const REMEDY_FOR_NEW: &str = "check the spelling in --connect; the server removes a chroot without locks after a while, and \
                              the next lock creates it again";
const REMEDY: &str = "check the spelling in --connect; clients exclude each other only with the same chroot";

/// Reports that the chroot does not exist.
pub(super) async fn report_missing_chroot(
    client: &RequestSession,
    chroot: &str,
    root: &str,
    report: &mut Report,
) {
    let others = find_other_chroots(client, chroot, root, report).await;
    let beside = if others.is_empty() {
        String::new()
    } else {
        format!("; locks have contenders in {}", abbreviate_list(&others))
    };
    report.warn(CHECK, format!("{chroot} does not exist, and the first lock creates it{beside}"), REMEDY);
}

/// Reports a new chroot. Also reports a chroot without contenders, if locks have contenders
/// in another chroot. `tree` contains the locks of this chroot.
pub(super) async fn check_chroot(
    client: &RequestSession,
    chroot: &str,
    root: &str,
    tree: &ListedTree,
    report: &mut Report,
) {
    let age = age_if_new(client, chroot, root, report.clock_ms.unwrap_or(0)).await;
    // If a part of the tree was not read, locks may be in that part.
    let is_read = tree.stopped.is_none() && tree.directories.iter().all(|it| it.unlisted.is_none());
    if age.is_none() && (tree.count_queues() > 0 || !is_read) {
        return;
    }
    let others = find_other_chroots(client, chroot, root, report).await;
    let here = if chroot.is_empty() { "the server without a chroot" } else { chroot };
    let found = abbreviate_list(&others);
    match age {
        Some(age) => {
            let age = format_duration(age);
            let (beside, remedy) = match others.is_empty() {
                true => (String::new(), REMEDY),
                false => (format!("; locks also have contenders in {found}"), REMEDY_FOR_NEW),
            };
            let what =
                format!("{here} was created {age} ago, together with the directory of its locks{beside}");
            report.note(CHECK, what, remedy);
        }
        None if others.is_empty() => {}
        None => {
            let what = format!("{here} has no holder or waiter, and locks have contenders in {found}");
            // A chroot that has lock directories was used before, so it is probably right.
            let level = if tree.directories.is_empty() { Level::Warning } else { Level::Note };
            report.add(CHECK, level, what, Some(REMEDY.to_owned()));
        }
    }
}

/// Returns the age of the chroot, if it is new and was created together with the lock root.
async fn age_if_new(client: &RequestSession, chroot: &str, root: &str, clock_ms: i64) -> Option<Duration> {
    if chroot.is_empty() || root == "/" {
        return None;
    }
    let created = async |path: &str| Some(client.exists(path).await.ok()??.ctime);
    let (chroot, root) = (created(chroot).await?, created(&format!("{chroot}{root}")).await?);
    let local = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_millis();
    let now = i64::try_from(local).ok()?.saturating_add(clock_ms);
    let age = Duration::from_millis(u64::try_from(now.saturating_sub(chroot)).unwrap_or(0));
    (root.saturating_sub(chroot) <= MAX_CREATION_GAP_MS && age < MAX_NEW_AGE).then_some(age)
}

/// Returns the names of other chroots in which locks have contenders. Each name comes with the
/// number of those locks.
async fn find_other_chroots(
    client: &RequestSession,
    chroot: &str,
    root: &str,
    report: &mut Report,
) -> Vec<String> {
    // With the root `/`, the locks of a chroot include those of all chroots below it, so chroots cannot be compared.
    if root == "/" {
        return Vec::new();
    }
    let (mut others, mut all_read) = (Vec::new(), true);
    let read = async {
        let candidates = list_candidates(client, chroot, root).await;
        all_read = candidates.len() <= MAX_CHROOTS;
        let found = stream::iter(candidates.into_iter().take(MAX_CHROOTS)).map(|other| async move {
            let tree = tree::read_tree(client, format!("{other}{root}"), MAX_DIRECTORIES).await.ok()?;
            let name = if other.is_empty() { "the server without a chroot" } else { &other };
            let locks = if tree.count_queues() == 1 { "lock" } else { "locks" };
            let least = if tree.stopped.is_some() { "at least " } else { "" };
            (tree.count_queues() > 0).then(|| format!("{name} ({least}{} {locks})", tree.count_queues()))
        });
        let mut found = std::pin::pin!(found.buffered(2).filter_map(std::future::ready).take(MAX_REPORTED));
        while let Some(other) = found.next().await {
            others.push(other);
        }
    };
    let in_time = timeout(PATIENCE, read).await.is_ok();
    if !(in_time && all_read) && others.len() < MAX_REPORTED {
        let why = format!(
            "not more than {MAX_CHROOTS} other chroots were read, and for {} at most",
            format_duration(PATIENCE)
        );
        report.add_incomplete(CHECK, why, "list their locks with `zoolock ls`");
    }
    others
}

/// Returns paths that may be other chroots: the parents of this chroot, and the children of this
/// chroot and of its parents. Names that are similar to this chroot come first.
async fn list_candidates(client: &RequestSession, chroot: &str, root: &str) -> Vec<String> {
    let first = root.trim_start_matches('/').split('/').next().unwrap_or_default();
    let mut candidates = Vec::new();
    let mut above = Some(chroot);
    while let Some(path) = above {
        candidates.push(path.to_owned());
        let shown = if path.is_empty() { "/" } else { path };
        let few = client
            .exists(shown)
            .await
            .ok()
            .flatten()
            .is_some_and(|stat| stat.num_children <= MAX_LISTED_CHILDREN);
        let children = if few { client.children(shown).await.unwrap_or_default() } else { Vec::new() };
        candidates.extend(children.iter().filter(|name| *name != first).map(|name| format!("{path}/{name}")));
        above = path.rfind('/').map(|at| &path[..at]);
    }
    candidates.retain(|path| path != chroot && path != "/zookeeper");
    candidates.sort_unstable();
    candidates.dedup();
    candidates.sort_by_key(|path| Reverse(common_prefix(path, chroot)));
    candidates
}

/// Returns the length of the common prefix in bytes.
fn common_prefix(one: &str, other: &str) -> usize {
    one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count()
}
