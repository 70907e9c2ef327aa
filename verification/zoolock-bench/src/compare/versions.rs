//! The versions of the measured programs.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

const PACKAGES: [&str; 7] = [
    "zookeeper",
    "libcurator-recipes-java",
    "python3-kazoo",
    "redis-server",
    "etcd-server",
    "default-jdk-headless",
    "python3",
];
const CRATES: [&str; 4] = ["zoolock", "zookeeper-client", "redis", "tonic"];
const LOCK: &str = include_str!("../../../../Cargo.lock");

/// Returns the versions of the installed Debian packages, and of the crates.
pub(super) fn versions() -> BTreeMap<String, String> {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${Package}\t${Version}\n"]).args(PACKAGES).stderr(Stdio::null());
    let answer = query.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let answer = answer.unwrap_or_default();
    let packages = answer.lines().filter_map(|line| line.split_once('\t'));
    let packages = packages.filter(|(_, version)| !version.is_empty());
    let crates = LOCK.split("[[package]]").filter_map(|package| {
        let field = |name: &str| package.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix('"'));
        let name = field("name = \"").filter(|name| CRATES.contains(name))?;
        Some((name, field("version = \"")?))
    });
    let crates = crates.map(|(name, version)| (format!("crate {name}"), version.to_owned()));
    packages.map(|(name, version)| (name.to_owned(), version.to_owned())).chain(crates).collect()
}
