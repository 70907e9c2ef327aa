//! The checked command line of `zoolock run`.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use zoolock::Builder;

use crate::args::{ChildArgs, MetricsAddress, RunArgs};
use crate::base::duration::format_duration;
use crate::base::executable;
use crate::base::exit::Failure;
use crate::base::proc::check_proc;
use crate::plan::{ConnectionSettings, Context};
use crate::run::flags::WantedLocks;

/// Default grace period, unless a sixth of the session timeout is shorter.
const GRACE: Duration = Duration::from_secs(5);

/// A command to run under a lock.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) service: ConnectionSettings,
    pub(crate) wanted: WantedLocks,
    pub(crate) child: ChildArgs,
    pub(crate) owner: String,
    pub(crate) metrics: Option<MetricsAddress>,
    pub(crate) command: Vec<OsString>,
}

impl Job {
    /// Checks the flags that depend on each other, and the command.
    pub(super) fn check(args: RunArgs, context: &Context) -> Result<Self, Failure> {
        context.refuse_json("run")?;
        let RunArgs { names, command, waiting, child, kind, monitoring } = args;
        let (mut wanted, mut service) = WantedLocks::check(context, names, &waiting, &kind, &monitoring)?;
        wanted.slot = child.slot;
        let owner = match &context.global.environment.owner {
            Some(owner) => owner.clone(),
            None => new_owner()?,
        };
        service.builder = service.builder.owner_id(&owner)?;
        check_grace(child.grace, service.session_timeout)?;
        // Without --grace, the grace period depends on the negotiated session timeout.
        service.builder = child.grace.into_iter().fold(service.builder, Builder::grace);
        if let Some(program) = command.first() {
            service.builder = service.builder.runs_program(&file_name(program));
            executable::check(program)?;
        }
        check_proc()?;
        Ok(Self { service, wanted, child, owner, metrics: monitoring.metrics, command })
    }

    /// Returns the grace period, the time between TERM and KILL, for a session timeout.
    pub(crate) fn grace_of(&self, session_timeout: Duration) -> Duration {
        self.child.grace.unwrap_or_else(|| default_grace(session_timeout))
    }
}

/// Returns the grace period without `--grace`.
pub(super) fn default_grace(session_timeout: Duration) -> Duration {
    GRACE.min(session_timeout / 6)
}

fn new_owner() -> Result<String, Failure> {
    let number =
        getrandom::u64().map_err(|error| Failure::unavailable(format!("no random number: {error}")))?;
    Ok(format!("run-{number:016x}"))
}

/// Refuses a `--grace` of more than a third of the session timeout before connecting. The library checks the exact
/// maximum, which is about a sixth of the session timeout.
fn check_grace(grace: Option<Duration>, session_timeout: Duration) -> Result<(), Failure> {
    match grace {
        Some(grace) if grace > session_timeout / 3 => Err(Failure::usage(format!(
            "--grace {}: too long for a session timeout of {}, which allows about a sixth; raise --session-timeout \
             or lower --grace",
            format_duration(grace),
            format_duration(session_timeout)
        ))),
        _ => Ok(()),
    }
}

fn file_name(program: &OsStr) -> String {
    Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Command, WantedKind};
    use crate::base::exit::Exit;
    use crate::plan::test_lines::parse;

    fn job(flags: &[&str]) -> Job {
        match parse(&[&["run"], flags, &["--", "sh", "-c", "true"]].concat()) {
            Ok((context, Command::Run(args))) => Job::check(args, &context).expect("the flags are accepted"),
            other => panic!("expected run: {:?}", other.map(|(_, command)| command)),
        }
    }

    #[test]
    fn plain_run_has_the_defaults() {
        let job = job(&["nightly"]);
        assert_eq!(job.grace_of(Duration::from_secs(30)), GRACE);
        assert_eq!((job.wanted.kind, job.wanted.timeout), (WantedKind::Exclusive, None));
        assert_eq!(job.wanted.on_busy, Exit::BUSY);
        assert_eq!(job.service.session_timeout, Duration::from_secs(30));
    }

    #[test]
    fn default_grace_follows_a_short_session() {
        let of = |flags: &[&str]| job(flags).grace_of(Duration::from_secs(12));
        assert_eq!(of(&["x"]), Duration::from_secs(2));
        assert_eq!(of(&["--grace", "3s", "x"]), Duration::from_secs(3));
    }

    #[test]
    fn grace_without_room_for_renewals_is_refused() {
        let check = |seconds| check_grace(Some(Duration::from_secs(seconds)), Duration::from_secs(30));
        assert!(check(10).is_ok());
        assert!(check(11).expect_err("too long").to_string().contains("--grace 11s"));
    }
}
