//! Describes one contender from the name and the data of its znode.

use std::hash::Hasher as _;
use std::net::IpAddr;
use std::sync::OnceLock;

use siphasher::sip::SipHasher24;
use zoolock_core::SessionId;
use zoolock_core::names::{Family, Spelling};

use super::Entry;
use crate::admin::kinds::OwnerKind;
use crate::base::owner_id;
use crate::base::ticket::Ticket;
use crate::base::unix_time::time_at;
use crate::engine::data::{self, NodeData, REVOCATIONS};
use crate::engine::gather::FoundContender;
use crate::zk::session::ZnodeStat;

/// Maximum number of characters shown of another client library's data. Every client with
/// permission to queue can write such data.
const LONGEST: usize = 128;
/// The start of the year 2010, in milliseconds of Unix time. An earlier time comes from a clock that was not set.
const EARLIEST_MS: u64 = 1_262_304_000_000;
/// The data that ZooKeeper's own WriteLock recipe in Java writes to a contender's znode.
const RECIPE_DATA: [u8; 2] = [0x12, 0x34];

/// Describes a contender. `read`: the data and Stat of its znode, if they could be read; `epoch`: the epoch of its
/// token.
pub(crate) fn describe_contender(
    contender: &FoundContender,
    read: Option<(Vec<u8>, ZnodeStat)>,
    epoch: u32,
) -> Entry {
    let data = read.as_ref().and_then(|(data, _)| NodeData::parse(data));
    let created = read.as_ref().and_then(|(_, stat)| u64::try_from(stat.created_ms).ok());
    let (foreign, unrevocable) = match (&data, &read) {
        (None, Some((data, _))) => (parse_foreign_data(contender, data), unrevocable_reason(contender, data)),
        _ => (ForeignData::default(), None),
    };
    let session = read.as_ref().map(|(_, stat)| stat.owner);
    let (owner, owner_kind) = owner_and_kind(&data, session);
    Entry {
        node: without_session(contender),
        family: contender.name.family().into(),
        role: contender.name.role.into(),
        weight: contender.name.weight,
        token: read.as_ref().map(|(_, stat)| Ticket::new(epoch, stat.czxid)),
        revoked: read.as_ref().is_some_and(|(data, _)| data::parse_flags(data).revoked),
        asked_at: read.as_ref().and_then(|(data, stat)| asked_at(data, stat)).map(time_at),
        held_since: None,
        since: queued_at(data.as_ref().and_then(|d| d.since_ms), created).map(time_at),
        host: data.as_ref().and_then(|d| d.host.clone()).or(foreign.host),
        pid: data.as_ref().and_then(|d| d.pid),
        program: data.as_ref().and_then(|d| d.program.clone()),
        runs_program: data.as_ref().is_some_and(|d| d.runs_program),
        note: data.as_ref().and_then(|d| d.note.clone()),
        identifier: foreign.identifier,
        owner,
        owner_kind,
        persistent: read.as_ref().is_some_and(|(_, stat)| !stat.owner.is_session()),
        reader_id: data.as_ref().and_then(|d| d.reader_id.clone()),
        unrevocable,
        is_superseded: false,
        session: session.filter(|session| session.is_session()).map(pseudonym),
        id: data.map(|d| d.id),
    }
}

/// Returns the time at which a contender queued: the recorded time, or else the creation time of its znode. Ignores a
/// time from a clock that was not set.
fn queued_at(recorded: Option<u64>, created: Option<u64>) -> Option<u64> {
    [recorded, created].into_iter().flatten().find(|&time| is_plausible(time))
}

/// Returns the time at which the contender was asked to release. The request must be the only write of the data since the
/// znode was created.
fn asked_at(data: &[u8], stat: &ZnodeStat) -> Option<u64> {
    let flags = data::parse_flags(data);
    let is_last_write = flags.revoked && !flags.granted && stat.version == 1;
    u64::try_from(stat.modified_ms).ok().filter(|&time| is_last_write && is_plausible(time))
}

/// Returns whether a clock that was set may have shown this time, in milliseconds of Unix time.
pub(crate) fn is_plausible(time: u64) -> bool {
    time >= EARLIEST_MS
}

