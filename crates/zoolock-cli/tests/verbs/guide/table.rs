//! Compares the table of timeouts in the guide with the values that the library uses.

use std::time::Duration;

use zoolock_core::lease;

use crate::guide::book::Page;

/// Formats a duration in seconds, rounded down to a tenth.
fn format_seconds(time: Duration) -> String {
    let tenths = time.as_millis() / 100;
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} s"),
        (whole, tenth) => format!("{whole}.{tenth} s"),
    }
}

/// The tick that the guide assumes.
const TICK: Duration = Duration::from_secs(2);

#[test]
fn timeout_table_matches_the_library() {
    let page = Page::read("guide/src/timeouts.md");
    let body = page.lines().skip_while(|line| !line.starts_with("| session timeout |")).skip(2);
    let rows: Vec<Vec<&str>> = body
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() > 4, "{rows:?}");
    for row in rows {
        let number = row[0].split(' ').next().expect("a number").parse().expect("a number of seconds");
        let timeout = Duration::from_secs(number);
        let expected = [
            format!("{number} to {} s", number + TICK.as_secs()),
            format_seconds(lease::steady_length(timeout, None)),
            format_seconds(lease::steady_length(timeout, Some(TICK))),
            format_seconds(Duration::from_secs(5).min(timeout / 6)),
            format_seconds(lease::spare_time(timeout, None)),
        ];
        assert_eq!(row[1..6], expected, "{row:?}");
    }
}
