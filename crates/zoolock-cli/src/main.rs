//! The command `zoolock`: runs a job under a distributed lock.

#![forbid(unsafe_code)]

mod args;
mod base;
mod doctor;
mod local;
mod metrics;
mod observe;
mod plan;
mod reaper;
mod render;
mod run;
mod service;
mod top;
#[cfg(feature = "ui")]
mod ui;
mod verbs;
mod watch;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::filter::LevelFilter;

use crate::args::{Args, ColorWhen};
use crate::args::{completions, manual};
use crate::base::exit::{Exit, Failure, cannot_start};
use crate::base::reporter::{Reporter, use_color};
use crate::base::start::start_threads_or_exit;
use crate::base::terminal;
use crate::plan::Plan;
use crate::reaper::{become_command, zombies};
use crate::render::text;
use crate::run::hold;
use crate::verbs::{deadlocks, history, list, operate, serve, why};

fn main() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    // The internal commands run here: before the first thread starts, and before any file is opened.
    match args::Internal::parse_line(&line) {
        None => {}
        Some(Ok(args::Internal::Reap(reap))) => return reaper::run_reaper(&reap).into(),
        Some(Ok(args::Internal::Become(command))) => {
            let failure = become_command::become_command(&command);
            Reporter::plain().error(&failure);
            return failure.exit.into();
        }
        Some(Err(error)) => return print_clap_message(&error).into(),
    }
    let args = match Args::parse_line(&line) {
        Ok(args) => args,
        Err(error) => return print_clap_message(&error).into(),
    };
    // These calls come before the first thread starts, because new threads inherit the signal mask.
    // `become_independent` closes inherited files, so it also comes before any file is opened.
    match &args.command {
        args::Command::Serve(serve) if serve.local => local::become_independent(),
        args::Command::Run(_) | args::Command::Hold(_) => terminal::block_ttou(),
        _ => {}
    }
    let reporter = Arc::new(Reporter::new(&args.global));
    let color = args.global.color;
    let _logging = start_threads_or_exit(|| start_logging(args.global.verbose, color));
    let result = Plan::new(args).and_then(|plan| execute(plan, color, &reporter));
    let exit = result.unwrap_or_else(|failure| {
        // With --on-busy-exit 0, a busy lock is not an error. --quiet then hides the message, so that cron sends no mail.
        if failure.exit == Exit::OK {
            reporter.note(&failure)
        } else {
            reporter.error(&failure)
        }
        failure.exit
    });
    exit.into()
}

/// Prints the error in the command line, or the help that the command line asks for.
fn print_clap_message(error: &clap::Error) -> Exit {
    // Help and version are not errors. A closed standard output does not matter here.
    if !error.use_stderr() {
        let _ = error.print();
        return Exit::OK;
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let _ = std::io::stderr().write_all(format!("zoolock: {text}").as_bytes());
    match error.kind() {
        // The name of a host cannot be resolved.
        ErrorKind::Io => Exit::UNAVAILABLE,
        _ => Exit::USAGE,
    }
}

/// Runs the subcommand of `plan` on a new async runtime.
fn execute(plan: Plan, color: ColorWhen, reporter: &Arc<Reporter>) -> Result<Exit, Failure> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all();
    let runtime =
        start_threads_or_exit(|| builder.build()).map_err(|error| cannot_start("the runtime", error))?;
    let result = runtime.block_on(async {
        tokio::spawn(zombies::reap_inherited());
        match plan {
            Plan::Run(plan) => {
                crate::metrics::export_while(plan.export.clone(), reporter, run::run(plan, reporter)).await
            }
            Plan::Hold(plan) => {
                crate::metrics::export_while(plan.export.clone(), reporter, hold::hold(plan, reporter)).await
            }
            Plan::Ls { service, prefix, selection, json } => {
                list::ls(&service, prefix.as_deref(), &selection, json, color, reporter).await
            }
            Plan::Show { service, name, json } => list::show(&service, &name, json, color, reporter).await,
            Plan::Watch { service, name, json } => watch::watch(&service, &name, json, color, reporter).await,
            Plan::Top(plan) => top::top(plan, color, reporter).await,
            Plan::Why { service, name, json } => why::why(&service, &name, json, color, reporter).await,
            Plan::Deadlocks { service, prefix, json } => {
                deadlocks::deadlocks(&service, prefix.as_deref(), json, color, reporter).await
            }
            Plan::History { service, name, last, json } => {
                history::history(&service, name.as_deref(), last, json, color, reporter).await
            }
            Plan::Revoke { service, name, ticket, wait } => {
                operate::revoke(&service, &name, ticket, wait, reporter).await
            }
            Plan::Break { service, name, ticket } => {
                operate::break_lock(&service, &name, ticket, reporter).await
            }
            Plan::Resize { service, name, permits } => {
                operate::resize(&service, &name, permits, reporter).await
            }
            Plan::Doctor(plan) => doctor::doctor(plan, color, reporter).await,
            #[cfg(feature = "ui")]
            Plan::Ui(plan) => ui::ui(*plan, reporter).await,
            Plan::Serve(plan) => serve::serve(*plan, reporter).await,
            Plan::ServeLocal { idle } => local::serve(idle, reporter).await,
            Plan::ServeStatus { json } => serve::print_status(json),
            Plan::ServeStop => serve::stop_server(reporter).await,
            Plan::ServeAdopt => local::adopt(reporter).await,
            Plan::Completions(shell) => text::print(&completions::script(shell)),
            Plan::Man(page) => text::print(&page),
            Plan::WriteManual(directory) => {
                manual::write_all_pages(&directory).map(|()| Exit::OK).map_err(|error| {
                    Failure::new(Exit::OUTPUT, format!("cannot write to {}: {error}", directory.display()))
                })
            }
        }
    });
    zombies::reap_all();
    // The subcommand has awaited all work that must finish. The remaining tasks are dropped.
    runtime.shutdown_background();
    result
}

/// Starts logging to standard error if `-v` is given.
fn start_logging(verbose: u8, color: ColorWhen) -> Option<WorkerGuard> {
    let level = match verbose {
        0 => return None,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let colors = use_color(color, std::io::stderr().is_terminal());
    // This writer drops lines when its buffer is full, so a blocked standard error does not delay lease renewal.
    let (writer, guard) = tracing_appender::non_blocking(std::io::stderr());
    tracing_subscriber::fmt().with_max_level(level).with_writer(writer).with_ansi(colors).init();
    Some(guard)
}
