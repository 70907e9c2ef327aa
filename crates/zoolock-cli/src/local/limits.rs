//! The maximum number of connections of a server on this machine, and the failures of its start.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zoolock_client::limit_advice;
use zoolock_server::Error;

use crate::base::exit::{Exit, Failure};

/// The number of files that the server needs beside its connections.
const OTHER_FILES: u64 = 64;

/// Raises the limit on open files as far as allowed. Returns the maximum number of connections.
pub(crate) fn raise_file_limit(asked: Option<usize>) -> Result<usize, Failure> {
    let limit = getrlimit(Resource::Nofile);
    // If this call fails, the present limit applies.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = usize::try_from(files.saturating_sub(OTHER_FILES).max(1)).unwrap_or(usize::MAX);
    match asked {
        Some(asked) if asked > most => Err(Failure::usage(format!(
            "--max-connections {asked}: this process may open {files} files, which is enough for {most}; raise the \
             limit (ulimit -n, LimitNOFILE)"
        ))),
        asked => Ok(asked.unwrap_or(most)),
    }
}

/// Returns the failure for a server that did not start.
pub(crate) fn server_start_failure(error: &Error) -> Failure {
    let denied = |source: &std::io::Error| source.kind() == std::io::ErrorKind::PermissionDenied;
    let exit = match error {
        Error::Invalid { .. } | Error::Certificate { .. } => Exit::USAGE,
        Error::UnsafeDataDir { .. } => Exit::DENIED,
        Error::Listen { source, .. } | Error::DataDir { source, .. } if denied(source) => Exit::DENIED,
        _ => Exit::UNAVAILABLE,
    };
    let advice = if let Error::Thread { source } = error { limit_advice(source) } else { None };
    let message = advice.map_or(error.to_string(), |advice| format!("{error}; {advice}"));
    Failure::new(exit, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_limit_gets_advice_on_limits() {
        let message = |errno: rustix::io::Errno| {
            server_start_failure(&Error::Thread { source: errno.into() }).to_string()
        };
        assert!(
            message(rustix::io::Errno::AGAIN)
                .ends_with("; raise the limit on processes and threads (ulimit -u, TasksMax, pids.max)")
        );
        assert!(!message(rustix::io::Errno::NOMEM).contains("limit"));
    }
}
