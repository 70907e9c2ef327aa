//! The findings, each with a level and a remedy, and the report about all of them.

use serde::Serialize;

use crate::base::exit::Exit;
use crate::base::reporter::escape_unprintable;
use crate::render::columns;
use crate::render::text::{TextStyle, format_json};

/// The severity of a finding, in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// No problem.
    Ok,
    /// Information, or a fact that could not be determined.
    Note,
    /// Locks work with a limitation, or may fail later.
    Warning,
    /// Locks fail, or two clients may hold a lock at once.
    Error,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }

    fn color(self) -> &'static str {
        match self {
            Level::Ok => "32",
            Level::Note => "36",
            Level::Warning => "33",
            Level::Error => "1;31",
        }
    }
}

/// One finding.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Finding {
    /// The name of the check, the same in every version.
    pub(super) check: &'static str,
    pub(super) level: Level,
    pub(super) what: String,
    /// The next step, if there is one.
    pub(super) remedy: Option<String>,
}

/// The session that the server grants, and its lease.
#[derive(Debug, Clone, Serialize)]
pub(super) struct GrantedSession {
    pub(super) asked_ms: u64,
    pub(super) granted_ms: u64,
    /// The time for which a holder may rely on its lock after a renewal, if its client does not
    /// know the tick time.
    pub(super) lease_ms: u64,
    pub(super) renewed_each_ms: u64,
    /// The longest `--grace` that is accepted.
    pub(super) longest_grace_ms: u64,
}

/// Latency of each kind of request.
#[derive(Debug, Clone, Serialize)]
pub(super) struct RequestLatency {
    pub(super) read: Option<LatencyTimes>,
    pub(super) sync: Option<LatencyTimes>,
    pub(super) write: Option<LatencyTimes>,
}

/// Latency of one kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct LatencyTimes {
    pub(super) turns: usize,
    pub(super) median_us: u64,
    pub(super) worst_us: u64,
}

/// The report, as `doctor --json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The connect string, or `local` for this user's server.
    service: String,
    root: String,
    /// The worst level among the findings.
    worst: Level,
    /// Set if no check was cut short.
    pub(super) complete: bool,
    /// The number of directories at and below the root that were examined.
    pub(super) directories: usize,
    /// The number of directories with contenders.
    pub(super) queues: usize,
    pub(super) session: Option<GrantedSession>,
    pub(super) latency: Option<RequestLatency>,
    /// Milliseconds by which the server's clock is ahead of this machine's.
    pub(super) clock_ms: Option<i64>,
    pub(super) findings: Vec<Finding>,
}

impl Report {
    pub(super) fn new(service: &str, root: &str) -> Self {
        Self {
            service: service.to_owned(),
            root: root.to_owned(),
            worst: Level::Ok,
            complete: true,
            directories: 0,
            queues: 0,
            session: None,
            latency: None,
            clock_ms: None,
            findings: Vec::new(),
        }
    }

    pub(super) fn ok(&mut self, check: &'static str, what: impl Into<String>) {
        self.add(check, Level::Ok, what.into(), None);
    }

    pub(super) fn note(&mut self, check: &'static str, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(check, Level::Note, what.into(), Some(remedy.into()));
    }

    pub(super) fn warn(&mut self, check: &'static str, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(check, Level::Warning, what.into(), Some(remedy.into()));
    }

    pub(super) fn error(&mut self, check: &'static str, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(check, Level::Error, what.into(), Some(remedy.into()));
    }

    pub(super) fn add(&mut self, check: &'static str, level: Level, what: String, remedy: Option<String>) {
        self.worst = self.worst.max(level);
        self.findings.push(Finding { check, level, what, remedy });
    }

    /// Records that a check was cut short, and why.
    pub(super) fn add_incomplete(&mut self, check: &'static str, why: String, remedy: &str) {
        self.complete = false;
        self.note(check, why, remedy);
    }

    /// Records the failure that ended the checks. Without this finding, the report would look like
    /// that of a healthy server.
    pub(super) fn add_failure(&mut self, why: String, is_local: bool) {
        self.complete = false;
        let remedy = if is_local {
            "see `zoolock serve --status`; if the server hangs, stop it with `zoolock serve --stop`, and run zoolock \
             doctor again"
        } else {
            "fix this, then run zoolock doctor again"
        };
        self.error("service", why, remedy);
    }

