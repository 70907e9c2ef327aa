//! Servers that are killed, or terminated, in the middle of writes.

use std::path::Path;

use tempfile::TempDir;
use zoolock_tests::locks::seed;
use zoolock_tests::{Result, TestFailure, ZoolockBinary};

use crate::crash::world::{End, Totals, World};

/// Returns the number of snapshots in the data directory.
fn snapshots(data: &Path) -> usize {
    let names = std::fs::read_dir(data).expect("directory read").flatten();
    names.filter(|entry| entry.file_name().to_string_lossy().starts_with("snapshot.0")).count()
}

/// Runs a round for each item of `ends`, and then a final check.
async fn rounds(data: &Path, seed: u64, ends: impl Iterator<Item = End>) -> Result<Totals> {
    let binary = ZoolockBinary::find()?;
    let mut world = World::new(&binary, data, seed);
    for (round, end) in ends.enumerate() {
        let done = world.round(end).await;
        done.map_err(|failure| TestFailure::during(format_args!("round {round}"), failure))?;
    }
    world.final_check().await?;
    Ok(world.totals())
}

/// Returns the totals of a run. After a failure, keeps the data directory for examination and panics.
fn totals_or_panic(data: TempDir, seed: u64, result: Result<Totals>) -> Totals {
    match result {
        Ok(totals) => {
            println!("{totals:?}, and {} snapshots", snapshots(data.path()));
            totals
        }
        Err(failure) => {
            let kept = data.keep();
            panic!("ZOOLOCK_SEED={seed}, see {}: {failure}", kept.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_kills() {
    let kills = if zoolock_tests::skip::is_long() { 2_000 } else { 200 };
    let seed = seed();
    let data = tempfile::tempdir().expect("directory created");
    let result = rounds(data.path(), seed, std::iter::repeat_n(End::Kill, kills)).await;
    let snapshots = snapshots(data.path());
    let totals = totals_or_panic(data, seed, result);
    // A run with fewer events tests too little.
    let Totals { acked, unanswered, executed, multis, closed, expired, killed_in_recovery } = totals;
    assert!(acked > 10_000 && multis > 1_000 && closed > 50, "too few writes");
    assert!(unanswered > 1_000 && executed > 10 && executed < unanswered, "too few kills during writes");
    assert!(
        expired > 10 && killed_in_recovery > 10 && snapshots > 0,
        "too few expiries, kills in recovery or snapshots"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_termination() {
    let seed = seed();
    let data = tempfile::tempdir().expect("directory created");
    let ends = [End::Term, End::Term, End::Kill].into_iter().cycle().take(24);
    let result = rounds(data.path(), seed, ends).await;
    assert!(totals_or_panic(data, seed, result).acked > 100, "too few writes");
}
