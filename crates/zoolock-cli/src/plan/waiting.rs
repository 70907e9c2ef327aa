//! The locks to acquire, their kind, and the time limit.

use std::time::Duration;

use zoolock::Zoolock;

use super::service::{ConnectionSettings, check_name};
use crate::args::{DescriptionArgs, ExportArgs, KindArgs, WaitingArgs, WantedKind};
use crate::base::exit::{Exit, Failure};
use crate::metrics::{Collector, Export};
use crate::reaper::child::HELD_VARIABLE;

/// Time limit for acquiring a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcquireTimeout {
    /// Acquire only if the lock is free.
    Try,
    /// Wait at most this long.
    For(Duration),
    /// Wait without a limit.
    Forever,
}

impl AcquireTimeout {
    /// Returns `other`, or the time limit if it is shorter.
    pub(super) fn shorten(self, other: Duration) -> Duration {
        match self {
            AcquireTimeout::For(patience) => patience.min(other),
            AcquireTimeout::Try | AcquireTimeout::Forever => other,
        }
    }
}

/// One or several locks to acquire, with the options for all of them.
#[derive(Debug)]
pub(crate) struct WantedLocks {
    /// Name for messages: all names, joined by "and".
    pub(crate) name: String,
    pub(crate) names: Vec<String>,
    pub(crate) kind: WantedKind,
    pub(crate) crash_detection: bool,
    pub(crate) lock_delay: Duration,
    pub(crate) patience: AcquireTimeout,
    pub(crate) on_busy: Exit,
    /// Ids of the acquisitions of the outer commands. An outer command is a `zoolock run` that
    /// holds a lock and runs this command.
    pub(crate) outer: Vec<String>,
}

/// Checks the names and the flags that say what to acquire and how long to wait.
pub(super) fn plan_locks(
    names: &[String],
    waiting: &WaitingArgs,
    kind: &KindArgs,
    service: &ConnectionSettings,
) -> Result<WantedLocks, Failure> {
    for name in names {
        check_name(name, &service.root)?;
    }
    let patience = match (waiting.timeout, waiting.try_once) {
        // With --timeout 0s, a free lock is still acquired.
        (_, true) | (Some(Duration::ZERO), false) => AcquireTimeout::Try,
        (Some(patience), false) => AcquireTimeout::For(patience),
        (None, false) => AcquireTimeout::Forever,
    };
    Ok(WantedLocks {
        name: names.join(" and "),
        names: names.to_vec(),
        kind: kind.check_kind(names).map_err(Failure::usage)?,
        crash_detection: kind.crash_detection,
        lock_delay: kind.lock_delay.unwrap_or_default(),
        patience,
        on_busy: Exit::from_code(waiting.on_busy_exit),
        outer: outer_acquisitions(),
    })
}

/// Sets the znode naming of the session.
pub(super) fn set_naming(service: &mut ConnectionSettings, args: &KindArgs) {
    service.naming = args.naming;
    service.kazoo_pattern = args.kazoo_pattern;
}

/// Returns the checked owner id. An empty `ZOOLOCK_OWNER` counts as unset.
pub(super) fn check_owner(description: &DescriptionArgs) -> Result<Option<String>, Failure> {
    let Some(owner) = description.owner.as_ref().filter(|owner| !owner.is_empty()) else { return Ok(None) };
    let checked = Zoolock::builder().owner_id(owner);
    checked.map_err(|error| Failure::usage(format!("--{error} (--owner, or ZOOLOCK_OWNER)")))?;
    Ok(Some(owner.clone()))
}

/// Checks the flags that export metrics.
pub(super) fn check_export(args: &ExportArgs) -> Result<Export, Failure> {
    if args.metrics_by_lock && args.metrics.is_none() && args.otlp.is_none() {
        return Err(Failure::usage(
            "--metrics-by-lock needs --metrics or --otlp: without them no metrics are exported",
        ));
    }
    let collector = |text: &String| {
        text.parse::<Collector>().map_err(|error| Failure::usage(format!("--otlp {text:?}: {error}")))
    };
    let otlp = args.otlp.as_ref().map(collector).transpose()?;
    Ok(Export { metrics: args.metrics, otlp })
}

/// Returns the ids of the acquisitions of the outer commands, from the environment.
fn outer_acquisitions() -> Vec<String> {
    let held = std::env::var(HELD_VARIABLE).unwrap_or_default();
    held.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::super::test_plans::{plan, refused};
    use super::*;

    #[test]
    fn several_names_exclude_permits_and_write() {
        let Ok(Plan::Run(run)) = plan(&["run", "a", "b", "--", "true"]) else { panic!("expected a plan") };
        assert_eq!((run.wanted.names.len(), run.wanted.kind), (2, WantedKind::Exclusive));
        for flag in [&["--permits", "3"][..], &["--write"]] {
            let line = [&["run"], flag, &["a", "b", "--", "true"]].concat();
            assert!(refused(&line).contains("a b"));
        }
    }

    #[test]
    fn impossible_permit_counts_are_refused() {
        for (flags, fragment) in [
            (&["--permits", "0"][..], "--permits 0"),
            (&["--permits", "3", "--take", "0"], "--take 0"),
            (&["--permits", "3", "--take", "4"], "the 3 of"),
        ] {
            let line = [&["run"], flags, &["x", "--", "true"]].concat();
            let message = refused(&line);
            assert!(message.contains(fragment), "{message}");
        }
        assert!(refused(&["resize", "x", "--permits", "0"]).contains("--permits 0"));
        assert!(refused(&["run", "--lock-delay", "soon", "x", "--", "true"]).contains("--lock-delay"));
    }

    #[test]
    fn bad_durations_name_the_flag() {
        for bad in ["", "soon", "-5s", "5", "5 parsecs"] {
            let timeout = format!("--timeout={bad}");
            let message = refused(&["hold", &timeout, "x"]);
            assert!(message.contains("--timeout"), "{message}");
        }
        for bad in ["1s", "61m"] {
            assert!(refused(&["ls", "--session-timeout", bad]).contains("--session-timeout"));
        }
        assert!(plan(&["ls", "--session-timeout", "1h"]).is_ok());
    }

    #[test]
    fn bad_metrics_targets_are_refused() {
        assert!(refused(&["run", "--metrics", "9090", "x", "--", "true"]).contains("--metrics"));
        assert!(refused(&["hold", "--otlp", "https://otel:4318", "x"]).contains("https"));
        assert!(refused(&["hold", "--metrics-by-lock", "x"]).contains("--otlp"));
        assert!(plan(&["hold", "--metrics-by-lock", "--metrics", "127.0.0.1:0", "x"]).is_ok());
        assert!(plan(&["hold", "--metrics", "127.0.0.1:0", "--otlp", "http://otel:4318", "x"]).is_ok());
    }
}
