//! Which locks are taken, and how long they are waited for.

use std::time::Duration;

use zoolock::Zoolock;

use super::service::{Service, check_name, naming};
use crate::args::{ExportArgs, KindArgs, Waiting};
use crate::duration::duration;
use crate::exit::{Exit, Failure};
use crate::metrics::{Collector, Export};
use crate::serve_plan;

/// How long to wait for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all.
    Try,
    /// This long.
    For(Duration),
    /// As long as it takes.
    Forever,
}

/// What kind of lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Alone,
    Shared,
    Write,
    Permits { size: u32, take: u32 },
}

/// A lock to take, or several.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// As people are told.
    pub(crate) name: String,
    pub(crate) names: Vec<String>,
    pub(crate) kind: Kind,
    pub(crate) crash_detection: bool,
    pub(crate) lock_delay: Duration,
    pub(crate) patience: Patience,
    pub(crate) on_busy: Exit,
}

pub(super) fn wanted(names: &[String], waiting: &Waiting, service: &Service) -> Result<Wanted, Failure> {
    for name in names {
        check_name(name, &service.root)?;
    }
    let patience = match (&waiting.timeout, waiting.try_once) {
        (_, true) => Patience::Try,
        (Some(text), false) => match duration("--timeout", text)? {
            // No time to wait is not no time to take what is free.
            Duration::ZERO => Patience::Try,
            patience => Patience::For(patience),
        },
        (None, false) => Patience::Forever,
    };
    let lock_delay = match &waiting.kind.lock_delay {
        Some(text) => duration("--lock-delay", text)?,
        None => Duration::ZERO,
    };
    Ok(Wanted {
        name: names.join(" and "),
        names: names.to_vec(),
        kind: kind(&waiting.kind, names)?,
        crash_detection: waiting.kind.crash_detection,
        lock_delay,
        patience,
        on_busy: Exit::code(waiting.on_busy_exit),
    })
}

fn kind(asked: &KindArgs, names: &[String]) -> Result<Kind, Failure> {
    let one = |flag: &str| match names {
        [_] => Ok(()),
        _ => Err(Failure::usage(format!(
            "{flag} takes one NAME, not {}: {}; the command goes after --",
            names.len(),
            names.join(" ")
        ))),
    };
    match (asked.permits, asked.take) {
        (Some(size), take) => {
            one("--permits")?;
            match take {
                _ if size == 0 => Err(Failure::usage("--permits 0: a semaphore has at least one permit")),
                0 => Err(Failure::usage("--take 0: at least one permit is taken")),
                _ if take > size => {
                    Err(Failure::usage(format!("--take {take}: --permits says that there are only {size}")))
                }
                _ => Ok(Kind::Permits { size, take }),
            }
        }
        _ if asked.write => one("--write").map(|()| Kind::Write),
        _ if asked.shared => Ok(Kind::Shared),
        _ => Ok(Kind::Alone),
    }
}

pub(super) fn name_as(service: &mut Service, asked: &KindArgs) -> Result<(), Failure> {
    service.naming = naming(&asked.naming)?;
    service.kazoo_pattern = asked.kazoo_pattern;
    Ok(())
}

/// Whose lock it is, if somebody says so; an empty variable is as none.
pub(super) fn owner(waiting: &Waiting) -> Result<Option<String>, Failure> {
    let Some(owner) = waiting.owner.as_ref().filter(|owner| !owner.is_empty()) else { return Ok(None) };
    let checked = Zoolock::builder().owner_id(owner);
    checked.map_err(|error| Failure::usage(format!("--{error} (--owner, or ZOOLOCK_OWNER)")))?;
    Ok(Some(owner.clone()))
}

pub(super) fn export(asked: &ExportArgs) -> Result<Export, Failure> {
    if asked.metrics_by_lock && asked.metrics.is_none() && asked.otlp.is_none() {
        return Err(Failure::usage(
            "--metrics-by-lock goes with --metrics or --otlp: without them nobody is told",
        ));
    }
    let address = |text: &String| serve_plan::address("--metrics", text);
    let metrics = asked.metrics.as_ref().map(address).transpose()?;
    let collector = |text: &String| {
        text.parse::<Collector>().map_err(|error| Failure::usage(format!("--otlp {text:?}: {error}")))
    };
    let otlp = asked.otlp.as_ref().map(collector).transpose()?;
    Ok(Export { metrics, otlp })
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::super::lines::{plan, refused};
    use super::*;

    #[test]
    fn several_names_are_one_lock_of_several_and_no_semaphore() {
        let Ok(Plan::Run(run)) = plan(&["run", "a", "b", "--", "true"]) else {
            panic!("nothing is wrong with it")
        };
        assert_eq!((run.wanted.names.len(), run.wanted.kind), (2, Kind::Alone));
        for flag in [&["--permits", "3"][..], &["--write"]] {
            let line = [&["run"], flag, &["a", "b", "--", "true"]].concat();
            assert!(refused(&line).contains("a b"));
        }
    }

    #[test]
    fn permits_that_make_no_sense_are_refused() {
        for (flags, word) in [
            (&["--permits", "0"][..], "--permits 0"),
            (&["--permits", "3", "--take", "0"], "--take 0"),
            (&["--permits", "3", "--take", "4"], "only 3"),
        ] {
            let line = [&["run"], flags, &["x", "--", "true"]].concat();
            let message = refused(&line);
            assert!(message.contains(word), "{message}");
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
    fn monitors_that_cannot_be_reached_are_refused_before_anything_is_begun() {
        assert!(refused(&["run", "--metrics", "9090", "x", "--", "true"]).contains("--metrics"));
        assert!(refused(&["hold", "--otlp", "https://otel:4318", "x"]).contains("https"));
        assert!(refused(&["hold", "--metrics-by-lock", "x"]).contains("--otlp"));
        assert!(plan(&["hold", "--metrics-by-lock", "--metrics", "127.0.0.1:0", "x"]).is_ok());
        assert!(plan(&["hold", "--metrics", "127.0.0.1:0", "--otlp", "http://otel:4318", "x"]).is_ok());
    }
}
