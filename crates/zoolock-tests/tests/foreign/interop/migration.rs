//! Moving a fleet to ours, one process at a time, while everybody goes on.

use std::time::Duration;

use zoolock_tests::wait::eventually;
use zoolock_tests::{Failure, Place, on_both_arms, tree};

use crate::interop::make::Make::{Java, Kazoo, Ours};
use crate::interop::make::Role;
use crate::interop::peer::{Peer, Report};
use crate::interop::queue::{LOCK, REFEREE, available, nothing_is_left, prepare, role};

const PROCESSES: usize = 4;
/// How many sections everybody together has between two changes.
const BETWEEN: i32 = 60;
const BOUND: Duration = Duration::from_secs(60);

/// All of a fleet are the first of these; each becomes the second; and so on.
async fn moves(place: &Place, name: &str, stages: &[Role]) {
    if !available(stages, name, place) {
        return;
    }
    prepare(place).await;
    let mut fleet = Vec::new();
    for _ in 0..PROCESSES {
        fleet.push(begin(place, &stages[0]).await);
    }
    for next in &stages[1..] {
        for _ in 0..PROCESSES {
            until_busy(place).await;
            // The old one leaves first, as a service that is deployed anew: the others go on meanwhile.
            let left = end(fleet.remove(0)).await;
            println!("{}: left {left}", place.arm());
            fleet.push(begin(place, next).await);
        }
    }
    until_busy(place).await;
    for peer in fleet {
        end(peer).await;
    }
    nothing_is_left(place).await;
}

on_both_arms!(from_curator_to_native_one_process_at_a_time, |place| async move {
    let stages =
        [role(Java, "curator-mutex", 1), role(Ours, "mutex@curator", 1), role(Ours, "mutex@native", 1)];
    moves(&place, "from_curator_to_native_one_process_at_a_time", &stages).await;
});

on_both_arms!(from_kazoo_to_native_one_process_at_a_time, |place| async move {
    let stages = [
        role(Kazoo, "lock", 1),
        role(Ours, "mutex@kazoo", 1),
        // When the last of kazoo's is gone it is true.
        role(Ours, "mutex@kazoo+pattern", 1),
        role(Ours, "mutex@native+pattern", 1),
        role(Ours, "mutex@native", 1),
    ];
    moves(&place, "from_kazoo_to_native_one_process_at_a_time", &stages).await;
});

on_both_arms!(from_write_lock_to_native_one_process_at_a_time, |place| async move {
    let stages = [role(Java, "write-lock", 1), role(Ours, "mutex@native", 1)];
    moves(&place, "from_write_lock_to_native_one_process_at_a_time", &stages).await;
});

async fn begin(place: &Place, role: &Role) -> Peer {
    let command = role.command(place, LOCK, REFEREE, 0).await;
    let mut peer = Peer::start(&role.to_string(), command).await.expect("nobody is in its way for long");
    peer.tell("go").await.expect("it is ready");
    peer
}

/// Fails where it says that somebody was inside who may not be, and where it never was itself.
async fn end(mut peer: Peer) -> Report {
    peer.tell("stop").await.expect("it goes on until it is told");
    let left = peer.report().await.expect("no violation");
    assert!(left.sections > 0, "{} never had a turn", left.name);
    left
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