/// Returns the owner and its origin, as in [`Entry::owner`] and [`Entry::owner_kind`]. `session`: the session that
/// created the znode.
fn owner_and_kind(data: &Option<NodeData>, session: Option<SessionId>) -> (Option<String>, OwnerKind) {
    let said = |text: &Option<Box<str>>| {
        text.as_deref().filter(|text| owner_id::check(text).is_ok()).map(str::to_owned)
    };
    if let Some(owner) = data.as_ref().and_then(|data| said(&data.owner)) {
        return (Some(owner), OwnerKind::Owner);
    }
    if let Some(task) = data.as_ref().and_then(|data| said(&data.task)) {
        return (Some(task), OwnerKind::Task);
    }
    match session {
        Some(session) if session.is_session() => {
            (Some(format!("session-{:016x}", pseudonym(session))), OwnerKind::Session)
        }
        _ => (None, OwnerKind::Unknown),
    }
}

/// Returns a pseudonym for a session. The session id itself must not be shown, because a client
/// that has the id can take over the session. A session keeps its pseudonym for the lifetime of
/// this process. The id cannot be computed from the pseudonym.
fn pseudonym(session: SessionId) -> u64 {
    static KEY: OnceLock<[u8; 16]> = OnceLock::new();
    let key = KEY.get_or_init(|| {
        // Combines two UUIDs, because some bits of each UUID are known.
        let (a, b) = (uuid::Uuid::new_v4().as_u128(), uuid::Uuid::new_v4().as_u128());
        (a ^ b.rotate_left(64)).to_be_bytes()
    });
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write_i64(session.0);
    hasher.finish()
}

/// Returns the name of a contender's znode without the session id, because a client that has the id
/// can take over the session. ZooKeeper's WriteLock recipe writes the id into its names. Unknown
/// client libraries may do so, too.
pub(crate) fn without_session(contender: &FoundContender) -> String {
    let node = &contender.node;
    let (before, digits) = node.split_at(node.len().saturating_sub(10));
    match contender.name.family() {
        Family::WriteLock => format!("x-…-{digits}"),
        Family::Unknown => without_long_numbers(before) + digits,
        _ => node.clone(),
    }
}

/// Returns the text with `…` for each number that may be a session id, in decimal or hexadecimal digits.
fn without_long_numbers(text: &str) -> String {
    const SHORTEST_ID: usize = 12;
    let (mut shown, mut rest) = (String::new(), text);
    while !rest.is_empty() {
        let is_digit = rest.starts_with(|c: char| c.is_ascii_hexdigit());
        let end = rest.find(|c: char| c.is_ascii_hexdigit() != is_digit).unwrap_or(rest.len());
        let (part, behind) = rest.split_at(end);
        shown.push_str(if is_digit && end >= SHORTEST_ID { "…" } else { part });
        rest = behind;
    }
    shown
}

/// Returns the reason why a contender with data of another client library cannot be asked to release; `None` if it can be
/// asked, or was asked. In kazoo, for example, the data is the client's identifier, and kazoo would not read a request.
pub(crate) fn unrevocable_reason(contender: &FoundContender, data: &[u8]) -> Option<&'static str> {
    if data::parse_flags(data).revoked {
        return None;
    }
    let FoundContender { node, name } = contender;
    // go-zookeeper's names have a UUID without dashes, and its clients do not read revocations.
    let curator = matches!(name.spelling, Spelling::CuratorLock | Spelling::CuratorMarked)
        && node.as_bytes().get(11) == Some(&b'-');
    // Curator's revocable clients write empty data. Only these clients watch their znode for requests.
    match (curator, name.family()) {
        (true, _) if data.is_empty() => None,
        (true, _) => {
            Some("Curator reads requests to release only if the lock was made revocable (makeRevocable)")
        }
        (false, Family::Native | Family::Unknown) => Some("its client library is not known"),
        (false, _) => Some("its client library does not read requests to release"),
    }
}

/// Returns whether the data belongs to the writer's znode of an upgraded reader.
pub(super) fn is_upgrade_writer(data: &[u8]) -> bool {
    NodeData::parse(data).is_some_and(|data| data.kind == "upgrade")
}

/// The data of another client library's znode.
#[derive(Debug, Default, PartialEq, Eq)]
struct ForeignData {
    host: Option<String>,
    identifier: Option<String>,
}

