//! What the command shows to monitors: what its library measures, and what the locks look like from outside.
//!
//! * `registry.rs`: where the library's figures are kept.
//! * `text.rs`: figures as Prometheus reads them.
//! * `locks.rs`: figures of a list of locks.
//! * `site.rs`: `/metrics` over HTTP.
//! * `otlp.rs`: the same pushed to a collector of OpenTelemetry's.
//! * `exporter.rs`: what `run` and `hold` do of that.

mod exporter;
mod locks;
mod otlp;
mod registry;
mod site;
mod text;

pub(crate) use exporter::{Export, during};
pub(crate) use otlp::Collector;

/// What a list of locks comes to, as Prometheus reads it.
pub(crate) fn of_locks(locks: &[zoolock::Snapshot]) -> String {
    text::render(&locks::families(locks))
}

/// A metric with all its series.
#[derive(Debug, Clone, PartialEq)]
struct Family {
    name: String,
    help: String,
    /// As OpenTelemetry writes it.
    unit: &'static str,
    points: Vec<Point>,
}

/// One series, at one moment.
#[derive(Debug, Clone, PartialEq)]
struct Point {
    labels: Vec<(String, String)>,
    value: Value,
}

/// What it stands at.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Counter(u64),
    Gauge(f64),
    Histogram(Distribution),
}

/// How many values there were up to each bound, each counted once, and how many above all of them.
#[derive(Debug, Clone, PartialEq)]
struct Distribution {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}
