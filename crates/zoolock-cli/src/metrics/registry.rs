//! A recorder for the crate `metrics` that stores only the current value of each series.
//!
//! The library has a few dozen series, so the recorder never removes a series.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{
    Counter, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

use super::family::{Distribution, MetricFamily, SeriesPoint, SeriesValue};

/// Bucket bounds of durations in seconds: from half a millisecond, a round trip to a nearby server, to six hours.
const SECONDS: [f64; 18] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 300.0,
    3600.0, 21600.0,
];
const COUNTS: [f64; 10] = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0, 10000.0];

/// All series of this process. Clones are cheap and share the series.
#[derive(Clone, Default)]
pub(super) struct Registry(Arc<Mutex<RegistryState>>);

#[derive(Default)]
struct RegistryState {
    described: BTreeMap<String, (Option<Unit>, String)>,
    series: BTreeMap<String, BTreeMap<Vec<(String, String)>, SeriesCell>>,
}

/// Storage of one series.
#[derive(Clone)]
enum SeriesCell {
    Counter(Arc<AtomicU64>),
    /// The bits of a float.
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<HistogramBuckets>),
}

struct HistogramBuckets {
    bounds: &'static [f64],
    counts: Vec<AtomicU64>,
    /// The bits of a float.
    sum: AtomicU64,
}

impl HistogramFn for HistogramBuckets {
    fn record(&self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at].fetch_add(1, Ordering::AcqRel);
        GaugeFn::increment(&self.sum, value);
    }
}

impl Registry {
    /// Returns the current values of all series, sorted by name.
    pub(super) fn families(&self) -> Vec<MetricFamily> {
        let state = self.state();
        let families = state.series.iter().map(|(name, series)| {
            let (unit, help) = state.described.get(name).cloned().unwrap_or_default();
            let points = series
                .iter()
                .map(|(labels, cell)| SeriesPoint { labels: labels.clone(), value: cell.read() });
            let unit = if unit == Some(Unit::Seconds) { "s" } else { "1" };
            MetricFamily { name: name.clone(), help, unit, points: points.collect() }
        });
        families.collect()
    }

    fn describe(&self, key: &KeyName, unit: Option<Unit>, description: SharedString) {
        self.state().described.insert(key.as_str().to_owned(), (unit, description.into_owned()));
    }

    fn get_or_create_cell(&self, key: &Key, new: impl FnOnce(Option<Unit>) -> SeriesCell) -> SeriesCell {
        let mut labels: Vec<_> =
            key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
        labels.sort_unstable();
        let state = &mut *self.state();
        let unit = state.described.get(key.name()).and_then(|(unit, _)| *unit);
        let series = state.series.entry(key.name().to_owned()).or_default();
        series.entry(labels).or_insert_with(|| new(unit)).clone()
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SeriesCell {
    fn read(&self) -> SeriesValue {
        match self {
            SeriesCell::Counter(cell) => SeriesValue::Counter(cell.load(Ordering::Acquire)),
            SeriesCell::Gauge(cell) => SeriesValue::Gauge(f64::from_bits(cell.load(Ordering::Acquire))),
            SeriesCell::Histogram(buckets) => SeriesValue::Histogram(Distribution {
                bounds: buckets.bounds,
                counts: buckets.counts.iter().map(|count| count.load(Ordering::Acquire)).collect(),
                sum: f64::from_bits(buckets.sum.load(Ordering::Acquire)),
            }),
        }
    }
}

impl Recorder for Registry {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe(&key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe(&key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe(&key, unit, description);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match self.get_or_create_cell(key, |_| SeriesCell::Counter(Arc::default())) {
            SeriesCell::Counter(cell) => Counter::from_arc(cell),
            // The name is already registered with another type.
            SeriesCell::Gauge(_) | SeriesCell::Histogram(_) => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.get_or_create_cell(key, |_| SeriesCell::Gauge(Arc::default())) {
            SeriesCell::Gauge(cell) => Gauge::from_arc(cell),
            SeriesCell::Counter(_) | SeriesCell::Histogram(_) => Gauge::noop(),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let new = |unit| {
            let bounds: &'static [f64] = if unit == Some(Unit::Seconds) { &SECONDS } else { &COUNTS };
            let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
            SeriesCell::Histogram(Arc::new(HistogramBuckets { bounds, counts, sum: AtomicU64::new(0) }))
        };
        match self.get_or_create_cell(key, new) {
            SeriesCell::Histogram(buckets) => Histogram::from_arc(buckets),
            SeriesCell::Counter(_) | SeriesCell::Gauge(_) => Histogram::noop(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use metrics::{Level, Unit};

    use super::*;

    /// Returns a registry with one series of each type.
    pub(in crate::metrics) fn filled() -> Registry {
        let registry = Registry::default();
        let metadata = Metadata::new("test", Level::INFO, None);
        let key = |name: &'static str| Key::from_parts(name, &[("kind", "mutex")]);
        registry.describe_histogram("waited_seconds".into(), Some(Unit::Seconds), "how long".into());
        registry.describe_counter("lost_total".into(), Some(Unit::Count), "how many".into());
        for value in [0.0001, 0.0005, 0.3, 1e9] {
            registry.register_histogram(&key("waited_seconds"), &metadata).record(value);
        }
        registry.register_counter(&key("lost_total"), &metadata).increment(2);
        registry.register_counter(&key("lost_total"), &metadata).increment(1);
        registry.register_gauge(&key("held"), &metadata).increment(3.0);
        registry.register_gauge(&key("held"), &metadata).decrement(1.0);
        registry
    }

    #[test]
    fn series_are_kept_by_name_and_labels() {
        let families = filled().families();
        let names: Vec<&str> = families.iter().map(|family| family.name.as_str()).collect();
        assert_eq!(names, ["held", "lost_total", "waited_seconds"]);
        assert_eq!(families[0].points[0].value, SeriesValue::Gauge(2.0));
        assert_eq!(families[1].points[0].value, SeriesValue::Counter(3));
        assert_eq!(families[1].points[0].labels, [("kind".to_owned(), "mutex".to_owned())]);
        assert_eq!((families[2].help.as_str(), families[2].unit), ("how long", "s"));
    }

    #[test]
    fn value_counts_in_first_fitting_bucket() {
        let families = filled().families();
        let SeriesValue::Histogram(Distribution { bounds, counts, sum }) = &families[2].points[0].value
        else {
            panic!("expected a histogram")
        };
        assert_eq!(counts.len(), bounds.len() + 1);
        assert_eq!((counts[0], counts[9], counts[bounds.len()]), (2, 1, 1), "{counts:?}");
        assert_eq!(counts.iter().sum::<u64>(), 4);
        assert!((sum - 1e9).abs() < 1.0, "{sum}");
    }
}
