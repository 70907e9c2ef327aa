//! Converts command lines to plans. These files check the values, or the library checks them before
//! it opens a connection.
//!
//! * `service.rs`: server, identity, and access to created znodes.
//! * `credentials.rs`, `kerberos.rs`, `no_kerberos.rs`: credentials.
//! * `selection.rs`: the locks that `ls` lists.
//! * `waiting.rs`: locks to acquire, and the time to wait; `run.rs`: the command to run.
//! * `top.rs`, `ui.rs`, `serve.rs`: the commands `top`, `ui` and `serve`.

pub(crate) mod credentials;
#[cfg(feature = "gssapi")]
pub(crate) mod kerberos;
#[cfg(not(feature = "gssapi"))]
#[path = "no_kerberos.rs"]
pub(crate) mod kerberos;
mod run;
pub(crate) mod selection;
pub(crate) mod serve;
mod service;
#[cfg(test)]
pub(crate) mod test_plans;
mod top;
#[cfg(feature = "ui")]
pub(crate) mod ui;
mod waiting;

use std::path::PathBuf;
use std::time::Duration;

use zoolock::Ticket;

use crate::args::manual;
use crate::args::{Args, Command, DoctorArgs, Global, LsArgs, ManArgs, OnLost};
use crate::base::executable;
use crate::base::exit::Failure;
use crate::base::proc::check_proc;

use run::{check_grace, file_name, new_owner};
use selection::ListSelection;
use serve::ServePlan;
use service::{check_name, check_prefix};
use top::plan_top;
#[cfg(feature = "ui")]
use ui::UiPlan;
use waiting::{check_export, check_owner, plan_locks, set_naming};

pub(crate) use run::{HoldPlan, RunPlan};
pub(crate) use service::{ConnectionSettings, Endpoint, plan_connection};
pub(crate) use top::TopPlan;
pub(crate) use waiting::{AcquireTimeout, WantedLocks};

/// A checked command line.
#[derive(Debug)]
pub(crate) enum Plan {
    Run(RunPlan),
    Hold(HoldPlan),
    Ls {
        service: ConnectionSettings,
        prefix: Option<String>,
        selection: ListSelection,
        json: bool,
    },
    Show {
        service: ConnectionSettings,
        name: String,
        json: bool,
    },
    Watch {
        service: ConnectionSettings,
        name: String,
        json: bool,
    },
    Top(TopPlan),
    Why {
        service: ConnectionSettings,
        name: String,
        json: bool,
    },
    Deadlocks {
        service: ConnectionSettings,
        prefix: Option<String>,
        json: bool,
    },
    History {
        service: ConnectionSettings,
        name: Option<String>,
        last: usize,
        json: bool,
    },
    /// Without a ticket, all holders are asked to release the lock.
    Revoke {
        service: ConnectionSettings,
        name: String,
        ticket: Option<Ticket>,
        wait: Option<Duration>,
    },
    /// Without a ticket, nothing changes, and the command that breaks the lock is printed.
    Break {
        service: ConnectionSettings,
        name: String,
        ticket: Option<Ticket>,
    },
    Resize {
        service: ConnectionSettings,
        name: String,
        permits: u32,
    },
    Doctor(DoctorPlan),
    #[cfg(feature = "ui")]
    Ui(Box<UiPlan>),
    Serve(Box<ServePlan>),
    ServeLocal {
        idle: Duration,
    },
    ServeStatus {
        json: bool,
    },
    ServeStop,
    ServeAdopt,
    Completions(clap_complete::Shell),
    /// Prints this text of a manual page.
    Man(String),
    WriteManual(PathBuf),
}

/// Checked arguments of `zoolock doctor`.
#[derive(Debug)]
pub(crate) struct DoctorPlan {
    pub(crate) service: ConnectionSettings,
    pub(crate) strict: bool,
    pub(crate) limit: usize,
    pub(crate) json: bool,
}

