//! The table of the server measurements, and its files.

use std::fs;
use std::path::Path;

use crate::process::describe_machine;
use crate::server_measurement::{Piped, Samples, ServerFigures};
use crate::stats::{median, spread as spread_of, three_digits};
use crate::{Outcome, page};

/// Prints the table. Also writes it to its files unless `dry_run` is set.
pub(crate) fn write(figures: &ServerFigures, dry_run: bool) -> Outcome<()> {
    let table = table(figures);
    println!("{table}");
    if dry_run {
        return Ok(());
    }
    if !Path::new("Cargo.lock").exists() {
        return Err("run it at the root of the project, or with --dry-run".into());
    }
    fs::create_dir_all("bench/results")?;
    page::write_atomically(
        Path::new("bench/results/server.json"),
        &(serde_json::to_string_pretty(figures)? + "\n"),
    )?;
    page::replace_table(Path::new(crate::PAGE), "server", &table)
}

fn table(figures: &ServerFigures) -> String {
    let mut lines = format!("\n{}.\n\n", describe_machine());
    lines += "| work | zoolock serve | Apache ZooKeeper 3.8.0 | ratio | at most | |\n|-|-|-|-|-|-|\n";
    let mut row = |what: &str, pick: &dyn Fn(&Samples) -> &Vec<f64>, unit: &str, bound: FigureBound| {
        let (ours, theirs) = (median(pick(&figures.ours)), median(pick(&figures.apache)));
        let ratio = ours / theirs;
        let (text, good) = match bound {
            FigureBound::Ratio(most) => (format!("{most} ×"), ratio <= most),
            FigureBound::AtLeast(least) => (format!("at least {least} ×"), ratio >= least),
            FigureBound::Absolute(most) => (format!("{most} {unit}"), ours <= most),
            FigureBound::None => (String::new(), true),
        };
        let spread = |samples: &Samples| {
            let samples = pick(samples);
            let (least, most) = spread_of(samples);
            format!(
                "{} {unit} ({}–{})",
                three_digits(median(samples)),
                three_digits(least),
                three_digits(most)
            )
        };
        let mark = if good { "" } else { "missed" };
        lines += &format!(
            "| {what} | {} | {} | {ratio:.2} | {text} | {mark} |\n",
            spread(&figures.ours),
            spread(&figures.apache)
        );
    };
    row("awaited create, p50", &|s| &s.awaited_p50_us, "µs", FigureBound::Ratio(0.5));
    row("awaited create, p99", &|s| &s.awaited_p99_us, "µs", FigureBound::None);
    let kinds: [(&str, PipedField); 3] =
        [("create", |s| &s.creates), ("read", |s| &s.reads), ("delete", |s| &s.deletes)];
    for (name, pick) in kinds {
        row(
            &format!("pipelined {name}: server processor time"),
            &|s| &pick(s).cpu_us,
            "µs",
            FigureBound::Ratio(0.33),
        );
    }
    for (name, pick) in kinds {
        row(&format!("pipelined {name}: rate"), &|s| &pick(s).per_second, "/s", FigureBound::AtLeast(1.3));
    }
    row("start to first session", &|s| &s.start_ms, "ms", FigureBound::Absolute(50.0));
    row("memory, idle", &|s| &s.idle_mib, "MiB", FigureBound::Absolute(15.0));
    row(
        &format!("memory, {} znodes of 100 bytes", figures.znodes),
        &|s| &s.full_mib,
        "MiB",
        FigureBound::Ratio(0.4),
    );
    lines + "\n"
}

type PipedField = fn(&Samples) -> &Piped;

enum FigureBound {
    Ratio(f64),
    AtLeast(f64),
    Absolute(f64),
    None,
}
