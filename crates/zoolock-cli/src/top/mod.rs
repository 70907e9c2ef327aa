//! `zoolock top`: all locks on one screen, live.

mod confirmation;
mod contender;
mod cursor;
mod keys;
mod model;
mod reader;
#[cfg(test)]
mod samples;
mod screen;
mod view;
mod why_window;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;
use ratatui::crossterm::event::KeyCode;
use rustix::process::{Signal, kill_current_process_group};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use zoolock::Zoolock;

use crate::args::{ColorWhen, TopArgs};
use crate::base::exit::{Exit, Failure, cannot_start};
use crate::base::reporter::{escape_unprintable, use_color};
use crate::base::server_clock;
use crate::base::signals::{Signals, is_end_signal};
use crate::base::terminal;
use crate::plan::{ConnectionSettings, Context};
use crate::render::remedy::AdminAction;
use crate::render::status::describe_contender;
use crate::render::text::TextStyle;
use crate::service::connect::{close_quickly, connect, learn_server_clock};
use crate::verbs::operate::notices_break;
use crate::verbs::why::format_chain;
use confirmation::ActionRequest;
use model::{ReadResult, ScreenModel, ScreenTime, Setting, TopCommand};
use reader::{Instructions, ScreenReader};
use screen::RawTerminal;

/// Interval between redraws. It is one second, because ages are shown in seconds.
const TICK: Duration = Duration::from_secs(1);
/// Maximum time to wait for the reply to an action.
const ACTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Time to wait for signals that were sent to this process while it was stopped.
const SIGNAL_DELAY: Duration = Duration::from_millis(50);

impl TopArgs {
    /// Runs `zoolock top`.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        context.refuse_json("top")?;
        let service = context.connection_below(self.prefix.as_deref())?;
        let service = ConnectionSettings { builder: service.builder.command_line("zoolock top"), ..service };
        top(self, service, context).await
    }
}

/// Shows the screen until the user quits, or until a signal ends zoolock.
async fn top(args: TopArgs, service: ConnectionSettings, context: &Context) -> Result<Exit, Failure> {
    if !std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "`top` needs a terminal on standard output; for pipes and files there are `zoolock ls --json` and \
             `zoolock show NAME --json`",
        ));
    }
    if std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
        return Err(Failure::usage(
            "this terminal (TERM) cannot show a full screen; `zoolock ls` prints line by line",
        ));
    }
    if context.global.verbose && std::io::stderr().is_terminal() {
        return Err(Failure::usage("--verbose would write over the screen; send it to a file: 2> FILE"));
    }
    // Connects before switching to full-screen mode, so that errors are printed as usual and ^C ends the process.
    let zoolock = connect(&service, &context.reporter).await?;
    learn_server_clock(&zoolock).await;
    let outcome = show(args, service, zoolock.clone(), context.global.color).await;
    close_quickly(zoolock).await;
    outcome
}

async fn show(
    args: TopArgs,
    service: ConnectionSettings,
    zoolock: Zoolock,
    color: ColorWhen,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    for signal in [Signal::TSTP, Signal::CONT] {
        signals.add_unless_ignored(signal)?;
    }
    let started = Instant::now();
    let mut model = ScreenModel::new(setting(&args, &service), now(started));
    let (instructions, receiver) =
        watch::channel(Instructions { subject: model.subject(), read_requests: 0 });
    let (sender, results) = mpsc::channel(4);
    let screen =
        RawTerminal::enter_full_screen(use_color(color, true)).map_err(|error| terminal_failure(&error))?;
    let keys = keys::start_key_thread().map_err(|error| cannot_start("a thread", error))?;
    let reader = ScreenReader { args, zoolock: zoolock.clone(), instructions: receiver, results: sender };
    // The reader is a task of its own, so that reading a hundred thousand locks does not delay the screen. The task ends
    // with this function, because dropping a `JoinSet` aborts its tasks.
    let mut reading = JoinSet::new();
    reading.spawn(reader.run());
    let event_loop = EventLoop {
        screen,
        keys,
        signals,
        results,
        actions: JoinSet::new(),
        explanations: JoinSet::new(),
        zoolock,
        service,
        instructions,
        started,
    };
    event_loop.run(&mut model).await
}

fn setting(args: &TopArgs, service: &ConnectionSettings) -> Setting {
    let below = args.prefix.as_deref().unwrap_or(&service.root);
    let address = service.endpoint.address();
    Setting {
        title: escape_unprintable(&format!("{address} · {below}")),
        root: service.root.clone(),
        address: address.to_owned(),
        read_only: args.read_only,
        zone: TimeZone::system(),
    }
}

/// The event loop: draws the screen, and handles keys, signals and results of the reader.
struct EventLoop {
    screen: RawTerminal,
    keys: mpsc::Receiver<std::io::Result<Vec<KeyCode>>>,
    signals: Signals,
    results: mpsc::Receiver<ReadResult>,
    /// Actions in progress.
    actions: JoinSet<Result<String, String>>,
    /// Searches for the reason why a lock is not free: the path of the lock, and the answer. There is at most one search.
    explanations: JoinSet<(String, Result<String, String>)>,
    zoolock: Zoolock,
    service: ConnectionSettings,
    instructions: watch::Sender<Instructions>,
    started: Instant,
}

