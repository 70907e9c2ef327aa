//! The plans of `run` and `hold`.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use super::service::ConnectionSettings;
use super::waiting::WantedLocks;
use crate::args::{OnLost, OnRevoke};
use crate::base::duration::format_duration;
use crate::base::exit::Failure;
use crate::metrics::Export;

/// Default grace period, unless a sixth of the session timeout is shorter.
const GRACE: Duration = Duration::from_secs(5);

/// Checked arguments of `zoolock run`.
#[derive(Debug)]
pub(crate) struct RunPlan {
    pub(crate) service: ConnectionSettings,
    pub(crate) wanted: WantedLocks,
    /// The value of `--grace`, if it is given.
    pub(crate) grace: Option<Duration>,
    pub(crate) on_lost: OnLost,
    pub(crate) on_revoke: OnRevoke,
    pub(crate) keep: bool,
    pub(crate) export: Export,
    pub(crate) command: Vec<OsString>,
}

impl RunPlan {
    /// Returns the grace period, the time between TERM and KILL, for a session timeout.
    pub(crate) fn grace_of(&self, session_timeout: Duration) -> Duration {
        self.grace.unwrap_or_else(|| GRACE.min(session_timeout / 6))
    }
}

/// Checked arguments of `zoolock hold`.
#[derive(Debug)]
pub(crate) struct HoldPlan {
    pub(crate) service: ConnectionSettings,
    pub(crate) wanted: WantedLocks,
    pub(crate) export: Export,
    pub(crate) json: bool,
}

pub(super) fn new_owner() -> Result<String, Failure> {
    let number =
        getrandom::u64().map_err(|error| Failure::unavailable(format!("no random number: {error}")))?;
    Ok(format!("run-{number:016x}"))
}

/// Refuses a `--grace` of more than a third of the session timeout before connecting. The library checks the exact
/// maximum, which is about a sixth of the session timeout.
pub(super) fn check_grace(
    grace: Option<Duration>,
    session_timeout: Duration,
) -> Result<Option<Duration>, Failure> {
    let Some(grace) = grace else { return Ok(None) };
    if grace > session_timeout / 3 {
        return Err(Failure::usage(format!(
            "--grace {}: too long for a session timeout of {}, which allows about a sixth; raise --session-timeout \
             or lower --grace",
            format_duration(grace),
            format_duration(session_timeout)
        )));
    }
    Ok(Some(grace))
}

pub(super) fn file_name(program: &OsString) -> String {
    Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::super::test_plans::{plan, refused};
    use super::super::waiting::AcquireTimeout;
    use super::*;
    use crate::base::exit::Exit;

    #[test]
    fn plain_run_has_the_defaults() {
        let Ok(Plan::Run(run)) = plan(&["run", "nightly", "--", "sh", "-c", "true"]) else {
            panic!("expected a plan of run")
        };
        assert_eq!(run.grace_of(Duration::from_secs(30)), GRACE);
        assert_eq!(run.wanted.patience, AcquireTimeout::Forever);
        assert_eq!(run.wanted.on_busy, Exit::BUSY);
        assert_eq!(run.service.session_timeout, Duration::from_secs(30));
        assert_eq!(run.service.program.as_deref(), Some("sh"));
    }

    #[test]
    fn default_grace_follows_a_short_session() {
        let of = |line: &[&str]| {
            let Ok(Plan::Run(run)) = plan(line) else { panic!("expected a plan of run") };
            run.grace_of(Duration::from_secs(12))
        };
        assert_eq!(of(&["run", "x", "--", "true"]), Duration::from_secs(2));
        assert_eq!(of(&["run", "--grace", "3s", "x", "--", "true"]), Duration::from_secs(3));
    }

    #[test]
    fn grace_without_room_for_renewals_is_refused() {
        assert!(check_grace(Some(Duration::from_secs(10)), Duration::from_secs(30)).is_ok());
        assert!(refused(&["run", "--grace", "11s", "x", "--", "true"]).contains("--grace 11s"));
    }
}
