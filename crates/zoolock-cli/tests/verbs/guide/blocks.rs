//! All blocks of a page, in the order in which a reader meets them.

use crate::guide::book::Page;
use crate::guide::console::Console;
use crate::guide::sql::Database;
use crate::guide::world::World;
use crate::guide::{crontab, flags, unit};

/// Runs them all. Panics at the first that does not do what it says.
pub(crate) fn run(page: &Page) {
    run_in(page, &World::for_page(page));
}

/// The same elsewhere.
pub(crate) fn run_in(page: &Page, world: &World) {
    let mut console = None;
    let mut database = Database::for_page(page);
    for block in page.blocks() {
        match block.language() {
            "console" => console.get_or_insert_with(|| Console::open(world)).run(&block),
            "sql" => database.run(&block),
            "crontab" => crontab::run(&block, world),
            "ini" => unit::run(&block, world),
            "properties" => unit::check_properties(&block),
            // Compiled as doctests.
            "rust" => {}
            "sh" if page.path == "README.md" => flags::check_commands(&block, world),
            // The screen of `top`, which its own tests compare.
            "text" if page.path == "README.md" => {}
            other => panic!("{}: nobody runs a block of {other:?}", block.place),
        }
    }
    if let Some(console) = console {
        console.close();
    }
    flags::check_mentions(page, world);
}
