//! `bench`.

use std::time::Duration;

use clap::ValueEnum as _;

use super::service::{Service, check_name, service};
use crate::args::{BenchArgs, Global, Work};
use crate::duration::{duration, humane};
use crate::exit::Failure;

/// An ensemble that others use is not loaded for longer by one work.
const LONGEST_WORK: Duration = Duration::from_secs(60);
/// Each is a znode in an ensemble that others use, and a hand-over takes no longer for more of them.
const MOST_TASKS: usize = 256;

/// `zoolock bench`.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) service: Service,
    /// Each once, in the order of the enumeration.
    pub(crate) works: Vec<Work>,
    pub(crate) time: Duration,
    pub(crate) tasks: usize,
    pub(crate) json: bool,
}

pub(super) fn bench(global: &Global, asked: BenchArgs) -> Result<Bench, Failure> {
    let BenchArgs { time: text, only: mut works, tasks } = asked;
    let service = service(global, None)?;
    // Its locks are two levels below the root.
    check_name(crate::bench::LONGEST_NAME, &service.root)?;
    let time = duration("--time", &text)?;
    if time.is_zero() {
        return Err(Failure::usage("--time 0s: nothing is measured in no time; the default is 3s"));
    }
    if time > LONGEST_WORK {
        return Err(Failure::usage(format!("--time {text}: at most {} for each work", humane(LONGEST_WORK))));
    }
    if !(2..=MOST_TASKS).contains(&tasks) {
        return Err(Failure::usage(format!(
            "--tasks {tasks}: a lock is handed over between 2 tasks or more, at most {MOST_TASKS}"
        )));
    }
    if works.is_empty() {
        works = Work::value_variants().to_vec();
    }
    works.sort_unstable();
    works.dedup();
    Ok(Bench { service, works, time, tasks, json: global.json })
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::super::lines::{plan, refused};
    use super::*;

    #[test]
    fn works_are_done_once_and_in_order() {
        let Ok(Plan::Bench(bench)) = plan(&["bench", "--only", "many", "--only", "loop", "--only", "many"])
        else {
            panic!("nothing is wrong with it")
        };
        assert_eq!(bench.works, [Work::Loop, Work::Many]);
        let Ok(Plan::Bench(bench)) = plan(&["bench"]) else { panic!("nothing is wrong with it") };
        assert_eq!(bench.works, Work::value_variants());
    }

    #[test]
    fn a_bench_of_nothing_is_refused() {
        for (line, word) in [
            (&["bench", "--time", "0s"][..], "--time 0s"),
            (&["bench", "--time", "3"], "--time \"3\""),
            (&["bench", "--time", "2m"], "at most"),
            (&["bench", "--tasks", "0"], "--tasks 0"),
            (&["bench", "--tasks", "1"], "--tasks 1"),
            (&["bench", "--tasks", "100000"], "at most"),
        ] {
            let message = refused(line);
            assert!(message.contains(word), "{message}");
        }
        let long = format!("/{}", "r".repeat(1010));
        refused(&["bench", "--root", &long]);
    }
}
