//! Finds the time at which a holder was granted the lock.
//!
//! Holders do not write that time, because it would cost a request. But the server's clock is in the Stat of the znodes
//! that holders write anyway. If none of these facts applies, the time is unknown:
//!
//! | fact | time of the grant |
//! |---|---|
//! | the record is the holder's own `held` marker | when the record was written |
//! | the holder's data says `granted`, and was written once | when the data was written |
//! | no child was created or deleted since the holder's znode was created, or it was the first child | when the znode was created |
//! | the record is the marker of a clean release or of a break, and all numbers after it up to the holder's are those of holders | when the marker was written, or the znode was created; the later of both |
//!
//! A contender of several locks holds none of them before it is first in all queues, so only its `held` marker counts.

use std::collections::HashSet;

use zoolock_core::names::Role;
use zoolock_core::record::{HolderState, Marker};
use zoolock_core::{Sequence, Zxid};

use super::entry;
use super::holders::ContenderRead;
use crate::base::metrics::SEVERAL_MUTEXES;
use crate::engine::data::NodeData;

/// The facts about the grants in one directory.
pub(super) struct GrantFacts {
    /// The marker in the record, and the time at which it was written.
    marker: Option<(Marker, i64)>,
    /// The time at which the record was written.
    record_ms: i64,
    /// The last transaction that created or deleted a child.
    last_change: Option<Zxid>,
    /// The sequence numbers of all holders.
    holders: HashSet<Sequence>,
}

impl GrantFacts {
    /// `marker`: the marker in the record; `record_ms`: the time at which the record was written.
    pub(super) fn new(
        marker: Option<Marker>,
        record_ms: i64,
        last_change: Option<Zxid>,
        holders: &[ContenderRead],
    ) -> GrantFacts {
        let holders = holders.iter().map(|holder| holder.contender.name.sequence).collect();
        GrantFacts { marker: marker.map(|marker| (marker, record_ms)), record_ms, last_change, holders }
    }

    /// Returns the time at which the holder was granted the lock, in milliseconds of Unix time. Returns `None` if the
    /// time is unknown, or if the server's clock was not set.
    pub(super) fn grant_time(&self, holder: &ContenderRead) -> Option<u64> {
        let (data, stat) = holder.read.as_ref()?;
        let own = holder.contender.name.sequence;
        let data = NodeData::parse(data);
        let kind = data.as_ref().map_or("", |data| data.kind.as_str());
        let time = match self.marker {
            Some((marker, time)) if (marker.state, marker.sequence) == (HolderState::Held, own) => time,
            _ if kind == SEVERAL_MUTEXES || kind == "upgrade" => return None,
            _ if data.is_some_and(|data| data.granted && !data.revoked) && stat.version == 1 => {
                stat.modified_ms
            }
            // A semaphore may have got more permits since then.
            _ if holder.contender.name.role == Role::Permit && self.record_ms > stat.created_ms => {
                return None;
            }
            _ if own == Sequence(0) || self.last_change == Some(stat.czxid) => stat.created_ms,
            Some((marker, time)) if was_written_by_deletion(marker) && self.hold_all_after(marker, own) => {
                time.max(stat.created_ms)
            }
            _ => return None,
        };
        u64::try_from(time).ok().filter(|&time| entry::is_plausible(time))
    }

    /// Returns whether all numbers between that of the marker and `own` are those of holders.
    fn hold_all_after(&self, marker: Marker, own: Sequence) -> bool {
        marker.sequence < own
            && (marker.sequence.0 + 1..own.0).all(|number| self.holders.contains(&Sequence(number)))
    }
}

/// Returns whether the marker was written by the transaction that deleted the znode of its holder. In a tracked lock, a
/// contender that gives up may also write `broken`. But there, each holder has a `held` marker of its own.
fn was_written_by_deletion(marker: Marker) -> bool {
    marker.state == HolderState::Released || (marker.state == HolderState::Broken && !marker.tracked)
}

#[cfg(test)]
mod tests {
    use zoolock_core::SessionId;
    use zoolock_core::names::Name;

    use super::*;
    use crate::engine::gather::FoundContender;
    use crate::zk::session::ZnodeStat;

    const DIRECTORY: Zxid = Zxid(3);
    /// The time at which the contenders of the tests were created.
    const CREATED: i64 = 1_800_000_000_000;
    /// The time at which the record was written.
    const WRITTEN: i64 = CREATED + 40_000;

    /// Returns a contender whose znode was created by the transaction 100 + its number.
    fn contender(node: &str, data: &str) -> ContenderRead {
        let name = Name::parse(node).expect("a contender's name");
        let stat = ZnodeStat {
            czxid: Zxid(100 + i64::from(name.sequence.0)),
            pzxid: Zxid(100),
            version: 0,
            children: 0,
            created_children: 0,
            owner: SessionId(7),
            created_ms: CREATED,
            modified_ms: CREATED,
        };
        let contender = FoundContender { node: node.to_owned(), name };
        ContenderRead { contender, read: Some((data.as_bytes().to_vec(), stat)), was_tried: true }
    }

