//! Measures the time that a server needs to recover its log.
//!
//! Run it with `cargo run --release --example recovery -- [TRANSACTIONS]`.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use zoolock_server::log::{Disk, Log, Options, RealDisk, SnapshotWriter};
use zoolock_server::txn::{Change, Create, Txn};
use zoolock_server::{SessionId, State, acl, commit};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |count| count.parse())?;
    let dir = tempfile::tempdir()?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path())?);
    let open = || Log::open(Arc::clone(&disk), Options::default());
    let (mut log, recovered) = open()?;
    let mut state: State = recovered.state;
    let begun = Instant::now();
    for i in 0..count {
        // Each znode is created once and written three times. Each znode `/d*` has 999 children.
        let node = i / 4;
        let path: Arc<str> = match node % 1000 {
            0 => format!("/d{}", node / 1000).into(),
            _ => format!("/d{}/n{node}", node / 1000).into(),
        };
        let data = Some(Bytes::from(vec![b'x'; 32]));
        let change = match i % 4 {
            0 => Change::Create(Create {
                path,
                data,
                acl: acl::open_list(),
                owner: 0,
                parent_created: -1,
                with_stat: false,
            }),
            version => Change::SetData { path, data, version: version as i32 },
        };
        let zxid = state.zxid.next().ok_or("too many")?;
        let txn = Txn { zxid, session: SessionId::NONE, time: 1, change };
        commit(&txn, &mut state);
        log.append(&txn)?;
        if i % 100 == 99 {
            log.write()?;
        }
    }
    log.seal_when_idle()?;
    println!("{count} transactions committed and logged in batches of 100: {:?}", begun.elapsed());
    drop(log);

    let begun = Instant::now();
    let (mut log, recovered) = open()?;
    println!("{} replayed: {:?}", recovered.replayed, begun.elapsed());
    drop(recovered);

    let begun = Instant::now();
    log.record_snapshot_start();
    let mut writer = SnapshotWriter::begin(log.disk(), state.zxid, &state.sessions, &state.ending)?;
    writer.add(state.tree.records())?;
    let snapshot = writer.finish(log.synced())?;
    log.record_snapshot_end(Some(snapshot));
    println!("a snapshot of {} znodes, {} bytes: {:?}", state.tree.len(), snapshot.bytes, begun.elapsed());
    log.close()?;

    let begun = Instant::now();
    let (_log, recovered) = open()?;
    println!("back from it, {} replayed: {:?}", recovered.replayed, begun.elapsed());
    Ok(())
}
