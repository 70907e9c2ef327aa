//! The manual: each command has a page with all its flags, and `man` and `mandoc` accept the pages.

use std::path::Path;
use std::process::Command;

use crate::common::{CommandOutput, Sandbox};
use zoolock_tests::skip::Availability;

/// Returns the commands that `--help` lists, except `help`.
fn commands(sandbox: &Sandbox) -> Vec<String> {
    let help = sandbox.output(&["--help"]).stdout;
    let (_, rest) = help.split_once("Commands:\n").expect("a list of commands");
    let lines = rest.lines().take_while(|line| !line.is_empty());
    let names =
        lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).filter(|name| !name.is_empty());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// Escapes hyphens as in roff.
fn escaped(text: &str) -> String {
    text.replace('-', "\\-")
}

#[test]
fn every_command_and_flag_is_in_the_manual() {
    let sandbox = Sandbox::new();
    let commands = commands(&sandbox);
    assert!(commands.len() > 15 && commands.contains(&"completions".to_owned()), "{commands:?}");
    let all_pages = sandbox.output(&["man"]);
    assert_eq!(all_pages.code, 0, "{all_pages:?}");
    for command in &commands {
        let page = sandbox.output(&["man", command]);
        assert_eq!(page.code, 0, "{page:?}");
        assert!(page.stdout.contains(&format!(".TH zoolock-{command} 1 ")), "{}", page.stdout);
        assert!(
            all_pages.stdout.contains(&escaped(&format!("zoolock-{command}"))),
            "{command} in {}",
            all_pages.stdout
        );
        let help = sandbox.output(&[command, "--help"]).stdout;
        let flags: Vec<&str> = help
            .split(|c: char| c.is_whitespace() || c == ',')
            .filter(|word| word.starts_with("--") && word.len() > 2)
            .map(|word| {
                word.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
                    .next()
                    .expect("split returns at least one part")
            })
            .collect();
        assert!(flags.contains(&"--color"), "{flags:?}");
        for flag in flags {
            assert!(page.stdout.contains(&escaped(flag)), "{command}: {flag}");
        }
    }
    let unknown = sandbox.output(&["man", "reap"]);
    assert_eq!(unknown.code, 64, "{unknown:?}");
    assert!(unknown.stderr.contains("no command \"reap\""), "{unknown:?}");
}

#[test]
fn man_and_mandoc_accept_every_page() {
    let sandbox = Sandbox::new();
    let directory = sandbox.path("manual");
    let missing = sandbox.output(&["man", "--write", directory.to_str().expect("UTF-8")]);
    assert_eq!(missing.code, 74, "{missing:?}");
    std::fs::create_dir(&directory).expect("directory created");
    let done = sandbox.output(&["man", "--write", directory.to_str().expect("UTF-8")]);
    assert_eq!(done.code, 0, "{done:?}");
    let pages = std::fs::read_dir(&directory).expect("the directory is readable");
    let mut pages: Vec<_> = pages.map(|entry| entry.expect("readable entry").path()).collect();
    pages.sort();
    assert_eq!(pages.len(), commands(&sandbox).len() + 1, "{pages:?}");
    for (reader, flags) in
        [("man", &["--warnings", "-E", "UTF-8", "-l"][..]), ("mandoc", &["-T", "lint", "-W", "warning"])]
    {
        if !available(reader).or_skip(&format!("the manual in {reader}")) {
            continue;
        }
        for page in &pages {
            let done = read(reader, flags, page);
            let complaints = if reader == "man" { &done.stderr } else { &done.stdout };
            assert_eq!((complaints.as_str(), done.code), ("", 0), "{reader} of {}", page.display());
        }
    }
}

#[test]
fn page_of_run_has_sections_in_order() {
    let page = Sandbox::new().output(&["man", "run"]).stdout;
    let titles: Vec<_> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
    let flags = ["WAITING", "CHILD", "\"KIND OF LOCK\"", "MONITORING", "CONNECTION", "OUTPUT"];
    let start = titles.iter().position(|title| *title == "WAITING").expect("the section of --try");
    assert_eq!(titles[start - 1..start + flags.len()], [&["OPTIONS"], &flags[..]].concat(), "{titles:?}");
    let positionals = page.split(".SH OPTIONS").nth(1).and_then(|rest| rest.split(".SH ").next());
    assert!(positionals.is_some_and(|text| text.contains("NAME") && text.contains("CMD")), "{page}");
}

fn available(reader: &str) -> Availability {
    match Command::new("sh").args(["-c", &format!("command -v {reader}")]).output() {
        Ok(found) if found.status.success() => Availability::Available,
        _ => Availability::Missing(format!("no {reader} here")),
    }
}

/// Opens a page with a reader of manual pages.
fn read(reader: &str, flags: &[&str], page: &Path) -> CommandOutput {
    let mut command = Command::new(reader);
    command.args(flags).arg(page).env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8").env("MANPAGER", "cat");
    CommandOutput::from(command.output().expect("the reader starts"))
}
