//! The judge of a run, which reads the database of the referee.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::Connection;
use zoolock_tests::judge::conflicting;

use crate::Outcome;
use crate::clock::seconds;
use crate::messages::CriticalSection;
use crate::usable_spans::UsableSpans;
use crate::verdict::{FaultRecord, NOT_DONE, Observations, RunVerdict};
use crate::worker::TIMEOUTS;

/// Judges a run.
pub(crate) fn judge(file: &Path, observations: Observations) -> Outcome<RunVerdict> {
    let db = Connection::open(file)?;
    let faults = read_injected_faults(&db)?;
    let reach = observations.reach;
    let mut verdict = RunVerdict {
        violations: observations.violations,
        diverged: observations.diverged,
        faults,
        samples: observations.samples,
        began: observations.began,
        ended: observations.ended,
        ..RunVerdict::default()
    };
    for (node, usable) in reach.usable.iter().enumerate() {
        if usable.is_empty() {
            verdict.violations.push(format!("node {} answered no probe, so no loss can be judged", node + 1));
        }
    }
    verdict.judge_writes(&db)?;
    let sections = read_sections(&db)?;
    for section in &sections {
        verdict.count_section(section);
        verdict.judge_loss(section, &reach);
    }
    verdict.judge_overlaps(&sections);
    Ok(verdict)
}

fn read_injected_faults(db: &Connection) -> rusqlite::Result<Vec<FaultRecord>> {
    let mut rows = db.prepare("SELECT kind, target, struck, healed, settled FROM faults ORDER BY struck")?;
    let faults = rows.query_map([], |row| {
        Ok(FaultRecord {
            kind: row.get(0)?,
            target: row.get(1)?,
            struck: row.get(2)?,
            healed: row.get(3)?,
            settled: row.get(4)?,
        })
    })?;
    faults.collect()
}

fn read_sections(db: &Connection) -> Outcome<Vec<CriticalSection>> {
    let mut rows = db.prepare("SELECT section FROM sections ORDER BY granted")?;
    let texts = rows.query_map([], |row| row.get::<_, String>(0))?;
    let mut sections = Vec::new();
    for text in texts {
        sections.push(serde_json::from_str(&text?)?);
    }
    Ok(sections)
}

