//! A candidate on each host that stands in one election, and the checks of its terms.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use zoolock::sim::enter;
use zoolock::{Election, Ended, Error, FencingToken, Term, Zoolock};

use crate::work::{count_ended_task, is_slow_or_faulty};
use crate::{Sim, lock};

/// The longest grace of a candidate. Every plan's session timeout allows it.
const GRACE: Duration = Duration::from_millis(300);

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
struct Work(Arc<AtomicBool>);

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

/// Stands in the election until the candidate had its rounds.
pub(crate) async fn run_candidate(sim: Arc<Sim>, host: usize, zoolock: Zoolock, mut rng: Rng) {
    let grace = if rng.bool() { GRACE } else { Duration::ZERO };
    let election = zoolock.election("election").grace(grace);
    drop(zoolock);
    for _ in 0..sim.plan.rounds {
        tokio::time::sleep(Duration::from_millis(rng.u64(..=sim.plan.max_idle))).await;
        stand(&sim, host, &election, &mut rng).await;
    }
    drop(election);
    count_ended_task(&sim, host);
}

async fn stand(sim: &Arc<Sim>, host: usize, election: &Election, rng: &mut Rng) {
    let hold = Duration::from_millis(rng.u64(..=sim.plan.max_hold));
    // Some work ends only when the term does.
    let (returns, heeds) = (rng.u8(..4) != 0, rng.bool());
    let patience = Duration::from_millis(rng.u64(..=sim.plan.max_hold * 2 + 300));
    let running = election.run(|term| {
        let work = sim.begin_term(host, &term);
        async move {
            let _work = work;
            tokio::select! {
                biased;
                () = tokio::time::sleep(hold), if returns => {}
                () = term.stopping(), if heeds => {}
                else => std::future::pending().await,
            }
        }
    });
    let outcome = match rng.u8(..4) {
        0 if returns => running.await,
        0 | 1 => {
            // The resignation ends a wait as well as a term.
            let resign = async {
                tokio::time::sleep(patience).await;
                election.resign();
                std::future::pending().await
            };
            tokio::select! {
                biased;
                outcome = running => outcome,
                never = resign => never,
            }
        }
        // Dropped at any await.
        _ => match tokio::time::timeout(patience, running).await {
            Ok(outcome) => outcome,
            Err(_) => return,
        },
    };
    match outcome {
        Ok(Ended::Returned(()) | Ended::Resigned) => {}
        // The server says only after the work that the term was lost before.
        Err(Error::Lost { .. }) if is_slow_or_faulty(&sim.plan) => {}
        Err(error) => sim.record_violation(format!("the candidate on host {host} stands no more: {error}")),
    }
}

impl Sim {
    /// Checks and records a term that begins on this host now.
    fn begin_term(&self, host: usize, term: &Term) -> Work {
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