impl EventLoop {
    async fn run(mut self, model: &mut ScreenModel) -> Result<Exit, Failure> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if RawTerminal::panicked() {
                return Err(Failure::unavailable("`top` failed, see the error above; start it again"));
            }
            let (width, height) = self.screen.size().map_err(|error| terminal_failure(&error))?;
            model.resize(width, height);
            self.screen.draw(model).map_err(|error| terminal_failure(&error))?;
            // Keys come before read results, so that reading does not delay input.
            let typed = tokio::select! {
                biased;
                signal = self.signals.next() => {
                    if is_end_signal(signal) {
                        return Ok(Exit::Signal(signal));
                    }
                    self.handle_signal(signal).await?;
                    None
                }
                typed = self.keys.recv() => typed,
                Some(done) = self.actions.join_next() => {
                    model.tick(now(self.started));
                    // If `done` is an error, the task has panicked. The screen then shows the panic
                    // message.
                    if let Ok(outcome) = done {
                        model.show_action_result(outcome);
                    }
                    self.read_now();
                    None
                }
                Some(done) = self.explanations.join_next() => {
                    model.tick(now(self.started));
                    if let Ok((path, answer)) = done {
                        model.show_why(&path, answer);
                    }
                    None
                }
                Some(result) = self.results.recv() => {
                    model.tick(now(self.started));
                    model.handle_read(result);
                    None
                }
                _ = ticks.tick() => None,
            };
            model.tick(now(self.started));
            let more = std::iter::from_fn(|| self.keys.try_recv().ok());
            for typed in typed.into_iter().chain(more.collect::<Vec<_>>()) {
                for key in typed.map_err(|error| terminal_failure(&error))? {
                    match model.handle_key(key) {
                        None => {}
                        Some(TopCommand::Quit) => return Ok(Exit::OK),
                        Some(TopCommand::Stop) => suspend(model),
                        Some(TopCommand::Redraw) => {
                            self.screen.clear().map_err(|error| terminal_failure(&error))?
                        }
                        Some(TopCommand::Read) => self.read_now(),
                        Some(TopCommand::Do(request)) => self.start_action(request),
                        Some(TopCommand::Explain(path)) => self.explain(path),
                    }
                }
            }
            if model.why.is_none() {
                self.explanations.abort_all();
            }
            let subject = model.subject();
            self.instructions.send_if_modified(|instructions| {
                let changed = instructions.subject != subject;
                instructions.subject = subject;
                changed
            });
        }
    }

    fn read_now(&self) {
        self.instructions.send_modify(|instructions| instructions.read_requests += 1);
    }

    /// Starts a confirmed action in the background.
    fn start_action(&mut self, request: ActionRequest) {
        let zoolock = self.zoolock.clone();
        self.actions.spawn(async move {
            let unknown =
                || Err(format!("{}: no answer; the action may have happened, check the queue", request.name));
            timeout(ACTION_TIMEOUT, carry_out(&zoolock, &request)).await.unwrap_or_else(|_| unknown())
        });
    }

    /// Starts to search for the reason why a lock is not free. Ends the search before.
    fn explain(&mut self, path: String) {
        self.explanations.abort_all();
        let (zoolock, service) = (self.zoolock.clone(), self.service.clone());
        self.explanations.spawn(async move {
            let answer = zoolock.admin().why(&path).await;
            let format = |chain| format_chain(&chain, &service, &TextStyle::plain());
            (path, answer.map(format).map_err(|error| error.to_string()))
        });
    }

    async fn handle_signal(&mut self, signal: Signal) -> Result<(), Failure> {
        if signal == Signal::TSTP {
            self.screen.leave_full_screen();
            terminal::stop_this_process();
            sleep(SIGNAL_DELAY).await;
            self.signals.discard(Signal::TSTP);
            self.signals.discard(Signal::CONT);
        } else if signal != Signal::CONT {
            return Ok(());
        }
        // If this process is in the background, the kernel stops this process here until it is in
        // the foreground again.
        self.screen.reenter_full_screen().map_err(|error| terminal_failure(&error))
    }
}

/// Handles ^Z by sending a signal, because a terminal in raw mode sends none.
fn suspend(model: &mut ScreenModel) {
    if terminal::has_job_control_shell() {
        // Stops the whole process group, as the terminal would.
        let _ = kill_current_process_group(Signal::TSTP);
    } else {
        model.show_message("cannot stop: no shell to return to; q quits".to_owned());
    }
}

async fn carry_out(zoolock: &Zoolock, request: &ActionRequest) -> Result<String, String> {
    let ActionRequest { action, path, name, token: ticket } = request;
    let admin = zoolock.admin();
    match action {
        AdminAction::Revoke => {
            admin.revoke(path, *ticket).await.map_err(|error| error.to_string())?;
            Ok(format!("{name}: asked {ticket} to release"))
        }
        AdminAction::Break => {
            let broken = admin.break_lock(path, *ticket).await.map_err(|error| error.to_string())?;
            let more =
                if notices_break(&broken) { "" } else { "; that client may not notice, stop its process" };
            Ok(format!("{name}: removed {ticket} from the queue, {}{more}", describe_contender(&broken)))
        }
    }
}

fn now(started: Instant) -> ScreenTime {
    ScreenTime { running: started.elapsed(), unix_ms: server_clock::now_ms() }
}

fn terminal_failure(error: &std::io::Error) -> Failure {
    Failure::new(Exit::OUTPUT, format!("the terminal cannot be used: {error}"))
}