    /// Returns the exit code.
    pub(super) fn exit(&self) -> Exit {
        match self.worst {
            Level::Warning => Exit::WARNING,
            Level::Error => Exit::ERROR,
            _ => Exit::OK,
        }
    }

    /// Describes the number of findings of each level, without `ok`.
    pub(super) fn summary(&self) -> String {
        let count = |level| self.findings.iter().filter(|finding| finding.level == level).count();
        let levels = [(Level::Error, "error"), (Level::Warning, "warning"), (Level::Note, "note")];
        let parts: Vec<String> = levels
            .into_iter()
            .map(|(level, word)| (count(level), word))
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") })
            .collect();
        if parts.is_empty() { "nothing is wrong".to_owned() } else { parts.join(", ") }
    }

    pub(super) fn json(&self) -> String {
        format_json(self)
    }

    /// Returns the report as a table: a line for each finding and one for its remedy, folded to the width of the terminal.
    pub(super) fn table(&self, style: &TextStyle) -> String {
        let check = self.findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0).max(5);
        let indent = "warning".len() + 2 + check + 2;
        let mut text = format!("{}\n", style.bold(&format!("{:<7}  {:<check$}  FINDING", "LEVEL", "CHECK")));
        for finding in &self.findings {
            let level = format!("{:<7}", finding.level.word());
            let level = style.colorize(finding.level.color(), &level);
            let what = fold(&escape_unprintable(&finding.what), indent, style.width);
            text.push_str(&format!("{level}  {:<check$}  {what}\n", finding.check));
            if let Some(remedy) = &finding.remedy {
                let remedy = fold(&format!("→ {}", escape_unprintable(remedy)), indent, style.width);
                text.push_str(&format!("{:indent$}{remedy}\n", ""));
            }
        }
        text
    }
}

/// Folds text that begins in column `indent` into lines of at most `width` columns.
fn fold(text: &str, indent: usize, width: Option<usize>) -> String {
    // In a column of fewer than 20 characters, folded lines are harder to read than lines that the terminal breaks.
    let Some(width) = width.filter(|width| *width >= indent + 20) else { return text.to_owned() };
    let mut lines = String::new();
    let mut column = indent;
    for word in text.split(' ') {
        let length = columns::width(word);
        if column > indent && column + 1 + length > width {
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if column > indent {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new("h:1", "/locks");
        report.ok("server", "all is well");
        report.warn("access", "one two three four five six seven", "do this");
        report
    }

    #[test]
    fn lines_fit_the_width_of_the_terminal() {
        let text = fold("one two three four five six seven eight", 4, Some(24));
        assert_eq!(text, "one two three four\n    five six seven eight");
        for line in text.lines() {
            assert!(line.chars().count() <= 24, "{line:?}");
        }
        assert_eq!(fold("one two", 4, Some(10)), "one two");
        assert_eq!(fold("one two", 4, None), "one two");
    }

    #[test]
    fn strict_sets_exit_code_by_worst_finding() {
        let mut report = report();
        assert_eq!(report.exit(), Exit::WARNING);
        report.error("clash", "two hold", "stop one");
        report.note("dump", "not known", "ask");
        assert_eq!(report.exit(), Exit::ERROR);
        assert_eq!(report.summary(), "1 error, 1 warning, 1 note");
    }

    #[test]
    fn json_report_has_schema_and_remedies() {
        let value: serde_json::Value = serde_json::from_str(&report().json()).expect("JSON");
        assert_eq!((&value["schema"], &value["worst"]), (&"zoolock/1".into(), &"warning".into()));
        assert_eq!(value["findings"][1]["remedy"], "do this");
        assert!(value["findings"][0]["remedy"].is_null());
    }

    #[test]
    fn table_has_a_line_for_each_finding_and_remedy() {
        let table = report().table(&TextStyle::plain());
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4, "{table}");
        assert_eq!(lines[1], "ok       server  all is well");
        assert_eq!(lines[3], "                 → do this");
    }
}
