//! Four-letter words that list connections, sessions and watches.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use zoolock_wire::op;

use super::super::{GuardedCore, SharedServer};
use super::java_date;
use crate::core::{ConnId, ConnectionReport, DataWatchCounts};
use crate::ids::SessionId;

/// Returns a line for each connection. `sender` is the connection that sent the word.
pub(super) fn list_connections(inner: &GuardedCore, sender: ConnId, brief: bool) -> String {
    let mut text = String::new();
    for report in inner.core.connections() {
        let Some(peer) = inner.peers.get(&report.conn) else { continue };
        let ConnectionReport { conn, session, counts } = report;
        // This is 1 if the server still reads from the connection. The server no longer reads from
        // the connection that sent the word.
        let open = i32::from(conn != sender);
        let _ =
            write!(text, " /{}[{open}](queued=0,recved={},sent={}", peer.addr, counts.received, counts.sent);
        if let (false, Some((session, timeout_ms))) = (brief, session) {
            let _ = write!(
                text,
                ",sid={session:#x},lop={},est={},to={timeout_ms}",
                abbreviate_operation(counts.last_op),
                peer.since_ms
            );
            if counts.last_xid >= 0 {
                let _ = write!(text, ",lcxid={:#x}", counts.last_xid);
            }
            let latency = counts.latency;
            let _ = write!(
                text,
                ",lzxid={:#x},lresp={},llat={},minlat={},avglat={:.0},maxlat={}",
                counts.last_zxid,
                counts.last_answer_ms,
                latency.last,
                latency.min,
                latency.average(),
                latency.max
            );
        }
        text.push_str(")\n");
    }
    text
}

/// Returns the sessions by expiry time, the ephemerals by owner, and the connections.
pub(super) fn dump(shared: &SharedServer) -> String {
    let inner = shared.lock();
    let now = shared.now();
    let core = &inner.core;
    let date = |deadline: u64| {
        let left = i64::try_from(deadline).unwrap_or(i64::MAX).saturating_sub_unsigned(now.mono_ms);
        java_date(now.wall_ms.saturating_add(left))
    };
    let sets = core.sessions_by_deadline();
    let mut text =
        format!("SessionTracker dump:\nSession Sets ({})/({}):\n", sets.len(), core.session_count());
    let mut ends = BTreeMap::new();
    for (&deadline, sessions) in sets {
        let _ = writeln!(text, "{} expire at {}:", sessions.len(), date(deadline));
        for session in sessions {
            ends.insert(*session, deadline);
            let _ = writeln!(text, "\t{session:#x}");
        }
    }
    let owners: Vec<_> = core.state().tree.sessions_with_ephemerals().collect();
    let _ = writeln!(text, "ephemeral nodes dump:\nSessions with Ephemerals ({}):", owners.len());
    for session in owners {
        let _ = writeln!(text, "{session:#x}:");
        for path in core.state().tree.ephemerals(session) {
            let _ = writeln!(text, "\t{path}");
        }
    }
    // A connection has the expiry time of its session. A connection without a session has the current time.
    let mut sets: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let mut count = 0;
    for report in core.connections() {
        let Some(peer) = inner.peers.get(&report.conn) else { continue };
        let session = report.session.map(|(session, _)| session);
        let end = session.and_then(|session| ends.get(&session).copied()).unwrap_or(now.mono_ms);
        let session = session.unwrap_or(SessionId::NONE);
        sets.entry(end).or_default().push(format!("\tip: /{} sessionId: {session:#x}\n", peer.addr));
        count += 1;
    }
    let _ = writeln!(text, "Connections dump:\nConnections Sets ({})/({count}):", sets.len());
    for (end, lines) in sets {
        let _ = writeln!(text, "{} expire at {}:\n{}", lines.len(), date(end), lines.concat().trim_end());
    }
    text
}

pub(super) fn watch_summary(inner: &GuardedCore) -> String {
    let DataWatchCounts { connections, paths, total } = inner.core.data_watch_counts();
    format!("{connections} connections watching {paths} paths\nTotal watches:{total}\n")
}

pub(super) fn watches_by_path(inner: &GuardedCore) -> String {
    let mut text = String::new();
    for (path, sessions) in inner.core.watch_report().by_path {
        let _ = writeln!(text, "{path}");
        for session in sessions {
            let _ = writeln!(text, "\t{session:#x}");
        }
    }
    text + "\n"
}

pub(super) fn watches_by_session(inner: &GuardedCore) -> String {
    let report = inner.core.watch_report();
    let mut by_session: BTreeMap<SessionId, Vec<&str>> = BTreeMap::new();
    for (path, sessions) in &report.by_path {
        for &session in sessions {
            by_session.entry(session).or_default().push(path);
        }
    }
    let mut text = String::new();
    for (session, paths) in by_session {
        let _ = writeln!(text, "{session:#x}");
        for path in paths {
            let _ = writeln!(text, "\t{path}");
        }
    }
    text + "\n"
}

/// Returns ZooKeeper's abbreviation of an operation.
fn abbreviate_operation(code: i32) -> &'static str {
    match code {
        op::CREATE_SESSION => "SESS",
        op::CLOSE_SESSION => "CLOS",
        op::CREATE | op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL => "CREA",
        op::DELETE => "DELE",
        op::EXISTS => "EXIS",
        op::GET_DATA => "GETD",
        op::SET_DATA => "SETD",
        op::GET_ACL => "GETA",
        op::SET_ACL => "SETA",
        op::GET_CHILDREN | op::GET_CHILDREN2 => "GETC",
        op::SYNC => "SYNC",
        op::PING => "PING",
        op::CHECK => "CHEC",
        op::MULTI => "MULT",
        op::MULTI_READ => "MLTR",
        op::RECONFIG => "RECO",
        op::CHECK_WATCHES => "CHKW",
        op::REMOVE_WATCHES => "REMW",
        op::SET_WATCHES => "SETW",
        op::SET_WATCHES2 => "STW2",
        op::ADD_WATCH => "ADDW",
        op::GET_EPHEMERALS => "GETE",
        op::GET_ALL_CHILDREN_NUMBER => "GETACN",
        op::WHO_AM_I => "HOMI",
        _ => "NA",
    }
}
