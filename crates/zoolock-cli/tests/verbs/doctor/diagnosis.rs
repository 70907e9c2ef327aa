//! Runs `zoolock doctor`, and gives access to its findings.

use serde_json::Value;

use crate::common::{CommandOutput, Sandbox};

const DOCS: &str = include_str!("../../../../../docs/DOCTOR.md");

/// A report of `zoolock doctor --json`, and the exit code and output of the command.
#[derive(Debug)]
pub(crate) struct Diagnosis {
    pub(crate) code: i32,
    pub(crate) report: Value,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Examines the server at `address`.
pub(crate) fn examine(address: &str) -> Diagnosis {
    examine_with(address, &[])
}

/// Examines the server at `address` with further arguments.
pub(crate) fn examine_with(address: &str, args: &[&str]) -> Diagnosis {
    Diagnosis::of(&Sandbox::new(), &[&["--connect", address], args].concat())
}

impl Diagnosis {
    /// Runs `doctor --json` with these arguments. Asserts that the findings are documented.
    pub(crate) fn of(sandbox: &Sandbox, args: &[&str]) -> Self {
        let CommandOutput { code, stdout, stderr } = sandbox.output(&[&["doctor", "--json"], args].concat());
        let report = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("no JSON: {stdout}{stderr}"));
        let diagnosis = Self { code, report, stdout, stderr };
        diagnosis.assert_documented();
        diagnosis
    }

    /// Asserts that docs/DOCTOR.md describes every check, and that every finding except `ok` has a remedy.
    fn assert_documented(&self) {
        for finding in self.report["findings"].as_array().expect("a list") {
            let check = finding["check"].as_str().expect("a string");
            assert!(DOCS.contains(&format!("\n| `{check}` | ")), "{check}");
            assert_eq!(finding["remedy"].is_null(), finding["level"] == "ok", "{finding}");
        }
    }

    /// Returns the worst level among the findings of a check. Returns `None` if there is no finding.
    pub(crate) fn level(&self, check: &str) -> Option<&str> {
        let rank = |level: &&str| ["ok", "note", "warning", "error"].iter().position(|it| it == level);
        self.findings(check).filter_map(|finding| finding["level"].as_str()).max_by_key(rank)
    }

    /// Returns the messages of the findings of a check, one per line.
    pub(crate) fn messages(&self, check: &str) -> String {
        self.findings(check).filter_map(|finding| finding["what"].as_str()).collect::<Vec<_>>().join("\n")
    }

    /// Returns the remedies of the findings of a check, one per line.
    pub(crate) fn remedies(&self, check: &str) -> String {
        self.findings(check).filter_map(|finding| finding["remedy"].as_str()).collect::<Vec<_>>().join("\n")
    }

    fn findings(&self, check: &str) -> impl Iterator<Item = &Value> {
        let findings = self.report["findings"].as_array().expect("a list");
        findings.iter().filter(move |finding| finding["check"] == check)
    }
}
