//! The report in words and tables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::clock::seconds;
use crate::drill::Settings;
use crate::judge::Verdict;

/// How many violations are shown.
pub(crate) const SHOWN: usize = 40;

/// What came out, as Markdown.
pub(crate) fn text(settings: &Settings, seed: u64, verdict: &Verdict) -> String {
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
    row("writes done, each under a token", verdict.written.to_string());
    row("writes that only the token refused", verdict.refused.len().to_string());
    row(
        "… of them of holders whose node somebody else had deleted a moment ago",
        verdict.refused_in_belief.to_string(),
    );
    row("beliefs that overlapped because somebody else had deleted the node", verdict.excused.to_string());
    row("confirmed releases", verdict.released.to_string());
    row("longest wait for a lock, faults included", format!("{:.1} s", verdict.longest_wait));
    row(
        "nodes of ZooKeeper that had another tree than the others, and began anew",
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
    let _ =
        writeln!(text, "\n| what became of asking, where it was not released in good order | times |\n|-|-|");
    for (end, count) in &verdict.ends {
        let _ = writeln!(text, "| {} | {count} |", if end.is_empty() { "never said" } else { end });
    }
    for violation in verdict.violations.iter().take(SHOWN) {
        let _ = writeln!(text, "\nVIOLATION: {violation}");
    }
    text
}
