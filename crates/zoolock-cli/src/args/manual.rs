//! `zoolock man`: manual pages, generated from the same definitions as `--help`.

use std::io;
use std::path::Path;

use clap::builder::Resettable;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::{Args, short_help};

/// Date of the last change to the pages. mandoc warns about a page without a date.
const DATE: &str = "2026-11-29";

/// Returns the page of `zoolock`, or of one of its commands. `None` if the command does not exist or is hidden.
pub(crate) fn page(name: Option<&str>) -> Option<String> {
    let zoolock = build_command();
    match name {
        None => Some(render(&zoolock, &names(&zoolock))),
        Some(name) => {
            let command = zoolock.get_subcommands().find(|command| command.get_name() == name)?;
            (!command.is_hide_set()).then(|| render(command, &["zoolock".to_owned()]))
        }
    }
}

/// Writes all pages into an existing directory, as `zoolock.1`, `zoolock-run.1` and so on.
pub(crate) fn write_all_pages(directory: &Path) -> io::Result<()> {
    let zoolock = build_command();
    for command in zoolock.get_subcommands().filter(|command| !command.is_hide_set()) {
        let page = render(command, &["zoolock".to_owned()]);
        std::fs::write(directory.join(format!("{}.1", title(command))), page)?;
    }
    std::fs::write(directory.join("zoolock.1"), render(&zoolock, &names(&zoolock)))
}

fn build_command() -> Command {
    // Leaves out the subcommand `help`, which only repeats --help.
    short_help::build(Args::command().disable_help_subcommand(true))
}

fn names(zoolock: &Command) -> Vec<String> {
    zoolock.get_subcommands().filter(|command| !command.is_hide_set()).map(title).collect()
}

fn title(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

/// Renders the page of a command, with references to other pages.
fn render(command: &Command, see_also: &[String]) -> String {
    let notes = command.get_after_help().map(ToString::to_string);
    let man = Man::new(command.clone().after_help(Resettable::Reset))
        .date(DATE)
        .source(concat!("zoolock ", env!("CARGO_PKG_VERSION")))
        .manual("zoolock");
    let mut page = Vec::new();
    man.render(&mut page).expect("a write to memory succeeds");
    // mandoc warns about an empty line between two breaks.
    let mut page = String::from_utf8(page).expect("help texts are UTF-8").replace(".br\n\n.br\n", ".sp\n");
    let mut trailer = Roff::new();
    if let Some(notes) = notes {
        trailer.control("SH", ["NOTES"]);
        add_paragraphs(&mut trailer, &notes);
    }
    trailer.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    for other in see_also {
        if !line.is_empty() {
            line.push(roman(", "));
        }
        line.extend([bold(other), roman("(1)")]);
    }
    trailer.text(line);
    page.push_str(&trailer.render());
    page
}

/// Adds the paragraphs of a help text. Indented lines are tables and commands, and keep their line breaks.
fn add_paragraphs(page: &mut Roff, text: &str) {
    let mut first = true;
    for paragraph in text.split("\n\n") {
        if !first {
            page.control("PP", []);
        }
        first = false;
        let mut table = false;
        for line in paragraph.lines() {
            if line.starts_with("  ") != table {
                table = !table;
                page.control(if table { "nf" } else { "fi" }, []);
            }
            page.text([roman(line)]);
        }
        if table {
            page.control("fi", []);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indented_lines_keep_their_breaks() {
        let mut page = Roff::new();
        add_paragraphs(&mut page, "codes:\n  1  one\n  2  two\n\nand text");
        assert_eq!(page.to_roff(), "codes:\n.nf\n  1  one\n  2  two\n.fi\n.PP\nand text\n");
    }

    #[test]
    fn hidden_commands_have_no_page() {
        assert!(page(Some("run")).is_some_and(|page| page.contains("zoolock\\-run")));
        assert_eq!(page(Some("reap")), None);
        assert_eq!(page(Some("no-such-command")), None);
        assert!(page(None).is_some_and(|page| page.contains("zoolock\\-serve") && !page.contains("reap")));
    }
}
