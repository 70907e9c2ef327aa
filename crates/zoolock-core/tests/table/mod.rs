//! What `docs/BUGS.md` says, so that it stays true: which tests there are, and in how many steps they find what they find.

#[allow(dead_code, reason = "not in every binary")]
mod shortest;

use std::collections::BTreeSet;
use std::process::Command;

#[allow(unused_imports, reason = "not in every binary")]
pub(crate) use shortest::shortest;

const TABLE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/BUGS.md"));

/// Each looks whether it has the tests that are listed.
const BINARIES: [&str; 5] = ["clock", "model", "multi", "queue", "tenure"];

struct Row {
    /// Which binary, and which test.
    test: (&'static str, &'static str),
    switches: Vec<&'static str>,
    steps: Vec<usize>,
}

/// | bug | whose | what goes wrong | switches | steps | command |
fn rows() -> impl Iterator<Item = Row> {
    TABLE.lines().filter_map(|line| {
        let (_, command) =
            line.strip_prefix("| ")?.split_once("`cargo nextest run -p zoolock-core --test ")?;
        let (binary, filter) = command.split_once(" -E 'test(=")?;
        let (test, _) = filter.split_once(")'` |").expect("a filter for one test");
        let cells: Vec<&str> = line.split(" | ").collect();
        assert_eq!(cells.len(), 6, "{line}");
        let switches = cells[3].split('`').skip(1).step_by(2).collect();
        let steps = cells[4].split(", ").filter_map(|steps| steps.parse().ok()).collect();
        assert!(BINARIES.contains(&binary), "nobody looks what tests {binary} has");
        Some(Row { test: (binary, test), switches, steps })
    })
}

/// Every test of this binary that is listed exists; every test below `module` is listed.
pub(crate) fn names_tests_that_exist(binary: &str, module: Option<&str>) {
    let this = std::env::current_exe().expect("this test is an executable");
    let output = Command::new(this).args(["--list", "--format", "terse"]).output().expect("it can be run");
    let output = String::from_utf8(output.stdout).expect("names are text");
    let tests: BTreeSet<&str> = output.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let listed: BTreeSet<&str> = rows().filter(|row| row.test.0 == binary).map(|row| row.test.1).collect();
    assert!(!listed.is_empty(), "docs/BUGS.md lists nothing of {binary}");
    let missing: Vec<_> = listed.difference(&tests).collect();
    assert!(missing.is_empty(), "docs/BUGS.md names what is not there: {missing:?}");
    let about_the_table = ["every_rule_and_every_bug_is_listed", "whatever_is_listed_is_there"];
    let is_bug = |test: &&&str| {
        let name = module.and_then(|module| test.strip_prefix(module));
        name.is_some_and(|name| !about_the_table.contains(&name))
    };
    let unlisted: Vec<_> = tests.difference(&listed).filter(is_bug).collect();
    assert!(unlisted.is_empty(), "docs/BUGS.md does not list {unlisted:?}");
}

/// Every switch has its row.
#[allow(dead_code, reason = "not in every binary")]
pub(crate) fn lists(switches: impl Iterator<Item = String>) {
    let listed: BTreeSet<&str> = rows().flat_map(|row| row.switches).collect();
    let missing: Vec<_> = switches.filter(|switch| !listed.contains(switch.as_str())).collect();
    assert!(missing.is_empty(), "docs/BUGS.md does not list {missing:?}");
}

/// What was found took as many steps as the table says.
#[allow(dead_code, reason = "not in every binary")]
pub(crate) fn check_steps(switch: &str, steps: usize) {
    println!("{switch}: {steps} steps");
    let rows = rows().filter(|row| row.switches.contains(&switch));
    let known: Vec<usize> = rows.flat_map(|row| row.steps).collect();
    assert!(known.contains(&steps), "docs/BUGS.md says {known:?} steps of {switch}, but it took {steps}");
}
