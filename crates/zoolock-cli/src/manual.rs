//! `zoolock man`: manual pages, made of what `--help` is made of.

use std::io;
use std::path::Path;

use clap::builder::Resettable;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::Args;

/// When what the pages say was last changed; one without a date is not well formed.
const DATE: &str = "2026-11-25";

/// The page of `zoolock`, or of one of its commands.
pub(crate) fn page(name: Option<&str>) -> Option<String> {
    let zoolock = zoolock();
    match name {
        None => Some(render(&zoolock, &names(&zoolock))),
        Some(name) => {
            let command = zoolock.get_subcommands().find(|command| command.get_name() == name)?;
            (!command.is_hide_set()).then(|| render(command, &["zoolock".to_owned()]))
        }
    }
}

/// Writes all of them into a directory that is there, as `zoolock.1`, `zoolock-run.1` and so on.
pub(crate) fn write(directory: &Path) -> io::Result<()> {
    let zoolock = zoolock();
    for command in zoolock.get_subcommands().filter(|command| !command.is_hide_set()) {
        let page = render(command, &["zoolock".to_owned()]);
        std::fs::write(directory.join(format!("{}.1", title(command))), page)?;
    }
    std::fs::write(directory.join("zoolock.1"), render(&zoolock, &names(&zoolock)))
}

fn zoolock() -> Command {
    // It repeats what --help says.
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    command
}

fn names(zoolock: &Command) -> Vec<String> {
    zoolock.get_subcommands().filter(|command| !command.is_hide_set()).map(title).collect()
}

fn title(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn render(command: &Command, others: &[String]) -> String {
    let notes = command.get_after_help().map(ToString::to_string);
    let man = Man::new(command.clone().after_help(Resettable::Reset))
        .date(DATE)
        .source(concat!("zoolock ", env!("CARGO_PKG_VERSION")))
        .manual("zoolock");
    let mut page = Vec::new();
    man.render(&mut page).expect("memory takes it");
    // Two breaks around an empty line are one too many for mandoc.
    let mut page = String::from_utf8(page).expect("help is text").replace(".br\n\n.br\n", ".sp\n");
    let mut rest = Roff::new();
    if let Some(notes) = notes {
        rest.control("SH", ["NOTES"]);
        paragraphs(&mut rest, &notes);
    }
    rest.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    for other in others {
        if !line.is_empty() {
            line.push(roman(", "));
        }
        line.extend([bold(other), roman("(1)")]);
    }
    rest.text(line);
    page.push_str(&rest.render());
    page
}

/// Paragraphs as `--help` has them; indented lines are tables and commands, and stay as they are.
fn paragraphs(page: &mut Roff, text: &str) {
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
    fn a_table_stays_a_table() {
        let mut page = Roff::new();
        paragraphs(&mut page, "codes:\n  1  one\n  2  two\n\nand text");
        assert_eq!(page.to_roff(), "codes:\n.nf\n  1  one\n  2  two\n.fi\n.PP\nand text\n");
    }

    #[test]
    fn nobody_reads_of_what_is_hidden() {
        assert!(page(Some("run")).is_some_and(|page| page.contains("zoolock\\-run")));
        assert_eq!(page(Some("reap")), None);
        assert_eq!(page(Some("no-such-command")), None);
        assert!(page(None).is_some_and(|page| page.contains("zoolock\\-serve") && !page.contains("reap")));
    }
}
