//! What the command is made of: the crates that cargo links into it, and what is known of each.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::Result;

/// A crate.
#[derive(Debug, Clone, Deserialize)]
pub struct Crate {
    /// As cargo calls it in its graphs.
    pub id: String,
    /// `serde`
    pub name: String,
    /// `1.0.228`
    pub version: String,
    /// An SPDX expression.
    pub license: Option<String>,
    /// Where its sources are kept.
    pub repository: Option<String>,
    /// Its `Cargo.toml`, here.
    pub manifest_path: PathBuf,
    /// The registry; none for ours.
    pub source: Option<String>,
    /// The oldest compiler that it promises to be good for.
    pub rust_version: Option<String>,
    /// Whether and where it may be published: `Some([])` is nowhere.
    pub publish: Option<Vec<String>>,
    /// What crates.io shows.
    pub description: Option<String>,
    /// What crates.io shows.
    pub readme: Option<PathBuf>,
    /// What it is found by.
    pub keywords: Vec<String>,
    /// Where it is found.
    pub categories: Vec<String>,
    /// Where its pages are.
    pub documentation: Option<String>,
    /// Its own switches.
    pub features: BTreeMap<String, Vec<String>>,
}

impl Crate {
    /// Whether it is one of ours.
    pub fn is_ours(&self) -> bool {
        self.source.is_none()
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("/"))
    }
}

/// All of them.
#[derive(Debug)]
pub struct Materials {
    /// The command itself.
    pub command: Crate,
    /// What is linked into it, by name and version.
    pub crates: Vec<Crate>,
    /// Who needs whom of them, by id.
    pub needs: BTreeMap<String, BTreeSet<String>>,
    /// The SHA-256 of what the registry delivered, by name and version.
    pub checksums: BTreeMap<(String, String), String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Crate>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
}

impl Materials {
    /// Asks cargo.
    ///
    /// # Errors
    /// Where cargo cannot say, and where what it says does not fit together.
    pub fn of_the_command() -> Result<Self> {
        let metadata = metadata()?;
        // Only this knows which features the command itself has; what tests want is in the graph as well.
        let listed = linked()?;
        let mut crates: Vec<Crate> = metadata
            .packages
            .into_iter()
            .filter(|package| listed.contains(&(package.name.clone(), package.version.clone())))
            .collect();
        if crates.len() != listed.len() {
            return Err(format!(
                "cargo tree lists {} crates, of which {} are known",
                listed.len(),
                crates.len()
            ));
        }
        crates.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
        let command = crates.iter().position(|one| one.name == "zoolock-cli").ok_or("there is no command")?;
        let command = crates.remove(command);
        let ids: BTreeSet<&str> = crates.iter().chain([&command]).map(|one| one.id.as_str()).collect();
        let mut needs = BTreeMap::new();
        for node in metadata.resolve.nodes.into_iter().filter(|node| ids.contains(node.id.as_str())) {
            let is_linked = |dependency: &Dependency| {
                ids.contains(dependency.pkg.as_str())
                    && dependency.dep_kinds.iter().any(|kind| kind.kind.is_none())
            };
            let of_it: BTreeSet<String> =
                node.deps.into_iter().filter(is_linked).map(|dependency| dependency.pkg).collect();
            needs.insert(node.id, of_it);
        }
        Ok(Self { command, crates, needs, checksums: checksums()? })
    }
}

/// All crates of the workspace and all that they need, for tests and for everything.
///
/// # Errors
/// Where cargo cannot say.
pub fn everything() -> Result<Vec<Crate>> {
    Ok(metadata()?.packages)
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where the command runs: what cargo builds for here.
fn target() -> Result<String> {
    if let Some(target) = std::env::var_os("CARGO_BUILD_TARGET").filter(|target| !target.is_empty()) {
        return target.into_string().map_err(|target| format!("CARGO_BUILD_TARGET is {target:?}"));
    }
    let said = output("RUSTC", "rustc", &["-vV"])?;
    host(&said).map(str::to_owned).ok_or_else(|| format!("rustc -vV does not say its host: {said}"))
}

fn host(said: &str) -> Option<&str> {
    said.lines().find_map(|line| line.strip_prefix("host: "))
}

fn metadata() -> Result<Metadata> {
    let text = cargo(&["metadata", "--format-version", "1", "--locked", "--filter-platform", &target()?])?;
    serde_json::from_str(&text).map_err(|error| format!("what cargo metadata says: {error}"))
}

fn linked() -> Result<BTreeSet<(String, String)>> {
    let target = target()?;
    let flags =
        ["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}", "--target", &target];
    let text = cargo(&[&["tree", "--package", "zoolock-cli", "--locked"], &flags[..]].concat())?;
    let mut found = BTreeSet::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        let (name, version) = (words.next(), words.next().and_then(|version| version.strip_prefix('v')));
        let (Some(name), Some(version)) = (name, version) else {
            return Err(format!("what cargo tree says: {line:?}"));
        };
        found.insert((name.to_owned(), version.to_owned()));
    }
    Ok(found)
}

fn checksums() -> Result<BTreeMap<(String, String), String>> {
    let lock =
        std::fs::read_to_string(root().join("Cargo.lock")).map_err(|error| format!("Cargo.lock: {error}"))?;
    let mut found = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))?;
            Some(line.trim_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(sum)) = (value("name"), value("version"), value("checksum")) {
            found.insert((name, version), sum);
        }
    }
    Ok(found)
}

fn cargo(words: &[&str]) -> Result<String> {
    output("CARGO", "cargo", words)
}

/// What a program prints. Cargo says in the environment which one it is itself, and people which one they want.
fn output(variable: &str, name: &str, words: &[&str]) -> Result<String> {
    let program = std::env::var_os(variable).unwrap_or_else(|| name.into());
    let done = Command::new(program)
        .args(words)
        .current_dir(root())
        .output()
        .map_err(|error| format!("{name} cannot be started: {error}"))?;
    if !done.status.success() {
        return Err(format!("{name} {}: {}", words.join(" "), String::from_utf8_lossy(&done.stderr)));
    }
    String::from_utf8(done.stdout).map_err(|_| format!("what {name} {} says is no text", words.join(" ")))
}

#[test]
fn rustc_says_its_host() {
    let said =
        "rustc 1.90.0 (abc 2025-09-14)\nbinary: rustc\nhost: aarch64-unknown-linux-gnu\nrelease: 1.90.0\n";
    assert_eq!(host(said), Some("aarch64-unknown-linux-gnu"));
    assert_eq!(host("rustc 1.90.0\n"), None);
    if std::env::var_os("CARGO_BUILD_TARGET").is_none() {
        assert!(target().expect("it is asked").contains("-linux-"));
    }
}
