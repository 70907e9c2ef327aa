//! A metric and its series.

/// A metric with all its series.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MetricFamily {
    pub(super) name: String,
    pub(super) help: String,
    /// Unit in the notation of OpenTelemetry.
    pub(super) unit: &'static str,
    pub(super) points: Vec<SeriesPoint>,
}

/// One series with its current value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SeriesPoint {
    pub(super) labels: Vec<(String, String)>,
    pub(super) value: SeriesValue,
}

/// The value of a series.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SeriesValue {
    Counter(u64),
    Gauge(f64),
    Histogram(Distribution),
}

/// A histogram. `counts` holds the number of values in each bucket, not cumulated. Its last entry counts the values above
/// all bounds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Distribution {
    pub(super) bounds: &'static [f64],
    pub(super) counts: Vec<u64>,
    pub(super) sum: f64,
}
