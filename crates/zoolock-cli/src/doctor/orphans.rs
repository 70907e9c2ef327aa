//! Finds orphans: ephemeral znodes of contenders whose session has ended. The servers never delete
//! orphans, so the locks of these contenders are never free.
//!
//! Only a server knows its live sessions. Apache ZooKeeper lists them in its answer to the four-letter word `dump`, if its
//! settings allow that word. One answer may mix data of different times, so a znode is an orphan only if two answers agree.
//! An answer contains session ids, so it must not be printed.
//!
//! `zoolock serve` leaves no orphans, and has no `dump`.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::finding::Report;
use super::four_letter_words::{NoAnswer, ask_word};
use super::locks::{abbreviate_list, without_chroot};
use super::servers::{ServerFacts, ServerKind, name_words};

const CHECK: &str = "orphans";
/// Maximum size of the answer to `dump`: enough for 100,000 sessions with one ephemeral znode each.
const MAX_ANSWER: usize = 32 << 20;

/// Asks a server twice, and reports the locks with orphans.
pub(super) async fn check_orphans(facts: &ServerFacts, root: &str, chroot: &str, report: &mut Report) {
    if matches!(facts.kind(), ServerKind::Local | ServerKind::Serve) {
        // It completes the end of a session, also after a restart, although this can take several transactions.
        return report.ok(CHECK, "`zoolock serve` deletes the znodes of a session when the session ends");
    }
    let mut asked = None;
    for address in &facts.reachable {
        match request_dump(address, facts).await {
            Ok(first) => {
                asked = Some((address, first));
                break;
            }
            Err(NoAnswer::TooLong) => {
                let why = format!("the answer to `dump` exceeds {} MB and was not read", MAX_ANSWER >> 20);
                return report.add_incomplete(
                    CHECK,
                    why,
                    "compare `dump` with the znodes of the locks by hand",
                );
            }
            Err(_) => {}
        }
    }
    let Some((address, first)) = asked else {
        return report.note(
            CHECK,
            "cannot check for znodes of ended sessions: no server answers `dump`",
            format!("add `dump` to {} for a moment, and run doctor again", name_words(ServerKind::Apache)),
        );
    };
    let second = match request_dump(address, facts).await {
        Ok(second) => second,
        Err(_) => {
            return report.note(
                CHECK,
                format!("{address}: answered the first `dump`, but not the second"),
                "run doctor again",
            );
        }
    };
    let orphans = find_orphans(&first, &second, root);
    if orphans.is_empty() {
        let count = second.owned.keys().filter(|path| is_below(path, root)).count();
        return report.ok(CHECK, format!("all {count} znodes of contenders belong to live sessions"));
    }
    // Names the locks and not the znodes: some client libraries write the session id into the names of their znodes.
    let locks: BTreeSet<&str> =
        orphans.iter().filter_map(|path| path.rsplit_once('/')).map(|(lock, _)| lock).collect();
    let locks: Vec<String> = locks.into_iter().map(|lock| without_chroot(lock, chroot).to_owned()).collect();
    report.error(
        CHECK,
        format!("{} znodes belong to ended sessions and are never deleted: {}", orphans.len(), abbreviate_list(&locks)),
        "make sure that no process works under these locks, delete the znodes (`zoolock show`, `zoolock break`), and upgrade \
         the servers",
    );
}

async fn request_dump(address: &str, facts: &ServerFacts) -> Result<Dump, NoAnswer> {
    Dump::parse(&ask_word(address, facts.tls.as_ref(), "dump", MAX_ANSWER).await?).ok_or(NoAnswer::Refused)
}

/// The parts of the answer to `dump` that are needed. This type has no `Debug`, because an answer
/// must not be printed.
struct Dump {
    /// The ids of the live sessions.
    live: HashSet<u64>,
    /// The paths of the ephemeral znodes, with the ids of their sessions.
    owned: BTreeMap<String, u64>,
}