    fn marker(state: HolderState, number: i32) -> Option<(Marker, i64)> {
        let marker = Marker { directory: DIRECTORY, state, sequence: Sequence(number), tracked: false };
        Some((marker, WRITTEN))
    }

    /// Returns the time of the grant of the last of the holders, after later changes of the children.
    fn grant_time(marker: Option<(Marker, i64)>, holders: &[ContenderRead]) -> Option<u64> {
        let record_ms = marker.map_or(0, |(_, time)| time);
        let facts = GrantFacts::new(marker.map(|(marker, _)| marker), record_ms, Some(Zxid(1000)), holders);
        facts.grant_time(holders.last().expect("a holder"))
    }

    fn some(time: i64) -> Option<u64> {
        u64::try_from(time).ok()
    }

    #[test]
    fn clean_release_of_the_number_before_grants() {
        let holder = || [contender("lock-0000000005", "")];
        assert_eq!(grant_time(marker(HolderState::Released, 4), &holder()), some(WRITTEN));
        assert_eq!(grant_time(marker(HolderState::Broken, 4), &holder()), some(WRITTEN));
        let tracked =
            marker(HolderState::Broken, 4).map(|(marker, time)| (Marker { tracked: true, ..marker }, time));
        assert_eq!(grant_time(tracked, &holder()), None);
        for state in [HolderState::Panicked, HolderState::Downgraded, HolderState::Held] {
            assert_eq!(grant_time(marker(state, 4), &holder()), None, "{state:?}");
        }
        // A contender between the two may have held, too, or may have given up.
        assert_eq!(grant_time(marker(HolderState::Released, 3), &holder()), None);
        assert_eq!(grant_time(marker(HolderState::Released, 6), &holder()), None);
        assert_eq!(grant_time(None, &holder()), None);
        let mut late = holder();
        late[0].read.as_mut().expect("a read").1.created_ms = WRITTEN + 5;
        assert_eq!(grant_time(marker(HolderState::Released, 4), &late), some(WRITTEN + 5));
    }

    #[test]
    fn clean_release_grants_to_all_readers_behind_it() {
        let readers = [3, 4, 5].map(|number| contender(&format!("__READ__000000000{number}"), ""));
        assert_eq!(grant_time(marker(HolderState::Released, 2), &readers), some(WRITTEN));
        assert_eq!(grant_time(marker(HolderState::Released, 2), &readers[1..]), None);
    }

    #[test]
    fn held_marker_tells_the_grant() {
        let holder = [contender("lock-0000000005", "")];
        assert_eq!(grant_time(marker(HolderState::Held, 5), &holder), some(WRITTEN));
        let several = [contender("lock-0000000005", r#"{"id":"1","kind":"multi"}"#)];
        assert_eq!(grant_time(marker(HolderState::Held, 5), &several), some(WRITTEN));
        assert_eq!(grant_time(marker(HolderState::Released, 4), &several), None);
    }

    #[test]
    fn contender_that_found_nobody_held_at_once() {
        let holder = contender("lock-0000000005", "");
        let facts = |last| GrantFacts::new(None, 0, Some(Zxid(last)), std::slice::from_ref(&holder));
        assert_eq!(facts(105).grant_time(&holder), some(CREATED));
        assert_eq!(facts(106).grant_time(&holder), None);
        let first = [contender("lock-0000000000", "")];
        assert_eq!(grant_time(None, &first), some(CREATED));
        let mut unset = [contender("lock-0000000000", "")];
        unset[0].read.as_mut().expect("a read").1.created_ms = 8_000;
        assert_eq!(grant_time(None, &unset), None, "the server's clock was not set");
    }

    #[test]
    fn permits_are_granted_when_the_holder_says_so() {
        let permits = |data: &str, version| {
            let mut holder = contender("permit-1-0000000005", data);
            let stat = &mut holder.read.as_mut().expect("a read").1;
            (stat.version, stat.modified_ms) = (version, WRITTEN);
            grant_time(None, &[holder])
        };
        let granted = r#"{"id":"1","kind":"permits","granted":true}"#;
        assert_eq!(permits(granted, 1), some(WRITTEN));
        assert_eq!(permits(granted, 2), None, "a later write hides the time");
        assert_eq!(permits(r#"{"id":"1","kind":"permits"}"#, 0), None);
        // It found nobody, but the number of permits was changed later.
        let holder = contender("permit-1-0000000005", r#"{"id":"1","kind":"permits"}"#);
        let facts = |ms| GrantFacts::new(None, ms, Some(Zxid(105)), std::slice::from_ref(&holder));
        assert_eq!(facts(CREATED).grant_time(&holder), some(CREATED));
        assert_eq!(facts(WRITTEN).grant_time(&holder), None);
    }
}
