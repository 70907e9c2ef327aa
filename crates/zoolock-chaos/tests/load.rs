//! A hundred sessions and a thousand locks for some seconds, and clients that leak, which must be found.

mod common;

use common::{drill, finds};
use zoolock_tests::apache::availability;

/// A process that is some seconds old still gets larger: by some percent here, and the one that leaks by half.
const SHORT: [&str; 12] = [
    "--sessions",
    "100",
    "--locks",
    "1000",
    "--time",
    "10s",
    "--processes",
    "2",
    "--rate",
    "500",
    "--tolerance",
    "20",
];

#[test]
fn a_crowd_leaves_our_server_as_it_was() {
    let output = drill("load", &[&SHORT[..], &["--only", "serve"]].concat());
    assert_eq!(output.status.code(), Some(0), "something grows, or is left");
}

#[test]
fn a_crowd_leaves_apache_as_it_was() {
    if !availability().or_skip("a_crowd_leaves_apache_as_it_was") {
        return;
    }
    let output = drill("load", &[&SHORT[..], &["--only", "apache"]].concat());
    assert_eq!(output.status.code(), Some(0), "something grows, or is left");
}

#[test]
fn a_crowd_that_leaks_is_found() {
    let output = drill("load", &[&SHORT[..], &["--only", "serve", "--break", "leak"]].concat());
    assert_eq!(output.status.code(), Some(1), "the leak was not found");
    assert!(finds(&output, "the memory of the clients grew"), "it was found by something else");
}
