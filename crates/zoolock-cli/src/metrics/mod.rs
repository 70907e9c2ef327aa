//! Metrics for monitoring. The library records some of them. The others are computed from a list of locks.
//!
//! * `registry.rs`: stores the metrics of the library.
//! * `text.rs`: formats metrics for Prometheus.
//! * `locks.rs`: computes metrics of a list of locks.
//! * `site.rs`: serves `/metrics` over HTTP.
//! * `otlp.rs`: pushes metrics to an OpenTelemetry collector.
//! * `exporter.rs`: exports the metrics of `run` and `hold`.

mod exporter;
mod locks;
mod otlp;
mod registry;
mod site;
mod text;

pub(crate) use exporter::{Export, export_while};
pub(crate) use otlp::Collector;

/// Returns the metrics of a list of locks, in the text format of Prometheus.
pub(crate) fn of_locks(locks: &[zoolock::Snapshot]) -> String {
    text::render(&locks::families(locks))
}

/// A metric with all its series.
#[derive(Debug, Clone, PartialEq)]
struct Family {
    name: String,
    help: String,
    /// Unit in the notation of OpenTelemetry.
    unit: &'static str,
    points: Vec<Point>,
}

/// One series with its current value.
#[derive(Debug, Clone, PartialEq)]
struct Point {
    labels: Vec<(String, String)>,
    value: Value,
}

/// The value of a series.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Counter(u64),
    Gauge(f64),
    Histogram(Distribution),
}

/// A histogram. `counts` holds the number of values in each bucket, not cumulated. Its last entry counts the values above
/// all bounds.
#[derive(Debug, Clone, PartialEq)]
struct Distribution {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}
