//! Wrong rules for the lease: bugs of other libraries, and of earlier versions of our lease. The
//! search finds a violation with each of these rules.

use super::*;

const CUT: Faults = Faults { follower_cut: true, ..NO_FAULTS };

#[test]
fn renewed_by_pings_and_reads() {
    expect_caught(with(LeaseRule::RenewedByPings, CUT));
}

#[test]
fn counted_from_the_answer() {
    expect_caught(LeaseModel { delay: 3, end: TIMEOUT + TIMEOUT / 4, ..with(LeaseRule::FromTheAnswer, CUT) });
}

#[test]
fn lease_of_the_whole_timeout() {
    expect_caught(with(LeaseRule::WholeTimeout, CUT));
}

#[test]
fn lease_of_the_requested_timeout() {
    expect_caught(with(LeaseRule::AskedTimeout, CUT));
}

#[test]
fn lease_of_the_first_timeout() {
    let faults = Faults { holder_cut: true, heals: true, shortens: true, follower_cut: true, ..NO_FAULTS };
    expect_caught(with(LeaseRule::FirstTimeout, faults));
}

#[test]
fn lease_until_reported_expiry() {
    expect_caught(with(LeaseRule::UntilExpired, Faults { holder_cut: true, ..NO_FAULTS }));
}

#[test]
fn clock_that_stops_during_sleep() {
    expect_caught(with(LeaseRule::Monotonic, Faults { sleeps: true, ..NO_FAULTS }));
}

#[test]
fn clock_that_is_set_back() {
    expect_caught(with(LeaseRule::WallClock, Faults { holder_cut: true, set_back: true, ..NO_FAULTS }));
}

#[test]
fn two_confirmations_with_delayed_pings() {
    expect_caught(with_a_connection(LeaseRule::ByTwoConfirmations));
}

#[test]
fn reads_prove_reports() {
    expect_caught(LeaseModel { alternates: true, ..with_a_connection(LeaseRule::ReadsProve) });
}

#[test]
fn one_confirmation_after_a_pause() {
    expect_caught(with(
        LeaseRule::ByOneConfirmation,
        Faults { follower_cut: true, sleeps: true, ..NO_FAULTS },
    ));
}

#[test]
fn sync_answered_by_a_deposed_leader() {
    expect_caught(with(LeaseRule::SyncConfirms, Faults { deposed: true, ..NO_FAULTS }));
}
