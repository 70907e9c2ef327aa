//! One contender, by what its node's name and data tell.

use std::net::IpAddr;

use zoolock_core::names::{Family, Role, Spelling};
use zoolock_core::{FencingToken, Zxid};

use super::Entry;
use super::gather::{Contender, Part};
use crate::data::{self, NodeData, REVOCATIONS};
use crate::keeper::Stat;

/// What is shown of what somebody else says; whoever may queue may write it.
const LONGEST: usize = 128;
/// What ZooKeeper's recipe in Java writes, always.
const OF_THE_RECIPE: [u8; 2] = [0x12, 0x34];

/// Describes a contender. `node`: how its node is called.
pub(super) fn of(contender: &Contender, node: String, read: Option<(Vec<u8>, Stat)>, epoch: u32) -> Entry {
    let data = read.as_ref().and_then(|(data, _)| NodeData::parse(data));
    let token = |czxid: Zxid| FencingToken::new(epoch, czxid, 0).to_string();
    let created = read.as_ref().and_then(|(_, stat)| u64::try_from(stat.created_ms).ok());
    let says = match (&data, &read) {
        (None, Some((data, _))) => says(contender, data),
        _ => Says::default(),
    };
    Entry {
        node,
        family: match contender.family() {
            Family::Native => "native",
            Family::DotNet => "dotnet",
            Family::Curator => "curator",
            Family::Kazoo => "kazoo",
            Family::WriteLock => "write-lock",
            Family::Ruby => "zk-ruby",
        },
        role: match contender.name.map(|name| name.role) {
            Some(Role::Exclusive) if contender.part == Part::Queue => "exclusive",
            Some(Role::Shared) => "shared",
            Some(Role::Upgradable) => "upgradable",
            // Also whoever is alone at the guard of a semaphore: it wants a permit.
            Some(Role::Exclusive | Role::Permit) | None => "permit",
        },
        weight: contender.name.map_or(1, |name| name.weight),
        token: read.as_ref().map(|(_, stat)| token(stat.czxid)),
        revoked: read.as_ref().is_some_and(|(data, _)| data::says(data).revoked),
        since_ms: data.as_ref().and_then(|d| d.since_ms).or(created),
        host: data.as_ref().and_then(|d| d.host.clone()).or(says.host),
        pid: data.as_ref().and_then(|d| d.pid),
        program: data.as_ref().and_then(|d| d.program.clone()),
        note: data.as_ref().and_then(|d| d.note.clone()),
        identifier: says.identifier,
    }
}

/// Whether this is the writer's node of somebody who reads already.
pub(super) fn upgrades(data: &[u8]) -> bool {
    NodeData::parse(data).is_some_and(|data| data.kind == "upgrade")
}

/// What the data of another make's node tells about it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Says {
    host: Option<String>,
    identifier: Option<String>,
}

fn says(contender: &Contender, data: &[u8]) -> Says {
    let of_the_recipe = contender.name.is_some_and(|name| name.spelling == Spelling::WriteLock);
    if REVOCATIONS.contains(&data) || (of_the_recipe && data == OF_THE_RECIPE) {
        return Says::default();
    }
    let text = match std::str::from_utf8(data) {
        Ok(text) if !text.chars().any(char::is_control) => text.trim(),
        _ => return Says { host: None, identifier: Some(hex(data)) },
    };
    // At the guard of its semaphore kazoo writes its identifier as Python prints bytes.
    let text = match text.strip_prefix("b'").and_then(|text| text.strip_suffix('\'')) {
        Some(bytes) if contender.part == Part::Guard => bytes,
        _ => text,
    };
    // Java names the interface of some addresses behind a percent sign.
    let address = text.split('%').next().unwrap_or_default();
    if address.parse::<IpAddr>().is_ok() {
        return Says { host: Some(short(text)), identifier: None };
    }
    Says { host: None, identifier: (!text.is_empty()).then(|| short(text)) }
}

fn short(text: &str) -> String {
    if text.chars().nth(LONGEST).is_none() {
        return text.to_owned();
    }
    text.chars().take(LONGEST).chain(['…']).collect()
}

fn hex(data: &[u8]) -> String {
    let digits: String = data.iter().take(LONGEST / 2).map(|byte| format!("{byte:02x}")).collect();
    let rest = if data.len() > LONGEST / 2 { "…" } else { "" };
    format!("0x{digits}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::LockPath;
    use zoolock_core::names::Name;

    const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";

    fn told(node: &str, part: Part, data: &[u8]) -> (Option<String>, Option<String>) {
        let directory = LockPath::from_server("/locks/x".to_owned());
        let contender = Contender { directory, node: node.to_owned(), part, name: Name::parse(node) };
        let says = says(&contender, data);
        (says.host, says.identifier)
    }

    #[test]
    fn what_others_say_is_told_as_what_it_is() {
        let kazoo = format!("{HEX}__lock__0000000007");
        let curator = format!("_c_{HEX}-lock-0000000007");
        let host = |host: &str| (Some(host.to_owned()), None);
        let identifier = |text: &str| (None, Some(text.to_owned()));
        let queue = Part::Queue;
        assert_eq!(told(&curator, queue, b"10.1.2.3"), host("10.1.2.3"));
        assert_eq!(told(&curator, queue, b"fe80:0:0:0:0:0:0:1%eth0"), host("fe80:0:0:0:0:0:0:1%eth0"));
        assert_eq!(told(&curator, queue, b"payments"), identifier("payments"));
        assert_eq!(told(&curator, queue, b"__REVOKE__"), (None, None));
        assert_eq!(told(&kazoo, queue, b"job 7"), identifier("job 7"));
        assert_eq!(told(&kazoo, queue, b""), (None, None));
        assert_eq!(told(&kazoo, queue, b"b'job 7'"), identifier("b'job 7'"));
        assert_eq!(told(&kazoo, Part::Guard, b"b'job 7'"), identifier("job 7"));
        assert_eq!(told(&kazoo, Part::Guard, b"b''"), (None, None));
        assert_eq!(told(HEX, Part::Lease, b"job 7"), identifier("job 7"));
        assert_eq!(told("x-7-0000000007", queue, b"\x12\x34"), (None, None));
        assert_eq!(told("x-7-0000000007", queue, b"\x12\x35"), identifier("0x1235"));
    }

    #[test]
    fn what_others_say_is_short_and_without_control_characters() {
        let (_, long) = told("ex0000000007", Part::Queue, "ü".repeat(1000).as_bytes());
        assert_eq!(long, Some("ü".repeat(LONGEST) + "…"));
        let (host, _) =
            told("ex0000000007", Part::Queue, format!("10.1.2.3%{}", "x".repeat(1000)).as_bytes());
        assert_eq!(host.map(|host| host.chars().count()), Some(LONGEST + 1));
        let (_, hostile) = told("ex0000000007", Part::Queue, b"\x1b[2J");
        assert_eq!(hostile.as_deref(), Some("0x1b5b324a"));
        let (_, binary) = told("ex0000000007", Part::Queue, &[0xff; 1000]);
        assert_eq!(binary, Some(format!("0x{}…", "ff".repeat(LONGEST / 2))));
    }
}
