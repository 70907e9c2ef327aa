//! What we are made of, and what we promise of it in `Cargo.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use zoolock_pack::materials::{Crate, Materials, everything, root};
use zoolock_pack::{licences, sbom};

/// Those that crates.io will have, the first ones first.
const PUBLISHED: [&str; 5] = ["zoolock-core", "zoolock-server", "zoolock", "zoolock-gssapi", "zoolock-cli"];

fn version(text: &str) -> Vec<u32> {
    let parts = text.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    parts.chain([0, 0]).take(3).collect()
}

#[test]
fn no_crate_in_the_command_needs_a_newer_compiler_than_we_promise() {
    let materials = Materials::of_the_command().expect("cargo says");
    let ours = version(materials.command.rust_version.as_deref().expect("it is stated"));
    let too_new: Vec<_> = materials
        .crates
        .iter()
        .filter(|one| one.rust_version.as_deref().is_some_and(|theirs| version(theirs) > ours))
        .map(|one| format!("{} {} needs {:?}", one.name, one.version, one.rust_version))
        .collect();
    assert_eq!(too_new, [""; 0]);
    let stated = materials.crates.iter().filter(|one| one.rust_version.is_some()).count();
    assert!(stated * 2 > materials.crates.len(), "most of them say what they need: {stated}");
}

#[test]
fn the_bill_of_materials_names_every_crate_and_where_it_came_from() {
    let materials = Materials::of_the_command().expect("cargo says");
    let text = sbom::cyclonedx(&materials).expect("all is known");
    assert_eq!(text, sbom::cyclonedx(&materials).expect("all is known"), "the same each time");
    let bill: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    assert_eq!(bill["metadata"]["component"]["name"], "zoolock-cli");
    let components = bill["components"].as_array().expect("a list");
    let refs: BTreeSet<&str> = components
        .iter()
        .chain([&bill["metadata"]["component"]])
        .map(|component| component["bom-ref"].as_str().expect("a name"))
        .collect();
    assert_eq!(refs.len(), components.len() + 1, "each once");
    for name in ["zoolock", "zoolock-core", "zoolock-server", "zookeeper-client", "tokio", "ring", "clap"] {
        assert!(components.iter().any(|component| component["name"] == name), "{name}");
    }
    // They make tests and benchmarks, and nobody else's programs.
    for name in ["zoolock-tests", "proptest", "rusqlite", "redis", "serde_derive", "clap_derive"] {
        assert!(!components.iter().any(|component| component["name"] == name), "{name}");
    }
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).expect("it is there");
    for component in components {
        assert!(!component["licenses"][0]["expression"].as_str().expect("a licence").is_empty());
        if !component["name"].as_str().expect("a name").starts_with("zoolock") {
            let sum = component["hashes"][0]["content"].as_str().expect("a checksum");
            assert!(sum.len() == 64 && lock.contains(sum), "{component}");
        }
    }
    let dependencies = bill["dependencies"].as_array().expect("a list");
    assert_eq!(dependencies.len(), refs.len(), "of each is said what it needs");
    for dependency in dependencies {
        for needed in dependency["dependsOn"].as_array().expect("a list") {
            assert!(refs.contains(needed.as_str().expect("a name")), "{needed}");
        }
    }
    let page = licences::texts(&materials).expect("all say one");
    for component in components.iter().filter(|component| !component["hashes"].is_null()) {
        let title = format!(
            "\n{} {}: ",
            component["name"].as_str().expect("a name"),
            component["version"].as_str().expect("one")
        );
        assert!(page.contains(&title), "{title}");
    }
    assert!(
        page.contains("Permission is hereby granted") && page.contains("Apache License"),
        "the texts are there"
    );
}

