//! kazoo: its own tests, all of them.

use std::time::Duration;

use tokio::process::Command;
use zoolock_tests::skip::{Availability, long_or_skip};
use zoolock_tests::{Arm, Proxy, ServerOptions, on_both_arms};

use crate::foreign::{beside, run};

/// The digest of the password that kazoo's tests know.
const SUPER: &str = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";
/// Longer than kazoo needs between two looks at its queue, on a busy machine too.
const LATE: Duration = Duration::from_millis(200);

fn python() -> Availability {
    match std::process::Command::new("python3").arg("-c").arg("import venv").output() {
        Ok(said) if said.status.success() => Availability::Available,
        Ok(_) | Err(_) => Availability::Missing("no python3 with venv, install python3-venv".to_owned()),
    }
}

fn as_served() -> ServerOptions {
    ServerOptions {
        tick: Duration::from_secs(2),
        max_session_timeout: Duration::from_secs(40),
        super_digest: Some(SUPER.to_owned()),
        ..Default::default()
    }
}

on_both_arms!(private(as_served()) own_suite_of_kazoo_passes, |place| async move {
    let name = format!("own_suite_of_kazoo_passes::{}", place.arm());
    if !python().or_skip(&name) || place.arm() == Arm::Apache && !long_or_skip(&name) {
        return;
    }
    let slow = Proxy::start(&place.addr()).await.expect("a proxy");
    slow.delay(LATE);
    let mut suite = Command::new(beside("kazoo/suite"));
    let said = run(suite.arg(place.addr()).env("ZK_SLOW", slow.addr())).await.if_well();
    // What is skipped needs servers that kazoo starts, stops and configures itself.
    let last = said.trim_end().lines().last().unwrap_or_default();
    assert!(last.starts_with("472 passed, 21 skipped in "), "{said}");
    place.server().assert_no_watches().await;
});
