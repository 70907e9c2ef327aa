//! Runs all blocks of a page, in the order in which a reader meets them.

use crate::guide::book::Page;
use crate::guide::console::Console;
use crate::guide::world::World;
use crate::guide::{crontab, flags, unit};

/// Pages whose SQL `zoolock-bench/tests/fenced_sql.rs` runs.
const SQL: [&str; 2] = ["README.md", "guide/src/fencing.md"];

/// Runs all blocks. Panics at the first one that does not do what the page says.
pub(crate) fn run(page: &Page) {
    run_in(page, &World::for_page(page));
}

/// Runs all blocks in `world`.
pub(crate) fn run_in(page: &Page, world: &World) {
    let mut console = None;
    for block in page.blocks() {
        match block.language.as_str() {
            "console" => console.get_or_insert_with(|| Console::open(world)).run(&block),
            "crontab" => crontab::run(&block, world),
            "ini" => unit::run(&block, world),
            "properties" => unit::check_properties(&block),
            "sql" if SQL.contains(&page.path.as_str()) => {}
            // Compiled as doctests.
            "rust" => {}
            "sh" if page.path == "README.md" => flags::check_commands(&block, world),
            // The screen of `top`, which its own tests compare.
            "text" if page.path == "README.md" => {}
            other => panic!("{}: no test runs a block of {other:?}", block.place),
        }
    }
    if let Some(console) = console {
        console.close();
    }
    flags::check_mentions(page, world);
}
