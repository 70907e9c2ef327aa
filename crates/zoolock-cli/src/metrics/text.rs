//! Formats metrics for Prometheus (text format 0.0.4).

use std::fmt::Write as _;

use super::family::{Distribution, MetricFamily, SeriesPoint, SeriesValue};

/// Returns every family with its help, its type and its series.
pub(super) fn render(families: &[MetricFamily]) -> String {
    let mut text = String::new();
    for family in families {
        let Some(first) = family.points.first() else { continue };
        let kind = match first.value {
            SeriesValue::Counter(_) => "counter",
            SeriesValue::Gauge(_) => "gauge",
            SeriesValue::Histogram(_) => "histogram",
        };
        let MetricFamily { name, help, points, .. } = family;
        if !help.is_empty() {
            let _ = writeln!(text, "# HELP {name} {}", help.replace('\\', "\\\\").replace('\n', "\\n"));
        }
        let _ = writeln!(text, "# TYPE {name} {kind}");
        for SeriesPoint { labels, value } in points {
            match value {
                SeriesValue::Counter(value) => {
                    _ = writeln!(text, "{name}{} {value}", format_labels(labels, None))
                }
                SeriesValue::Gauge(value) => {
                    _ = writeln!(text, "{name}{} {value}", format_labels(labels, None))
                }
                SeriesValue::Histogram(distribution) => {
                    write_histogram(&mut text, name, labels, distribution)
                }
            }
        }
    }
    text
}

fn write_histogram(text: &mut String, name: &str, labels: &[(String, String)], distribution: &Distribution) {
    let Distribution { bounds, counts, sum } = distribution;
    let bounds = bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    let mut so_far = 0;
    for (bound, count) in bounds.zip(counts) {
        so_far += count;
        let _ = writeln!(text, "{name}_bucket{} {so_far}", format_labels(labels, Some(&bound)));
    }
    let labels = format_labels(labels, None);
    let _ = writeln!(text, "{name}_sum{labels} {sum}\n{name}_count{labels} {so_far}");
}

fn format_labels(labels: &[(String, String)], bound: Option<&str>) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let labels = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value)));
    let all: Vec<String> = labels.chain(bound.map(|bound| format!("le=\"{bound}\""))).collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::super::registry::tests::filled;
    use super::*;

    #[test]
    fn output_has_prometheus_format() {
        let text = render(&filled().families());
        for line in [
            "# TYPE held gauge",
            "held{kind=\"mutex\"} 2",
            "# HELP lost_total how many",
            "lost_total{kind=\"mutex\"} 3",
            "# TYPE waited_seconds histogram",
            "waited_seconds_bucket{kind=\"mutex\",le=\"0.0005\"} 2",
            "waited_seconds_bucket{kind=\"mutex\",le=\"0.5\"} 3",
            "waited_seconds_bucket{kind=\"mutex\",le=\"+Inf\"} 4",
            "waited_seconds_count{kind=\"mutex\"} 4",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }

    #[test]
    fn label_values_are_escaped() {
        let labels = [("lock".to_owned(), "a\"} 7\n\\".to_owned())];
        assert_eq!(format_labels(&labels, None), "{lock=\"a\\\"} 7\\n\\\\\"}");
        assert_eq!(format_labels(&[], None), "");
    }
}
