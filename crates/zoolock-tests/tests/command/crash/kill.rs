//! Servers that are killed, or told to stop, in the middle of writes.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;

use tempfile::TempDir;
use zoolock_tests::{Result, ZoolockBinary};

use crate::crash::world::{Counted, End, World};

fn seed() -> u64 {
    match std::env::var("ZOOLOCK_SEED") {
        Ok(seed) => seed.parse().expect("ZOOLOCK_SEED is a number"),
        Err(_) => RandomState::new().build_hasher().finish(),
    }
}

/// How many snapshots the directory has.
fn snapshots(data: &Path) -> usize {
    let names = std::fs::read_dir(data).expect("there is one").flatten();
    names.filter(|entry| entry.file_name().to_string_lossy().starts_with("snapshot.0")).count()
}

async fn rounds(data: &Path, seed: u64, ends: impl Iterator<Item = End>) -> Result<Counted> {
    let binary = ZoolockBinary::find()?;
    let mut world = World::new(&binary, data, seed);
    for (round, end) in ends.enumerate() {
        let went = world.round(end).await;
        went.map_err(|failure| zoolock_tests::Failure::during(format_args!("round {round}"), failure))?;
    }
    world.last().await?;
    Ok(world.tally())
}

/// Leaves the directory where it is for whoever wants to know what went wrong.
fn judge(data: TempDir, seed: u64, result: Result<Counted>) -> Counted {
    match result {
        Ok(counted) => {
            println!("{counted:?}, and {} snapshots", snapshots(data.path()));
            counted
        }
        Err(failure) => {
            let kept = data.keep();
            panic!("ZOOLOCK_SEED={seed}, see {}: {failure}", kept.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_outlives_every_kill() {
    let kills = if std::env::var("ZOOLOCK_LONG").is_ok_and(|long| long == "1") { 2_000 } else { 200 };
    let seed = seed();
    println!("ZOOLOCK_SEED={seed}");
    let data = tempfile::tempdir().expect("a directory");
    let result = rounds(data.path(), seed, std::iter::repeat_n(End::Kill, kills)).await;
    let snapshots = snapshots(data.path());
    let counted = judge(data, seed, result);
    // Else it was too little of a test.
    let Counted { acked, unanswered, done, multis, closed, expired, killed_in_recovery } = counted;
    assert!(acked > 10_000 && multis > 1_000 && closed > 50, "too few writes");
    assert!(unanswered > 1_000 && done > 10 && done < unanswered, "no kill in the middle of writes");
    assert!(expired > 10 && killed_in_recovery > 10 && snapshots > 0, "too little happened");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_outlives_being_told_to_stop() {
    let seed = seed();
    println!("ZOOLOCK_SEED={seed}");
    let data = tempfile::tempdir().expect("a directory");
    let ends = [End::Term, End::Term, End::Kill].into_iter().cycle().take(24);
    let result = rounds(data.path(), seed, ends).await;
    assert!(judge(data, seed, result).acked > 100, "too few writes");
}
