//! The command `zoolock`: runs a job under a distributed lock.

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
mod secrets;
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

use crate::args::{Args, Command, Global};
use crate::base::exit::{Exit, Failure, cannot_start};
use crate::base::machine_file;
use crate::base::reporter::{Reporter, use_color};
use crate::base::start::start_threads_or_exit;
use crate::base::terminal;
use crate::base::tips;
use crate::plan::Context;
use crate::reaper::{become_command, zombies};

fn main() -> ExitCode {
    run_line().end()
}

/// Runs the command line of this process.
fn run_line() -> Exit {
    let line: Vec<OsString> = std::env::args_os().collect();
    // The internal commands run here: before the first thread starts, and before any file is opened.
    match args::Internal::parse_line(&line) {
        None => {}
        Some(Ok(args::Internal::Reap(reap))) => return reaper::run_reaper(&reap),
        Some(Ok(args::Internal::Become(command))) => {
            let failure = become_command::become_command(&command);
            Reporter::plain().error(&failure);
            return failure.exit;
        }
        Some(Err(error)) => return print_clap_message(&error),
    }
    let args = match Args::parse_line(&line, machine_file::read()) {
        Ok(args) => args,
        Err(error) => return print_clap_message(&tips::correct(error, &line)),
    };
    // These calls come before the first thread starts, because new threads inherit the signal mask.
    // `become_independent` closes inherited files, so it also comes before any file is opened.
    match &args.command {
        Command::Serve(serve) if serve.local => local::become_independent(),
        Command::Run(_) | Command::Hold(_) => terminal::block_ttou(),
        _ => {}
    }
    let Args { global, command } = args;
    let context = Context { reporter: Arc::new(Reporter::new(&global)), global };
    let reporter = &context.reporter;
    let _logging = start_threads_or_exit(|| start_logging(&context.global));
    run(command, &context).unwrap_or_else(|failure| {
        // With --on-busy-exit 0, a busy lock is not an error. --quiet then hides the message, so that cron sends no mail.
        if failure.exit == Exit::OK {
            reporter.note(&failure)
        } else {
            reporter.error(&failure)
        }
        failure.exit
    })
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

/// Runs the subcommand on a new async runtime.
fn run(command: Command, context: &Context) -> Result<Exit, Failure> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all();
    let runtime =
        start_threads_or_exit(|| builder.build()).map_err(|error| cannot_start("the runtime", error))?;
    let result = runtime.block_on(async {
        tokio::spawn(zombies::reap_inherited());
        match command {
            Command::Run(args) => args.run(context).await,
            Command::Hold(args) => args.run(context).await,
            Command::Ls(args) => args.run(context).await,
            Command::Show(args) => args.run(context).await,
            Command::Watch(args) => args.run(context).await,
            Command::Top(args) => args.run(context).await,
            Command::Leader(args) => args.run(context).await,
            Command::Check(args) => args.run(context).await,
            Command::Why(args) => args.run(context).await,
            Command::Deadlocks(args) => args.run(context).await,
            Command::History(args) => args.run(context).await,
            Command::Revoke(args) => args.run(context).await,
            Command::Break(args) => args.run(context).await,
            Command::Resize(args) => args.run(context).await,
            Command::Doctor(args) => args.run(context).await,
            #[cfg(feature = "ui")]
            Command::Ui(args) => args.run(context).await,
            Command::Serve(args) => args.run(context).await,
            Command::Completions(args) => args.run(context),
            Command::Man(args) => args.run(context),
        }
    });
    zombies::reap_all();
    // The subcommand has awaited all work that must finish. The remaining tasks are dropped.
    runtime.shutdown_background();
    result
}

/// Starts logging to standard error if `-v` is given.
fn start_logging(global: &Global) -> Option<WorkerGuard> {
    if !global.verbose {
        return None;
    }
    let colors = use_color(global.color, std::io::stderr().is_terminal());
    // This writer drops lines when its buffer is full, so a blocked standard error does not delay lease renewal.
    let (writer, guard) = tracing_appender::non_blocking(std::io::stderr());
    tracing_subscriber::fmt().with_max_level(LevelFilter::INFO).with_writer(writer).with_ansi(colors).init();
    Some(guard)
}