impl Plan {
    /// Checks the command line.
    pub(crate) fn new(args: Args) -> Result<Self, Failure> {
        let Args { global, command } = args;
        match command {
            Command::Run(run) => {
                refuse_json(&global, "run")?;
                let mut service = plan_connection(&global, run.description.note.clone())?;
                set_naming(&mut service, &run.kind);
                service.owner = Some(match check_owner(&run.description)? {
                    Some(owner) => owner,
                    None => new_owner()?,
                });
                let wanted = plan_locks(&run.names, &run.waiting, &run.kind, &service)?;
                service.connect_timeout = wanted.patience.shorten(service.connect_timeout);
                let grace = check_grace(run.child.grace, service.session_timeout)?;
                // This is `None` without --grace. The grace period then depends on the negotiated
                // session timeout.
                service.grace = grace;
                service.program = run.command.first().map(file_name);
                if let Some(program) = run.command.first() {
                    executable::check(program)?;
                }
                check_proc()?;
                let (on_lost, on_revoke, keep) = (run.child.on_lost, run.child.on_revoke, run.child.keep);
                if keep && on_lost == OnLost::Warn {
                    return Err(Failure::usage(
                        "--keep with --on-lost warn: CMD would continue while another host starts its own",
                    ));
                }
                let export = check_export(&run.export)?;
                service.metrics_by_lock = run.export.metrics_by_lock;
                Ok(Self::Run(RunPlan {
                    service,
                    wanted,
                    grace,
                    on_lost,
                    on_revoke,
                    keep,
                    export,
                    command: run.command,
                }))
            }
            Command::Hold(hold) => {
                let mut service = plan_connection(&global, hold.description.note.clone())?;
                set_naming(&mut service, &hold.kind);
                service.owner = check_owner(&hold.description)?;
                let wanted = plan_locks(&hold.names, &hold.waiting, &hold.kind, &service)?;
                service.connect_timeout = wanted.patience.shorten(service.connect_timeout);
                let export = check_export(&hold.export)?;
                service.metrics_by_lock = hold.export.metrics_by_lock;
                Ok(Self::Hold(HoldPlan { service, wanted, export, json: global.json }))
            }
            Command::Ls(ls) => {
                let service = plan_connection(&global, None)?;
                check_prefix(ls.prefix.as_deref(), &service.root)?;
                let LsArgs { prefix, sort: order, waiting, held_by, older } = ls;
                let selection = ListSelection { order, waiting, held_by, older };
                Ok(Self::Ls { service, prefix, selection, json: global.json })
            }
            Command::Show(show) => {
                let service = plan_connection(&global, None)?;
                check_name(&show.name, &service.root)?;
                Ok(Self::Show { service, name: show.name, json: global.json })
            }
            Command::Watch(watch) => {
                let service = plan_connection(&global, None)?;
                check_name(&watch.name, &service.root)?;
                Ok(Self::Watch { service, name: watch.name, json: global.json })
            }
            Command::Top(asked) => plan_top(&global, asked).map(Self::Top),
            Command::Why(why) => {
                let service = plan_connection(&global, None)?;
                check_name(&why.name, &service.root)?;
                Ok(Self::Why { service, name: why.name, json: global.json })
            }
            Command::Deadlocks(deadlocks) => {
                let service = plan_connection(&global, None)?;
                check_prefix(deadlocks.prefix.as_deref(), &service.root)?;
                Ok(Self::Deadlocks { service, prefix: deadlocks.prefix, json: global.json })
            }
            Command::History(history) => {
                let service = plan_connection(&global, None)?;
                if let Some(name) = &history.name {
                    check_name(name, &service.root)?;
                }
                Ok(Self::History { service, name: history.name, last: history.last, json: global.json })
            }
            Command::Revoke(revoke) => {
                refuse_json(&global, "revoke")?;
                let mut service = plan_connection(&global, revoke.note)?;
                check_name(&revoke.name, &service.root)?;
                service.command = Some(format!("zoolock revoke {}", revoke.name));
                Ok(Self::Revoke { service, name: revoke.name, ticket: revoke.token, wait: revoke.wait })
            }
            Command::Break(broken) => {
                refuse_json(&global, "break")?;
                let mut service = plan_connection(&global, broken.note)?;
                check_name(&broken.name, &service.root)?;
                service.command = Some(format!("zoolock break {}", broken.name));
                Ok(Self::Break { service, name: broken.name, ticket: broken.token })
            }
            Command::Resize(resize) => {
                refuse_json(&global, "resize")?;
                let service = plan_connection(&global, None)?;
                check_name(&resize.name, &service.root)?;
                Ok(Self::Resize { service, name: resize.name, permits: resize.permits })
            }
            Command::Doctor(DoctorArgs { strict, limit }) => Ok(Self::Doctor(DoctorPlan {
                service: plan_connection(&global, None)?,
                strict,
                limit,
                json: global.json,
            })),
            #[cfg(feature = "ui")]
            Command::Ui(asked) => ui::plan(&global, asked),
            Command::Serve(serve) => serve::plan(*serve, &global),
            Command::Completions(asked) => {
                refuse_json(&global, "completions")?;
                Ok(Self::Completions(asked.shell))
            }
            Command::Man(asked) => plan_man(&global, asked),
        }
    }
}

pub(crate) fn refuse_json(global: &Global, command: &str) -> Result<(), Failure> {
    if global.json {
        return Err(Failure::usage(format!(
            "--json has no effect on `{command}`; it works with hold, ls, show, watch, why, deadlocks, history, doctor and serve --status"
        )));
    }
    Ok(())
}

fn plan_man(global: &Global, asked: ManArgs) -> Result<Plan, Failure> {
    refuse_json(global, "man")?;
    if let Some(directory) = asked.write {
        return Ok(Plan::WriteManual(directory));
    }
    let name = asked.command.as_deref();
    let page = manual::page(name).ok_or_else(|| {
        Failure::usage(format!(
            "no command {:?}; `zoolock --help` lists the commands",
            name.unwrap_or_default()
        ))
    })?;
    Ok(Plan::Man(page))
}

#[cfg(test)]
mod tests {
    use super::test_plans::{plan, refused};
    use super::*;

    #[test]
    fn invalid_token_is_named() {
        for line in [&["break", "x", "--token", "17"][..], &["revoke", "x", "--token", "17"]] {
            let message = refused(line);
            assert!(message.contains("`17`") && message.contains("zoolock show"), "{message}");
        }
    }

    #[test]
    fn doctor_limit_zero_is_refused() {
        assert!(refused(&["doctor", "--limit", "0"]).contains("--limit 0"));
        assert!(matches!(
            plan(&["doctor", "--strict", "--json"]),
            Ok(Plan::Doctor(DoctorPlan { strict: true, json: true, .. }))
        ));
    }

    #[test]
    fn json_is_refused_where_it_has_no_effect() {
        refused(&["run", "--json", "x", "--", "true"]);
        refused(&["serve", "--json", "--listen", "127.0.0.1:0"]);
    }
}
