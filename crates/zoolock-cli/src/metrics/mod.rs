//! Metrics for monitoring. The library records some of them. The others are computed from a list of locks.
//!
//! * `family.rs`: a metric and its series.
//! * `registry.rs`: stores the metrics of the library.
//! * `text.rs`: formats metrics for Prometheus.
//! * `locks.rs`: computes metrics of a list of locks.
//! * `site.rs`: serves `/metrics` over HTTP, and the pages of `leader.rs`.
//! * `leader.rs`: says for `/leader` and `/live` whether this process holds the lock, and whether its main loop runs.
//! * `otlp.rs`: pushes metrics to an OpenTelemetry collector.
//! * `exporter.rs`: exports the metrics of `run` and `hold`.

mod exporter;
mod family;
mod leader;
#[cfg(feature = "ui")]
mod locks;
mod otlp;
mod registry;
mod site;
mod text;

pub(crate) use exporter::export_while;
pub(crate) use leader::LeaderPage;

/// Returns the metrics of a list of locks, in the text format of Prometheus.
#[cfg(feature = "ui")]
pub(crate) fn render_lock_metrics<'a>(locks: impl Iterator<Item = &'a zoolock::admin::Snapshot>) -> String {
    text::render(&locks::families(locks))
}
