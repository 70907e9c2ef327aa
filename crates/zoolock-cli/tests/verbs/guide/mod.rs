//! The guide, the README and the examples do what they say: every block in them is run, parsed or compiled, and every link
//! leads somewhere.
//!
//! | language | what is done |
//! |---|---|
//! | `console` | `$` (and `>`, its continuation) goes to the chapter's one shell; what is printed is compared |
//! | `sql` | run in SQLite, where a statement has no parameters, else prepared; `-- N rows` behind it is compared |
//! | `crontab` | each command is run as cron would run it |
//! | `ini` | a systemd unit; it is started, found ready, and ended |
//! | `properties` | each key is one that ZooKeeper knows |
//! | `rust` | compiled and run as a doctest, in `zoolock-tests` |
//! | `sh` | in the README alone: each flag is one that the command knows |
//!
//! In what is printed `…` is anything. A command that fails is followed by `echo $?`; one that ends with `&` is waited for
//! until it has printed what is there. What stands in for the reader's ensemble, ports and directories: `world.rs`.

mod blocks;
mod book;
mod clean_root;
mod console;
mod crontab;
mod examples;
mod flags;
mod links;
mod sql;
mod table;
mod unit;
mod world;

use std::collections::BTreeSet;

use self::book::Page;

macro_rules! chapters {
    ($($test:ident: $file:literal,)+) => {
        const CHAPTERS: &[&str] = &[$($file),+];

        $(
            #[test]
            fn $test() {
                blocks::run(&Page::read(concat!("guide/src/", $file)));
            }
        )+
    };
}

chapters! {
    introduction_does_what_it_says: "introduction.md",
    five_minutes_do_what_they_say: "five-minutes.md",
    cron_and_builds_do_what_they_say: "jobs.md",
    a_rust_service_does_what_it_says: "service.md",
    fencing_does_what_it_says: "fencing.md",
    timeouts_do_what_they_say: "timeouts.md",
    limits_do_what_they_say: "limits.md",
    operating_does_what_it_says: "operating.md",
    coming_from_does_what_it_says: "coming-from.md",
}

#[test]
fn the_readme_does_what_it_says() {
    blocks::run(&Page::read("README.md"));
}

#[test]
fn every_chapter_is_run_and_in_the_summary() {
    let files: BTreeSet<String> = book::files_in("guide/src").into_iter().collect();
    let run: BTreeSet<String> = CHAPTERS
        .iter()
        .map(|name| format!("guide/src/{name}"))
        .chain(["guide/src/SUMMARY.md".to_owned()])
        .collect();
    assert_eq!(files, run, "the files of the guide and those that are run");
    let summary = Page::read("guide/src/SUMMARY.md");
    let listed: Vec<String> =
        summary.links().iter().map(|link| format!("guide/src/{}", link.target)).collect();
    for chapter in CHAPTERS {
        let path = format!("guide/src/{chapter}");
        assert_eq!(listed.iter().filter(|listed| **listed == path).count(), 1, "{chapter} in SUMMARY.md");
    }
    assert_eq!(listed.len(), CHAPTERS.len(), "SUMMARY.md lists nothing else");
}

#[test]
fn every_rust_block_is_compiled() {
    let doctests =
        std::fs::read_to_string(book::root().join("crates/zoolock-tests/src/guide.rs")).expect("it is there");
    for chapter in CHAPTERS {
        let page = Page::read(&format!("guide/src/{chapter}"));
        if page.blocks().iter().any(|block| block.language() == "rust") {
            assert!(
                doctests.contains(&format!("guide/src/{chapter}\"")),
                "{chapter} has Rust that nobody compiles"
            );
        }
    }
}
