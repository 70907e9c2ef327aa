//! Holders who are stopped at the wrong moment.

use rusqlite::Result as Sql;
use zoolock::{FencingToken, Guard, TestServer};

use super::table::{Reports, Write};

/// What is an error here: shown, and the end.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How a story ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// What came of the late write.
    pub(crate) late: Write,
    /// What the row says.
    pub(crate) body: String,
}

/// A is stopped just before its write; B is granted the lock and writes; A goes on.
pub(crate) async fn late_write(
    table: &Reports,
    write: impl Fn(&Reports, &str, FencingToken) -> Sql<Write>,
) -> Outcome<End> {
    let server = TestServer::start().await?;
    let (a, b) = overtaken(&server).await?;
    let written = write(table, "B", b.token())?;
    println!("B writes: {written:?}");
    let late = write(table, "A", a.token())?;
    println!("A wakes up and writes what it had in mind: {late:?}");
    println!("A looks at its guard, too late for the write: {}", a.lost().await);
    b.release().await?;
    end(table, late)
}

/// A wants to add one to what it read, and is stopped just before its write; B reads, and then A goes on before B
/// has written. `claim`: B shows its token before it reads.
pub(crate) async fn between_read_and_write(claim: bool) -> Outcome<End> {
    let table = Reports::with_one_row()?;
    let server = TestServer::start().await?;
    let (a, b) = overtaken(&server).await?;
    if claim {
        println!("B claims the row: {:?}", table.claim(b.token())?);
    }
    let read: u32 = table.body()?.ok_or("there is a row")?.parse()?;
    println!("B reads {read}");
    let late = table.update("1", a.token())?;
    println!("A wakes up and writes 1: {late:?}");
    let written = table.update(&(read + 1).to_string(), b.token())?;
    println!("B writes {}: {written:?}", read + 1);
    if late == Write::Done {
        println!("two were told that they had added one");
    }
    b.release().await?;
    end(&table, late)
}

/// The ensemble is wiped, and with it the transaction ids that tokens are made of; the database is not. Those who
/// connect to the new one set this token epoch.
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

/// Two guards: of A, who believes to hold and was stopped, and of B, who holds.
async fn overtaken(server: &TestServer) -> Outcome<(Guard, Guard)> {
    let a = server.connect().await?.mutex("nightly").lock().await?;
    println!("A holds, token {}", a.token());
    println!("A asks whether it still holds: {}; and is stopped right here, before its write", a.is_valid());
    println!("A's session expires: {}", server.expire_holder("/locks/nightly"));
    let b = server.connect().await?.mutex("nightly").lock().await?;
    println!("B holds, token {}", b.token());
    Ok((a, b))
}

fn end(table: &Reports, late: Write) -> Outcome<End> {
    let body = table.body()?.ok_or("there is a row")?;
    println!("the row says {body}");
    Ok(End { late, body })
}
