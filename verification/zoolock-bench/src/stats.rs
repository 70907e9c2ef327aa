//! Statistics of a few figures.

/// Returns the median; NaN for no samples.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

/// Returns the smallest and the largest sample.
pub(crate) fn spread(samples: &[f64]) -> (f64, f64) {
    (samples.iter().copied().fold(f64::INFINITY, f64::min), samples.iter().copied().fold(0.0, f64::max))
}

/// Returns the smallest sample that is at least as large as `percent` per cent of the sorted
/// samples. Returns zero if there are no samples.
pub(crate) fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or(0)
}

/// Formats a figure with three significant digits.
pub(crate) fn three_digits(figure: f64) -> String {
    match figure {
        figure if figure >= 100.0 => format!("{figure:.0}"),
        figure if figure >= 10.0 => format!("{figure:.1}"),
        figure => format!("{figure:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{median, percentile, spread};

    #[test]
    fn median_spread_and_percentile() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(spread(&[3.0, 1.0, 2.0]), (1.0, 3.0));
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!([50, 99, 100].map(|percent| percentile(&hundred, percent)), [50, 99, 100]);
        assert_eq!(percentile(&[7], 99), 7);
        assert_eq!(percentile(&[], 99), 0);
    }
}