fn parse_foreign_data(contender: &FoundContender, data: &[u8]) -> ForeignData {
    let is_recipe = contender.name.spelling == Spelling::WriteLock;
    if REVOCATIONS.contains(&data) || (is_recipe && data == RECIPE_DATA) {
        return ForeignData::default();
    }
    let text = match std::str::from_utf8(data) {
        Ok(text) if !text.chars().any(char::is_control) => text.trim(),
        _ => return ForeignData { host: None, identifier: Some(shorten_to_hex(data)) },
    };
    // Java appends the interface to some addresses, after a percent sign.
    let address = text.split('%').next().unwrap_or_default();
    if address.parse::<IpAddr>().is_ok() {
        return ForeignData { host: Some(shorten(text)), identifier: None };
    }
    ForeignData { host: None, identifier: (!text.is_empty()).then(|| shorten(text)) }
}

fn shorten(text: &str) -> String {
    if text.chars().nth(LONGEST).is_none() {
        return text.to_owned();
    }
    text.chars().take(LONGEST).chain(['…']).collect()
}

fn shorten_to_hex(data: &[u8]) -> String {
    let digits: String = data.iter().take(LONGEST / 2).map(|byte| format!("{byte:02x}")).collect();
    let rest = if data.len() > LONGEST / 2 { "…" } else { "" };
    format!("0x{digits}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use zoolock_core::names::Name;

    const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";

    #[test]
    fn owner_is_name_task_or_session_pseudonym() {
        let of = |data: &str, session| owner_and_kind(&NodeData::parse(data.as_bytes()), session);
        let session = Some(SessionId(0x1000_0000_0000_0007));
        let named = r#"{"id":"1","kind":"mutex","owner":"job-7","task":"c-3"}"#;
        assert_eq!(of(named, session), (Some("job-7".to_owned()), OwnerKind::Owner));
        let task = r#"{"id":"1","kind":"mutex","task":"c-3"}"#;
        assert_eq!(of(task, session), (Some("c-3".to_owned()), OwnerKind::Task));
        let hostile = format!(r#"{{"id":"1","kind":"mutex","owner":"{}"}}"#, "x".repeat(1000));
        for other in ["", "10.0.0.7", hostile.as_str(), r#"{"id":"1","kind":"mutex","task":"a\u0007b"}"#] {
            let (owner, kind) = of(other, session);
            assert_eq!(kind, OwnerKind::Session);
            let owner = owner.expect("a session has a pseudonym");
            assert_eq!(of("", session).0, Some(owner.clone()));
            assert_ne!(of("", Some(SessionId(8))).0, Some(owner.clone()));
            assert!(!owner.contains("1000000000000007") && !owner.contains("1152921504606846983"), "{owner}");
        }
        for nobody in [0, i64::MIN, 0xff00_0000_0000_0001_u64 as i64] {
            assert_eq!(of("", Some(SessionId(nobody))), (None, OwnerKind::Unknown));
        }
        assert_eq!(of("", Some(SessionId(-1))).1, OwnerKind::Session);
        assert_eq!(of("", None), (None, OwnerKind::Unknown));
    }

    #[test]
    fn time_of_an_unset_clock_is_unknown() {
        let now = 1_800_000_000_000;
        assert_eq!(queued_at(Some(now), Some(now + 1)), Some(now));
        assert_eq!(queued_at(None, Some(now)), Some(now));
        assert_eq!(queued_at(Some(7_000), Some(now)), Some(now), "the server's clock is used instead");
        assert_eq!(queued_at(Some(7_000), Some(8_000)), None);
        let (czxid, pzxid, owner) = (zoolock_core::Zxid(7), zoolock_core::Zxid(7), SessionId(7));
        let stat = ZnodeStat {
            czxid,
            pzxid,
            version: 0,
            children: 0,
            created_children: 0,
            owner,
            created_ms: 8_000,
            modified_ms: 8_000,
        };
        let entry = describe_contender(&contender("lock-0000000007"), Some((Vec::new(), stat)), 0);
        assert_eq!(entry.since, None);
    }

    fn contender(node: &str) -> FoundContender {
        FoundContender { node: node.to_owned(), name: Name::parse(node).expect("a contender's name") }
    }

    fn foreign_data(node: &str, data: &[u8]) -> (Option<String>, Option<String>) {
        let contender = contender(node);
        let foreign = parse_foreign_data(&contender, data);
        (foreign.host, foreign.identifier)
    }

    #[test]
    fn foreign_data_is_host_or_identifier() {
        let kazoo = format!("{HEX}__lock__0000000007");
        let curator = format!("_c_{HEX}-lock-0000000007");
        let host = |host: &str| (Some(host.to_owned()), None);
        let identifier = |text: &str| (None, Some(text.to_owned()));
        assert_eq!(foreign_data(&curator, b"10.1.2.3"), host("10.1.2.3"));
        assert_eq!(foreign_data(&curator, b"fe80:0:0:0:0:0:0:1%eth0"), host("fe80:0:0:0:0:0:0:1%eth0"));
        assert_eq!(foreign_data(&curator, b"payments"), identifier("payments"));
        assert_eq!(foreign_data(&curator, b"__REVOKE__"), (None, None));
        assert_eq!(foreign_data(&kazoo, b"job 7"), identifier("job 7"));
        assert_eq!(foreign_data(&kazoo, b""), (None, None));
        assert_eq!(foreign_data(&kazoo, b"b'job 7'"), identifier("b'job 7'"));
        assert_eq!(foreign_data("x-7-0000000007", b"\x12\x34"), (None, None));
        assert_eq!(foreign_data("x-7-0000000007", b"\x12\x35"), identifier("0x1235"));
    }

    #[test]
    fn only_revocable_clients_of_curator_can_be_asked() {
        let (curator, kazoo) =
            (format!("_c_{}-lock-0000000007", uuid::Uuid::nil()), format!("{HEX}__lock__0000000007"));
        let reason = |node: &str, data: &[u8]| unrevocable_reason(&contender(node), data);
        assert_eq!((reason(&curator, b""), reason(&curator, b"__REVOKE__")), (None, None));
        assert!(reason(&curator, b"10.1.2.3").is_some_and(|reason| reason.contains("makeRevocable")));
        let unread = Some("its client library does not read requests to release");
        assert_eq!(
            (reason(&kazoo, b""), reason(&format!("_c_{HEX}-lock-0000000007"), b"")),
            (unread, unread)
        );
        let latch = format!("_c_{}-latch-0000000007", uuid::Uuid::nil());
        assert_eq!(reason(&latch, b""), unread, "a LeaderLatch never reads its data");
        let unknown = Some("its client library is not known");
        assert_eq!((reason("lock-0000000007", b""), reason("job-0000000007", b"")), (unknown, unknown));
    }

    #[test]
    fn names_hide_session_ids() {
        let shown = |node: &str| describe_contender(&contender(node), None, 0).node;
        assert_eq!(shown("x-72057594037927936-0000000007"), "x-…-0000000007");
        assert_eq!(shown("lock-0000000007"), "lock-0000000007");
        assert_eq!(shown("n_0000000007"), "n_0000000007");
        assert_eq!(shown("72057594037927936-core-n_0000000007"), "…-core-n_0000000007");
        assert_eq!(shown("node-0x100007fb5e20001-0000000007"), "node-0x…-0000000007");
        assert_eq!(shown(&format!("job-{HEX}-0000000007")), "job-…-0000000007");
    }

    #[test]
    fn foreign_data_is_shortened_and_escaped() {
        let (_, long) = foreign_data("ex0000000007", "ü".repeat(1000).as_bytes());
        assert_eq!(long, Some("ü".repeat(LONGEST) + "…"));
        let (host, _) = foreign_data("ex0000000007", format!("10.1.2.3%{}", "x".repeat(1000)).as_bytes());
        assert_eq!(host.map(|host| host.chars().count()), Some(LONGEST + 1));
        let (_, hostile) = foreign_data("ex0000000007", b"\x1b[2J");
        assert_eq!(hostile.as_deref(), Some("0x1b5b324a"));
        let (_, binary) = foreign_data("ex0000000007", &[0xff; 1000]);
        assert_eq!(binary, Some(format!("0x{}…", "ff".repeat(LONGEST / 2))));
    }
}
