//! Reads the history of locks; see [`HistoryEvent`].

use futures_util::StreamExt as _;
use zoolock_core::acquisition::{Refusal, RequestFailure};

use crate::admin::snapshot::entry::is_plausible;
use crate::admin::snapshot::request_error;
use crate::base::error::Error;
use crate::base::unix_time::time_at;
use crate::engine::reader::{MAX_IN_FLIGHT, QueueReader};
use crate::lock::context::Context;
use crate::lock::history::{HistoryEvent, audit_directory, lock_tag, sequence_number};
use crate::zk::session::ZkError;

/// Returns the last `max` events of one lock, or of all locks, the oldest first.
pub(crate) async fn read(
    context: &Context,
    name: Option<&str>,
    max: usize,
) -> Result<Vec<HistoryEvent>, Error> {
    let lock = match name {
        Some(name) => Some(context.without_chroot(context.path(name)?.as_str()).to_owned()),
        None => None,
    };
    let zk = context.zk().await?;
    let directory = audit_directory(context);
    let error = |error: ZkError| request_error(context.endpoints(), "the history".to_owned(), error);
    let mut names = match zk.children(&directory).await {
        Ok((names, _)) => names,
        Err(ZkError { failure: RequestFailure::NoNode, .. }) => return Ok(Vec::new()),
        Err(failure) => return Err(error(failure)),
    };
    if let Some(lock) = &lock {
        let tag = format!("-{}-", lock_tag(lock));
        names.retain(|name| name.contains(&tag));
    }
    names.sort_by_key(|name| sequence_number(name));
    let names = names.split_off(names.len().saturating_sub(max));
    let reader = &QueueReader::new(&*zk);
    let paths: Vec<String> = names.into_iter().map(|name| format!("{directory}/{name}")).collect();
    let reads = paths.into_iter().map(|path| async move { reader.read(&path).await });
    let mut reads = std::pin::pin!(futures_util::stream::iter(reads).buffered(MAX_IN_FLIGHT));
    let mut events = Vec::new();
    while let Some(read) = reads.next().await {
        let (data, stat) = match read {
            Ok(read) => read,
            // A client has deleted it meanwhile, because there are too many.
            Err(ZkError { failure: RequestFailure::NoNode, .. }) => continue,
            // The event belongs to a client with other credentials.
            Err(ZkError { failure: RequestFailure::Refused(Refusal::Denied), .. }) => continue,
            Err(failure) => return Err(error(failure)),
        };
        // Every client may write any data. Two locks may have the same tag.
        let Ok(event) = serde_json::from_slice::<HistoryEvent>(&data) else { continue };
        if lock.as_ref().is_some_and(|lock| *lock != event.lock) {
            continue;
        }
        let at = u64::try_from(stat.created_ms).ok().filter(|&time| is_plausible(time)).map(time_at);
        events.push(HistoryEvent { at, ..event });
    }
    Ok(events)
}
