//! Flags and variables that a page names without running them.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::Done;
use crate::guide::book::{Block, Page, root};
use crate::guide::world::World;

/// Runs each line with `--help` at the end of its own words: the command then checks them before it prints its help.
pub(crate) fn check_commands(block: &Block, world: &World) {
    for line in block.text.lines() {
        let place = format!("{}: {line}", block.place);
        let line = line.replace("cargo run --release -- ", "zoolock ");
        let words = line.split('#').next().unwrap_or_default().trim();
        if words.strip_prefix("export ").is_some_and(|pair| pair.contains('=')) {
            continue;
        }
        if let Some(program) = words.strip_prefix("./") {
            assert!(root().join(program).is_file(), "{place}: there is no such program");
            continue;
        }
        assert!(words.starts_with("zoolock "), "{place}: no test knows this command");
        let (ours, _) = words.split_once(" -- ").unwrap_or((words, ""));
        let done =
            Done::from(world.command("bash").args(["-c", &format!("{ours} --help")]).output().expect("bash"));
        assert_eq!(done.code, 0, "{place}: {done:?}");
        assert!(done.stdout.contains("Usage: zoolock "), "{place}: {done:?}");
    }
}

/// Checks that flags and variables in the text are those of the command. On the page that compares other programs, only
/// flags beside `zoolock` are checked.
pub(crate) fn check_mentions(page: &Page, world: &World) {
    let manual = manual(world);
    let compares = page.path.ends_with("coming-from.md");
    for (place, code) in page.code() {
        let ours = code.split(" -- ").next().unwrap_or_default();
        if ours.starts_with("zoolock ") || (ours.starts_with("--") && !compares) {
            let flags = ours.split_whitespace().filter(|word| word.starts_with("--"));
            for flag in flags.map(|flag| flag.trim_end_matches(['…', ','])) {
                assert!(manual.contains(flag), "{place}: no command has {flag}");
            }
        }
        let mut words = code.split(|c: char| !(c.is_ascii_uppercase() || c == '_'));
        let variable = words.find(|word| word.starts_with("ZOOLOCK_") && *word != "ZOOLOCK_");
        if let Some(variable) = variable {
            assert!(manual.contains(variable), "{place}: no command names {variable}");
        }
        if let Some(file) = code.strip_prefix("docs/") {
            assert!(root().join("docs").join(file).is_file(), "{place}: there is no {code}");
        }
    }
}

/// Returns all words of all manual pages, which list what `--help` lists.
fn manual(world: &World) -> BTreeSet<String> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let write = world.command("zoolock").args(["man", "--write"]).arg(directory.path()).output();
    let done = Done::from(write.expect("it starts"));
    assert_eq!(done.code, 0, "{done:?}");
    let pages =
        std::fs::read_dir(directory.path()).expect("readable").map(|page| page.expect("readable").path());
    let text: String = pages.map(|page| std::fs::read_to_string(page).expect("UTF-8")).collect();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    text.replace("\\-", "-").split(|c| !is_part(c)).map(str::to_owned).collect()
}

#[test]
fn unknown_flag_is_detected() {
    let page = Page::of("README.md", "```sh\nzoolock run --no-such-flag x -- true\n```\n");
    let world = World::for_page(&page);
    let check = || check_commands(&page.blocks()[0], &world);
    let told = catch_unwind(AssertUnwindSafe(check)).expect_err("the flag does not exist");
    assert!(told.downcast_ref::<String>().is_some_and(|told| told.contains("--no-such-flag")));
    for text in ["`--no-such-flag`", "`zoolock run --no-such-flag x`", "`ZOOLOCK_NO_SUCH`", "`docs/NO.md`"] {
        let page = Page::of("p.md", text);
        assert!(catch_unwind(AssertUnwindSafe(|| check_mentions(&page, &world))).is_err(), "{text}");
    }
}