impl Dump {
    fn parse(text: &str) -> Option<Self> {
        let (sessions, rest) = text.split_once("ephemeral nodes dump:")?;
        let (nodes, _) = rest.split_once("Connections dump:").unwrap_or((rest, ""));
        // A leader prints each session id on a line of its own. A follower prints the timeout after it.
        let live =
            sessions.lines().filter_map(|line| parse_session_id(line.split_whitespace().next()?)).collect();
        let mut owner = None;
        let mut owned = BTreeMap::new();
        for line in nodes.lines() {
            if let Some(path) = line.strip_prefix('\t').filter(|path| path.starts_with('/')) {
                owned.extend(owner.map(|owner| (path.to_owned(), owner)));
            } else {
                owner = line.trim().strip_suffix(':').and_then(parse_session_id);
            }
        }
        Some(Self { live, owned })
    }
}

fn parse_session_id(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Returns the znodes that belonged to the same session in both answers, if the session was live in neither.
fn find_orphans<'a>(first: &'a Dump, second: &Dump, root: &str) -> Vec<&'a str> {
    let is_dead = |dump: &Dump, owner: &u64| !dump.live.contains(owner);
    let dead = first.owned.iter().filter(|(path, owner)| {
        is_below(path, root)
            && second.owned.get(*path) == Some(*owner)
            && is_dead(first, owner)
            && is_dead(second, owner)
    });
    dead.map(|(path, _)| path.as_str()).collect()
}

fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root.trim_end_matches('/')).is_some_and(|below| below.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of a standalone Apache ZooKeeper 3.8.0.
    const LEADER: &str = "SessionTracker dump:\nSession Sets (3)/(2):\n0 expire at Sun Nov 22 13:00:00 UTC 2026:\n\
        2 expire at Sun Nov 22 13:00:10 UTC 2026:\n\t0x100000000000001\n\t0x100000000000002\nephemeral nodes dump:\n\
        Sessions with Ephemerals (3):\n0x100000000000001:\n\t/locks/a/lock-0000000000\n0x1000000000000ff:\n\
        \t/locks/b/lock-0000000004\n\t/elsewhere/x\n0x100000000000002:\n\t/locks/a/lock-0000000001\nConnections dump:\n\
        Connections Sets (1)/(1):\n1 expire at Sun Nov 22 13:00:10 UTC 2026:\n\tip: /127.0.0.1:1 sessionId: 0x1\n";
    /// The answer of a follower.
    const FOLLOWER: &str = "SessionTracker dump:\nGlobal Sessions(1):\n0x100000000000001\t30000ms\n\
        ephemeral nodes dump:\nSessions with Ephemerals (0):\nConnections dump:\n";

    #[test]
    fn orphans_below_the_root_are_found() {
        let dump = || Dump::parse(LEADER).expect("well formed");
        assert_eq!(dump().owned.len(), 4);
        assert_eq!(find_orphans(&dump(), &dump(), "/locks"), ["/locks/b/lock-0000000004"]);
        assert_eq!(find_orphans(&dump(), &dump(), "/"), ["/elsewhere/x", "/locks/b/lock-0000000004"]);
        assert!(find_orphans(&dump(), &dump(), "/lock").is_empty());
    }

    #[test]
    fn orphan_needs_two_equal_answers() {
        let dump = || Dump::parse(LEADER).expect("well formed");
        let mut later = dump();
        later.live.insert(0x0100_0000_0000_00ff);
        assert!(find_orphans(&dump(), &later, "/locks").is_empty());
        let mut gone = dump();
        gone.owned.remove("/locks/b/lock-0000000004");
        assert!(find_orphans(&dump(), &gone, "/locks").is_empty());
        let mut another = dump();
        another.owned.insert("/locks/b/lock-0000000004".to_owned(), 1);
        assert!(find_orphans(&dump(), &another, "/locks").is_empty());
    }

    #[test]
    fn follower_dump_is_parsed() {
        let dump = Dump::parse(FOLLOWER).expect("well formed");
        assert!(dump.live.contains(&0x0100_0000_0000_0001) && dump.owned.is_empty());
        assert!(Dump::parse("This ZooKeeper instance is not currently serving requests\n").is_none());
    }
}
