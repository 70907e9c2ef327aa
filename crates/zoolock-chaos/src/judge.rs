//! The judge: reads the referee's file when all is over.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::Connection;

use crate::Outcome;
use crate::clock::seconds;
use crate::drill::Seen;
use crate::notes::{Section, Share};
use crate::timeline::Sample;
use crate::worker::TIMEOUTS;

/// A fault as it was.
pub(crate) struct Fault {
    pub(crate) kind: String,
    pub(crate) target: String,
    pub(crate) struck: i64,
    pub(crate) healed: i64,
    pub(crate) settled: i64,
}

impl Fault {
    /// Whether it came to pass: to take a session one has to be there, say.
    pub(crate) fn is_done(&self) -> bool {
        !self.kind.ends_with(NOT_DONE)
    }
}

/// What is behind the name of a fault that was begun only.
pub(crate) const NOT_DONE: &str = " (not done)";

/// What came out.
pub(crate) struct Verdict {
    /// What must not be.
    pub(crate) violations: Vec<String>,
    /// Where a node of ZooKeeper had another tree than the others, and began anew.
    pub(crate) diverged: Vec<String>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) began: i64,
    pub(crate) ended: i64,
    /// Sections that a holder believed in, by kind of lock.
    pub(crate) sections: BTreeMap<String, u64>,
    /// Writes that were done.
    pub(crate) written: u64,
    /// Writes that the fence refused; when.
    pub(crate) refused: Vec<i64>,
    /// Refused writes of holders whose guard still said that it is valid: somebody had deleted the node.
    pub(crate) refused_in_belief: u64,
    /// Beliefs that overlapped because somebody had deleted the node.
    pub(crate) excused: u64,
    /// Releases that were confirmed.
    pub(crate) released: u64,
    /// How asking ended where the lock was not granted or was lost, and how often.
    pub(crate) ends: BTreeMap<String, u64>,
    /// The longest that anybody waited, in seconds, from asking to the grant.
    pub(crate) longest_wait: f64,
}

/// Judges a run.
pub(crate) fn judge(file: &Path, seen: Seen) -> Outcome<Verdict> {
    let db = Connection::open(file)?;
    let faults = faults(&db)?;
    let mut verdict = Verdict {
        violations: seen.violations,
        diverged: seen.diverged,
        faults,
        samples: seen.samples,
        began: seen.began,
        ended: seen.ended,
        sections: BTreeMap::new(),
        written: 0,
        refused: Vec::new(),
        refused_in_belief: 0,
        excused: 0,
        released: 0,
        ends: BTreeMap::new(),
        longest_wait: 0.0,
    };
    verdict.judge_writes(&db)?;
    let sections = sections(&db)?;
    for section in &sections {
        verdict.count(section);
    }
    verdict.judge_beliefs(&sections);
    Ok(verdict)
}

fn faults(db: &Connection) -> rusqlite::Result<Vec<Fault>> {
    let mut rows = db.prepare("SELECT kind, target, struck, healed, settled FROM faults ORDER BY struck")?;
    let faults = rows.query_map([], |row| {
        Ok(Fault {
            kind: row.get(0)?,
            target: row.get(1)?,
            struck: row.get(2)?,
            healed: row.get(3)?,
            settled: row.get(4)?,
        })
    })?;
    faults.collect()
}

fn sections(db: &Connection) -> Outcome<Vec<Section>> {
    let mut rows = db.prepare("SELECT section FROM sections ORDER BY granted")?;
    let texts = rows.query_map([], |row| row.get::<_, String>(0))?;
    let mut sections = Vec::new();
    for text in texts {
        sections.push(serde_json::from_str(&text?)?);
    }
    Ok(sections)
}

impl Verdict {
    /// Among those that were done, no older token comes after a newer one: read from what was written down, not from
    /// the fence.
    fn judge_writes(&mut self, db: &Connection) -> rusqlite::Result<()> {
        let mut newest: BTreeMap<String, (String, String)> = BTreeMap::new();
        let mut last_refused = (0, String::new());
        let mut rows = db.prepare("SELECT at, who, lock, token, done FROM writes ORDER BY n")?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let (at, who, lock, token): (i64, String, String, String) =
                (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
            if !row.get::<_, bool>(4)? {
                // A multi-lock is refused as one.
                if (last_refused.0 + 1_000_000, &last_refused.1) < (at, &who) || last_refused.1 != who {
                    self.refused.push(at);
                }
                last_refused = (at, who);
                continue;
            }
            self.written += 1;
            match newest.get(&lock) {
                Some((newer, by)) if *newer > token => self.violations.push(format!(
                    "lock {lock}: {who} wrote with {token} after {by} with {newer}, at {:.3} s",
                    seconds(at - self.began)
                )),
                _ => drop(newest.insert(lock, (token, who))),
            }
        }
        Ok(())
    }

    fn count(&mut self, section: &Section) {
        if section.believed.is_some() {
            *self.sections.entry(section.kind.clone()).or_default() += 1;
        }
        if section.end != "released" {
            // Without the names in it.
            let end = section.end.rsplit(": ").next().unwrap_or_default();
            *self.ends.entry(end.chars().take(60).collect()).or_default() += 1;
        }
        self.released += u64::from(section.released.is_some());
        if let Some(granted) = section.granted {
            self.longest_wait = self.longest_wait.max(seconds(granted - section.asked));
        }
        if section.refused_in_belief == 0 {
            return;
        }
        let at = section.believed.unwrap_or(section.asked);
        if section.locks.iter().any(|lock| self.was_taken_away(lock, at)) {
            self.refused_in_belief += u64::from(section.refused_in_belief);
        } else {
            self.violations.push(format!(
                "lock {}: a write of {:?} was refused while its guard was valid, at {:.3} s",
                section.locks.join(" and "),
                section.who,
                seconds(at - self.began)
            ));
        }
    }

