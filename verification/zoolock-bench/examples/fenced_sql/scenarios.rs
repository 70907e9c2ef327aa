//! Scenarios in which a holder is paused at the wrong moment.

use rusqlite::Result as Sql;
use zoolock::{FencingToken, Guard, TestServer};

use super::table::{Reports, Write};

/// A result whose error the program prints before it ends.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The result of a scenario.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// The result of the late write.
    pub(crate) late: Write,
    /// The body of the row.
    pub(crate) body: String,
}

/// Runs a late write: A is paused just before its write, B is granted the lock and writes, and then
/// A continues and writes.
pub(crate) async fn late_write(
    table: &Reports,
    write: impl Fn(&Reports, &str, FencingToken) -> Sql<Write>,
) -> Outcome<End> {
    let server = TestServer::start().await?;
    let (a, b) = overtaken(&server).await?;
    let written = write(table, "B", b.token())?;
    println!("B writes: {written:?}");
    let late = write(table, "A", a.token())?;
    println!("A continues and writes: {late:?}");
    println!("A checks its guard after the write: {}", a.lost().await);
    b.release().await?;
    end(table, late)
}

/// Runs two holders, A and B, that each add 1 to the number in the row. A is paused between its
/// read and its write. B reads, and A writes before B does. If `claim` is true, B writes its token
/// to the row before it reads.
pub(crate) async fn between_read_and_write(claim: bool) -> Outcome<End> {
    let table = Reports::with_one_row()?;
    let server = TestServer::start().await?;
    let (a, b) = overtaken(&server).await?;
    if claim {
        println!("B claims the row: {:?}", table.claim(b.token())?);
    }
    let read: u32 = table.body()?.ok_or("the row does not exist")?.parse()?;
    println!("B reads {read}");
    let late = table.update("1", a.token())?;
    println!("A continues and writes 1: {late:?}");
    let written = table.update(&(read + 1).to_string(), b.token())?;
    println!("B writes {}: {written:?}", read + 1);
    if late == Write::Done {
        println!("both additions succeeded, and one of them is lost");
    }
    b.release().await?;
    end(&table, late)
}

/// Wipes the ensemble and keeps the database. Tokens contain transaction ids, which start again
/// with a new ensemble. `epoch`: the token epoch that clients of the new ensemble set.
pub(crate) async fn wiped_ensemble(epoch: u32) -> Outcome<End> {
    let table = Reports::empty()?;
    let old = TestServer::start().await?;
    let zl = old.connect().await?;
    for night in 1..=5 {
        let guard = zl.mutex("nightly").lock().await?;
        println!("night {night}, token {}: {:?}", guard.token(), table.put("old", guard.token())?);
        guard.release().await?;
    }
    zl.close().await;
    drop(old);
    let new = TestServer::start().await?;
    let zl = new.client().token_epoch(epoch).connect(&new.address()).await?;
    let guard = zl.mutex("nightly").lock().await?;
    let late = table.put("new", guard.token())?;
    println!("after the wipe, token {}: {late:?}", guard.token());
    guard.release().await?;
    zl.close().await;
    end(&table, late)
}

/// Returns two guards: that of A, whose session expired while A was paused, and that of the holder B.
async fn overtaken(server: &TestServer) -> Outcome<(Guard, Guard)> {
    let a = server.connect().await?.mutex("nightly").lock().await?;
    println!("A holds the lock, token {}", a.token());
    println!("A checks that it holds the lock: {}; then it is paused, before its write", a.is_valid());
    println!("A's session expires: {}", server.expire_holder("/locks/nightly"));
    let b = server.connect().await?.mutex("nightly").lock().await?;
    println!("B holds the lock, token {}", b.token());
    Ok((a, b))
}

fn end(table: &Reports, late: Write) -> Outcome<End> {
    let body = table.body()?.ok_or("the row does not exist")?;
    println!("the row contains {body}");
    Ok(End { late, body })
}
