//! Checks of the `Cargo.toml` files: minimum compiler version, documented features, unsafe code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use zoolock_tests::source::rust_files;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns every package in `Cargo.lock`, as `cargo metadata` describes it.
fn packages() -> Vec<Value> {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo started");
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: Value = serde_json::from_slice(&metadata.stdout).expect("the output is JSON");
    metadata["packages"].as_array().expect("packages is a list").clone()
}

/// Returns the packages of this workspace.
fn members() -> Vec<Value> {
    packages().into_iter().filter(|package| package["source"].is_null()).collect()
}

fn version(text: &str) -> Vec<u32> {
    let mut parts: Vec<u32> =
        text.split('.').map(|part| part.parse().expect("a version has numbers")).collect();
    parts.resize(3, 0);
    parts
}

#[test]
fn no_dependency_needs_a_newer_compiler() {
    let minimum = version(env!("CARGO_PKG_RUST_VERSION"));
    let stated: Vec<(String, String)> = packages()
        .iter()
        .filter_map(|package| Some((package["id"].to_string(), package["rust_version"].as_str()?.to_owned())))
        .collect();
    let newer: Vec<_> = stated.iter().filter(|(_, needed)| version(needed) > minimum).collect();
    assert!(newer.is_empty(), "{newer:?}");
    assert!(stated.len() > 100, "only {} packages state a version", stated.len());
}

#[test]
fn readme_of_the_library_lists_every_feature() {
    let readme = read(&root().join("crates/zoolock/README.md"));
    let listed: BTreeSet<&str> =
        readme.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let members = members();
    let library = members.iter().find(|member| member["name"] == "zoolock").expect("zoolock is a member");
    let features = library["features"].as_object().expect("zoolock has features").keys().map(String::as_str);
    assert_eq!(listed, features.filter(|name| !["internals", "simulation"].contains(name)).collect());
}

#[test]
fn only_ctor_has_unsafe_code() {
    let workspace = read(&root().join("Cargo.toml"));
    let lints = workspace.split("[workspace.lints.rust]").nth(1).expect("the workspace has lints");
    assert!(lints.lines().take(3).any(|line| line == "unsafe_code = \"deny\""), "{lints}");
    let forbids = "#![forbid(unsafe_code)]";
    let mut unsafe_lines = Vec::new();
    for member in members() {
        let manifest = PathBuf::from(member["manifest_path"].as_str().expect("a member has a manifest"));
        assert!(read(&manifest).contains("[lints]\nworkspace = true\n"), "{}", manifest.display());
        let directory = manifest.parent().expect("the manifest is in a directory");
        let roots = ["src/lib.rs", "src/main.rs"].map(|name| directory.join(name));
        let root = roots.iter().find(|path| path.exists()).expect("the crate has a root");
        assert!(
            read(root).lines().any(|line| line == forbids) || member["name"] == "zoolock-cli",
            "{}",
            root.display()
        );
        for path in rust_files(directory).into_iter().filter(|path| !path.ends_with(file!())) {
            let text = read(&path);
            let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
            let is_unsafe = |line: &str| {
                let mut words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
                line != forbids && words.any(|word| ["unsafe", "unsafe_code"].contains(&word))
            };
            let code = code.filter(|line| is_unsafe(line));
            unsafe_lines.extend(code.map(|line| line.trim().to_owned()));
        }
    }
    assert_eq!(unsafe_lines, ["#[ctor::ctor(unsafe)]"]);
}

/// Returns the crates that the library brings with these features, without the versions.
fn crates_of_library(features: &str) -> BTreeSet<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "-p", "zoolock", "--features", features])
        .args(["--edges", "normal,build", "--prefix", "none", "--no-dedupe"])
        .current_dir(root())
        .output()
        .expect("cargo started");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).expect("UTF-8");
    // Two versions of a crate are two crates.
    tree.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn library_brings_few_crates_and_no_c_compiler() {
    for (features, most) in [("", 56), ("embedded", 70)] {
        let crates = crates_of_library(features);
        assert!(crates.len() <= most, "{features:?}: {} crates: {crates:?}", crates.len());
        for builds_c in ["cc ", "ring ", "openssl-sys ", "cmake "] {
            assert!(!crates.iter().any(|name| name.starts_with(builds_c)), "{features:?}: {builds_c}");
        }
    }
    assert!(
        crates_of_library("tls").iter().any(|name| name.starts_with("cc ")),
        "the search finds a C compiler"
    );
}
