//! The terms of all elections, and their judge.

use std::collections::BTreeMap;
use std::time::Duration;

use super::candidate::{TermMoment, TermReport};

/// A term counts as valid at a time if its work has reported that it is, at most this number of nanoseconds before.
const RECENT: i64 = 500_000_000;

/// A term. Times are those of [`now`](crate::clock::now).
struct ObservedTerm {
    candidate: usize,
    began: i64,
    last_valid: Option<i64>,
    /// The milliseconds that were left then.
    left: u64,
    /// Set once the work has found the term invalid.
    is_over: bool,
    /// The end of the work. The work of a killed process reports none.
    ended: Option<i64>,
}

/// The terms by election and token. Tokens sort as their texts.
pub(super) struct Terms {
    elections: Vec<BTreeMap<String, ObservedTerm>>,
    /// The highest token that each resource has seen.
    fences: Vec<String>,
    pub(super) writes: u64,
    pub(super) refused: u64,
    /// The terms whose work must have ended before the next term began: elections and tokens.
    ordered: Vec<(usize, String)>,
    /// The violations that the reports themselves show.
    found: Vec<String>,
}

impl Terms {
    pub(super) fn new(elections: usize) -> Terms {
        let elections: Vec<_> = (0..elections).map(|_| BTreeMap::new()).collect();
        let fences = vec![String::new(); elections.len()];
        Terms { elections, fences, writes: 0, refused: 0, ordered: Vec::new(), found: Vec::new() }
    }

