//! `zoolock serve --recover`: asks before the server starts from what is left of a damaged log.

use std::io::IsTerminal as _;

use zoolock_server::LogLoss;

use crate::args::RecoverArg;
use crate::base::duration::format_duration;
use crate::base::reporter::Reporter;

/// Describes the loss. Returns whether the server may start from what is left.
pub(crate) fn confirm_loss(loss: &LogLoss, answer: RecoverArg) -> bool {
    let reporter = Reporter::plain();
    describe(loss).iter().for_each(|line| reporter.note(line));
    if answer == RecoverArg::Yes {
        return true;
    }
    if !std::io::stdin().is_terminal() {
        reporter.note("standard input is not a terminal; --recover=yes answers yes in advance");
        return false;
    }
    eprint!("zoolock: start from what is left? [y/N] ");
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    read.is_ok() && ["y", "yes"].contains(&line.trim().to_lowercase().as_str())
}

fn describe(loss: &LogLoss) -> Vec<String> {
    let (restored, recorded) = (loss.restored, loss.recorded);
    let mut lines = vec![
        loss.cause.clone(),
        format!(
            "can be restored: the state after transaction {restored}, with {} znodes and {} sessions",
            loss.znodes, loss.sessions
        ),
        if restored < recorded {
            format!(
                "is lost: all transactions after {restored}; the files record transactions up to {recorded}"
            )
        } else {
            format!("is lost: any transactions after {restored}; the files record none")
        },
    ];
    if !loss.files.is_empty() {
        let files: Vec<String> = loss.files.iter().map(|file| file.display().to_string()).collect();
        lines.push(format!("is renamed to NAME.damaged: {}", files.join(", ")));
    }
    lines.push(format!(
        "clients are served after {}, because holders may rely on locks that are lost",
        format_duration(loss.wait)
    ));
    lines
}
