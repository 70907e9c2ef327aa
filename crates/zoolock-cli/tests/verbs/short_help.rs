//! `-h` prints the most used flags on one screen. `--help` prints all flags.

use crate::common::{CommandOutput, Sandbox};

/// Number of lines of a screen.
const SCREEN_LINES: usize = 40;

/// Returns the help for a terminal with 80 columns.
fn help(sandbox: &Sandbox, args: &[&str]) -> String {
    let done =
        CommandOutput::from(sandbox.zoolock(args).env("COLUMNS", "80").output().expect("the command starts"));
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    done.stdout
}

/// Returns the names of the flags in a help text.
fn flags(help: &str) -> Vec<&str> {
    let lines = help.lines().filter(|line| line.trim_start().starts_with('-'));
    lines.filter_map(|line| line.split("--").nth(1)?.split([' ', '.']).next()).collect()
}

#[test]
fn short_help_fits_on_one_screen() {
    let sandbox = Sandbox::new();
    let main_help = help(&sandbox, &["--help"]);
    let commands =
        main_help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a list");
    let commands = commands.lines().filter_map(|line| line.split_whitespace().next());
    let command_lines: Vec<Vec<&str>> = [vec![]].into_iter().chain(commands.map(|name| vec![name])).collect();
    assert!(command_lines.len() > 15, "{command_lines:?}");
    for line in command_lines {
        let short = help(&sandbox, &[&line[..], &["-h"]].concat());
        assert!(
            short.lines().count() <= SCREEN_LINES,
            "{line:?} has {} lines:\n{short}",
            short.lines().count()
        );
        assert!(short.ends_with("\n\nSee --help for all options.\n"), "{short}");
        let long = help(&sandbox, &[&line[..], &["--help"]].concat());
        assert!(!long.contains("See --help") && long.ends_with('\n') && !long.ends_with("\n\n"), "{long}");
        let long = flags(&long);
        assert!(long.len() > flags(&short).len() && long.contains(&"token-epoch"), "{line:?}: {long:?}");
        assert!(flags(&short).iter().all(|flag| long.contains(flag)), "{line:?}: {short}");
    }
}

#[test]
fn short_help_lists_the_eight_most_used_flags() {
    let sandbox = Sandbox::new();
    let main_flags = ["connect", "auth", "root", "json", "quiet", "verbose", "help", "version"];
    let run_flags = ["try", "timeout", "note", "keep", "shared", "permits", "connect", "quiet"];
    for (args, expected) in [(&["-h"][..], main_flags), (&["run", "-h"], run_flags)] {
        let short = help(&sandbox, args);
        let mut flags = flags(&short);
        flags.retain(|flag| args.len() == 1 || *flag != "help");
        let (mut flags, mut expected) = (flags, expected);
        flags.sort_unstable();
        expected.sort_unstable();
        assert_eq!(flags, expected, "{short}");
    }
}
