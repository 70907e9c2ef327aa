//! The terms of the election, and their checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zoolock::sim::enter;
use zoolock::{FencingToken, Term};

use crate::{Sim, lock};

/// The terms so far.
#[derive(Default)]
pub(crate) struct Terms {
    terms: Vec<SimTerm>,
    newest: Option<FencingToken>,
    /// The time of the last restore. `newest` is of a later time.
    restored_at: Option<u64>,
}

struct SimTerm {
    host: usize,
    term: Term,
    /// Set until the work has returned or was dropped.
    works: Arc<AtomicBool>,
    /// Set if another term began while this host was paused.
    overtaken: bool,
}

/// Clears the flag when the work is dropped.
pub(crate) struct Work(Arc<AtomicBool>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Terms {
    /// Forgets a crashed host.
    pub(crate) fn forget_host(&mut self, host: usize) -> Vec<Term> {
        let (gone, left) = std::mem::take(&mut self.terms).into_iter().partition(|term| term.host == host);
        self.terms = left;
        let gone: Vec<SimTerm> = gone;
        gone.into_iter().map(|term| term.term).collect()
    }

    /// Removes all terms.
    pub(crate) fn take_all(&mut self) -> Vec<Term> {
        std::mem::take(&mut self.terms).into_iter().map(|term| term.term).collect()
    }
}

impl Sim {
    /// Checks and records a term that begins on this host now.
    pub(crate) fn begin_term(&self, host: usize, term: &Term) -> Work {
        let token = term.token();
        self.note("term", &[host as u64], &token.to_string());
        let mut wrong = Vec::new();
        let history = &mut *lock(&self.history);
        history.grants.terms += 1;
        let terms = &mut history.terms;
        for earlier in &mut terms.terms {
            let (is_paused, is_excused) = self.world(|world| {
                let machine = &world.hosts[earlier.host];
                let is_expired = self.plan.operators && world.any_expired(earlier.host);
                (machine.paused_until > world.now, is_expired || world.is_shortened(earlier.host))
            });
            if is_paused {
                earlier.overtaken = true;
            } else if !is_excused {
                let _inside = enter(&self.hosts()[earlier.host]);
                if earlier.term.is_valid() {
                    wrong.push(format!(
                        "host {host} began the term {token} while {} on host {} is valid",
                        earlier.term.token(),
                        earlier.host
                    ));
                }
                if earlier.works.load(Ordering::SeqCst) && !self.executor.is_busy(earlier.host) {
                    wrong.push(format!(
                        "host {host} began the term {token} while the work of {} on host {} exists",
                        earlier.term.token(),
                        earlier.host
                    ));
                }
            }
        }
        terms.terms.retain(|earlier| earlier.works.load(Ordering::SeqCst));
        // After a restore, tokens may be lower than before.
        let restored = self.world(|world| world.restored_at);
        if terms.restored_at != restored {
            (terms.restored_at, terms.newest) = (restored, None);
        }
        if terms.newest.is_some_and(|newest| newest >= token) {
            wrong.push(format!("the term {token} began after {:?}", terms.newest));
        }
        terms.newest = Some(token);
        let works = Arc::new(AtomicBool::new(true));
        terms.terms.push(SimTerm { host, term: term.clone(), works: works.clone(), overtaken: false });
        wrong.into_iter().for_each(|wrong| self.record_violation(wrong));
        Work(works)
    }

    /// Checks the terms of hosts that were paused.
    pub(crate) fn check_terms(&self) {
        let mut wrong = Vec::new();
        let history = &mut *lock(&self.history);
        for term in history.terms.terms.iter_mut().filter(|term| term.overtaken) {
            let is_paused = self.world(|world| world.hosts[term.host].paused_until > world.now);
            if is_paused || self.executor.is_busy(term.host) {
                continue;
            }
            let _inside = enter(&self.hosts()[term.host]);
            if term.term.is_valid() || term.works.load(Ordering::SeqCst) {
                let (token, host) = (term.term.token(), term.host);
                wrong.push(format!("{token} on host {host} goes on after a pause in which it was lost"));
            }
        }
        wrong.into_iter().for_each(|wrong| self.record_violation(wrong));
    }
}
