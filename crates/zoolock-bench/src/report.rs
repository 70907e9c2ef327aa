//! Tables and files.

use std::fs;
use std::path::Path;

use crate::Outcome;
use crate::process::machine;
use crate::server::{Figures, Piped, Samples};

const PAGE: &str = "docs/BENCHMARKS.md";
const BEGIN: &str = "<!-- server: begin, written by zoolock-bench -->";
const END: &str = "<!-- server: end -->";

/// Prints the table, and unless told otherwise puts it where it is kept.
pub(crate) fn write(figures: &Figures, dry_run: bool) -> Outcome<()> {
    let table = table(figures);
    println!("{table}");
    if dry_run {
        return Ok(());
    }
    if !Path::new("Cargo.lock").exists() {
        return Err("run it at the root of the project, or with --dry-run".into());
    }
    fs::create_dir_all("bench/results")?;
    fs::write("bench/results/server.json", serde_json::to_string_pretty(figures)? + "\n")?;
    let page = fs::read_to_string(PAGE)?;
    let (Some((before, rest)), true) = (page.split_once(BEGIN), page.contains(END)) else {
        return Err(format!("{PAGE} has no place for the table: {BEGIN} … {END}").into());
    };
    let after = rest.split_once(END).map_or("", |(_, after)| after);
    fs::write(PAGE, format!("{before}{BEGIN}\n{table}{END}{after}"))?;
    Ok(())
}

fn table(figures: &Figures) -> String {
    let mut lines = format!("\n{}.\n\n", machine());
    lines += "| work | zoolock serve | Apache ZooKeeper 3.8.0 | ratio | at most | |\n|-|-|-|-|-|-|\n";
    let mut row = |what: &str, pick: &dyn Fn(&Samples) -> &Vec<f64>, unit: &str, bound: Bound| {
        let (ours, theirs) = (median(pick(&figures.ours)), median(pick(&figures.apache)));
        let ratio = ours / theirs;
        let (text, good) = match bound {
            Bound::Ratio(most) => (format!("{most} ×"), ratio <= most),
            Bound::AtLeast(least) => (format!("at least {least} ×"), ratio >= least),
            Bound::Absolute(most) => (format!("{most} {unit}"), ours <= most),
            Bound::None => (String::new(), true),
        };
        let spread = |samples: &Samples| {
            let samples = pick(samples);
            let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
            let most = samples.iter().copied().fold(0.0, f64::max);
            format!("{} {unit} ({}–{})", short(median(samples)), short(least), short(most))
        };
        let mark = if good { "" } else { "missed" };
        lines += &format!(
            "| {what} | {} | {} | {ratio:.2} | {text} | {mark} |\n",
            spread(&figures.ours),
            spread(&figures.apache)
        );
    };
    row("awaited create, p50", &|s| &s.awaited_p50_us, "µs", Bound::Ratio(0.5));
    row("awaited create, p99", &|s| &s.awaited_p99_us, "µs", Bound::None);
    let kinds: [(&str, Pick); 3] =
        [("create", |s| &s.creates), ("read", |s| &s.reads), ("delete", |s| &s.deletes)];
    for (name, pick) in kinds {
        row(
            &format!("pipelined {name}: server processor time"),
            &|s| &pick(s).cpu_us,
            "µs",
            Bound::Ratio(0.33),
        );
    }
    for (name, pick) in kinds {
        row(&format!("pipelined {name}: rate"), &|s| &pick(s).per_second, "/s", Bound::AtLeast(1.3));
    }
    row("start to first session", &|s| &s.start_ms, "ms", Bound::Absolute(50.0));
    row("memory, idle", &|s| &s.idle_mib, "MiB", Bound::Absolute(15.0));
    row(
        &format!("memory, {} znodes of 100 bytes", figures.znodes),
        &|s| &s.full_mib,
        "MiB",
        Bound::Ratio(0.4),
    );
    lines + "\n"
}

type Pick = fn(&Samples) -> &Piped;

enum Bound {
    Ratio(f64),
    AtLeast(f64),
    Absolute(f64),
    None,
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

fn short(figure: f64) -> String {
    match figure {
        figure if figure >= 100.0 => format!("{figure:.0}"),
        figure if figure >= 10.0 => format!("{figure:.1}"),
        figure => format!("{figure:.2}"),
    }
}
