//! Flags and variables that are named, and not run.

use std::collections::BTreeSet;

use crate::common::Done;
use crate::guide::book::{Block, Page, root};
use crate::guide::world::World;

/// Asks the command about each line: with `--help` at the end of its own words it reads all of them, and says whether
/// it knows them, before it helps.
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
        assert!(words.starts_with("zoolock "), "{place}: nobody knows what that is");
        let (ours, _) = words.split_once(" -- ").unwrap_or((words, ""));
        let done =
            Done::from(world.command("bash").args(["-c", &format!("{ours} --help")]).output().expect("bash"));
        assert_eq!(done.code, 0, "{place}: {done:?}");
        assert!(done.stdout.contains("Usage: zoolock "), "{place}: {done:?}");
    }
}

/// Flags and variables in the text are those of the command. Where others are compared, those beside `zoolock`.
pub(crate) fn check_mentions(page: &Page, world: &World) {
    let help = help(world);
    let compares = page.path.ends_with("coming-from.md");
    for (place, code) in page.code() {
        let ours = code.split(" -- ").next().unwrap_or_default();
        if ours.starts_with("zoolock ") || (ours.starts_with("--") && !compares) {
            let flags = ours.split_whitespace().filter(|word| word.starts_with("--"));
            for flag in flags.map(|flag| flag.trim_end_matches(['…', ','])) {
                assert!(help.contains(flag), "{place}: no command has {flag}");
            }
        }
        let mut words = code.split(|c: char| !(c.is_ascii_uppercase() || c == '_'));
        let variable = words.find(|word| word.starts_with("ZOOLOCK_") && *word != "ZOOLOCK_");
        if let Some(variable) = variable {
            assert!(help.contains(variable), "{place}: no command says anything of {variable}");
        }
        if let Some(file) = code.strip_prefix("docs/") {
            assert!(root().join("docs").join(file).is_file(), "{place}: there is no {code}");
        }
    }
}

/// All words of all helps.
fn help(world: &World) -> BTreeSet<String> {
    let ask = |words: &[&str]| {
        let done =
            Done::from(world.command("zoolock").args(words).arg("--help").output().expect("it starts"));
        assert_eq!(done.code, 0, "{done:?}");
        done.stdout
    };
    let all = ask(&[]);
    let (_, commands) = all.split_once("Commands:").expect("there are some");
    let (commands, _) = commands.split_once("Options:").unwrap_or((commands, ""));
    let indented = commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<&str> = indented.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"run") && names.contains(&"serve"), "{names:?}");
    let mut helps = vec![all.clone()];
    helps.extend(names.into_iter().filter(|name| *name != "help").map(|name| ask(&[name])));
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    helps.iter().flat_map(|help| help.split(|c| !is_part(c))).map(str::to_owned).collect()
}

#[test]
fn a_flag_that_nobody_knows_is_found() {
    let page = Page::of("README.md", "```sh\nzoolock run --no-such-flag x -- true\n```\n");
    let world = World::for_page(&page);
    let check = || check_commands(&page.blocks()[0], &world);
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).expect_err("it is found");
    assert!(told.downcast_ref::<String>().is_some_and(|told| told.contains("--no-such-flag")));
    for text in ["`--no-such-flag`", "`zoolock run --no-such-flag x`", "`ZOOLOCK_NO_SUCH`", "`docs/NO.md`"] {
        let page = Page::of("p.md", text);
        let check = std::panic::AssertUnwindSafe(|| check_mentions(&page, &world));
        assert!(std::panic::catch_unwind(check).is_err(), "{text}");
    }
}
