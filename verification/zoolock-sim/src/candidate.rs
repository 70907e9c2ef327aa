//! A candidate on each host that stands in one election.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use zoolock::{Election, Ended, Error, Zoolock};

use crate::Sim;
use crate::world::is_slow_or_faulty;

/// The longest grace of a candidate. Every plan's session timeout allows it.
const GRACE: Duration = Duration::from_millis(300);

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
    sim.count_ended_task(host);
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
