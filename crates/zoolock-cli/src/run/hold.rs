//! `zoolock hold`: holds a lock without a command.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::Serialize;
use zoolock::AnyGuard;

use crate::args::HoldArgs;
use crate::base::exit::{Exit, Failure};
use crate::base::input::{InputEnd, has_end_of_input};
use crate::base::reporter::Reporter;
use crate::base::signals::{Signals, signal_name};
use crate::base::starter::open_starter;
use crate::local::ServerKeeper;
use crate::metrics::export_while;
use crate::plan::{ConnectionSettings, Context};
use crate::render::text::{format_json_line, print};
use crate::run::acquire::{Acquired, acquire};
use crate::run::flags::WantedLocks;
use crate::run::job::default_grace;
use crate::run::release::{describe_loss, release};
use crate::service::connect::{close, close_quickly};

/// The output of `hold --json`.
#[derive(Serialize)]
struct HeldReport<'a> {
    name: &'a str,
    /// The first path in `paths`.
    path: &'a str,
    paths: Vec<&'a str>,
    node: String,
    token: String,
    /// True if no other client can hold the lock at the same time. Only then is the token a fencing
    /// token.
    alone: bool,
    previous: String,
}

impl HoldArgs {
    /// Runs `zoolock hold`.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let Self { names, after_dashes, stay, waiting, kind, monitoring } = self;
        let names = match (&*names, &*after_dashes) {
            (_, []) => names,
            ([], [_]) => after_dashes,
            _ => return Err(Failure::usage("hold runs no command; write: zoolock run NAME -- CMD")),
        };
        let starter = if stay { None } else { open_starter() };
        let (wanted, service) = WantedLocks::check(context, names, &waiting, &kind, &monitoring)?;
        let Context { global, reporter } = context;
        let otlp = global.environment.otlp.as_deref();
        let holding = hold(&service, &wanted, starter, global.json, reporter);
        export_while(monitoring.metrics, otlp, wanted.leader.clone(), reporter, holding).await
    }
}

/// Acquires the lock, and holds it until a signal, the end of the input or of `starter`, a revocation or a loss.
async fn hold(
    service: &ConnectionSettings,
    wanted: &WantedLocks,
    starter: Option<OwnedFd>,
    json: bool,
    reporter: &Arc<Reporter>,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let _keeper = ServerKeeper::start_for(service, reporter);
    // The input thread starts before the lock is acquired, because the system may refuse a thread.
    let mut input = InputEnd::watch(starter)?;
    let Acquired { zoolock, holder, .. } =
        acquire(service, wanted, reporter, &mut signals, &mut input, &mut false).await?;
    let name = wanted.name.as_str();
    // A reader that has closed the pipe does not need the token. The lock stays held.
    if let Err(failure) = print(&token_line(&holder, name, json)) {
        release(holder, name, reporter).await;
        close(zoolock).await;
        return Err(Failure::new(failure.exit, format!("{failure}; gave up {name}")));
    }
    let end = if has_end_of_input() { "the end of input" } else { "TERM" };
    reporter.note(format_args!("holding {name}; ^C or {end} releases it"));
    let mut exit = Exit::OK;
    let mut connection = holder.connection_changes();
    let leading = async {
        loop {
            // A server can grant another session timeout to each connection.
            let timeout = zoolock.session_timeout().unwrap_or(service.session_timeout);
            wanted.leader.lead(holder.lease(), default_grace(timeout));
            connection.next().await;
        }
    };
    let lost = tokio::select! {
        biased;
        reason = holder.lost() => Some(reason),
        () = holder.revoked() => {
            wanted.leader.end();
            reporter.note(format_args!("{name} was revoked; releasing it"));
            None
        }
        signal = signals.next_end_signal() => {
            reporter.detail(format_args!("{} received", signal_name(signal)));
            exit = Exit::after_signal(signal);
            None
        }
        _ = input.wait_until_ended() => None,
        () = leading => None,
    };
    wanted.leader.end();
    if let Some(reason) = lost {
        reporter.error(format_args!("lost {name}: {}", describe_loss(reason)));
        close_quickly(zoolock).await;
        return Ok(Exit::LOST);
    }
    let goodbye = async {
        if release(holder, name, reporter).await {
            reporter.note(format_args!("released {name}"));
        }
        close(zoolock).await;
    };
    tokio::select! {
        () = goodbye => {}
        _ = signals.next_end_signal() => {}
    }
    Ok(exit)
}

fn token_line(holder: &AnyGuard, name: &str, json: bool) -> String {
    let token = holder.ticket().to_string();
    if !json {
        return token + "\n";
    }
    format_json_line(&HeldReport {
        name,
        path: holder.paths().first().copied().unwrap_or_default(),
        paths: holder.paths(),
        node: holder.node_path(),
        token,
        alone: holder.token().is_some(),
        previous: holder.previous().to_string(),
    })
}
