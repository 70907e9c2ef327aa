//! The flags that `run` and `hold` share: the locks to acquire, their kind, and the time limit.

use std::time::Duration;

use zoolock::Zoolock;

use crate::args::{Environment, KindArgs, MonitoringArgs, WaitingArgs, WantedKind};
use crate::base::exit::{Exit, Failure};
use crate::plan::{ConnectionSettings, Context};
use crate::service::outer::outer_commands;

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
    fn new(waiting: &WaitingArgs) -> Self {
        match (waiting.timeout, waiting.try_once) {
            // With --timeout 0s, a free lock is still acquired.
            (_, true) | (Some(Duration::ZERO), false) => Self::Try,
            (Some(patience), false) => Self::For(patience),
            (None, false) => Self::Forever,
        }
    }

    /// Returns `other`, or the time limit if it is shorter.
    fn shorten(self, other: Duration) -> Duration {
        match self {
            Self::For(patience) => patience.min(other),
            Self::Try | Self::Forever => other,
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

impl WantedLocks {
    /// Checks the flags, and returns the locks to acquire with the settings of the session that acquires them.
    pub(super) fn check(
        context: &Context,
        names: Vec<String>,
        waiting: &WaitingArgs,
        kind: &KindArgs,
        monitoring: &MonitoringArgs,
    ) -> Result<(Self, ConnectionSettings), Failure> {
        let service = context.connection()?;
        let patience = AcquireTimeout::new(waiting);
        let service = ConnectionSettings {
            connect_timeout: patience.shorten(service.connect_timeout),
            note: monitoring.note.clone(),
            owner: check_owner(&context.global.environment)?,
            naming: kind.naming.naming,
            kazoo_pattern: kind.naming.kazoo_pattern,
            ..service
        };
        for name in &names {
            service.check_name(name)?;
        }
        let wanted = Self {
            name: names.join(" and "),
            kind: kind.check_kind(&names).map_err(Failure::usage)?,
            names,
            crash_detection: kind.crash_detection,
            lock_delay: kind.lock_delay.unwrap_or_default(),
            patience,
            on_busy: Exit::from_code(waiting.on_busy_exit),
            outer: outer_commands().0,
        };
        Ok((wanted, service))
    }
}

/// Checks the owner id.
fn check_owner(environment: &Environment) -> Result<Option<String>, Failure> {
    if let Some(owner) = &environment.owner {
        let checked = Zoolock::builder().owner_id(owner);
        checked.map_err(|error| Failure::usage(format!("{error} (ZOOLOCK_OWNER)")))?;
    }
    Ok(environment.owner.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Command, HoldArgs};
    use crate::plan::test_lines::parse;

    /// Returns the locks that `hold` acquires with these arguments, or the message that refuses the arguments.
    fn wanted(arguments: &[&str]) -> Result<WantedLocks, String> {
        let Ok((context, Command::Hold(args))) = parse(&[&["hold"], arguments].concat()) else {
            panic!("clap accepts the arguments: {arguments:?}")
        };
        let HoldArgs { names, waiting, kind, monitoring, .. } = args;
        let checked = WantedLocks::check(&context, names, &waiting, &kind, &monitoring);
        checked.map(|(wanted, _)| wanted).map_err(|failure| failure.to_string())
    }

    #[test]
    fn several_names_exclude_permits_and_rw() {
        let both = wanted(&["a", "b"]).expect("two locks");
        assert_eq!((both.names.len(), both.kind), (2, WantedKind::Exclusive));
        for flag in [&["--permits", "3"][..], &["--naming", "native,rw"]] {
            assert!(wanted(&[flag, &["a", "b"]].concat()).expect_err("one name").contains("a b"));
        }
        let kind = |flags: &[&str]| wanted(&[flags, &["x"]].concat()).expect("one lock").kind;
        assert_eq!(kind(&["--permits", "2/3"]), WantedKind::Permits { size: 3, take: 2 });
        assert_eq!(kind(&["--naming", "curator,rw"]), WantedKind::Write);
        assert_eq!(kind(&["--naming", "curator,rw", "--shared"]), WantedKind::Shared);
    }
}
