//! Drills that an interrupt ends early.

use tokio::signal::unix::{SignalKind, signal};

use crate::Outcome;

/// Runs a drill to its end. An interrupt or SIGTERM drops the drill, which ends its processes, and is an error.
pub(crate) async fn until_interrupted<T>(drill: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = drill => ended,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
        _ = terminated.recv() => Err("terminated".into()),
    }
}
