//! The figures, for people and for programs.

use clap::ValueEnum as _;
use serde::Serialize;

use super::works::Taken;
use crate::args::Work;
use crate::list::{Look, table, to_json};
use crate::plan::Bench;

/// A disk or a machine that others use has two speeds, and the middle is now at the one, now at the other.
const UNSTEADY: u64 = 10;

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

    /// By how much create + delete varied, where that is so much that its median is chance.
    pub(super) fn unsteady(&self) -> Option<u64> {
        let limit = self.works.iter().find(|figures| figures.ratio == Some(1.0))?;
        Some(limit.p99_ns / limit.median_ns.max(1)).filter(|times| *times >= UNSTEADY)
    }

    pub(super) fn json(&self) -> String {
        to_json(self)
    }

    pub(super) fn table(&self, look: &Look) -> String {
        let header = ["WORK", "MEDIAN", "P99", "RATE", "RATIO", "WHAT"].map(str::to_owned);
        let rows = self.works.iter().map(|figures| {
            [
                figures.work.clone(),
                time(figures.median_ns),
                time(figures.p99_ns),
                format!("{}/s", short(figures.per_second)),
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
    // As short as fits into eighty columns.
    let what = match work {
        Work::CreateDelete => "two plain writes, no lock".to_owned(),
        Work::AcquireRelease => "alone, both awaited".to_owned(),
        Work::Loop => "alone, release not awaited".to_owned(),
        Work::HandOver => format!("to the next of {tasks} tasks"),
        Work::Many => format!("among {} at once", super::LOCKS),
        Work::ReAcquire => "kept meanwhile, no request".to_owned(),
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
    fn the_table_fits_into_eighty_columns() {
        let figures = |work: &Work| Figures {
            median_ns: 99_600_000,
            p99_ns: 999_900_000,
            per_second: 1_234_567.0,
            ratio: Some(1.0 / 9_999.0),
            ..figures(*work, &Taken { elapsed: Duration::ZERO, samples: Vec::new() }, 256)
        };
        let works = Work::value_variants().iter().map(figures).collect();
        let (service, path) = ("local", "/locks");
        let report = Report { service, path, seconds_per_work: 3.0, tasks: 256, complete: true, works };
        let table = report.table(&Look::plain());
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }

    #[test]
    fn a_limit_that_varies_is_told() {
        let plan = crate::plan::Plan::new(clap::Parser::parse_from(["zoolock", "bench"]));
        let Ok(crate::plan::Plan::Bench(plan)) = plan else { panic!("nothing is wrong with it") };
        let unsteady = |late| {
            let samples = [vec![10; 98], vec![late; 2]].concat();
            let taken = [(Work::CreateDelete, Taken { elapsed: Duration::from_secs(1), samples })];
            Report::new("local", "/locks", &plan, &taken, true).unsteady()
        };
        assert_eq!((unsteady(90), unsteady(250)), (None, Some(25)));
    }

    #[test]
    fn rounds_of_a_work_are_one() {
        let mut taken = Taken { elapsed: Duration::from_secs(1), samples: vec![1, 2] };
        taken.add(Taken { elapsed: Duration::from_secs(2), samples: vec![3] });
        assert_eq!((taken.elapsed, taken.samples), (Duration::from_secs(3), vec![1, 2, 3]));
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
