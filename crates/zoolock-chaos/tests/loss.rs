//! Holders that are cut off, stopped, or on a follower that is: each of them once, and some that never hear of it.

mod common;

use common::{drill, finds};
use zoolock_tests::apache::availability;

#[test]
fn apache_whose_holders_are_taken_away_has_told_them_before_others_hold() {
    if !availability().or_skip("apache_whose_holders_are_taken_away_has_told_them_before_others_hold") {
        return;
    }
    let output = drill("loss", &["--rounds", "1", "--holders", "3"]);
    assert_eq!(output.status.code(), Some(0), "somebody did not know in time");
    let report = String::from_utf8_lossy(&output.stdout);
    for fault in ["link cut", "holder stopped", "follower isolated"] {
        assert!(report.contains(&format!("| {fault} | 3 |")), "no {fault}");
    }
}

#[test]
fn apache_whose_holders_never_know_is_found() {
    if !availability().or_skip("apache_whose_holders_never_know_is_found") {
        return;
    }
    let only = ["--rounds", "1", "--holders", "2", "--only", "cut", "--break", "never-lost"];
    let output = drill("loss", &only);
    assert_eq!(output.status.code(), Some(1), "belief beside the rival was not found");
    assert!(finds(&output, ", holder of l00: believed "), "it was found by something else");
    assert!(finds(&output, ", command of l01: "), "the command went on and was not found");
}
