//! Drills that an interrupt ends early.

use tokio::signal::unix::{SignalKind, signal};

use crate::Outcome;

/// Runs a drill to its end. On an interrupt or SIGTERM, drops the drill, which ends its processes,
/// and returns an error.
pub(crate) async fn until_interrupted<T>(drill: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = drill => ended,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
        _ = terminated.recv() => Err("terminated".into()),
    }
}
