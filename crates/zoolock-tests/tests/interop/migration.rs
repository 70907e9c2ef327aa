//! Moving a fleet from Curator to ours, one process at a time, while everybody goes on.

use std::time::Duration;

use zoolock_tests::wait::eventually;
use zoolock_tests::{Failure, Place, on_both_arms, tree};

use crate::make::Make::{Java, Ours};
use crate::make::Role;
use crate::peer::{Peer, Report};
use crate::queue::{LOCK, REFEREE, available, nothing_is_left, prepare, role};

const PROCESSES: usize = 4;
/// How many sections everybody together has between two changes.
const BETWEEN: i32 = 100;
const BOUND: Duration = Duration::from_secs(60);

on_both_arms!(private from_curator_to_native_one_process_at_a_time, |place| async move {
    let stages = [role(Java, "curator-mutex", 1), role(Ours, "mutex@curator", 1), role(Ours, "mutex@native", 1)];
    if !available(&stages, "from_curator_to_native_one_process_at_a_time", &place) {
        return;
    }
    prepare(&place).await;
    let [curator, step, native] = &stages;
    let mut fleet = Vec::new();
    for _ in 0..PROCESSES {
        fleet.push(begin(&place, curator).await);
    }
    for next in [step, native] {
        for _ in 0..PROCESSES {
            until_busy(&place).await;
            // The old one leaves first, as a service that is deployed anew: the others go on meanwhile.
            let left = end(fleet.remove(0)).await;
            println!("{}: left {left}", place.arm());
            assert!(left.sections > 0, "{} never had a turn", left.name);
            fleet.push(begin(&place, next).await);
        }
    }
    until_busy(&place).await;
    for peer in fleet {
        let left = end(peer).await;
        assert!(left.sections > 0, "{} never had a turn", left.name);
    }
    nothing_is_left(&place, &stages).await;
});

async fn begin(place: &Place, role: &Role) -> Peer {
    let command = role.command(place, LOCK, REFEREE, 0).await;
    let mut peer = Peer::start(&role.to_string(), command).await.expect("nobody is in its way for long");
    peer.tell("go").await.expect("it is ready");
    peer
}

/// Fails where it says that somebody was inside who may not be.
async fn end(mut peer: Peer) -> Report {
    peer.tell("stop").await.expect("it goes on until it is told");
    peer.report().await.expect("no violation")
}

/// Waits until there were so many sections more.
async fn until_busy(place: &Place) {
    let client = tree::connect(&place.connect_string()).await.expect("a session");
    let changes = async || match client.check_stat(REFEREE).await {
        Ok(Some(stat)) => Ok(stat.cversion),
        Ok(None) => Err(Failure::new("there is no referee")),
        Err(error) => Err(Failure::during(REFEREE, error)),
    };
    let began = changes().await.expect("a referee");
    // A section comes and goes.
    let look = async || match changes().await? - began {
        change if change >= 2 * BETWEEN => Ok(()),
        change => Err(Failure::new(format!("{change} changes"))),
    };
    eventually("sections go on", BOUND, look).await.expect("nobody stands in the way");
}