impl RunVerdict {
    /// Checks for each lock that the tokens of accepted writes never decrease. Reads the table
    /// `writes`, which contains all writes, and not the table `fence`.
    fn judge_writes(&mut self, db: &Connection) -> rusqlite::Result<()> {
        let mut newest: BTreeMap<String, (String, String)> = BTreeMap::new();
        let mut last_refused = (0, String::new());
        let mut rows = db.prepare("SELECT at, who, lock, token, done FROM writes ORDER BY n")?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let (at, who, lock, token): (i64, String, String, String) =
                (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
            if !row.get::<_, bool>(4)? {
                // The refused writes of a multi-lock count once.
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

    fn count_section(&mut self, section: &CriticalSection) {
        if section.last_valid.is_some() {
            *self.sections.entry(section.kind.clone()).or_default() += 1;
        }
        if section.end != "released" {
            // The last part of the text names no locks or znodes, so equal ends are counted together.
            let end = section.end.rsplit(": ").next().unwrap_or_default();
            *self.ends.entry(end.chars().take(60).collect()).or_default() += 1;
        }
        self.released += u64::from(section.released.is_some());
        if let Some(granted) = section.granted {
            self.longest_wait = self.longest_wait.max(seconds(granted - section.asked));
        }
        if section.refused_while_valid == 0 {
            return;
        }
        let at = section.last_valid.unwrap_or(section.asked);
        if section.locks.iter().any(|lock| self.was_taken_away(lock, at)) {
            self.refused_while_valid += u64::from(section.refused_while_valid);
        } else {
            self.violations.push(format!(
                "lock {}: a write of {:?} was refused while its guard was valid, at {:.3} s",
                section.locks.join(" and "),
                section.who,
                seconds(at - self.began)
            ));
        }
    }

    /// Checks that the lock was not lost although a node could have kept it. A node could have kept
    /// the lock if the node was usable, and the worker reached the node, for a whole span. The span
    /// begins a sixth of the session timeout before the last time at which the guard was valid. The
    /// span ends with the loss.
    fn judge_loss(&mut self, section: &CriticalSection, reach: &UsableSpans) {
        let (Some(valid), Some(lost)) = (section.last_valid, section.lost) else { return };
        self.lost += 1;
        let timeout = TIMEOUTS[section.who.task % TIMEOUTS.len()];
        let span = (valid - i64::try_from(timeout.as_nanos() / 6).unwrap_or(i64::MAX), lost);
        let worker = format!("worker {}", section.who.worker);
        // Losses during these faults are excused: a stopped process renews nothing, and an intruder
        // can close a session.
        let is_excused = self.faults.iter().any(|fault| {
            let hits = match fault.kind.trim_end_matches(NOT_DONE) {
                "stop-client" | "kill-client" => fault.target.split(',').next() == Some(worker.as_str()),
                "take-session" => true,
                _ => false,
            };
            hits && fault.struck < span.1 && span.0 < fault.settled
        });
        if let Some(node) = reach.usable_node(section.who.worker, span).filter(|_| !is_excused) {
            self.needlessly_lost += 1;
            self.violations.push(format!(
                "lock {}: {:?} lost it needlessly between {:.3} and {:.3} s: node {} was usable",
                section.locks.join(" and "),
                section.who,
                seconds(valid - self.began),
                seconds(lost - self.began),
                node + 1,
            ));
        }
    }

    /// Checks that the guards of two holders of a lock are valid at the same time only if their
    /// shares of the lock are compatible. For example, two readers are compatible.
    fn judge_overlaps(&mut self, sections: &[CriticalSection]) {
        let mut holding: BTreeMap<&str, Vec<(i64, &CriticalSection)>> = BTreeMap::new();
        for section in sections {
            let (Some(from), Some(to)) = (section.granted, section.last_valid) else { continue };
            for lock in &section.locks {
                let holders = holding.entry(lock).or_default();
                holders.retain(|(to, _)| *to > from);
                if to <= from {
                    continue;
                }
                let shares = holders.iter().map(|holder| (*holder, holder.1.share));
                let others = conflicting(section.share, shares);
                if let Some(other) = others.as_deref().and_then(<[_]>::first) {
                    if self.was_taken_away(lock, from) {
                        self.excused += 1;
                    } else {
                        self.violations.push(format!(
                            "lock {lock}: {:?} ({}) held from {:.4} to {:.4} s while {:?} ({}) held from {:.4} to {:.4}",
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

    /// Returns whether a fault deleted the znodes of this lock or closed a session shortly before `at`. No lock service
    /// can report such a loss to the holder before it happens.
    fn was_taken_away(&self, lock: &str, at: i64) -> bool {
        let grace = i64::try_from(TIMEOUTS[1].as_nanos()).unwrap_or(i64::MAX);
        self.faults.iter().any(|fault| {
            let is_recent = (fault.struck..fault.settled.max(fault.healed + grace)).contains(&at);
            let kind = fault.kind.trim_end_matches(NOT_DONE);
            let may_affect_lock = fault.target == lock || !fault.is_done();
            is_recent && (kind == "take-session" || kind == "delete-directory" && may_affect_lock)
        })
    }
}

#[cfg(test)]
mod tests {
    use zoolock_tests::judge::Share;

    use super::*;
    use crate::messages::TaskId;

    fn section(task: usize, share: Share, granted: i64, last_valid: i64) -> CriticalSection {
        CriticalSection {
            who: TaskId { worker: 0, life: 1, task },
            kind: "mutex".to_owned(),
            locks: vec!["m".to_owned()],
            share,
            asked: 0,
            granted: Some(granted),
            last_valid: Some(last_valid),
            lost: None,
            released: None,
            ticket: None,
            refused_while_valid: 0,
            refused_while_invalid: 0,
            end: "released".to_owned(),
        }
    }

    fn overlaps(sections: &[CriticalSection], faults: Vec<FaultRecord>) -> (usize, u64) {
        let mut verdict = RunVerdict { faults, ..RunVerdict::default() };
        verdict.judge_overlaps(sections);
        (verdict.violations.len(), verdict.excused)
    }

    #[test]
    fn exclusive_holders_may_not_overlap() {
        let (one, other) = (section(0, Share::Exclusive, 0, 10), section(1, Share::Exclusive, 9, 20));
        assert_eq!(overlaps(&[one, other], Vec::new()), (1, 0));
        let (one, other) = (section(0, Share::Exclusive, 0, 10), section(1, Share::Exclusive, 10, 20));
        assert_eq!(overlaps(&[one, other], Vec::new()), (0, 0));
    }

    #[test]
    fn only_conflicting_shares_are_violations() {
        let (one, other) = (section(0, Share::Shared, 0, 10), section(1, Share::Shared, 5, 20));
        let writer = section(2, Share::Exclusive, 15, 30);
        assert_eq!(overlaps(&[one.clone(), other.clone()], Vec::new()), (0, 0));
        assert_eq!(overlaps(&[one, other, writer], Vec::new()), (1, 0));
    }

    #[test]
    fn needless_loss_is_found() {
        const SECOND: i64 = 1_000_000_000;
        let mut loss = section(0, Share::Exclusive, 0, 10 * SECOND);
        loss.lost = Some(11 * SECOND);
        let reach = |usable_from| UsableSpans {
            usable: vec![vec![(usable_from, 20 * SECOND)]],
            broken: vec![vec![Vec::new()]],
        };
        let fault = |kind: &str, target: &str| FaultRecord {
            kind: kind.to_owned(),
            target: target.to_owned(),
            struck: 5 * SECOND,
            healed: 6 * SECOND,
            settled: 12 * SECOND,
        };
        let needless = |section: &CriticalSection, reach: &UsableSpans, faults: Vec<FaultRecord>| {
            let mut verdict = RunVerdict { faults, ..RunVerdict::default() };
            verdict.judge_loss(section, reach);
            assert_eq!(verdict.violations.len() as u64, verdict.needlessly_lost);
            verdict.needlessly_lost == 1
        };
        assert!(needless(&loss, &reach(9 * SECOND), Vec::new()));
        assert!(!needless(&loss, &reach(95 * SECOND / 10), Vec::new()), "the server came back too late");
        assert!(!needless(&loss, &reach(0), vec![fault("stop-client", "worker 0, before a write")]));
        assert!(needless(&loss, &reach(0), vec![fault("stop-client", "worker 1")]));
        assert!(needless(&loss, &reach(0), vec![fault("kill-leader", "node 1")]));
        loss.lost = None;
        assert!(!needless(&loss, &reach(0), Vec::new()), "the lock was not lost");
    }

    #[test]
    fn only_the_deleted_lock_is_excused() {
        let deleted = |lock: &str| FaultRecord {
            kind: "delete-directory".to_owned(),
            target: lock.to_owned(),
            struck: 5,
            healed: 6,
            settled: 7,
        };
        let both = [section(0, Share::Exclusive, 0, 10), section(1, Share::Exclusive, 9, 20)];
        assert_eq!(overlaps(&both, vec![deleted("m")]), (0, 1));
        assert_eq!(overlaps(&both, vec![deleted("other")]), (1, 0));
    }
}