#[test]
fn what_is_published_says_what_it_is() {
    let crates = everything().expect("cargo says");
    let ours: Vec<&Crate> = crates.iter().filter(|one| one.is_ours()).collect();
    let published: BTreeSet<&str> =
        ours.iter().filter(|one| one.publish.is_none()).map(|one| one.name.as_str()).collect();
    assert_eq!(published, PUBLISHED.into_iter().collect());
    for one in ours.iter().filter(|one| published.contains(one.name.as_str())) {
        let name = &one.name;
        let description = one.description.as_deref().unwrap_or_default();
        assert!(description.len() > 20 && !description.ends_with('.'), "{name}: {description}");
        assert_eq!(one.license.as_deref(), Some("MIT OR Apache-2.0"), "{name}");
        assert!(
            (1..=5).contains(&one.keywords.len()) && !one.categories.is_empty(),
            "{name}: what is it found by?"
        );
        let pages = one.documentation.as_deref().unwrap_or_default();
        let page_of = if name == "zoolock-cli" { "zoolock" } else { name };
        assert_eq!(pages, format!("https://docs.rs/{page_of}"), "{name}");
        let readme = one.readme.as_deref().unwrap_or_else(|| panic!("{name} has no readme"));
        assert!(one.directory().join(readme).is_file(), "{name}: {}", readme.display());
        for text in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let there = std::fs::read_to_string(one.directory().join(text)).unwrap_or_default();
            assert_eq!(
                there,
                std::fs::read_to_string(root().join(text)).expect("it is there"),
                "{name}: {text}"
            );
        }
        let manifest = std::fs::read_to_string(&one.manifest_path).expect("it is there");
        for ours in PUBLISHED.iter().filter(|ours| **ours != *name) {
            // Of the workspace, where it has a version.
            assert!(
                !manifest.contains(&format!("{ours} = {{ path")),
                "{name} names {ours} without a version"
            );
        }
    }
}

/// crates.io shows no features of itself.
#[test]
fn the_readme_of_the_library_has_every_feature() {
    let crates = everything().expect("cargo says");
    let library = crates.iter().find(|one| one.is_ours() && one.name == "zoolock").expect("it is there");
    let readme = std::fs::read_to_string(library.directory().join("README.md")).expect("it is there");
    let told: BTreeSet<&str> =
        readme.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    // Nobody is promised anything of that one.
    let features = library.features.keys().map(String::as_str).filter(|name| *name != "simulation");
    assert_eq!(told, features.collect());
}

/// It is not taken for granted which machine this is.
#[test]
fn the_bill_is_of_the_target_that_is_built_for() {
    let done = Command::new(env!("CARGO_BIN_EXE_zoolock-pack"))
        .arg("sbom")
        .env("CARGO_BUILD_TARGET", "no-such-machine")
        .output()
        .expect("it was built");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("no-such-machine"), "{said}");
}

/// The socket of the client crate is the one thing that nobody else shows us (docs/DESIGN.md).
#[test]
fn all_our_crates_forbid_unsafe_code_but_for_one_function() {
    let mut allowed = Vec::new();
    for one in everything().expect("cargo says").iter().filter(|one| one.is_ours()) {
        let directory = one.directory();
        let roots: Vec<_> = ["src/lib.rs", "src/main.rs"].iter().map(|file| directory.join(file)).collect();
        let roots: Vec<_> = roots.into_iter().filter(|file| file.is_file()).collect();
        assert!(!roots.is_empty(), "{}", one.name);
        let forbids = roots.iter().all(|file| {
            std::fs::read_to_string(file).expect("UTF-8").contains("\n#![forbid(unsafe_code)]\n")
        });
        if !forbids {
            let manifest = std::fs::read_to_string(&one.manifest_path).expect("it is there");
            assert!(manifest.contains("[lints]\nworkspace = true"), "{}: the workspace denies it", one.name);
            allows(directory, &mut allowed);
            // The benchmark shares that function by its file.
            let known = ["zoolock", "zoolock-bench"].contains(&one.name.as_str());
            assert!(known, "{}: it does not forbid it", one.name);
        }
    }
    assert_eq!(allowed, ["src/keeper/nodelay.rs"]);
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).expect("it is there");
    assert!(workspace.contains("\nunsafe_code = \"deny\"\n"));
}

fn allows(directory: &Path, found: &mut Vec<String>) {
    let mut directories = vec![directory.join("src")];
    while let Some(next) = directories.pop() {
        for entry in std::fs::read_dir(&next).expect("a directory") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("UTF-8");
                let file = path.strip_prefix(directory).expect("it is below").display().to_string();
                found.extend(text.matches("allow(unsafe_code").map(|_| file.clone()));
            }
        }
    }
}

