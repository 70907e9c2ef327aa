//! What one ensemble carries, and what several do: points that are measured, a model that is fitted to them, and that
//! model with as many clients as nobody has at hand.

mod figures;
mod fit;
mod model;
mod points;
mod table;

use std::path::{Path, PathBuf};

use crate::servers::Kind;
use crate::{Outcome, page};
use figures::{Figures, Measured};

/// Where the tables of this are kept.
const PAGE: &str = "docs/SCALING.md";
const RESULTS: &str = "bench/results/scale.json";

/// What to measure, and how much of it.
#[derive(clap::Args)]
pub(crate) struct Settings {
    /// Little of everything, to see whether it works; the figures are worth nothing, and are only printed.
    #[arg(long)]
    quick: bool,
    /// Measure nothing: take the figures of the last run, and simulate with them.
    #[arg(long)]
    again: bool,
    /// Where the servers keep their data; the same disk for all.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The command to serve with; the release build unless given.
    #[arg(long, value_name = "FILE", default_value = "target/release/zoolock")]
    zoolock: PathBuf,
    /// Only print; leave docs/SCALING.md and bench/results alone.
    #[arg(long)]
    dry_run: bool,
}

impl Settings {
    fn sizes(&self) -> points::Sizes {
        if self.quick { points::Sizes::quick() } else { points::Sizes::full() }
    }
}

/// Measures, fits, simulates, and writes what came out.
pub(crate) fn main(settings: &Settings) -> Outcome<()> {
    let kept = !settings.dry_run && !settings.quick;
    if (kept || settings.again) && !Path::new("Cargo.lock").exists() {
        return Err("run it at the root of the project, or with --dry-run".into());
    }
    let measured = if settings.again { load()? } else { measure(settings)? };
    eprintln!("simulating");
    let figures = Figures::of(measured, &figures::Question::all(settings.quick))?;
    let table = table::page(&figures);
    println!("{table}");
    if kept {
        std::fs::create_dir_all("bench/results")?;
        page::write(Path::new(RESULTS), &(serde_json::to_string_pretty(&figures)? + "\n"))?;
        page::put(Path::new(PAGE), "scale", &table)?;
    }
    Ok(())
}

fn load() -> Outcome<Measured> {
    let text = std::fs::read_to_string(RESULTS).map_err(|error| format!("{RESULTS}: {error}"))?;
    let figures: Figures = serde_json::from_str(&text).map_err(|error| format!("{RESULTS}: {error}"))?;
    Ok(figures.measured)
}

fn measure(settings: &Settings) -> Outcome<Measured> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let dir = settings.dir.clone().unwrap_or_else(std::env::temp_dir);
    let mut servers = Vec::new();
    for kind in [Kind::Ours, Kind::Apache, Kind::Ensemble] {
        if let Some(missing) = kind.missing(&settings.zoolock) {
            return Err(missing.into());
        }
        let stage = points::Stage { kind, zoolock: &settings.zoolock, dir: &dir, sizes: &settings.sizes() };
        servers.push(runtime.block_on(stage.measure())?);
    }
    Ok(Measured { machine: crate::process::machine(), servers })
}
