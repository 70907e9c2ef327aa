//! The results, as they are stored.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::client::ClientOnServer;
use super::plan::{ComparedWork, RoundFigure};
use super::versions::versions;
use crate::job::Measurement;
use crate::process::describe_machine;
use crate::stats::{median, percentile, spread};
use crate::{Outcome, page};

/// All results.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) machine: String,
    pub(super) versions: BTreeMap<String, String>,
    pub(super) rtt_ms: f64,
    pub(super) works: Vec<WorkResults>,
}

/// The results of a work. All its figures come from one run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WorkResults {
    pub(super) name: String,
    pub(super) title: String,
    /// The number that represents the samples of a round.
    pub(super) figure: String,
    pub(super) settings: BTreeMap<String, String>,
    /// Set if the run ended before all rounds.
    pub(super) cut_short: bool,
    pub(super) quick: bool,
    pub(super) entries: Vec<ClientResult>,
}

/// The results of one client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ClientResult {
    #[serde(flatten)]
    pub(super) who: ClientOnServer,
    /// The reason why the client failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
    pub(super) rounds: Vec<RoundResult>,
}

/// The samples of a round in a few figures, in microseconds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RoundResult {
    /// The number that represents the round: median, mean, or share.
    pub(super) figure: f64,
    pub(super) least: f64,
    pub(super) median: f64,
    /// `None` if the figure is a share, which a single latency cannot be compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) p99: Option<f64>,
    pub(super) most: f64,
    pub(super) turns: u64,
    pub(super) elapsed: f64,
    /// The time that it took until all contenders were queued.
    pub(super) joined: f64,
    /// The client's processor time per acquisition.
    pub(super) cpu: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) second: Option<SecondProcess>,
}

/// The results of the second process of a client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SecondProcess {
    pub(super) turns: u64,
    pub(super) longest_wait: f64,
}

impl Results {
    /// Loads the results of an earlier run. Returns empty results if there is no file.
    pub(super) fn load(file: &Path) -> Outcome<Self> {
        match fs::read_to_string(file) {
            Ok(text) => Ok(serde_json::from_str(&text)
                .map_err(|error| format!("{}: {error}; remove it to begin anew", file.display()))?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("{}: {error}", file.display()).into()),
        }
    }

    pub(super) fn save(&self, file: &Path) -> Outcome<()> {
        if let Some(dir) = file.parent() {
            fs::create_dir_all(dir)?;
        }
        page::write_atomically(file, &(serde_json::to_string_pretty(self)? + "\n"))
    }

    pub(super) fn describe(&mut self, rtt: Duration) {
        self.machine = describe_machine();
        self.versions = versions();
        self.rtt_ms = rtt.as_secs_f64() * 1e3;
    }

    /// Begins a work. Replaces its old results, and keeps the order.
    pub(super) fn begin(&mut self, work: &ComparedWork, quick: bool, order: &[&str]) -> &mut WorkResults {
        self.works.retain(|old| old.name != work.name);
        let entry = |&who: &ClientOnServer| ClientResult { who, failed: None, rounds: Vec::new() };
        self.works.push(WorkResults {
            name: work.name.to_owned(),
            title: work.title.clone(),
            figure: work.figure.description().to_owned(),
            settings: work.job.settings(),
            cut_short: true,
            quick,
            entries: work.who.iter().map(entry).collect(),
        });
        self.works.sort_by_key(|work| order.iter().position(|name| *name == work.name));
        let found = self.works.iter_mut().find(|measured| measured.name == work.name);
        found.expect("the work was just added")
    }

    pub(super) fn work(&self, name: &str) -> Option<&WorkResults> {
        self.works.iter().find(|work| work.name == name)
    }
}

impl WorkResults {
    pub(super) fn entry(&self, who: ClientOnServer) -> Option<&ClientResult> {
        self.entries.iter().find(|entry| entry.who == who)
    }
}

impl ClientResult {
    /// Returns the median of the rounds, if there are any.
    pub(super) fn median(&self) -> Option<f64> {
        self.median_of(|round| round.figure)
    }

    pub(super) fn p99(&self) -> Option<f64> {
        let all: Vec<f64> = self.rounds.iter().filter_map(|round| round.p99).collect();
        Some(median(&all)).filter(|figure| figure.is_finite())
    }

    pub(super) fn cpu(&self) -> Option<f64> {
        self.median_of(|round| round.cpu)
    }

    /// Returns the smallest and the largest figure of the rounds.
    pub(super) fn spread(&self) -> (f64, f64) {
        spread(&self.figures_of_rounds(|round| round.figure))
    }

    fn median_of(&self, pick: impl Fn(&RoundResult) -> f64) -> Option<f64> {
        Some(median(&self.figures_of_rounds(pick))).filter(|figure| figure.is_finite())
    }

    fn figures_of_rounds(&self, pick: impl Fn(&RoundResult) -> f64) -> Vec<f64> {
        self.rounds.iter().map(pick).collect()
    }
}

impl RoundResult {
    pub(super) fn new(
        measurement: Measurement,
        figure: RoundFigure,
        second: Option<Measurement>,
    ) -> Outcome<Self> {
        let Measurement { elapsed_ns, cpu_ns, joined_ns, turns, mut samples_ns } = measurement;
        if turns == 0 || samples_ns.is_empty() {
            return Err("it did nothing".into());
        }
        samples_ns.sort_unstable();
        let micros = |ns: u64| ns as f64 / 1e3;
        let middle = micros(percentile(&samples_ns, 50));
        Ok(Self {
            figure: match figure {
                RoundFigure::Median => middle,
                RoundFigure::Mean => micros(samples_ns.iter().sum()) / samples_ns.len() as f64,
                RoundFigure::Share => micros(elapsed_ns) / turns as f64,
            },
            least: micros(percentile(&samples_ns, 0)),
            median: middle,
            p99: (figure != RoundFigure::Share).then(|| micros(percentile(&samples_ns, 99))),
            most: micros(percentile(&samples_ns, 100)),
            turns,
            elapsed: micros(elapsed_ns),
            joined: micros(joined_ns),
            cpu: micros(cpu_ns) / turns as f64,
            second: second.map(|second| SecondProcess {
                turns: second.turns,
                longest_wait: micros(second.samples_ns.iter().copied().max().unwrap_or(0)),
            }),
        })
    }
}