/// The list between the brackets after `key` in deny.toml.
fn list(deny: &str, key: &str) -> Vec<String> {
    let (_, rest) = deny.split_once(&format!("\n{key} = [")).expect("it is there");
    let (list, _) = rest.split_once("\n]").or_else(|| rest.split_once(']')).expect("it ends");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether an SPDX expression can be met with these licences alone.
fn is_met(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    let met = any(&mut rest, allowed);
    assert!(rest.is_empty(), "{expression} is no expression");
    met
}

fn any(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut met = all(words, allowed);
    while let Some(("OR", rest)) = words.split_first().map(|(word, rest)| (*word, rest)) {
        *words = rest;
        met |= all(words, allowed);
    }
    met
}

fn all(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut met = one(words, allowed);
    while let Some(("AND", rest)) = words.split_first().map(|(word, rest)| (*word, rest)) {
        *words = rest;
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut &[&str], allowed: &[String]) -> bool {
    let (word, rest) = words.split_first().expect("a licence");
    *words = rest;
    if *word == "(" {
        let met = any(words, allowed);
        let (_, rest) = words.split_first().filter(|(word, _)| **word == ")").expect("it is closed");
        *words = rest;
        return met;
    }
    let mut name = (*word).to_owned();
    if let [with @ "WITH", exception, rest @ ..] = *words {
        name = format!("{name} {with} {exception}");
        *words = rest;
    }
    allowed.contains(&name)
}

#[test]
fn expressions_are_understood() {
    let allowed = ["MIT", "ISC", "Unicode-3.0"].map(str::to_owned);
    for (expression, met) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("MIT/Apache-2.0", true),
        ("GPL-3.0 OR ISC AND MIT", true),
        ("GPL-3.0 AND (ISC OR MIT)", false),
        ("(Apache-2.0 OR MIT) AND Unicode-3.0", true),
        ("MIT WITH LLVM-exception", false),
    ] {
        assert_eq!(is_met(expression, &allowed), met, "{expression}");
    }
}

/// As `cargo deny check bans licenses sources` does, which not every machine has: of what is linked into the command.
#[test]
fn licences_and_sources_are_those_of_deny_toml() {
    let deny = std::fs::read_to_string(root().join("deny.toml")).expect("it is there");
    let (allowed, registries) = (list(&deny, "allow"), list(&deny, "allow-registry"));
    assert!(allowed.len() > 3 && registries.len() == 1, "{allowed:?} {registries:?}");
    // Who may need them after all.
    let banned: BTreeMap<&str, Vec<&str>> = deny
        .split("{ crate = \"")
        .skip(1)
        .filter_map(|rest| {
            let (name, rest) = rest.split('}').next()?.split_once('"')?;
            let wrappers = rest.split_once("wrappers = [").and_then(|(_, rest)| rest.split(']').next());
            Some((name, wrappers.unwrap_or_default().split('"').skip(1).step_by(2).collect()))
        })
        .collect();
    assert!(banned["openssl-sys"].is_empty() && banned["aws-lc-rs"].contains(&"rustls"), "{banned:?}");
    let materials = Materials::of_the_command().expect("cargo says");
    for one in &materials.crates {
        let license = one.license.as_deref().unwrap_or_else(|| panic!("{} says no licence", one.name));
        assert!(is_met(license, &allowed), "{}: {license}", one.name);
        if let Some(wrappers) = banned.get(one.name.as_str()) {
            let whose = |id: &str| materials.crates.iter().find(|one| one.id == id);
            let needed: Vec<&str> = materials
                .needs
                .iter()
                .filter(|(_, needs)| needs.contains(&one.id))
                .map(|(id, _)| whose(id).map_or("zoolock-cli", |one| one.name.as_str()))
                .collect();
            let others: Vec<_> = needed.iter().filter(|name| !wrappers.contains(name)).collect();
            assert!(!needed.is_empty() && others.is_empty(), "{} is needed by {others:?}", one.name);
        }
        let known =
            one.source.as_deref().is_none_or(|source| source == format!("registry+{}", registries[0]));
        assert!(known, "{} comes from {:?}", one.name, one.source);
    }
}
