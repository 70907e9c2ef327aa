//! The structure of the crates: imports point downward, and no modules of a crate import each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The layers of a crate, the lowest first. Modules of one layer do not import each other.
struct Layers {
    crate_name: &'static str,
    layers: &'static [&'static [&'static str]],
}

const LAYERED: [Layers; 2] = [
    Layers {
        crate_name: "zoolock",
        layers: &[&["base"], &["zk"], &["session"], &["engine"], &["lock"], &["admin"], &["api"]],
    },
    Layers {
        crate_name: "zoolock-cli",
        layers: &[
            &["args"],
            &["base"],
            &["metrics", "reaper"],
            &["plan"],
            &["local"],
            &["service"],
            &["render"],
            &["run", "verbs"],
            &["doctor", "top", "ui", "watch"],
        ],
    },
];

/// The imports of a crate: for each module at the top, the other modules that it imports, with one file of each import.
type Imports = BTreeMap<String, BTreeMap<String, PathBuf>>;

#[test]
fn imports_point_downward() {
    for Layers { crate_name, layers } in LAYERED {
        let layer_of = |module: &str| layers.iter().position(|layer| layer.contains(&module));
        let mut wrong = Vec::new();
        for (module, imported) in imports(&sources(crate_name)) {
            let Some(own) = layer_of(&module) else {
                panic!("{crate_name}: the module `{module}` is in no layer; name its layer in this test");
            };
            for (other, file) in imported {
                if layer_of(&other).is_none_or(|layer| layer >= own) {
                    wrong.push(format!("{}: {module} imports {other}", file.display()));
                }
            }
        }
        assert!(wrong.is_empty(), "{crate_name}: imports that do not point downward: {wrong:#?}");
    }
}

#[test]
fn modules_form_no_circle() {
    let crates = std::fs::read_dir(repository().join("crates")).expect("the crates can be listed");
    let names = crates.map(|entry| entry.expect("an entry can be read").file_name());
    for name in names {
        let name = name.to_str().expect("crates have simple names");
        let mut imports = imports(&sources(name));
        // Removes modules that import no other module, until none is left or all others are in circles or above them.
        loop {
            let free: Vec<String> = imports
                .iter()
                .filter(|(_, imported)| imported.keys().all(|other| !imports.contains_key(other)))
                .map(|(module, _)| module.clone())
                .collect();
            if free.is_empty() {
                break;
            }
            imports.retain(|module, _| !free.contains(module));
        }
        assert!(imports.is_empty(), "{name}: these modules import each other in a circle: {imports:#?}");
    }
}

/// The first test must see the imports, and the second one a circle.
#[test]
fn imports_are_found() {
    let found = imports_in(
        "use crate::zk::session::{Op, ZkSession};\n// crate::api::Zoolock\nlet x = crate::base::clock::now();\n",
    );
    assert_eq!(found, ["base", "zk"].map(str::to_owned).into());
    let zoolock = imports(&sources("zoolock"));
    assert!(zoolock["api"].contains_key("lock") && zoolock["zk"].contains_key("base"), "{zoolock:#?}");
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(crate_name: &str) -> PathBuf {
    repository().join("crates").join(crate_name).join("src")
}

fn imports(sources: &Path) -> Imports {
    let mut all = Imports::new();
    for entry in std::fs::read_dir(sources).expect("the sources can be listed") {
        let path = entry.expect("an entry can be read").path();
        let module =
            path.file_stem().and_then(|stem| stem.to_str()).expect("modules have simple names").to_owned();
        // The root of a crate imports what it likes. A program's source is below `bin`.
        if ["lib", "main", "bin"].contains(&module.as_str()) {
            continue;
        }
        for file in rust_files(&path) {
            let text = std::fs::read_to_string(&file).expect("a source can be read");
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let imported = imports_in(code).into_iter().filter(|other| *other != module);
            let known = all.entry(module.clone()).or_default();
            known.extend(imported.map(|other| (other, file.clone())));
        }
    }
    let modules: BTreeSet<String> = all.keys().cloned().collect();
    for imported in all.values_mut() {
        // The root of the library exports types of its highest layer.
        let type_of_root = imported.iter().find(|(other, _)| other.starts_with(char::is_uppercase));
        if let Some(file) = type_of_root.map(|(_, file)| file.clone()) {
            imported.insert("api".to_owned(), file);
        }
        imported.retain(|other, _| modules.contains(other));
    }
    if let Some(api) = all.get_mut("api") {
        api.remove("api");
    }
    all
}

fn rust_files(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).expect("a folder of sources can be listed");
        return entries.flat_map(|entry| rust_files(&entry.expect("an entry can be read").path())).collect();
    }
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    if is_rust { vec![path.to_owned()] } else { Vec::new() }
}

/// Returns the names behind `crate::` in the code.
fn imports_in(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in code.lines().map(|line| line.split("//").next().unwrap_or_default()) {
        for rest in line.split("crate::").skip(1) {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            found.insert(rest[..end].to_owned());
        }
    }
    found
}
