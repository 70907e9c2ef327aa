//! Wrong rules for the lease: bugs of other libraries, and of earlier versions of our lease. The
//! search finds a violation with each of these rules.

use super::*;

const CUT: Faults = Faults { follower_cut: true, ..NO_FAULTS };

#[test]
fn renewed_by_pings_and_reads() {
    is_caught(with(LeaseRule::RenewedByPings, CUT));
}

#[test]
fn counted_from_the_answer() {
    is_caught(LeaseModel { delay: 3, end: TIMEOUT + TIMEOUT / 4, ..with(LeaseRule::FromTheAnswer, CUT) });
}

#[test]
fn lease_of_the_whole_timeout() {
    is_caught(with(LeaseRule::WholeTimeout, CUT));
}

#[test]
fn lease_of_the_requested_timeout() {
    is_caught(with(LeaseRule::AskedTimeout, CUT));
}

#[test]
fn lease_of_the_first_timeout() {
    let faults = Faults { holder_cut: true, heals: true, shortens: true, follower_cut: true, ..NO_FAULTS };
    is_caught(with(LeaseRule::FirstTimeout, faults));
}

#[test]
fn lease_until_reported_expiry() {
    is_caught(with(LeaseRule::UntilExpired, Faults { holder_cut: true, ..NO_FAULTS }));
}

#[test]
fn clock_that_stops_during_sleep() {
    is_caught(with(LeaseRule::Monotonic, Faults { sleeps: true, ..NO_FAULTS }));
}

#[test]
fn clock_that_is_set_back() {
    is_caught(with(LeaseRule::WallClock, Faults { holder_cut: true, set_back: true, ..NO_FAULTS }));
}

#[test]
fn two_confirmations_with_delayed_pings() {
    is_caught(with_a_connection(LeaseRule::ByTwoConfirmations));
}

#[test]
fn reads_prove_reports() {
    is_caught(LeaseModel { alternates: true, ..with_a_connection(LeaseRule::ReadsProve) });
}

#[test]
fn one_confirmation_after_a_pause() {
    is_caught(with(LeaseRule::ByOneConfirmation, Faults { follower_cut: true, sleeps: true, ..NO_FAULTS }));
}

#[test]
fn sync_answered_by_a_deposed_leader() {
    is_caught(with(LeaseRule::SyncConfirms, Faults { deposed: true, ..NO_FAULTS }));
}
