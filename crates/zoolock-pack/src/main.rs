//! The command of those who make packages.

#![forbid(unsafe_code)]

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use zoolock_pack::container::{Containerfile, Image};
use zoolock_pack::materials::{Materials, everything};
use zoolock_pack::{Result, licences, sbom};

const USAGE: &str = "\
usage: zoolock-pack sbom                              the bill of materials of the command, as CycloneDX
       zoolock-pack licences                          the licences of all that is in it
       zoolock-pack features                          each published crate alone, and with each of its features
       zoolock-pack container FILE CONTEXT BUILD ROOT the steps of a container file: the first stage in the directory BUILD,
                                                      where it may run cargo, the last in ROOT, which has a system";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = match words[..] {
        ["sbom"] => Materials::of_the_command().and_then(|materials| sbom::cyclonedx(&materials)),
        ["licences"] => Materials::of_the_command().and_then(|materials| licences::texts(&materials)),
        ["features"] => features(),
        ["container", file, context, build, root] => container(file, context, build, root),
        _ => Err(USAGE.to_owned()),
    };
    match said.and_then(|text| {
        std::io::stdout().write_all(text.as_bytes()).map_err(|error| format!("cannot write: {error}"))
    }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("zoolock-pack: {what}");
            ExitCode::FAILURE
        }
    }
}

/// Prints what the image would start, and as whom, one word a line: the user and group, the directory, the program, its arguments.
fn container(file: &str, context: &str, build: &str, root: &str) -> Result<String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let image =
        Image { context: Path::new(context), build: Path::new(build), root: Path::new(root), cargo: &cargo };
    let start = image.make(&Containerfile::parse(&text)?)?;
    let words = [start.user, start.directory].into_iter().chain(start.command);
    Ok(words.map(|word| word + "\n").collect())
}

fn features() -> Result<String> {
    let mut lines = String::new();
    for one in everything()?.into_iter().filter(|one| one.is_ours() && one.publish.is_none()) {
        lines.push_str(&format!("{}\n", one.name));
        for feature in one.features.keys() {
            lines.push_str(&format!("{} {feature}\n", one.name));
        }
    }
    Ok(lines)
}
