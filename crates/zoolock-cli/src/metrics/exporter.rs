//! Exports the metrics of `run` and `hold` while they run.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;

use super::leader::{LeaderPage, LivePage};
use super::otlp::Collector;
use super::registry::Registry;
use super::site;
use crate::args::MetricsAddress;
use crate::base::exit::Failure;
use crate::base::reporter::Reporter;

/// Interval between pushes to the collector.
const PUSH_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum duration of the last push, which delays the end of zoolock.
const LAST_PUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs `work`, and exports its metrics meanwhile. Finally pushes the last values to the collector.
pub(crate) async fn export_while<T>(
    metrics: Option<MetricsAddress>,
    otlp: Option<&str>,
    leader: Arc<LeaderPage>,
    reporter: &Arc<Reporter>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let collector = otlp.map(collector_of).transpose()?;
    if metrics.is_none() && collector.is_none() {
        return work.await;
    }
    let registry = Registry::default();
    // A zoolock process exports metrics only once, so this is the only recorder.
    metrics::set_global_recorder(registry.clone())
        .map_err(|_| Failure::unavailable("another metrics recorder is installed in this process"))?;
    // Dropping a `JoinSet` aborts its tasks.
    let mut tasks = JoinSet::new();
    let live = LivePage::new();
    if let Some(address) = metrics {
        let (registry, live) = (registry.clone(), Arc::clone(&live));
        tasks.spawn(site::serve(address, registry, live, leader, Arc::clone(reporter)).await?);
    }
    let since = SystemTime::now();
    if let Some(collector) = collector.clone() {
        tasks.spawn(push_repeatedly(collector, registry.clone(), since, Arc::clone(reporter)));
    }
    let result = live.beat_during(work).await;
    drop(tasks);
    if let Some(collector) = collector {
        let families = registry.families();
        let _ = tokio::time::timeout(LAST_PUSH_TIMEOUT, collector.push(&families, since)).await;
    }
    result
}

/// Returns the collector at the URL of `ZOOLOCK_OTLP`.
fn collector_of(url: &str) -> Result<Collector, Failure> {
    url.parse().map_err(|error| Failure::usage(format!("ZOOLOCK_OTLP {url:?}: {error}")))
}

/// Pushes metrics until the task is aborted. Prints a note when pushes begin to fail, and when they succeed again.
async fn push_repeatedly(
    collector: Collector,
    registry: Registry,
    since: SystemTime,
    reporter: Arc<Reporter>,
) {
    let mut ticks = tokio::time::interval(PUSH_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut fails = false;
    loop {
        ticks.tick().await;
        match collector.push(&registry.families(), since).await {
            Ok(()) if std::mem::take(&mut fails) => {
                reporter.note("ZOOLOCK_OTLP: pushing metrics works again")
            }
            Ok(()) => {}
            Err(why) if !std::mem::replace(&mut fails, true) => {
                reporter.note(format_args!("ZOOLOCK_OTLP: cannot push metrics: {why}"));
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collector_needs_a_valid_url() {
        assert!(collector_of("https://otel:4318").expect_err("no TLS").to_string().contains("https"));
        assert!(collector_of("http://otel:4318").is_ok());
    }
}
