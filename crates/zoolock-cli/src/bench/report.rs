//! The figures, for people and for programs.

use clap::ValueEnum as _;
use serde::Serialize;

use super::works::Taken;
use crate::args::Work;
use crate::list::{Look, table, to_json};
use crate::plan::Bench;

/// What `bench --json` prints.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    /// As it was named; `local` for this user's server.
    service: &'a str,
    /// Where the locks were.
    path: &'a str,
    seconds_per_work: f64,
    tasks: usize,
    /// Whether all works that were asked for are there.
    complete: bool,
    works: Vec<Figures>,
}

#[derive(Serialize)]
struct Figures {
    work: String,
    turns: usize,
    median_ns: u64,
    p99_ns: u64,
    per_second: f64,
    /// The median as a part of that of a create + delete; none where that was not measured, or compares with nothing.
    ratio: Option<f64>,
    #[serde(skip)]
    what: String,
}

impl<'a> Report<'a> {
    pub(super) fn new(
        service: &'a str,
        path: &'a str,
        plan: &Bench,
        taken: &[(Work, Taken)],
        complete: bool,
    ) -> Self {
        let mut works: Vec<_> = taken.iter().map(|(work, taken)| figures(*work, taken, plan.tasks)).collect();
        let limit = taken.iter().zip(&works).find(|((work, _), _)| *work == Work::CreateDelete);
        if let Some(limit) = limit.map(|(_, figures)| figures.median_ns) {
            for ((work, _), figures) in taken.iter().zip(&mut works) {
                // One lock among hundreds waits for the others.
                if *work != Work::Many {
                    figures.ratio = Some(figures.median_ns as f64 / limit as f64);
                }
            }
        }
        let seconds_per_work = plan.time.as_secs_f64();
        Self { service, path, seconds_per_work, tasks: plan.tasks, complete, works }
    }

    pub(super) fn json(&self) -> String {
        to_json(self)
    }

    pub(super) fn table(&self, look: &Look) -> String {
        let header = ["WORK", "MEDIAN", "P99", "PER SECOND", "RATIO", "WHAT"].map(str::to_owned);
        let rows = self.works.iter().map(|figures| {
            [
                figures.work.clone(),
                time(figures.median_ns),
                time(figures.p99_ns),
                short(figures.per_second),
                figures.ratio.map_or_else(|| "-".to_owned(), part),
                figures.what.clone(),
            ]
        });
        table(&header, &rows.collect::<Vec<_>>(), look)
    }
}

/// The name that --only takes.
pub(super) fn name(work: Work) -> String {
    work.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn figures(work: Work, taken: &Taken, tasks: usize) -> Figures {
    let mut sorted = taken.samples.clone();
    sorted.sort_unstable();
    let what = match work {
        Work::CreateDelete => "a znode created and deleted, no lock: the limit".to_owned(),
        Work::AcquireRelease => "acquired and released, both awaited, nobody else".to_owned(),
        Work::Loop => "acquired and dropped in a loop, nobody else".to_owned(),
        Work::HandOver => format!("from a release to the next grant, {tasks} tasks on 2 sessions"),
        Work::Many => format!("acquired among {} different locks at once", super::LOCKS),
        Work::ReAcquire => "taken again within a tenure (batching, linger)".to_owned(),
    };
    Figures {
        work: name(work),
        turns: sorted.len(),
        median_ns: percentile(&sorted, 50),
        p99_ns: percentile(&sorted, 99),
        per_second: sorted.len() as f64 / taken.elapsed.as_secs_f64().max(1e-9),
        ratio: None,
        what,
    }
}

/// The value that `percent` of the sorted samples do not exceed.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or(0)
}

fn time(ns: u64) -> String {
    let ns = ns as f64;
    match ns {
        _ if ns < 1e3 => format!("{ns} ns"),
        _ if ns < 1e6 => format!("{} µs", short(ns / 1e3)),
        _ if ns < 1e9 => format!("{} ms", short(ns / 1e6)),
        _ => format!("{} s", short(ns / 1e9)),
    }
}

/// A ratio; a small one as a fraction.
fn part(ratio: f64) -> String {
    if ratio < 0.1 { format!("1/{:.0}", 1.0 / ratio) } else { short(ratio) }
}

/// Three digits that count.
fn short(figure: f64) -> String {
    match figure {
        _ if figure >= 100.0 => format!("{figure:.0}"),
        _ if figure >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn figures_are_as_short_as_they_are_read() {
        assert_eq!(
            [640, 3_120, 312_000, 45_600_000, 1_230_000_000].map(time),
            ["640 ns", "3.12 µs", "312 µs", "45.6 ms", "1.23 s"]
        );
        assert_eq!([1.0, 0.65, 0.1, 0.004].map(part), ["1.00", "0.65", "0.10", "1/250"]);
    }

    #[test]
    fn the_middle_and_the_end_of_the_turns_are_shown_and_their_rate() {
        let taken = Taken { elapsed: Duration::from_secs(2), samples: (1..=100).rev().collect() };
        let figures = figures(Work::Loop, &taken, 8);
        assert_eq!((figures.median_ns, figures.p99_ns, figures.turns), (50, 99, 100));
        assert!((figures.per_second - 50.0).abs() < f64::EPSILON);
        assert_eq!(percentile(&[7], 99), 7);
    }
}