    /// Two may not both believe at the same time, unless they may hold together.
    fn judge_beliefs(&mut self, sections: &[Section]) {
        let mut holding: BTreeMap<&str, Vec<(i64, &Section)>> = BTreeMap::new();
        for section in sections {
            let (Some(from), Some(to)) = (section.granted, section.believed) else { continue };
            for lock in &section.locks {
                let holders = holding.entry(lock).or_default();
                holders.retain(|(to, _)| *to > from);
                if to <= from {
                    continue;
                }
                if let Some(other) = beside(section, holders) {
                    if self.was_taken_away(lock, from) {
                        self.excused += 1;
                    } else {
                        self.violations.push(format!(
                            "lock {lock}: {:?} ({}) believed from {:.4} to {:.4} s while {:?} ({}) did from {:.4} to {:.4}",
                            section.who,
                            section.kind,
                            seconds(from - self.began),
                            seconds(to - self.began),
                            other.1.who,
                            other.1.kind,
                            seconds(other.1.granted.unwrap_or_default() - self.began),
                            seconds(other.0 - self.began),
                        ));
                    }
                }
                holders.push((to, section));
            }
        }
    }

    /// Whether somebody deleted the nodes of this lock, or closed a session, shortly before: no lock service can tell
    /// a holder before it happens.
    fn was_taken_away(&self, lock: &str, at: i64) -> bool {
        let grace = i64::try_from(TIMEOUTS[1].as_nanos()).unwrap_or(i64::MAX);
        self.faults.iter().any(|fault| {
            let at_hand = (fault.struck..fault.settled.max(fault.healed + grace)).contains(&at);
            let kind = fault.kind.trim_end_matches(NOT_DONE);
            let here = fault.target == lock || !fault.is_done();
            at_hand && (kind == "take-session" || kind == "delete-directory" && here)
        })
    }
}

/// Who may not hold beside it.
fn beside<'a>(section: &Section, holders: &[(i64, &'a Section)]) -> Option<(i64, &'a Section)> {
    match section.share {
        Share::Alone => holders.first().copied(),
        Share::Reads => holders.iter().find(|(_, other)| other.share != Share::Reads).copied(),
        Share::Permits(permits, of) => {
            let taken = holders.iter().map(|(_, other)| match other.share {
                Share::Permits(permits, _) => permits,
                _ => of,
            });
            if taken.sum::<u32>() + permits > of { holders.first().copied() } else { None }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::Who;

    fn section(task: usize, share: Share, granted: i64, believed: i64) -> Section {
        Section {
            who: Who { worker: 0, life: 1, task },
            kind: "mutex".to_owned(),
            locks: vec!["m".to_owned()],
            share,
            asked: 0,
            granted: Some(granted),
            believed: Some(believed),
            released: None,
            ticket: None,
            refused_in_belief: 0,
            refused_in_time: 0,
            end: "released".to_owned(),
        }
    }

    fn overlaps(sections: &[Section], faults: Vec<Fault>) -> (usize, u64) {
        let mut verdict = Verdict {
            violations: Vec::new(),
            diverged: Vec::new(),
            faults,
            samples: Vec::new(),
            began: 0,
            ended: 0,
            sections: BTreeMap::new(),
            written: 0,
            refused: Vec::new(),
            refused_in_belief: 0,
            excused: 0,
            released: 0,
            ends: BTreeMap::new(),
            longest_wait: 0.0,
        };
        verdict.judge_beliefs(sections);
        (verdict.violations.len(), verdict.excused)
    }

    #[test]
    fn two_who_hold_alone_may_not_overlap() {
        let (one, other) = (section(0, Share::Alone, 0, 10), section(1, Share::Alone, 9, 20));
        assert_eq!(overlaps(&[one, other], Vec::new()), (1, 0));
        let (one, other) = (section(0, Share::Alone, 0, 10), section(1, Share::Alone, 10, 20));
        assert_eq!(overlaps(&[one, other], Vec::new()), (0, 0));
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let (one, other) = (section(0, Share::Reads, 0, 10), section(1, Share::Reads, 5, 20));
        let writer = section(2, Share::Alone, 15, 30);
        assert_eq!(overlaps(&[one.clone(), other.clone()], Vec::new()), (0, 0));
        assert_eq!(overlaps(&[one, other, writer], Vec::new()), (1, 0));
    }

    #[test]
    fn permits_add_up() {
        let one = section(0, Share::Permits(2, 3), 0, 10);
        let other = section(1, Share::Permits(1, 3), 1, 10);
        let third = section(2, Share::Permits(1, 3), 2, 10);
        assert_eq!(overlaps(&[one.clone(), other.clone()], Vec::new()), (0, 0));
        assert_eq!(overlaps(&[one, other, third], Vec::new()), (1, 0));
    }

    #[test]
    fn only_who_was_deleted_is_excused() {
        let deleted = |lock: &str| Fault {
            kind: "delete-directory".to_owned(),
            target: lock.to_owned(),
            struck: 5,
            healed: 6,
            settled: 7,
        };
        let both = [section(0, Share::Alone, 0, 10), section(1, Share::Alone, 9, 20)];
        assert_eq!(overlaps(&both, vec![deleted("m")]), (0, 1));
        assert_eq!(overlaps(&both, vec![deleted("other")]), (1, 0));
    }
}
