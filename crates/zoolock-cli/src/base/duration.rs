//! Parses and formats durations.

use std::time::Duration;

use crate::base::exit::Failure;

/// Parses the value of a flag, such as 30s, 500ms, 2m or 1h30m.
pub(crate) fn parse_duration(flag: &str, text: &str) -> Result<Duration, Failure> {
    let hint = "write it as 30s, 500ms, 2m or 1h30m";
    let signed: jiff::SignedDuration =
        text.trim().parse().map_err(|_| Failure::usage(format!("{flag} {text:?}: not a time; {hint}")))?;
    Duration::try_from(signed)
        .map_err(|_| Failure::usage(format!("{flag} {text:?}: a time cannot be negative; {hint}")))
}

/// Formats a duration. Cuts a duration below 0.95 s to whole milliseconds. Rounds a duration below
/// 9.95 s to tenths of a second, and a longer duration to seconds.
pub(crate) fn format_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    if milliseconds > 0 && milliseconds < 950 {
        return format!("{milliseconds}ms");
    }
    if milliseconds < 9_950 {
        let tenths = (milliseconds + 50) / 100;
        return match tenths % 10 {
            0 => format!("{}s", tenths / 10),
            tenth => format!("{}.{tenth}s", tenths / 10),
        };
    }
    let seconds = duration.as_millis().saturating_add(500) / 1000;
    match i64::try_from(seconds) {
        Ok(seconds) => format!("{:#}", jiff::SignedDuration::from_secs(seconds)),
        Err(_) => format!("{seconds}s"),
    }
}

/// Formats a duration with at most two units, such as `59m 59s`, `1h 1m` or `2d 7h`. Cuts the rest
/// of the duration.
pub(crate) fn format_in_two_units(duration: Duration) -> String {
    let (seconds, hours) = (duration.as_secs(), duration.as_secs() / 3600);
    match hours {
        0 => format_duration(Duration::from_secs(seconds)),
        1..24 => format_duration(Duration::from_secs(seconds - seconds % 60)),
        _ => format!("{}d {}h", hours / 24, hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_durations_have_two_units() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (3599, "59m 59s"), (3661, "1h 1m"), (86_399, "23h 59m")]
        {
            assert_eq!(format_in_two_units(Duration::from_secs(seconds)), text);
        }
        assert_eq!(format_in_two_units(Duration::from_secs(1_795_676_961)), "20783d 7h");
    }

    #[test]
    fn durations_are_rounded_for_display() {
        assert_eq!(format_duration(Duration::from_millis(500)), "500ms");
        assert_eq!(format_duration(Duration::from_secs(5400)), "1h 30m");
        assert_eq!(format_duration(Duration::from_millis(1_998)), "2s");
        assert_eq!(format_duration(Duration::from_millis(1_250)), "1.3s");
        assert_eq!(format_duration(Duration::from_millis(12_345)), "12s");
        assert_eq!(format_duration(Duration::ZERO), "0s");
    }
}
