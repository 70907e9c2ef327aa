//! Exports the metrics of `run` and `hold` while they run.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::JoinHandle;

use super::otlp::Collector;
use super::registry::Registry;
use super::site;
use crate::args::ExportArgs;
use crate::base::exit::Failure;
use crate::base::reporter::Reporter;

/// Interval between pushes to the collector.
const PUSH_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum duration of the last push, which delays the end of zoolock.
const LAST_PUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs `work`, and exports its metrics meanwhile.
pub(crate) async fn export_while<T>(
    export: &ExportArgs,
    reporter: &Arc<Reporter>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let exporter = Exporter::start(export, reporter).await?;
    let result = work.await;
    if let Some(exporter) = exporter {
        exporter.finish().await;
    }
    result
}

/// A running export of metrics. It ends when this value is finished or dropped.
struct Exporter {
    registry: Registry,
    since: SystemTime,
    collector: Option<Collector>,
    tasks: Vec<JoinHandle<()>>,
}

impl Exporter {
    /// Starts to record and export metrics. Returns `None` if there is no destination.
    async fn start(export: &ExportArgs, reporter: &Arc<Reporter>) -> Result<Option<Self>, Failure> {
        let collector = collector_of(export)?;
        if export.metrics.is_none() && collector.is_none() {
            return Ok(None);
        }
        let registry = Registry::default();
        // A zoolock process exports metrics only once, so this is the only recorder.
        metrics::set_global_recorder(registry.clone())
            .map_err(|_| Failure::unavailable("another metrics recorder is installed in this process"))?;
        let mut tasks = Vec::new();
        if let Some(address) = export.metrics {
            tasks.push(tokio::spawn(site::serve(address, registry.clone(), Arc::clone(reporter))));
        }
        let since = SystemTime::now();
        if let Some(collector) = collector.clone() {
            tasks.push(tokio::spawn(push_repeatedly(
                collector,
                registry.clone(),
                since,
                Arc::clone(reporter),
            )));
        }
        Ok(Some(Self { registry, since, collector, tasks }))
    }

    /// Stops the exports, and pushes the final values to the collector.
    async fn finish(self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        if let Some(collector) = &self.collector {
            let families = self.registry.families();
            let last = collector.push(&families, self.since);
            let _ = tokio::time::timeout(LAST_PUSH_TIMEOUT, last).await;
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Checks the flags that export metrics, and returns the collector of `--otlp`.
fn collector_of(export: &ExportArgs) -> Result<Option<Collector>, Failure> {
    let Some(url) = &export.otlp else {
        return match export.metrics_by_lock && export.metrics.is_none() {
            true => Err(Failure::usage(
                "--metrics-by-lock needs --metrics or --otlp: without them no metrics are exported",
            )),
            false => Ok(None),
        };
    };
    url.parse().map(Some).map_err(|error| Failure::usage(format!("--otlp {url:?}: {error}")))
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
            Ok(()) if std::mem::take(&mut fails) => reporter.note("--otlp: pushing metrics works again"),
            Ok(()) => {}
            Err(why) if !std::mem::replace(&mut fails, true) => {
                reporter.note(format_args!("--otlp: cannot push metrics: {why}"));
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_need_a_valid_target() {
        let metrics = "127.0.0.1:0".parse().ok();
        let check = |metrics, otlp: Option<&str>| {
            collector_of(&ExportArgs { metrics, otlp: otlp.map(str::to_owned), metrics_by_lock: true })
        };
        let refused = |otlp| check(None, otlp).expect_err("no valid target").to_string();
        assert!(refused(Some("https://otel:4318")).contains("https"));
        assert!(refused(None).contains("--otlp"));
        assert!(check(metrics, None).is_ok_and(|collector| collector.is_none()));
        assert!(check(metrics, Some("http://otel:4318")).is_ok_and(|collector| collector.is_some()));
    }
}
