//! Tests of `docs/BUGS.md`: the tests that it lists exist, and its numbers of steps are right.

use std::collections::BTreeSet;
use std::process::Command;

use zoolock_core::Rule;

use crate::clock::LeaseRule;
use crate::model::bugs::Bug;

const TABLE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/BUGS.md"));

struct Row {
    test: &'static str,
    switches: Vec<&'static str>,
    steps: Vec<usize>,
}

/// Parses the rows of the tables. The last columns are: | switch | steps | test |
fn rows() -> impl Iterator<Item = Row> {
    TABLE.lines().filter_map(|line| {
        let row = line.strip_prefix("| ")?.strip_suffix(" |")?;
        let cells: Vec<&str> = row.split(" | ").collect();
        let &[.., switch, steps, test] = cells.as_slice() else { panic!("too few cells: {line}") };
        let test = test.strip_prefix('`')?.strip_suffix('`')?;
        let switches = switch.split('`').skip(1).step_by(2).collect();
        let steps = steps.split(", ").filter_map(|steps| steps.parse().ok()).collect();
        Some(Row { test, switches, steps })
    })
}

/// Checks that the table gives this number of steps for the switch.
pub(crate) fn check_steps(switch: &str, steps: usize) {
    let rows = rows().filter(|row| row.switches.contains(&switch));
    let known: Vec<usize> = rows.flat_map(|row| row.steps).collect();
    assert!(known.contains(&steps), "docs/BUGS.md says {known:?} steps of {switch}, but it took {steps}");
}

#[test]
fn lists_every_switch() {
    let rules = Rule::ALL.iter().map(|rule| format!("{rule:?}"));
    let bugs = Bug::ALL.iter().map(|bug| format!("{bug:?}"));
    let lease_rules = LeaseRule::BROKEN.iter().map(|rule| format!("{rule:?}"));
    let listed: BTreeSet<&str> = rows().flat_map(|row| row.switches).collect();
    let missing: Vec<_> =
        rules.chain(bugs).chain(lease_rules).filter(|switch| !listed.contains(switch.as_str())).collect();
    assert!(missing.is_empty(), "docs/BUGS.md does not list {missing:?}");
}

#[test]
fn lists_tests_that_exist_and_every_bug() {
    let this = std::env::current_exe().expect("path of the test binary is known");
    let output = Command::new(this).args(["--list", "--format", "terse"]).output().expect("test binary runs");
    let output = String::from_utf8(output.stdout).expect("test names are UTF-8");
    let tests: BTreeSet<&str> = output.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let listed: BTreeSet<&str> = rows().map(|row| row.test).collect();
    assert!(!listed.is_empty(), "docs/BUGS.md lists nothing");
    let missing: Vec<_> = listed.difference(&tests).collect();
    assert!(missing.is_empty(), "docs/BUGS.md names tests that do not exist: {missing:?}");
    let about_bugs = |test: &&&str| test.contains("bugs::") || test.contains("rules::");
    let unlisted: Vec<_> = tests.difference(&listed).filter(about_bugs).collect();
    assert!(unlisted.is_empty(), "docs/BUGS.md does not list {unlisted:?}");
}
