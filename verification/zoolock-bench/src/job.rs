//! The protocol between the harness and the workers: one line for a job, and one line for its
//! answer. The workers are written in three languages.
//!
//! A job is `WORK key=value …`, an answer `ok elapsed_ns=… cpu_ns=… samples=…,…` or `failed why`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use crate::Outcome;

/// A job.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// The name of a work in `crate::worker`.
    pub(crate) work: &'static str,
    fields: BTreeMap<&'static str, String>,
}

impl Job {
    pub(crate) fn new(work: &'static str) -> Self {
        Self { work, fields: BTreeMap::new() }
    }

    /// Returns the job with one more field, or with a new value for that field.
    pub(crate) fn with(mut self, key: &'static str, value: impl Display) -> Self {
        self.fields.insert(key, value.to_string());
        self
    }

    /// Returns the settings of the job, to be stored with the results.
    pub(crate) fn settings(&self) -> BTreeMap<String, String> {
        self.fields.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
    }

    /// Returns the line, without the newline.
    pub(crate) fn line(&self) -> String {
        let fields = self.fields.iter().map(|(key, value)| format!(" {key}={value}"));
        fields.fold(self.work.to_owned(), |line, field| line + &field)
    }
}

/// The fields of a line.
pub(crate) struct Fields<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Fields<'a> {
    /// Returns the first word of a line, and its fields.
    pub(crate) fn parse(line: &'a str) -> (&'a str, Self) {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        (first, Self(words.filter_map(|word| word.split_once('=')).collect()))
    }

    pub(crate) fn text(&self, key: &str) -> Outcome<&'a str> {
        self.0.get(key).copied().ok_or_else(|| format!("no {key}= in the line").into())
    }

    pub(crate) fn number<T: FromStr>(&self, key: &str) -> Outcome<T> {
        let text = self.text(key)?;
        text.parse().map_err(|_| format!("{key}={text} is no number").into())
    }
}

/// The measurements of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measurement {
    /// The time from the first counted request to the last counted answer.
    pub(crate) elapsed_ns: u64,
    /// The worker's processor time during `elapsed_ns`.
    pub(crate) cpu_ns: u64,
    /// The time that it took until all contenders were queued, if there is a queue.
    pub(crate) joined_ns: u64,
    /// Number of acquisitions.
    pub(crate) turns: u64,
    /// The measured latencies.
    pub(crate) samples_ns: Vec<u64>,
}

impl Measurement {
    pub(crate) fn line(&self) -> String {
        let Self { elapsed_ns, cpu_ns, joined_ns, turns, samples_ns } = self;
        let samples: Vec<String> = samples_ns.iter().map(u64::to_string).collect();
        format!(
            "ok elapsed_ns={elapsed_ns} cpu_ns={cpu_ns} joined_ns={joined_ns} turns={turns} samples={}",
            samples.join(",")
        )
    }

    /// Parses an answer. Returns the error of a worker that failed.
    pub(crate) fn parse(line: &str) -> Outcome<Self> {
        if let Some(why) = line.strip_prefix("failed ") {
            return Err(why.trim().into());
        }
        let ("ok", fields) = Fields::parse(line) else {
            return Err(
                format!("the worker answered {:?}", line.chars().take(200).collect::<String>()).into()
            );
        };
        let samples = fields.text("samples")?.split(',').filter(|text| !text.is_empty());
        let samples = samples.map(str::parse).collect::<Result<_, _>>();
        Ok(Self {
            elapsed_ns: fields.number("elapsed_ns")?,
            cpu_ns: fields.number("cpu_ns")?,
            joined_ns: fields.number("joined_ns")?,
            turns: fields.number("turns")?,
            samples_ns: samples.map_err(|error| format!("a sample is no number: {error}"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Fields, Job, Measurement};

    #[test]
    fn a_job_is_read_as_it_was_written() {
        let line = Job::new("solo").with("count", 7).with("connect", "127.0.0.1:1").with("count", 8).line();
        let (work, fields) = Fields::parse(&line);
        assert_eq!(work, "solo");
        assert_eq!(fields.number::<u32>("count").expect("field is present"), 8);
        assert_eq!(fields.text("connect").expect("field is present"), "127.0.0.1:1");
        assert!(fields.text("path").is_err());
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        let measurement =
            Measurement { elapsed_ns: 9, cpu_ns: 2, joined_ns: 1, turns: 2, samples_ns: vec![4, 5] };
        let read = Measurement::parse(&measurement.line()).expect("answer is parsed");
        assert_eq!((read.elapsed_ns, read.cpu_ns, read.joined_ns, read.turns), (9, 2, 1, 2));
        assert_eq!(read.samples_ns, [4, 5]);
        let none = Measurement::parse("ok elapsed_ns=1 cpu_ns=1 joined_ns=0 turns=0 samples=");
        assert!(none.expect("answer is parsed").samples_ns.is_empty());
        assert_eq!(Measurement::parse("failed no server").expect_err("job failed").to_string(), "no server");
        assert!(Measurement::parse("Exception in thread").is_err());
    }
}
