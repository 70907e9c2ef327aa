//! Tests the guide, the README and the examples. Every block is run, parsed or compiled, and every link is checked.
//!
//! | language | check |
//! |---|---|
//! | `console` | commands after `$`, continued after `>`, run in one shell per page; the output is compared |
//! | `sql` | run by `zoolock-bench/tests/fenced_sql.rs`, which has SQLite |
//! | `crontab` | each command runs as cron would run it |
//! | `ini` | a systemd unit: the service starts, reports that it is ready, and is stopped |
//! | `properties` | each key is a key of ZooKeeper's configuration |
//! | `rust` | compiled and run as a doctest of `zoolock-tests` |
//! | `sh` | only in the README: zoolock has each flag |
//!
//! In expected output, `…` matches anything. `echo $?` must follow a command that fails. If a
//! command ends with `&`, the runner waits for its expected output. `machine.rs` replaces the
//! ensemble, ports and directories of the guide.

mod blocks;
mod book;
mod clean_root;
mod console;
mod crontab;
mod examples;
mod flags;
mod links;
mod machine;
mod table;
mod unit;

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
    something_is_stuck_does_what_it_says: "stuck.md",
    observing_does_what_it_says: "observing.md",
    operating_does_what_it_says: "operating.md",
    coming_from_does_what_it_says: "coming-from.md",
}

#[test]
fn the_readme_does_what_it_says() {
    blocks::run(&Page::read("README.md"));
}

#[test]
fn token_command_works_while_others_wait() {
    let sandbox = crate::common::Sandbox::new();
    let page = Page::read("guide/src/stuck.md");
    let command = page.lines().find_map(|line| line.strip_prefix("$ token=$(")?.strip_suffix(")"));
    let command = command.expect("the command").replacen("zoolock", env!("CARGO_BIN_EXE_zoolock"), 1);
    let mut holder = sandbox.start_piped(&["hold", "nightly"]);
    sandbox.wait_for_contenders("nightly", 1);
    let _waiters = [2, 3].map(|count| {
        let waiter = sandbox.start(&["run", "--shared", "nightly", "--", "true"]);
        sandbox.wait_for_contenders("nightly", count);
        waiter
    });
    let shell = sandbox.command("sh").args(["-c", &command]).output().expect("sh starts");
    let token = String::from_utf8(shell.stdout).expect("UTF-8");
    let done = sandbox.output(&["break", "nightly", "--token", token.trim_end()]);
    assert_eq!((done.code, holder.code()), (0, 70), "{token}: {done:?}");
}

#[test]
fn every_chapter_is_run_and_in_the_summary() {
    let chapters: Vec<String> = CHAPTERS.iter().map(|name| (*name).to_owned()).collect();
    let mut files = book::pages_in("guide/src");
    files.retain(|file| file != "guide/src/SUMMARY.md");
    let tested: BTreeSet<String> = chapters.iter().map(|name| format!("guide/src/{name}")).collect();
    assert_eq!(
        files.into_iter().collect::<BTreeSet<_>>(),
        tested,
        "left: files, right: chapters that are tested"
    );
    let listed = Page::read("guide/src/SUMMARY.md").links().into_iter().map(|(_, target)| target);
    let (mut listed, mut chapters) = (listed.collect::<Vec<_>>(), chapters);
    listed.sort();
    chapters.sort();
    assert_eq!(listed, chapters, "left: SUMMARY.md, right: chapters");
}

#[test]
fn every_rust_block_is_compiled() {
    let doctests = book::root().join("verification/zoolock-tests/src/guide.rs");
    let doctests = std::fs::read_to_string(doctests).expect("the file exists");
    let chapters = CHAPTERS.iter().map(|chapter| format!("guide/src/{chapter}"));
    for page in chapters.chain(examples::pages()) {
        let has_rust = Page::read(&page).blocks().iter().any(|it| it.language == "rust");
        assert!(!has_rust || doctests.contains(&format!("{page}\"")), "{page} is not compiled");
    }
}
