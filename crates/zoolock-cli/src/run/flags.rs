//! The flags that `run` and `hold` share: the locks to acquire, their kind, and the time limit.

use std::sync::Arc;
use std::time::Duration;

use zoolock_core::names::Role;

use crate::args::{KindArgs, MonitoringArgs, WaitingArgs, WantedKind};
use crate::base::exit::{Exit, Failure};
use crate::metrics::LeaderPage;
use crate::plan::{ConnectionSettings, Context};
use crate::service::outer::outer_commands;

/// One or several locks to acquire, with the options for all of them.
#[derive(Debug)]
pub(crate) struct WantedLocks {
    /// Name for messages: all names, joined by "and".
    pub(crate) name: String,
    pub(crate) names: Vec<String>,
    pub(crate) kind: WantedKind,
    pub(crate) crash_detection: bool,
    /// Set if the holder of permits gets a number.
    pub(crate) slot: bool,
    pub(crate) lock_delay: Duration,
    /// Set if the locks are acquired only if they are free. With --timeout 0s, it is set, too.
    pub(crate) try_once: bool,
    /// Maximum time to wait.
    pub(crate) timeout: Option<Duration>,
    pub(crate) on_busy: Exit,
    /// Ids of the acquisitions of the outer commands. An outer command is a `zoolock run` that
    /// holds a lock and runs this command.
    pub(crate) outer: Vec<String>,
    /// The page `/leader`.
    pub(crate) leader: Arc<LeaderPage>,
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
        let timeout = waiting.timeout.filter(|timeout| !timeout.is_zero());
        let mut builder = service.builder.naming(kind.naming.naming);
        if kind.naming.kazoo_pattern {
            builder = builder.kazoo_pattern();
        }
        if let Some(note) = &monitoring.note {
            builder = builder.note(note);
        }
        if let Some(owner) = &context.global.environment.owner {
            let named = builder.owner_id(owner);
            builder = named.map_err(|error| Failure::usage(format!("{error} (ZOOLOCK_OWNER)")))?;
        }
        let service = ConnectionSettings {
            connect_timeout: timeout.unwrap_or(Duration::MAX).min(service.connect_timeout),
            builder,
            ..service
        };
        for name in &names {
            service.check_name(name)?;
        }
        let name = names.join(" and ");
        let wanted_kind = kind.check_kind(&names).map_err(Failure::usage)?;
        let leader = LeaderPage::new(&name, wanted_kind.role() == Role::Exclusive);
        let wanted = Self {
            name,
            kind: wanted_kind,
            names,
            crash_detection: kind.crash_detection,
            slot: false,
            lock_delay: kind.lock_delay.unwrap_or_default(),
            try_once: waiting.try_once || waiting.timeout == Some(Duration::ZERO),
            timeout,
            on_busy: Exit::Code(waiting.on_busy_exit),
            outer: outer_commands().0,
            leader,
        };
        Ok((wanted, service))
    }
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
