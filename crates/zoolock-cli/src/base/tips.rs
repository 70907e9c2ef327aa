//! Tips: what to write in place of a word that the command line does not know.

use std::ffi::OsString;

use clap::Command;
use clap::CommandFactory as _;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::Args;
use crate::base::shell::quote_for_shell;

/// Commands and flags of flock, consul and other tools, with the words of zoolock. The flags are those of `run` and `hold`.
const OTHER_TOOLS: [(&[&str], &str); 13] = [
    (&["list"], "zoolock ls"),
    (&["status"], "zoolock show NAME, or zoolock serve --status"),
    (&["lock"], "zoolock run NAME -- CMD, or zoolock hold NAME"),
    (
        &["unlock", "release"],
        "`zoolock run` releases its lock when CMD ends; zoolock revoke NAME asks the holder to release it",
    ),
    (&["-n", "--nb", "--nonblock"], "--try, or --permits N for a semaphore"),
    (&["-w", "--wait"], "--timeout TIME"),
    (&["-s"], "--shared"),
    (&["-x", "-e", "--exclusive"], "a lock is held alone unless --shared or --permits is given"),
    (&["-E", "--conflict-exit-code"], "--on-busy-exit CODE"),
    (&["-c", "--command"], "zoolock run NAME -- sh -c CMD"),
    (&["--ttl"], "--session-timeout TIME"),
    (&["--keep"], "zoolock run --keep NAME -- CMD"),
    (&["--stay"], "zoolock hold --stay NAME"),
];

/// Replaces the tips of clap where zoolock has better ones. `line`: the refused command line.
pub(crate) fn correct(mut error: clap::Error, line: &[OsString]) -> clap::Error {
    // clap proposes to put `--` before an unknown flag. But after `--`, `run` expects its command, and most other
    // subcommands accept nothing.
    let is_right = |tip: &&StyledStr| !tip.to_string().contains(" as a value, use ");
    let mut tips: Vec<StyledStr> = match error.remove(ContextKind::Suggested) {
        Some(ContextValue::StyledStrs(tips)) => tips.iter().filter(is_right).cloned().collect(),
        _ => Vec::new(),
    };
    if let Some(tip) = find_tip(&error, line, &Args::command()) {
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedSubcommand);
        tips = vec![tip.into()];
    }
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

fn find_tip(error: &clap::Error, line: &[OsString], command: &Command) -> Option<String> {
    let text = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let known = |word: &str| {
        let row = OTHER_TOOLS.iter().find(|(words, _)| words.contains(&word));
        row.map(|(_, tip)| (*tip).to_owned())
    };
    let (usage, arg) = (text(ContextKind::Usage), text(ContextKind::InvalidArg));
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            // With a command after `--`, the unknown word is the name of a lock, unless it is a misspelt `run`.
            let is_misspelt = ["run", "hold"].contains(&text(ContextKind::SuggestedSubcommand).as_str());
            match line.iter().any(|word| word == "--") {
                true => (!is_misspelt).then(|| "zoolock run NAME -- CMD".to_owned()),
                false => known(&text(ContextKind::InvalidSubcommand)),
            }
        }
        ErrorKind::MissingRequiredArgument | ErrorKind::UnknownArgument if usage.contains("zoolock run") => {
            add_dashes(line, command).or_else(|| known(&arg))
        }
        ErrorKind::UnknownArgument if usage.contains("zoolock hold") => known(&arg),
        _ => None,
    }
}

/// Returns the command line of `run` with `--` before CMD, if it is right then, and shows no password.
fn add_dashes(line: &[OsString], command: &Command) -> Option<String> {
    if line.iter().any(|word| word.to_string_lossy().starts_with("--auth")) {
        return None;
    }
    // Dashes without a command behind them.
    let line = line.strip_suffix(&["--".into()]).unwrap_or(line);
    let with_dashes = |at: usize| {
        let (before, after) = line.split_at(at);
        let words = if after.is_empty() { &["CMD".into()] } else { after };
        [before, &["--".into()], words].concat()
    };
    let is_command = |at: &usize| line.get(*at).is_none_or(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let mut lines = (1..=line.len()).filter(is_command).map(with_dashes);
    let line = lines.find(|line| command.clone().try_get_matches_from(line).is_ok())?;
    let words = line.iter().skip(1).map(|word| quote_for_shell(&word.to_string_lossy()));
    Some(format!("zoolock {}", words.collect::<Vec<_>>().join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(line: &str) -> String {
        let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        correct(Args::parse_line(&line, Ok(String::new())).expect_err("a refused line"), &line).to_string()
    }

    #[test]
    fn words_of_other_tools_get_a_tip() {
        for (line, tip) in [
            ("zoolock list", "tip: zoolock ls"),
            ("zoolock status", "tip: zoolock show NAME"),
            ("zoolock lock x", "tip: zoolock run NAME -- CMD"),
            ("zoolock unlock x", "zoolock revoke NAME"),
            ("zoolock deploy -- ./deploy.sh", "tip: zoolock run NAME -- CMD"),
            ("zoolock release -- ./release.sh", "tip: zoolock run NAME -- CMD"),
            ("zoolock rum deploy -- ls", "'run'"),
            ("zoolock run -n x -- ls", "tip: --try, or --permits N"),
            ("zoolock run --nonblock x -- ls", "tip: --try"),
            ("zoolock hold -n x", "tip: --try"),
            ("zoolock run -w 5 x -- ls", "tip: --timeout"),
            ("zoolock run --wait=5 x -- ls", "tip: --timeout"),
            ("zoolock run -s x -- ls", "tip: --shared"),
            ("zoolock run -x x -- ls", "tip: a lock is held alone"),
            ("zoolock run -E 3 x -- ls", "tip: --on-busy-exit"),
            ("zoolock run x -c ls", "tip: zoolock run NAME -- sh -c"),
            ("zoolock run --ttl 10 x -- ls", "tip: --session-timeout"),
            ("zoolock hold --keep x", "tip: zoolock run --keep"),
            ("zoolock run --stay x -- ls", "tip: zoolock hold --stay"),
            ("zoolock show x --jsn", "'--json'"),
        ] {
            let message = message(line);
            assert!(message.contains(tip), "{line}: {message}");
            assert_eq!(message.matches("tip:").count(), 1, "{line}: {message}");
        }
        for line in ["zoolock show x -l", "zoolock ls -n", "zoolock run --auth digest:u:secret x ls"] {
            let message = message(line);
            assert!(!message.contains("tip") && !message.contains("secret"), "{line}: {message}");
        }
    }

    #[test]
    fn run_without_dashes_prints_the_line_with_dashes() {
        for (line, tip) in [
            ("zoolock run x ls", "zoolock run x -- ls"),
            ("zoolock run x ls -l", "zoolock run x -- ls -l"),
            ("zoolock run x ls -n --try", "zoolock run x -- ls -n --try"),
            ("zoolock run --try x it's a", "zoolock run --try x -- 'it'\\''s' a"),
            (
                "zoolock --root /a run --timeout 5s x --note=y ls",
                "zoolock --root /a run --timeout 5s x --note=y -- ls",
            ),
            ("zoolock run x", "zoolock run x -- CMD"),
            ("zoolock run x --", "zoolock run x -- CMD"),
            ("zoolock run x a\u{202e}b", "zoolock run x -- 'a\\u{202e}b'"),
        ] {
            let message = message(line);
            assert!(message.contains(&format!("tip: {tip}\n")), "{line}: {message}");
        }
    }
}
