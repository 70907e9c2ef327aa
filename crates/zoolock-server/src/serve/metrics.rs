//! Metrics of the server, under ZooKeeper's names.

use rustix::process::{Resource, getrlimit};

use super::SharedServer;

/// A metric.
pub(super) struct Metric {
    pub(super) name: &'static str,
    /// Set if the value only grows.
    pub(super) is_counter: bool,
    pub(super) value: MetricValue,
}

pub(super) enum MetricValue {
    Whole(u64),
    Fraction(f64),
}

pub(super) fn collect_metrics(shared: &SharedServer) -> Vec<Metric> {
    let (stats, latency, size, rejected, handshakes, opened) = {
        let inner = shared.lock();
        let size = inner.core.state().tree.approximate_data_size();
        (inner.core.stats(), inner.latency, size, inner.rejected, inner.failed_handshakes, inner.opened)
    };
    let gauge = |name, value| Metric { name, is_counter: false, value: MetricValue::Whole(value) };
    let counter = |name, value| Metric { name, is_counter: true, value: MetricValue::Whole(value) };
    let average =
        Metric { name: "avg_latency", is_counter: false, value: MetricValue::Fraction(latency.average()) };
    let uptime = u64::try_from(shared.started.elapsed().as_millis()).unwrap_or(u64::MAX);
    vec![
        gauge("ephemerals_count", stats.ephemerals as u64),
        gauge("num_alive_connections", stats.connections as u64),
        average,
        gauge("outstanding_requests", 0),
        gauge("znode_count", stats.znodes as u64 + 1),
        gauge("global_sessions", stats.sessions as u64),
        gauge("packets_sent", stats.sent),
        gauge("packets_received", stats.received),
        gauge("watch_count", stats.watch_sides as u64),
        gauge("auth_failed_count", stats.auth_failures),
        gauge("min_latency", latency.min),
        gauge("max_latency", latency.max),
        gauge("max_file_descriptor_count", getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)),
        gauge("approximate_data_size", size as u64),
        gauge("open_file_descriptor_count", count_open_files()),
        gauge("local_sessions", 0),
        gauge("uptime", uptime),
        counter("connection_rejected", rejected),
        counter("connection_request_count", opened),
        counter("connection_drop_count", stats.cut_off),
        counter("stale_sessions_expired", stats.expired),
        counter("bytes_received_count", stats.bytes_received),
        counter("response_bytes", stats.bytes_sent),
        counter("unsuccessful_handshake", handshakes),
    ]
}

fn count_open_files() -> u64 {
    // The result is 0 on systems without this directory.
    std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64)
}

/// Formats a number as Java does: with at least one decimal, and here with at most four.
pub(super) fn java_float(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0');
    if text.ends_with('.') { format!("{text}0") } else { text.to_owned() }
}
