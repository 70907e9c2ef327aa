//! The maximum number of connections of a server on this machine, and the failures of its start.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zoolock_client::limit_advice;
use zoolock_server::Error;

use crate::base::exit::{Exit, Failure};

/// The number of files that a process needs beside the connections that it accepts: standard streams, listeners and the
/// runtime; of a server also the log, snapshots, the epoch and the directory.
const OTHER_FILES: u64 = 64;

/// Maximum number of HTTP connections of a server. A few monitors and health checks are expected.
const MAX_HTTP_CONNECTIONS: usize = 128;
/// Minimum number of HTTP connections, also on a small limit on open files. One address may have half of them.
const MIN_HTTP_CONNECTIONS: usize = 8;

/// The maximum numbers of connections of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionBudget {
    pub(crate) clients: usize,
    pub(crate) http: usize,
}

/// Raises the limit on open files as far as allowed. Returns the limit.
pub(crate) fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // If this call fails, the present limit applies.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the number of connections that fit into a limit on open files.
pub(crate) fn spare_files(limit: u64) -> usize {
    usize::try_from(limit.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX)
}

/// Divides the files of a limit between clients and HTTP. HTTP gets an eighth at most. `asked` is the number of clients
/// that the user asks for.
///
/// # Errors
/// If the limit is not enough for `asked` clients.
pub(crate) fn connection_budget(
    limit: u64,
    asked: Option<usize>,
    serves_http: bool,
) -> Result<ConnectionBudget, Failure> {
    let spare = spare_files(limit);
    let http = (spare / 8).clamp(MIN_HTTP_CONNECTIONS, MAX_HTTP_CONNECTIONS);
    let most = spare.saturating_sub(if serves_http { http } else { 0 }).max(1);
    match asked {
        Some(asked) if asked > most => Err(Failure::usage(format!(
            "--max-connections {asked}: this process may open {limit} files, which is enough for {most}; raise the \
             limit (ulimit -n, LimitNOFILE)"
        ))),
        asked => Ok(ConnectionBudget { clients: asked.unwrap_or(most), http }),
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
    fn all_connections_fit_into_the_file_limit() {
        for limit in [100, 300, 1024, 1_000_000] {
            let budget = connection_budget(limit, None, true).expect("no number is asked for");
            let used = OTHER_FILES as usize + budget.clients + budget.http;
            assert!(used <= limit as usize, "{limit}: {budget:?}");
            assert!(connection_budget(limit, Some(budget.clients + 1), true).is_err());
            let without_http = connection_budget(limit, None, false).expect("no number is asked for");
            assert_eq!(without_http.clients, budget.clients + budget.http);
        }
    }

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
