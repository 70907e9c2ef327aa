//! Formats durations.

use std::time::Duration;

/// Formats a duration. Cuts a duration below 0.95 s to whole milliseconds, or to smaller units if it is shorter. Rounds a duration below
/// 9.95 s to tenths of a second, and a longer duration to seconds.
pub(crate) fn format_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    match (duration.as_micros(), duration.as_nanos()) {
        (_, 0) | (1000.., _) => {}
        (0, nanoseconds) => return format!("{nanoseconds}ns"),
        (microseconds, _) => return format!("{microseconds}µs"),
    }
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
    format_in_two_units(duration.saturating_add(Duration::from_millis(500)))
}

/// Formats a duration with at most two units and without a blank, such as `59m59s`, `1h01m` or `2d07h`. Cuts the rest of
/// the duration. The text of a duration below a million days has at most seven columns. `span` in `ui/script.js` uses the
/// same format.
pub(crate) fn format_in_two_units(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        86_400..8_640_000 => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats a number of milliseconds like [`format_in_two_units`].
pub(crate) fn format_milliseconds(milliseconds: u64) -> String {
    format_in_two_units(Duration::from_millis(milliseconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command, LsArgs};

    #[test]
    fn long_durations_have_two_units() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (3599, "59m59s"), (3661, "1h01m"), (86_399, "23h59m"), (86_400, "1d00h")]
        {
            assert_eq!(format_in_two_units(Duration::from_secs(seconds)), text);
        }
        assert_eq!(format_in_two_units(Duration::from_secs(1_795_676_961)), "20783d");
    }

    #[test]
    fn durations_are_rounded_for_display() {
        assert_eq!(format_duration(Duration::from_millis(500)), "500ms");
        assert_eq!(format_duration(Duration::from_secs(5400)), "1h30m");
        assert_eq!(format_duration(Duration::from_millis(1_998)), "2s");
        assert_eq!(format_duration(Duration::from_millis(1_250)), "1.3s");
        assert_eq!(format_duration(Duration::from_millis(12_345)), "12s");
        assert_eq!(format_duration(Duration::from_nanos(1)), "1ns");
        assert_eq!(format_duration(Duration::from_nanos(999_999)), "999µs");
        assert_eq!(format_duration(Duration::ZERO), "0s");
    }

    #[test]
    fn printed_durations_are_accepted_by_flags() {
        for seconds in [0, 59, 3_599, 3_661, 86_399, 86_400, 198_000, 8_640_000, 4_000_000_000] {
            let duration = Duration::from_secs(seconds);
            let printed = format_in_two_units(duration);
            let line = ["zoolock", "ls", "--older", &printed].map(Into::into);
            let Ok(Args { command: Command::Ls(LsArgs { older: Some(older), .. }), .. }) =
                Args::parse_line(&line, Ok(String::new()))
            else {
                panic!("{printed} is refused")
            };
            assert_eq!(format_in_two_units(older), printed);
        }
    }
}
