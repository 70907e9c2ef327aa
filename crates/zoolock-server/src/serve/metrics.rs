//! Metrics of the server, under ZooKeeper's names.

use std::sync::atomic::Ordering;

use rustix::process::{Resource, getrlimit};

use super::SharedServer;
use crate::caps::{MAX_OPERATIONS, MAX_PATH_NAMES, MAX_REPLY_BYTES};
use crate::core::CoreConfig;

/// A metric.
pub(super) struct Metric {
    pub(super) name: &'static str,
    /// Set if the value only grows.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only Prometheus asks for it"))]
    pub(super) is_counter: bool,
    pub(super) value: MetricValue,
}

pub(super) enum MetricValue {
    Whole(u64),
    Fraction(f64),
}

pub(super) fn collect_metrics(shared: &SharedServer) -> Vec<Metric> {
    let inner = shared.lock();
    // The whole configuration is not copied, because its accounts may be many.
    let &CoreConfig {
        max_znode_memory,
        max_sessions,
        max_watches,
        max_total_watches,
        max_queued,
        max_undelivered,
        max_connections,
        ..
    } = inner.core.config();
    let (stats, size) = (inner.core.stats(), inner.core.state().tree.approximate_data_size());
    let (latency, rejected, opened) = (inner.latency, inner.rejected, inner.opened);
    let handshakes = inner.failed_handshakes;
    drop(inner);
    let unhandled = shared.unhandled_bytes.load(Ordering::Relaxed);
    let http = shared.http_connections.load(Ordering::Relaxed);
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
        // The budgets, which ZooKeeper does not have. A limit of 0 means no limit.
        gauge("budget_znode_bytes", stats.znode_memory as u64),
        gauge("budget_znode_bytes_limit", max_znode_memory as u64),
        gauge("budget_sessions", stats.sessions as u64),
        gauge("budget_sessions_limit", max_sessions as u64),
        gauge("budget_watched_paths", stats.watched_paths as u64),
        gauge("budget_watched_paths_limit", max_total_watches as u64),
        gauge("budget_connection_watches_limit", max_watches as u64),
        gauge("budget_multi_operations_limit", MAX_OPERATIONS as u64),
        gauge("budget_reply_bytes_limit", MAX_REPLY_BYTES as u64),
        gauge("budget_path_names_limit", MAX_PATH_NAMES as u64),
        gauge("budget_output_bytes", stats.queued as u64),
        gauge("budget_output_bytes_limit", max_queued as u64),
        gauge("budget_event_bytes", stats.undelivered as u64),
        gauge("budget_event_bytes_limit", max_undelivered as u64),
        gauge("budget_input_bytes", unhandled as u64),
        gauge("budget_input_bytes_limit", shared.timing.max_queued as u64),
        gauge("budget_connections", stats.connections as u64),
        gauge("budget_connections_limit", max_connections as u64),
        gauge("budget_http_connections", http as u64),
        gauge("budget_http_connections_limit", shared.timing.conf.max_http_connections as u64),
        gauge("budget_waiting_connections", stats.waiting as u64),
        counter("connection_rejected", rejected + stats.refused),
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
