//! The current time, and formats of times on the pages.

pub(super) use crate::base::server_clock::now_ms;

/// Formats a time as ISO 8601. Returns `None` for a year of five digits, which any client can write into its znode.
pub(super) fn format_iso(ms: u64) -> Option<String> {
    let stamp = jiff::Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()?;
    Some(stamp.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// Formats the time of day in UTC.
pub(super) fn time_of_day(ms: u64) -> String {
    format(ms, "%H:%M:%S")
}

/// Formats the date and the time of day in UTC.
pub(super) fn date_and_time(ms: u64) -> String {
    format(ms, "%Y-%m-%d %H:%M:%S")
}

fn format(ms: u64, pattern: &str) -> String {
    let stamp = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    stamp.map_or_else(|| "?".to_owned(), |stamp| stamp.strftime(pattern).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_beyond_year_9999_are_handled() {
        assert_eq!(format_iso(0).as_deref(), Some("1970-01-01T00:00:00Z"));
        assert_eq!(format_iso(u64::MAX), None);
        assert_eq!(date_and_time(3_661_000), "1970-01-01 01:01:01");
        assert_eq!((time_of_day(3_661_000), time_of_day(u64::MAX)), ("01:01:01".to_owned(), "?".to_owned()));
    }
}
