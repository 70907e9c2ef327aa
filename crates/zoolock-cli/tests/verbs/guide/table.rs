//! The table of timeouts says what the library goes by.

use std::time::Duration;

use zoolock_core::lease::Ensemble;

use crate::guide::book::Page;

/// To a tenth, and never more than it is.
fn seconds(time: Duration) -> String {
    let tenths = time.as_millis() / 100;
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} s"),
        (whole, tenth) => format!("{whole}.{tenth} s"),
    }
}

#[test]
fn timeout_table_matches_the_library() {
    let ensemble = Ensemble::default();
    let page = Page::read("guide/src/timeouts.md");
    let begun = page.lines().skip_while(|line| !line.starts_with("| session timeout |")).skip(2);
    let rows: Vec<Vec<&str>> = begun
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() > 4, "{rows:?}");
    for row in rows {
        let number = row[0].split(' ').next().expect("a number").parse().expect("seconds");
        let timeout = Duration::from_secs(number);
        let how = ensemble.renewal(timeout, row[0].contains("--strict-renewal"));
        let tick = ensemble.tick.as_secs();
        let expected = [
            format!("{number} to {} s", number + tick),
            seconds(ensemble.span(timeout, how)),
            seconds(Duration::from_secs(5).min(timeout / 6)),
            seconds(ensemble.spare(timeout, how)),
        ];
        assert_eq!(row[1..5], expected, "{row:?}");
    }
}
