//! Estimates the server's clock from the time that the server gives to a new znode.

use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::future::join3;

use crate::admin::snapshot::request_error;
use crate::base::error::Error;
use crate::base::uuid::random_uuid;
use crate::lock::context::Context;
use crate::zk::session::{Op, ZkError};

/// Returns how far the server's clock is ahead of this machine's, in milliseconds. Creates a znode below the root, and
/// deletes it.
pub(crate) async fn read_ahead_ms(context: &Context) -> Result<i64, Error> {
    let zk = context.zk().await?;
    // The name ends with letters, because a number at its end would make it a contender.
    let path = format!("{}/.{}-clock", context.root().trim_end_matches('/'), random_uuid());
    let before = unix_ms();
    let requests =
        (zk.create_ephemeral(&path, b""), zk.exists(&path), zk.commit(vec![Op::Delete(path.clone())]));
    let (created, stat, _) = join3(requests.0, requests.1, requests.2).await;
    let after = unix_ms();
    let error = |error: ZkError| request_error(context.endpoints(), "the server's clock".to_owned(), error);
    created.map_err(error)?;
    let Some(stat) = stat.map_err(error)? else { return Ok(0) };
    Ok(stat.created_ms - stat.created_ms.clamp(before, after.max(before)))
}

fn unix_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
