//! `-h` prints the most used flags on one screen. `--help` prints all flags.

use std::collections::BTreeSet;

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
    lines.filter_map(|line| line.split("--").nth(1)?.split([' ', '.', ',']).next()).collect()
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
        assert!(long.len() > flags(&short).len() && long.contains(&"color"), "{line:?}: {long:?}");
        assert!(flags(&short).iter().all(|flag| long.contains(flag)), "{line:?}: {short}");
    }
}

#[test]
fn short_help_lists_the_most_used_flags() {
    let sandbox = Sandbox::new();
    let main_flags = &["connect", "auth", "root", "json", "quiet", "help", "version"][..];
    let run_flags =
        &["try", "timeout", "on-busy-exit", "note", "keep", "shared", "permits", "connect", "quiet"];
    for (args, expected) in [(&["-h"][..], main_flags), (&["run", "-h"], run_flags)] {
        let short = help(&sandbox, args);
        let mut flags = flags(&short);
        flags.retain(|flag| args.len() == 1 || *flag != "help");
        let (mut flags, mut expected) = (flags, expected.to_vec());
        flags.sort_unstable();
        expected.sort_unstable();
        assert_eq!(flags, expected, "{short}");
    }
}

#[test]
fn run_help_has_few_flags_examples_and_exit_codes() {
    let help = help(&Sandbox::new(), &["run", "--help"]);
    // A set, because a line of text can begin with a flag, too.
    let flags: BTreeSet<_> =
        flags(help.split("\nExamples").next().expect("a first part")).into_iter().collect();
    assert!(flags.len() <= 26, "{} flags: {flags:?}", flags.len());
    assert!(help.matches("\n  zoolock run ").count() == 3 && help.contains("\n  126/127  "), "{help}");
}

#[test]
fn help_has_no_flags_without_use() {
    let sandbox = Sandbox::new();
    for command in ["run", "top", "revoke", "break", "resize", "completions", "man"] {
        assert!(!help(&sandbox, &[command, "--help"]).contains("--json"), "{command}");
        assert!(sandbox.output(&["man", command]).stdout.contains("quiet"), "{command}");
    }
    for command in ["completions", "man"] {
        for args in [[command, "--help"], ["man", command]] {
            let text = help(&sandbox, &args).replace('\\', "");
            assert!(!text.contains("--connect") && !text.contains("--auth"), "{args:?}: {text}");
        }
    }
    assert!(help(&sandbox, &["ls", "--help"]).contains("--json"));
    assert_eq!(sandbox.output(&["completions", "elvish"]).code, 64);
}

/// Sections of the flags of `run`. `hold` has no child.
const SECTIONS: [&str; 7] =
    ["Arguments", "Waiting", "Child", "Kind of lock", "Monitoring", "Connection", "Output"];

#[test]
fn flags_of_run_and_hold_have_sections() {
    let sandbox = Sandbox::new();
    for (args, has_child) in [
        (["run", "--help"], true),
        (["run", "-h"], true),
        (["hold", "--help"], false),
        (["hold", "-h"], false),
    ] {
        let help = help(&sandbox, &args);
        let flags = help.split("\nExamples").next().expect("a first part");
        let titles = flags.lines().filter_map(|line| line.strip_suffix(':'));
        let titles: Vec<_> = titles.filter(|title| !title.contains(['.', ',']) && title.len() < 20).collect();
        let mut expected = SECTIONS.to_vec();
        expected.retain(|title| has_child || *title != "Child");
        assert_eq!(titles, expected, "{args:?}: {help}");
    }
}

#[test]
fn values_of_run_have_unit_and_default() {
    let sandbox = Sandbox::new();
    let help = help(&sandbox, &["run", "--help"]);
    let (flags, _) = help.split_once("  -h, --help").expect("the last flag");
    let mut checked = 0;
    for flag in flags.split("\n      --").skip(1) {
        let text = flag.split_whitespace().collect::<Vec<_>>().join(" ");
        let Some((name, value)) = text.split(' ').next().zip(text.split(['<', '>']).nth(1)) else { continue };
        if !text.starts_with(&format!("{name} <")) {
            continue;
        }
        checked += 1;
        assert!(text.contains("default: "), "{text}");
        let is_time = |word: &str| {
            let word = word.trim_end_matches([',', ';', ':']);
            let number = word.trim_end_matches(|c: char| c.is_ascii_lowercase());
            number != word && number.parse::<u32>().is_ok()
        };
        let (text, _) = text.split_once("default: ").expect("a default");
        assert!(value != "TIME" || text.split(' ').any(is_time), "no unit: {text}");
    }
    assert!(checked > 15, "{checked} values: {flags}");
}
