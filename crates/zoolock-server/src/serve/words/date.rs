//! Times in the format of Java's `Date`.

/// Formats milliseconds since 1970 as `Sat Nov 21 14:06:05 UTC 2026`.
pub(super) fn java_date(wall_ms: i64) -> String {
    let seconds = wall_ms.div_euclid(1000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Here a year begins on the 1st of March, so that a leap day is its last day. An era has 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = year_of_era + era * 400 + i64::from(month >= 10);
    let months = ["Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb"];
    let weekdays = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let name = |names: &[&'static str], at: i64| {
        usize::try_from(at).ok().and_then(|at| names.get(at).copied()).unwrap_or_default()
    };
    format!(
        "{} {} {day:02} {:02}:{:02}:{:02} UTC {year}",
        name(&weekdays, days.rem_euclid(7)),
        name(&months, month),
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::java_date;

    #[test]
    fn dates_are_those_of_java() {
        assert_eq!(java_date(0), "Thu Jan 01 00:00:00 UTC 1970");
        assert_eq!(java_date(1_795_269_965_837), "Sat Nov 21 14:06:05 UTC 2026");
        assert_eq!(java_date(1_709_251_199_999), "Thu Feb 29 23:59:59 UTC 2024");
        assert_eq!(java_date(1_735_689_599_000), "Tue Dec 31 23:59:59 UTC 2024");
    }
}
