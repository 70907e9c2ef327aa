//! Checks flags and environment variables that a page names in its text.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::CommandOutput;
use crate::guide::book::{Block, Page, root};
use crate::guide::machine::Machine;

/// Runs each zoolock command with `--help` after its own flags, without the part after ` -- `.
/// zoolock checks the flags before it prints its help.
pub(crate) fn check_commands(block: &Block, machine: &Machine) {
    for line in block.text.lines() {
        let location = format!("{}: {line}", block.location);
        let line = line.replace("cargo run --release -- ", "zoolock ");
        let words = line.split('#').next().unwrap_or_default().trim();
        if words.strip_prefix("export ").is_some_and(|pair| pair.contains('=')) {
            continue;
        }
        if let Some(program) = words.strip_prefix("./") {
            assert!(root().join(program).is_file(), "{location}: no such program");
            continue;
        }
        assert!(words.starts_with("zoolock "), "{location}: this test does not know the command");
        let (own_words, _) = words.split_once(" -- ").unwrap_or((words, ""));
        let done = CommandOutput::from(
            machine
                .command("bash")
                .args(["-c", &format!("{own_words} --help")])
                .output()
                .expect("bash starts"),
        );
        assert_eq!(done.code, 0, "{location}: {done:?}");
        assert!(done.stdout.contains("Usage: zoolock "), "{location}: {done:?}");
    }
}

/// Checks that zoolock has the flags and variables that the text names, and that the named files in
/// docs/ exist. One page compares other programs with zoolock, and names their flags too. On that
/// page, only flags after `zoolock` are checked.
pub(crate) fn check_mentions(page: &Page, machine: &Machine) {
    let manual = words_of_manual(machine);
    let compares_programs = page.path.ends_with("coming-from.md");
    for (location, code) in page.code() {
        let own_words = code.split(" -- ").next().unwrap_or_default();
        if own_words.starts_with("zoolock ") || (own_words.starts_with("--") && !compares_programs) {
            let flags = own_words.split_whitespace().filter(|word| word.starts_with("--"));
            for flag in flags.map(|flag| flag.trim_end_matches(['…', ','])) {
                assert!(manual.contains(flag), "{location}: no command has {flag}");
            }
        }
        let mut words = code.split(|c: char| !(c.is_ascii_uppercase() || c == '_'));
        let variable = words.find(|word| word.starts_with("ZOOLOCK_") && *word != "ZOOLOCK_");
        if let Some(variable) = variable {
            assert!(manual.contains(variable), "{location}: no command names {variable}");
        }
        if let Some(file) = code.strip_prefix("docs/") {
            assert!(root().join("docs").join(file).is_file(), "{location}: {code} does not exist");
        }
    }
}

/// Returns all words of all manual pages, which list what `--help` lists.
fn words_of_manual(machine: &Machine) -> BTreeSet<String> {
    // The script uses a directory of the machine, because the sandbox does not exist on a clean
    // root.
    let script = r#"pages=$(mktemp -d) && zoolock man --write "$pages" > /dev/null && cat "$pages"/* && rm -r "$pages""#;
    let done =
        CommandOutput::from(machine.command("bash").args(["-c", script]).output().expect("bash starts"));
    assert_eq!(done.code, 0, "{done:?}");
    let text = done.stdout;
    let is_word_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let text = ["\\fB", "\\fI", "\\fR"].iter().fold(text, |text, font| text.replace(font, " "));
    text.replace("\\-", "-").split(|c| !is_word_part(c)).map(str::to_owned).collect()
}

#[test]
fn unknown_flag_is_detected() {
    let page = Page::of("README.md", "```sh\nzoolock run --no-such-flag x -- true\n```\n");
    let machine = Machine::for_page(&page);
    let check = || check_commands(&page.blocks()[0], &machine);
    let message = catch_unwind(AssertUnwindSafe(check)).expect_err("the flag does not exist");
    assert!(message.downcast_ref::<String>().is_some_and(|text| text.contains("--no-such-flag")));
    for text in ["`--no-such-flag`", "`zoolock run --no-such-flag x`", "`ZOOLOCK_NO_SUCH`", "`docs/NO.md`"] {
        let page = Page::of("p.md", text);
        assert!(catch_unwind(AssertUnwindSafe(|| check_mentions(&page, &machine))).is_err(), "{text}");
    }
}
