//! The report, as a table and as JSON.

use std::fmt::Write as _;

use clap::ValueEnum as _;
use serde_json::json;

use super::judge::HolderCase;
use super::settings::{LossArgs, LossFault, SESSION};
use crate::Outcome;
use crate::clock::seconds;
use crate::report::SHOWN;

/// Returns the table.
pub(super) fn format_report(
    settings: &LossArgs,
    seed: u64,
    cases: &[HolderCase],
    diverged: &[String],
    violations: &[String],
) -> String {
    let mut text = String::new();
    let runs = cases.iter().filter(|case| case.runs).count();
    let _ = writeln!(
        text,
        "{} holders at once, {} rounds of each fault, seed {seed}, sessions of {SESSION:?}: {} cases, {runs} of them \
         `zoolock run`.\n",
        settings.holders,
        settings.rounds,
        cases.len(),
    );
    text += "Seconds, as least / median / most, counted from the fault. The loss of a stopped holder is counted from SIGCONT \
             on.\n\n";
    text += "| fault | cases | `lost()` resolved | rival granted | from the last valid guard to that | the command dead | \
             from its death to the rival's grant |\n|-|-|-|-|-|-|-|\n";
    for fault in LossFault::value_variants() {
        let these: Vec<&HolderCase> = cases.iter().filter(|case| case.fault == *fault).collect();
        let of = |runs: bool, figure: fn(&HolderCase) -> Option<i64>| {
            extremes_and_median(
                these.iter().filter(|case| case.runs == runs).filter_map(|case| figure(case)).collect(),
            )
        };
        let all = extremes_and_median(these.iter().filter_map(|case| case.time_to_rival_grant()).collect());
        let _ = writeln!(
            text,
            "| {} | {} | {} | {all} | {} | {} | {} |",
            fault.name(),
            these.len(),
            of(false, HolderCase::time_to_notice),
            of(false, HolderCase::gap_before_rival_grant),
            of(true, HolderCase::time_to_command_end),
            of(true, HolderCase::gap_before_rival_grant),
        );
    }
    let looks: usize = cases.iter().map(|case| case.record.looks.len()).sum();
    let _ = writeln!(text, "\n{looks} looks at guards, {} violations.", violations.len());
    for diverged in diverged {
        let _ = writeln!(text, "\nZooKeeper itself: {diverged}. It restarted without data.");
    }
    for violation in violations.iter().take(SHOWN) {
        let _ = writeln!(text, "\nVIOLATION: {violation}");
    }
    text
}

/// Returns all cases, with times in seconds after the fault.
pub(super) fn json(seed: u64, cases: &[HolderCase], violations: &[String]) -> Outcome<String> {
    let cases: Vec<_> = cases
        .iter()
        .map(|case| {
            let after = |at: Option<i64>| at.map(|at| seconds(at - case.struck));
            let lost = case.record.lost.as_ref();
            json!({
                "fault": case.fault, "round": case.round, "lock": case.lock, "run": case.runs,
                "held": after(case.record.held),
                "looks": case.record.looks.len(),
                "last_belief": after(case.last_valid()),
                "continued": after(case.continued),
                "lost": after(lost.map(|(at, _)| *at)),
                "why": lost.map(|(_, why)| why),
                "command_dead": after(case.record.dead),
                "exit": case.exit,
                "rival_granted": after(case.rival),
            })
        })
        .collect();
    let all = json!({
        "seed": seed, "session_seconds": SESSION.as_secs(), "cases": cases, "violations": violations,
    });
    Ok(serde_json::to_string_pretty(&all)?)
}

fn extremes_and_median(mut times: Vec<i64>) -> String {
    times.sort_unstable();
    match (times.first(), times.get(times.len().saturating_sub(1) / 2), times.last()) {
        (Some(least), Some(median), Some(most)) => {
            format!("{:.3} / {:.3} / {:.3}", seconds(*least), seconds(*median), seconds(*most))
        }
        _ => "–".to_owned(),
    }
}
