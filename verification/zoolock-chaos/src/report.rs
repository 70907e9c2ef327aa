//! The report, as tables in Markdown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::clock::seconds;
use crate::settings::DrillArgs;
use crate::verdict::RunVerdict;

/// The number of violations that are shown.
pub(crate) const SHOWN: usize = 40;

/// Returns the report.
pub(crate) fn format_report(settings: &DrillArgs, seed: u64, verdict: &RunVerdict) -> String {
    let mut text = String::new();
    let sections: u64 = verdict.sections.values().sum();
    let done: Vec<_> = verdict.faults.iter().filter(|fault| fault.is_done()).collect();
    let kinds: BTreeSet<&str> = done.iter().map(|fault| fault.kind.as_str()).collect();
    let minutes = seconds(verdict.ended - verdict.began) / 60.0;
    let _ = writeln!(
        text,
        "{minutes:.1} minutes, seed {seed}, {} worker processes, 3 nodes: {sections} critical sections, {} faults of {} kinds.\n",
        settings.workers,
        done.len(),
        kinds.len(),
    );
    let by_kind: Vec<String> =
        verdict.sections.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let _ = writeln!(text, "| what | figure |\n|-|-|");
    let mut row = |what: &str, figure: String| {
        let _ = writeln!(text, "| {what} | {figure} |");
    };
    row("critical sections", by_kind.join(", "));
    row("writes accepted, each with a token", verdict.written.to_string());
    row("writes that only the token refused", verdict.refused.len().to_string());
    row("… of them by holders whose znode a fault had just deleted", verdict.refused_while_valid.to_string());
    row("overlapping holds after a fault had deleted the znode", verdict.excused.to_string());
    row("confirmed releases", verdict.released.to_string());
    row("locks lost with their session or its lease", verdict.lost.to_string());
    row("locks lost although a server could have kept them", verdict.needlessly_lost.to_string());
    row("longest wait for a lock, faults included", format!("{:.1} s", verdict.longest_wait));
    row(
        "ZooKeeper nodes whose tree differed from that of the others, restarted without data",
        verdict.diverged.len().to_string(),
    );
    row("violations", verdict.violations.len().to_string());
    let _ = writeln!(text, "\n| fault | times | median until all were served | longest |\n|-|-|-|-|");
    let mut settling: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for fault in &verdict.faults {
        settling.entry(&fault.kind).or_default().push(seconds(fault.settled - fault.healed));
    }
    for (kind, mut times) in settling {
        times.sort_by(f64::total_cmp);
        let (median, longest) = (times[(times.len() - 1) / 2], times[times.len() - 1]);
        let _ = writeln!(text, "| {kind} | {} | {median:.1} s | {longest:.1} s |", times.len());
    }
    let _ = writeln!(text, "\n| end of an attempt without a release | times |\n|-|-|");
    for (end, count) in &verdict.ends {
        let _ = writeln!(text, "| {} | {count} |", if end.is_empty() { "not reported" } else { end });
    }
    for violation in verdict.violations.iter().take(SHOWN) {
        let _ = writeln!(text, "\nVIOLATION: {violation}");
    }
    text
}
