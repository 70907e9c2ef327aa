//! What the doctor finds.

use serde_json::Value;

use crate::common::{Done, Sandbox};

const DOCS: &str = include_str!("../../../../../docs/DOCTOR.md");

/// A report of the doctor, and how the command ended.
#[derive(Debug)]
pub(crate) struct Patient {
    pub(crate) code: i32,
    pub(crate) report: Value,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Examines the service at `address`.
pub(crate) fn examine(address: &str) -> Patient {
    examine_with(address, &[])
}

/// The same with further arguments.
pub(crate) fn examine_with(address: &str, rest: &[&str]) -> Patient {
    Patient::of(&Sandbox::new(), &[&["--connect", address], rest].concat())
}

impl Patient {
    /// Runs `doctor --json` with these arguments.
    pub(crate) fn of(sandbox: &Sandbox, args: &[&str]) -> Self {
        let Done { code, stdout, stderr } = sandbox.output(&[&["doctor", "--json"], args].concat());
        let report = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("no JSON: {stdout}{stderr}"));
        let patient = Self { code, report, stdout, stderr };
        patient.assert_documented();
        patient
    }

    /// Every check has its line in docs/DOCTOR.md, and all but what is well a remedy.
    fn assert_documented(&self) {
        for finding in self.report["findings"].as_array().expect("a list") {
            let check = finding["check"].as_str().expect("a word");
            assert!(DOCS.contains(&format!("\n| `{check}` | ")), "{check}");
            assert_eq!(finding["remedy"].is_null(), finding["level"] == "ok", "{finding}");
        }
    }

    /// The worst level of what a check found; `None` where it found nothing.
    pub(crate) fn level(&self, check: &str) -> Option<&str> {
        let rank = |level: &&str| ["ok", "note", "warning", "error"].iter().position(|it| it == level);
        self.found(check).filter_map(|finding| finding["level"].as_str()).max_by_key(rank)
    }

    /// What it found, in words.
    pub(crate) fn what(&self, check: &str) -> String {
        self.found(check).filter_map(|finding| finding["what"].as_str()).collect::<Vec<_>>().join("\n")
    }

    fn found(&self, check: &str) -> impl Iterator<Item = &Value> {
        let findings = self.report["findings"].as_array().expect("a list");
        findings.iter().filter(move |finding| finding["check"] == check)
    }
}
