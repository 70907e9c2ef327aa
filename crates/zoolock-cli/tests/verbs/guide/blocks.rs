//! Runs all blocks of a page, from top to bottom.

use crate::guide::book::Page;
use crate::guide::console::Console;
use crate::guide::machine::Machine;
use crate::guide::{crontab, flags, unit};

/// The page with SQL, which `zoolock-bench/tests/fenced_sql.rs` runs.
const PAGE_WITH_SQL: &str = "guide/src/fencing.md";

/// Runs all blocks on a new machine. Panics at the first block that does not do what the page says.
pub(crate) fn run(page: &Page) {
    run_on(page, &Machine::for_page(page));
}

/// Runs all blocks on `machine`.
pub(crate) fn run_on(page: &Page, machine: &Machine) {
    let mut console = None;
    for block in page.blocks() {
        match block.language.as_str() {
            "console" => console.get_or_insert_with(|| Console::open(machine)).run(&block),
            "crontab" => crontab::run(&block, machine),
            "ini" => unit::run(&block, machine),
            "properties" => unit::check_properties(&block),
            "sql" if page.path == PAGE_WITH_SQL => {}
            // The doctests of `zoolock-tests` compile and run Rust blocks.
            "rust" => {}
            "sh" if page.path == "README.md" => flags::check_commands(&block, machine),
            other => panic!("{}: no test runs a block of {other:?}", block.location),
        }
    }
    if let Some(console) = console {
        console.close();
    }
    flags::check_mentions(page, machine);
}
