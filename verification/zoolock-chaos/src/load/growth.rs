//! The growth of a figure.

/// Returns the growth of a figure over the second half of the points, relative to the mean of that
/// half. The growth is that of the line that fits best (least squares). Returns `None` if there is
/// too little data.
pub(crate) fn growth(points: &[(f64, f64)]) -> Option<f64> {
    let (first, last) = (points.first()?.0, points.last()?.0);
    let half: Vec<_> = points.iter().filter(|(at, _)| *at >= f64::midpoint(first, last)).collect();
    if half.len() < 8 {
        return None;
    }
    let count = half.len() as f64;
    let mean = half.iter().map(|(_, value)| value).sum::<f64>() / count;
    let middle = half.iter().map(|(at, _)| at).sum::<f64>() / count;
    let (mut both, mut along) = (0.0, 0.0);
    for (at, value) in &half {
        both += (at - middle) * (value - mean);
        along += (at - middle) * (at - middle);
    }
    let time = last - half.first()?.0;
    (mean > 0.0 && along > 0.0).then(|| both / along * time / mean)
}

#[cfg(test)]
mod tests {
    use super::growth;

    /// The default tolerance of a run.
    const TOLERANCE: f64 = 0.05;

    fn points(value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (0..=100).map(f64::from).map(|at| (at, value(at))).collect()
    }

    #[test]
    fn early_rise_is_no_growth() {
        let growth = growth(&points(|at| 100.0 * at.min(40.0))).expect("points suffice");
        assert!(growth.abs() < 1e-9, "{growth}");
    }

    #[test]
    fn growth_is_relative_to_mean() {
        // The second half rises from 150 to 200.
        let growth = growth(&points(|at| 100.0 + at)).expect("points suffice");
        assert!((growth - 50.0 / 175.0).abs() < 1e-9, "{growth}");
        assert!(growth > TOLERANCE);
    }

    #[test]
    fn saw_tooth_is_flat_unless_it_rises() {
        let saw = |at: f64| 100.0 + at % 10.0;
        let flat = growth(&points(saw)).expect("points suffice");
        assert!(flat.abs() < TOLERANCE, "{flat}");
        let rising = growth(&points(|at| saw(at) + at / 5.0)).expect("points suffice");
        assert!(rising > TOLERANCE, "{rising}");
    }

    #[test]
    fn too_little_data_is_none() {
        assert_eq!(growth(&[]), None);
        assert_eq!(growth(&points(|_| 1.0)[..10]), None);
        assert_eq!(growth(&points(|_| 0.0)), None);
    }
}