    pub(super) fn record(&mut self, candidate: usize, report: TermReport) {
        let TermReport { election, token, at, what } = report;
        let terms = &mut self.elections[election];
        let term = terms.entry(token.clone()).or_insert_with(|| ObservedTerm {
            candidate,
            began: at,
            last_valid: None,
            left: 0,
            is_over: false,
            ended: None,
        });
        if term.candidate != candidate {
            self.found.push(format!("election {election}: two candidates have the token {token}"));
        }
        match what {
            TermMoment::Began => {}
            TermMoment::Valid { left } => {
                if std::mem::take(&mut term.is_over) {
                    self.found.push(format!("election {election}: {token} is valid again"));
                }
                (term.last_valid, term.left) = (Some(at), left);
                // The work writes whenever its term is valid.
                self.writes += 1;
                match token < self.fences[election] {
                    true => self.refused += 1,
                    false => self.fences[election] = token,
                }
            }
            TermMoment::Invalid => term.is_over = true,
            TermMoment::Ended => term.ended = Some(at),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.elections.iter().map(BTreeMap::len).sum()
    }

    /// Returns the candidate and the token of the last term of each election.
    pub(super) fn leaders(&self) -> Vec<(usize, String)> {
        let last = |terms: &BTreeMap<String, ObservedTerm>| {
            let (token, term) = terms.last_key_value().expect("each election has a leader");
            (term.candidate, token.clone())
        };
        self.elections.iter().map(last).collect()
    }

    /// Requires that the work of these terms ends before the next terms begin.
    pub(super) fn require_order(&mut self, terms: &[(usize, String)]) {
        self.ordered.extend_from_slice(terms);
    }

    /// Returns the number of elections whose last term is valid at this time.
    pub(super) fn led_at(&self, at: i64) -> usize {
        let is_led = |terms: &&BTreeMap<String, ObservedTerm>| {
            terms.values().next_back().is_some_and(|term| {
                term.ended.is_none() && term.last_valid.is_some_and(|valid| valid > at - RECENT)
            })
        };
        self.elections.iter().filter(is_led).count()
    }

    /// Returns when the last of the terms began that follow these; `None` if one has not begun.
    pub(super) fn next_terms(&self, terms: &[(usize, String)]) -> Option<i64> {
        let next = |(election, token): &(usize, String)| {
            let mut later = self.elections[*election].iter().filter(|(other, _)| *other > token);
            later.next().map(|(_, term)| term.began)
        };
        terms.iter().map(next).try_fold(i64::MIN, |last, began| Some(last.max(began?)))
    }

    /// Returns the shortest time that is left of the leases of these terms.
    pub(super) fn least_left(&self, terms: &[(usize, String)], at: i64) -> Duration {
        let left = terms.iter().map(|(election, token)| {
            let term = &self.elections[*election][token];
            let since = at - term.last_valid.unwrap_or(term.began);
            Duration::from_millis(term.left).saturating_sub(Duration::from_nanos(since.unsigned_abs()))
        });
        left.min().unwrap_or_default()
    }

    /// Returns whether all these terms were valid after this time.
    pub(super) fn are_valid_since(&self, terms: &[(usize, String)], at: i64) -> bool {
        terms.iter().all(|(election, token)| {
            self.elections[*election][token].last_valid.is_some_and(|valid| valid > at)
        })
    }

    /// Returns the number of these terms that have ended, or are no longer the last ones.
    pub(super) fn count_ended(&self, terms: &[(usize, String)]) -> usize {
        let has_ended = |(election, token): &&(usize, String)| {
            let term = &self.elections[*election][token];
            term.ended.is_some() || self.elections[*election].keys().next_back() != Some(token)
        };
        terms.iter().filter(has_ended).count()
    }

    /// Returns what must not happen: a term that begins while the work of an earlier one may rely on its lease, or, after a
    /// resignation, before that work has ended.
    pub(super) fn violations(&self) -> Vec<String> {
        let mut found = self.found.clone();
        for (election, terms) in self.elections.iter().enumerate() {
            let mut latest: Option<(i64, &String)> = None;
            for (token, term) in terms {
                if let Some((valid, earlier)) = latest
                    && valid > term.began
                {
                    let overlap = valid - term.began;
                    found.push(format!(
                        "election {election}: {earlier} was valid {overlap} ns after {token} began"
                    ));
                }
                if let Some(valid) = term.last_valid
                    && latest.is_none_or(|(at, _)| valid > at)
                {
                    latest = Some((valid, token));
                }
            }
        }
        for (election, token) in &self.ordered {
            let ended = self.elections[*election][token].ended;
            let began = self.next_terms(&[(*election, token.clone())]);
            if ended.is_none_or(|ended| began.is_some_and(|began| began < ended)) {
                found.push(format!(
                    "election {election}: the work of {token} had not ended when the next term began"
                ));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(token: &str, at: i64, what: TermMoment) -> TermReport {
        TermReport { election: 0, token: token.to_owned(), at, what }
    }

    #[test]
    fn overlapping_terms_are_found() {
        let valid = TermMoment::Valid { left: 1000 };
        let judge = |last_valid: i64| {
            let mut terms = Terms::new(1);
            terms.record(0, report("1", 10, TermMoment::Began));
            terms.record(1, report("2", 30, TermMoment::Began));
            terms.record(1, report("2", 31, valid));
            terms.record(0, report("1", last_valid, valid));
            (terms.violations().len(), terms.refused)
        };
        assert_eq!(judge(29), (0, 1));
        assert_eq!(judge(31), (1, 1));
    }

    #[test]
    fn term_that_is_valid_again_is_found() {
        let mut terms = Terms::new(1);
        for what in [TermMoment::Began, TermMoment::Invalid, TermMoment::Valid { left: 1 }] {
            terms.record(0, report("1", 10, what));
        }
        assert_eq!(terms.violations().len(), 1);
    }

    #[test]
    fn work_that_ends_after_the_next_term_began_is_found() {
        let judge = |ended: Option<i64>| {
            let mut terms = Terms::new(1);
            terms.record(0, report("1", 10, TermMoment::Began));
            terms.require_order(&[(0, "1".to_owned())]);
            terms.record(1, report("2", 30, TermMoment::Began));
            if let Some(ended) = ended {
                terms.record(0, report("1", ended, TermMoment::Ended));
            }
            terms.violations().len()
        };
        assert_eq!([judge(Some(29)), judge(Some(31)), judge(None)], [0, 1, 1]);
    }

    #[test]
    fn token_of_two_candidates_is_found() {
        let mut terms = Terms::new(1);
        terms.record(0, report("1", 10, TermMoment::Began));
        terms.record(1, report("1", 20, TermMoment::Began));
        assert_eq!(terms.violations().len(), 1);
    }
}
