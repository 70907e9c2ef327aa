//! Tests of the structure of the crates. In a crate with layers, each module imports only modules
//! of lower layers. No modules or files of a crate import each other in a circle, with the
//! exceptions in [`CIRCLES_LEFT`]. No file has more than [`MAX_LINES`] lines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use zoolock_tests::source::rust_files;

/// The layers of a crate, the lowest first. Modules of one layer do not import each other.
struct Layers {
    crate_name: &'static str,
    layers: &'static [&'static [&'static str]],
}

const LAYERED: [Layers; 2] = [
    Layers {
        crate_name: "zoolock",
        layers: &[
            &["base"],
            &["zk"],
            &["session"],
            &["engine"],
            &["lock"],
            &["admin"],
            &["observe"],
            &["api"],
        ],
    },
    Layers {
        crate_name: "zoolock-cli",
        layers: &[
            &["args"],
            &["base"],
            &["observe", "secrets"],
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

/// Modules at the top of a crate whose files may import each other in a circle, each with the reason.
const CIRCLES_LEFT: [(&str, &str, &str); 3] = [
    ("zoolock", "api", "a client makes its builder and its locks, and they return clients and guards"),
    ("zoolock", "lock", "a shared hold acquires its lock, and an acquisition may take part in a shared hold"),
    ("zoolock-cli", "top", "keys answer a confirmation"),
];

/// Maximum number of lines of a file.
const MAX_LINES: usize = 600;

/// Maximum number of re-exports through which `resolve` follows a name.
const MAX_STEPS: usize = 8;

/// The imports of a crate: for each top-level module, the other top-level modules that it imports.
/// Each imported module comes with one file that imports it.
type Imports = BTreeMap<String, BTreeMap<String, PathBuf>>;

/// The path of a module or an item, in parts. The path of a crate's root is empty.
type ModulePath = Vec<String>;

/// The imports of a module.
struct Module {
    /// The paths in the code of the module, except those that it only exports.
    paths: Vec<ModulePath>,
    /// The names that the module imports or exports, each with its path.
    names: BTreeMap<String, ModulePath>,
}

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
    for name in crate_names() {
        let circles = keep_circles(imports(&sources(&name)));
        assert!(circles.is_empty(), "{name}: these modules import each other in a circle: {circles:#?}");
    }
}

#[test]
fn files_form_no_circle() {
    for name in crate_names() {
        let circles = keep_circles(file_imports(&name));
        assert!(circles.is_empty(), "{name}: these files import each other in a circle: {circles:#?}");
    }
}

#[test]
fn files_are_short() {
    let mut long = Vec::new();
    let fuzz =
        ["examples", "fuzz_targets", "src"].map(|name| repository().join("verification/fuzz").join(name));
    for folder in crates().into_values().chain(fuzz) {
        for file in rust_files(&folder) {
            let lines = std::fs::read_to_string(&file).expect("a source can be read").lines().count();
            if lines > MAX_LINES {
                long.push((file, lines));
            }
        }
    }
    assert!(long.is_empty(), "files of more than {MAX_LINES} lines: {long:#?}");
}

/// Returns whether a line of code declares the module with this name in a file of its own.
fn names_module(line: &str, name: &str) -> bool {
    let declaration = format!("mod {name};");
    let line = line.trim_start();
    line == declaration || line.starts_with("pub") && line.ends_with(&format!(" {declaration}"))
}

/// A file that no module names is never compiled.
#[test]
fn files_are_named_by_a_module() {
    let mut unnamed = Vec::new();
    for folder in crates().into_values() {
        let files = rust_files(&folder);
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let sources: Vec<(PathBuf, String)> = files.iter().map(|file| (file.clone(), read(file))).collect();
        for (file, _) in &sources {
            let mut module = file.with_extension("");
            if module.ends_with("mod") {
                module.pop();
            }
            let (Some(parent), Some(name)) = (module.parent(), module.file_name()) else { continue };
            let name = name.to_string_lossy();
            // Files with these names, and files in these folders of a crate, are compiled on their own.
            let alone = ["tests", "examples", "benches", "src/bin"].map(|own| folder.join(own));
            if ["lib", "main", "build"].contains(&&*name) || alone.iter().any(|own| parent == own) {
                continue;
            }
            let parents = ["mod.rs", "lib.rs", "main.rs"].map(|file| parent.join(file));
            let is_named = sources.iter().any(|(other, text)| {
                let is_parent = parents.contains(other) || *other == parent.with_extension("rs");
                is_parent && text.lines().any(|line| names_module(line, &name))
                    || ["/", "\""].iter().any(|start| text.contains(&format!("{start}{name}.rs\"]")))
            });
            if !is_named {
                unnamed.push(file.clone());
            }
        }
    }
    assert!(unnamed.is_empty(), "no module names these files: {unnamed:#?}");
}

#[test]
fn docs_name_the_files_of_time_spans() {
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file can be read");
    let docs = read(&repository().join("docs/CLIENT.md"));
    for file in std::fs::read_dir(repository().join("crates/zoolock-client/src/session")).expect("a folder") {
        let file = file.expect("a file");
        if !file.file_type().expect("a type").is_file() {
            continue;
        }
        let start = format!("| `session/{}` |", file.file_name().to_string_lossy());
        let row = docs.lines().find(|line| line.starts_with(&start));
        let is_named = row.expect("docs/CLIENT.md lists the file").contains("time spans");
        assert_eq!(is_named, read(&file.path()).contains("timeout / "), "{row:?}");
    }
}

/// Tests the functions of this file: they must find the imports of a module, and circles.
#[test]
fn imports_are_found() {
    let found = imports_in(&code_of(
        "use crate::zk::session::{Op, ZkSession};\n// crate::api::Zoolock\nlet x = crate::base::clock::now();\n",
    ));
    assert_eq!(found, ["base", "zk"].map(str::to_owned).into());
    let zoolock = imports(&sources("zoolock"));
    assert!(zoolock["api"].contains_key("lock") && zoolock["zk"].contains_key("base"), "{zoolock:#?}");
    let paths = paths_in("use super::{a::{B, c}, d as e, f::*};\nlet x = crate::g::h::<T>(i.j());");
    let paths: Vec<String> = paths.iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["super::a::B", "super::a::c", "super::d", "super::f::*", "crate::g::h::*"]);
    let files = file_imports("zoolock");
    let run: Vec<&str> = files["session/run"].keys().map(String::as_str).collect();
    let expected = ["session/renewal", "zk/session", "zk/session/inbox"];
    assert!(expected.iter().all(|file| run.contains(file)), "{run:?}");
    let names = |pairs: &[(&str, &str)]| {
        let mut all: BTreeMap<String, BTreeMap<String, ()>> = BTreeMap::new();
        for (from, to) in pairs {
            all.entry((*from).to_owned()).or_default().insert((*to).to_owned(), ());
        }
        keep_circles(all).into_keys().collect::<Vec<_>>()
    };
    assert_eq!(names(&[("a", "b"), ("b", "c")]), [""; 0]);
    assert_eq!(names(&[("a", "b"), ("b", "a"), ("c", "d")]), ["a", "b"]);
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(crate_name: &str) -> PathBuf {
    crates()[crate_name].join("src")
}

fn crate_names() -> Vec<String> {
    crates().into_keys().collect()
}

/// Returns the folders of the crates of this workspace, by their names. `fuzz` is a workspace of its own.
fn crates() -> BTreeMap<String, PathBuf> {
    let list = |folder: &str| std::fs::read_dir(repository().join(folder)).expect("the crates can be listed");
    let folders = ["crates", "verification"].into_iter().flat_map(list);
    let folders = folders.map(|entry| entry.expect("an entry can be read").path());
    let named = folders.filter_map(|path| Some((path.file_name()?.to_str()?.to_owned(), path)));
    named.filter(|(name, _)| name != "fuzz").collect()
}

/// Returns the modules that are in a circle, and those that import such modules, directly or not.
///
/// Removes modules that import no remaining module, until every remaining module imports another
/// remaining module.
fn keep_circles<T>(
    mut imports: BTreeMap<String, BTreeMap<String, T>>,
) -> BTreeMap<String, BTreeMap<String, T>> {
    loop {
        let free: Vec<String> = imports
            .iter()
            .filter(|(_, imported)| imported.keys().all(|other| !imports.contains_key(other)))
            .map(|(module, _)| module.clone())
            .collect();
        if free.is_empty() {
            return imports;
        }
        imports.retain(|module, _| !free.contains(module));
    }
}

fn imports(sources: &Path) -> Imports {
    let mut all = Imports::new();
    for entry in std::fs::read_dir(sources).expect("the sources can be listed") {
        let path = entry.expect("an entry can be read").path();
        let module =
            path.file_stem().and_then(|stem| stem.to_str()).expect("modules have simple names").to_owned();
        // The root of a crate may import every module. Below `bin` are programs, which are crates of their own.
        if ["lib", "main", "bin"].contains(&module.as_str()) {
            continue;
        }
        for file in rust_files(&path) {
            let text = std::fs::read_to_string(&file).expect("a source can be read");
            let imported = imports_in(&code_of(&text)).into_iter().filter(|other| *other != module);
            let known = all.entry(module.clone()).or_default();
            known.extend(imported.map(|other| (other, file.clone())));
        }
    }
    let modules: BTreeSet<String> = all.keys().cloned().collect();
    for imported in all.values_mut() {
        // A type that is imported from the root of the library is defined in `api`, the highest layer.
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

/// Returns the names that follow `crate::` in the code.
fn imports_in(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let end = rest.find(|c: char| !is_of_name(c)).unwrap_or(rest.len());
        found.insert(rest[..end].to_owned());
    }
    found
}

/// Returns the code of a file without its tests and comments.
fn code_of(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns the imports of a crate by file. The key is a module, such as `zk/session`. Its entry has
/// the other modules whose items this module names, each with one path of such an item.
///
/// A module may name items of its parent modules. These imports are left out, because they count as
/// no circle. Imports inside a module of [`CIRCLES_LEFT`] are left out too.
fn file_imports(crate_name: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let modules = modules(&sources(crate_name));
    let left = CIRCLES_LEFT.iter().filter(|(name, ..)| *name == crate_name).map(|(_, top, _)| *top);
    let left: BTreeSet<&str> = left.collect();
    let mut all = BTreeMap::new();
    for (module, Module { paths, .. }) in &modules {
        let may_circle = module.first().filter(|top| left.contains(top.as_str()));
        let mut imported = BTreeMap::new();
        for path in paths {
            let Some(other) = resolve(&modules, module, path, MAX_STEPS) else { continue };
            let is_left = may_circle.is_some() && may_circle == other.first();
            if !module.starts_with(&other) && !is_left {
                imported.insert(other.join("/"), path.join("::"));
            }
        }
        all.insert(module.join("/"), imported);
    }
    all
}

/// Returns the modules of a crate, one for each file.
fn modules(sources: &Path) -> BTreeMap<ModulePath, Module> {
    let mut modules = BTreeMap::new();
    for file in rust_files(sources) {
        let relative = file.strip_prefix(sources).expect("the file is below the sources").with_extension("");
        let mut path: ModulePath = relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        // Below `bin` are programs, which are crates of their own.
        if path[0] == "bin" {
            continue;
        }
        if ["mod", "lib", "main"].contains(&path[path.len() - 1].as_str()) {
            path.pop();
        }
        let code = code_of(&std::fs::read_to_string(&file).expect("a source can be read"));
        let (mut exported, mut names) = (BTreeSet::new(), BTreeMap::new());
        for (at, keyword) in code.match_indices("use ") {
            let before = code[..at].rsplit('\n').next().unwrap_or_default().trim();
            let is_export = before == "pub" || before.starts_with("pub(") && before.ends_with(')');
            if !before.is_empty() && !is_export {
                continue;
            }
            let mut used = Vec::new();
            read_path(&code[at + keyword.len()..], &[], &mut used);
            if is_export {
                exported.extend(used.iter().cloned());
            }
            names.extend(used.into_iter().filter_map(|path| Some((path.last()?.clone(), path))));
        }
        names.remove("*");
        let mut paths = paths_in(&code);
        paths.retain(|path| !exported.contains(path));
        modules.insert(path, Module { paths, names });
    }
    modules
}

/// Returns the module that defines the item at `path`, as seen from `module`.
///
/// For an item of another crate, this is `module` itself. If a module imports a name of the path
/// from elsewhere, the search follows that import, at most `steps` times.
fn resolve(
    modules: &BTreeMap<ModulePath, Module>,
    module: &[String],
    path: &[String],
    steps: usize,
) -> Option<ModulePath> {
    let (mut at, mut rest) = (module.to_vec(), path);
    while let [first, others @ ..] = rest {
        match first.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()?),
            _ => break,
        }
        rest = others;
    }
    while let [name, others @ ..] = rest {
        let mut child = at.clone();
        child.push(name.clone());
        if !modules.contains_key(&child) {
            let source = modules.get(&at).and_then(|known| known.names.get(name)).filter(|_| steps > 0);
            return match source {
                Some(source) => resolve(modules, &at, source, steps - 1),
                None => Some(at),
            };
        }
        (at, rest) = (child, others);
    }
    Some(at)
}

/// Returns the paths in the code that have several parts. For example, `a::{b, c::d}` gives `a::b` and `a::c::d`.
fn paths_in(code: &str) -> Vec<ModulePath> {
    let (mut paths, mut rest) = (Vec::new(), code);
    while let Some(start) = rest.find(is_of_name) {
        rest = read_path(&rest[start..], &[], &mut paths);
    }
    paths.retain(|path| path.len() > 1);
    paths
}

/// Reads a path, or several in braces, at the start of the code. Adds each to `paths`, with `prefix` before it. Returns
/// the rest of the code.
fn read_path<'a>(mut code: &'a str, prefix: &[String], paths: &mut Vec<ModulePath>) -> &'a str {
    let mut path = prefix.to_vec();
    loop {
        let end = code.find(|c: char| !is_of_name(c)).unwrap_or(code.len());
        path.push(code[..end].to_owned());
        code = &code[end..];
        let Some(next) = code.strip_prefix("::") else { break };
        code = next;
        if let Some(list) = code.strip_prefix('{') {
            return read_list(list, &path, paths);
        }
        if !code.starts_with(is_of_name) {
            path.push("*".to_owned());
            break;
        }
    }
    paths.push(path);
    code
}

/// Reads the paths of a list in braces, without the names that follow `as`. Returns the code after
/// the list.
fn read_list<'a>(mut list: &'a str, prefix: &[String], paths: &mut Vec<ModulePath>) -> &'a str {
    loop {
        list = list.trim_start_matches(|c: char| !is_of_name(c) && c != '}');
        if let Some(rest) = list.strip_prefix('}') {
            return rest;
        }
        if list.is_empty() {
            return list;
        }
        list = match list.strip_prefix("as ") {
            Some(name) => name.trim_start_matches(is_of_name),
            None => read_path(list, prefix, paths),
        };
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
