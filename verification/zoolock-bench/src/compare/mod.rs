//! Runs the same workloads with zoolock and with its peers, one program after the other.

mod client;
mod plan;
mod results;
mod run;
mod running_servers;
mod sizes;
mod table;
mod target;
mod versions;
mod workers;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

use crate::{Outcome, page};
use results::Results;
use sizes::Sizes;

/// The options of `compare`.
#[derive(clap::Args)]
pub(crate) struct CompareArgs {
    /// Number of rounds of each work. A short work gets two to five times as many rounds, and a work that takes minutes
    /// at most three
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measure only this work, and keep the figures of the others. Can be repeated
    #[arg(long, value_name = "WORK")]
    only: Vec<String>,
    /// Do little of each work, to test that it runs. The figures have no meaning, and are only printed, unless `--out`
    /// is given
    #[arg(long)]
    quick: bool,
    /// Round-trip time that the delaying proxy adds, in milliseconds
    #[arg(long, value_name = "MS", default_value = "1", value_parser = parse_milliseconds)]
    rtt: Duration,
    /// Directory for the data of the servers [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The command zoolock to run as a server
    #[arg(long, value_name = "FILE", default_value = "target/release/zoolock")]
    zoolock: PathBuf,
    /// Write compare.json, compare.csv and compare.md to this directory, and do not replace the copies in the project
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the results, and write no file
    #[arg(long, conflicts_with = "out")]
    dry_run: bool,
    /// Print the names of the works
    #[arg(long)]
    list: bool,
}

impl CompareArgs {
    fn sizes(&self) -> Sizes {
        if self.quick { Sizes::quick() } else { Sizes::full() }
    }

    fn dir(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// Returns the directory for the results, or `None` if they are only printed.
    fn results_dir(&self) -> Option<&Path> {
        match &self.out {
            Some(out) => Some(out),
            None if self.dry_run || self.quick => None,
            None => Some(Path::new("bench/results")),
        }
    }
}

/// Measures, and writes the results, also after an interrupt or an error.
pub(crate) fn main(settings: &CompareArgs) -> Outcome<()> {
    let works = plan::works(&settings.sizes(), settings.rtt);
    if settings.list {
        works.iter().for_each(|work| println!("{:12} {}", work.name, work.title));
        return Ok(());
    }
    if let Some(unknown) = settings.only.iter().find(|only| works.iter().all(|work| work.name != **only)) {
        return Err(format!("there is no work {unknown:?}; run with --list to print all works").into());
    }
    if settings.results_dir().is_some() && settings.out.is_none() && !Path::new("Cargo.lock").exists() {
        return Err("not at the root of the project; change to it, or use --out or --dry-run".into());
    }
    let works: Vec<_> = works
        .into_iter()
        .filter(|work| settings.only.is_empty() || settings.only.iter().any(|only| work.name == only))
        .collect();
    let mut results = match settings.results_dir() {
        Some(dir) => Results::load(&dir.join("compare.json"))?,
        None => Results::default(),
    };
    results.describe(settings.rtt);
    let progress = progress(&works, settings.rounds);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let mut signals = [
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ];
        let interrupted =
            futures_util::future::select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv())));
        tokio::select! {
            ended = run::run(settings, &works, &mut results, &progress) => ended,
            _ = interrupted => Err("interrupted; the results so far are kept".into()),
        }
    });
    progress.finish_and_clear();
    let written = write(settings, &results);
    ended.and(written)
}

fn write(settings: &CompareArgs, results: &Results) -> Outcome<()> {
    let table = table::page(results);
    println!("{table}");
    let Some(dir) = settings.results_dir() else { return Ok(()) };
    results.save(&dir.join("compare.json"))?;
    page::write_atomically(&dir.join("compare.csv"), &table::csv(results))?;
    match settings.out {
        Some(_) => page::write_atomically(&dir.join("compare.md"), &table),
        None => page::replace_table(Path::new(crate::PAGE), "compare", &table),
    }
}

fn progress(works: &[plan::ComparedWork], rounds: usize) -> ProgressBar {
    let jobs = works.iter().map(|work| work.jobs(rounds)).sum::<usize>();
    let bar =
        if std::io::stderr().is_terminal() { ProgressBar::new(jobs as u64) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {wide_msg}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn parse_milliseconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix("ms").unwrap_or(text).parse::<f64>().map_err(|error| error.to_string())?;
    Duration::try_from_secs_f64(number / 1e3).map_err(|error| error.to_string())
}
