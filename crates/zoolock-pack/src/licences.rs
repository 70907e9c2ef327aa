//! The licences of what is in the program: they ask for no more than that their text goes along.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::materials::{Crate, Materials};

/// All texts, each once, with the crates that it belongs to.
///
/// # Errors
/// Where a crate brings no text along and its licence is not one of those whose text others bring.
pub fn texts(materials: &Materials) -> Result<String> {
    let mut of_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut without: Vec<&Crate> = Vec::new();
    for one in materials.crates.iter().filter(|one| !one.is_ours()) {
        let files = files(one.directory())?;
        if files.is_empty() {
            without.push(one);
        }
        for file in files {
            let text = std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            let text = String::from_utf8_lossy(&text).replace("\r\n", "\n").trim().to_owned();
            of_text.entry(text).or_default().push(title(one));
        }
    }
    let mut page = String::from(
        "The program zoolock has these crates in it, from crates.io. Each is followed by its licence as its authors\n\
         express it; the texts are below.\n\n",
    );
    for one in materials.crates.iter().filter(|one| !one.is_ours()) {
        let license = one.license.as_ref().ok_or_else(|| format!("{} says no licence", one.name))?;
        page.push_str(&format!("{}: {license}\n", title(one)));
    }
    if !without.is_empty() {
        page.push_str("\nThese bring no text along; that of the same name is meant:\n");
        for one in without {
            page.push_str(&format!("{}: {}\n", title(one), one.license.as_deref().unwrap_or_default()));
        }
    }
    for (text, mut of) in of_text {
        of.dedup();
        page.push_str(&format!("\n{}\n{}\n\n{text}\n", "=".repeat(72), of.join(", ")));
    }
    Ok(page)
}

fn title(one: &Crate) -> String {
    format!("{} {}", one.name, one.version)
}

/// Those that say so in their names.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| format!("{}: {error}", directory.display()))?.path();
        let name =
            path.file_name().map(|name| name.to_string_lossy().to_ascii_uppercase()).unwrap_or_default();
        let says_so = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"]
            .iter()
            .any(|word| name.starts_with(word));
        if says_so && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
