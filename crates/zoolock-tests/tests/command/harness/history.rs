//! Tests of the history checkers: each accepts an allowed record and rejects one that is not allowed.

use zoolock_tests::history::{GrantHistory, Recorder, Violation};

/// Parses a record: `a+3` means that `a` enters with token 3, and `a-3` that it exits.
fn history(steps: &str) -> GrantHistory<u64> {
    let recorder = Recorder::new();
    for step in steps.split_whitespace() {
        let (contender, rest) = step.split_at(1);
        let token = rest[1..].parse().expect("the token is a number");
        match &rest[..1] {
            "+" => recorder.enter(contender, token),
            "-" => recorder.exit(contender, token),
            other => panic!("unknown step {other}"),
        }
    }
    recorder.history()
}

#[track_caller]
fn assert_rejected(checked: Result<(), Violation>, because: &[&str]) {
    let violation = checked.expect_err("the record is not allowed").to_string();
    for words in because {
        assert!(violation.contains(words), "{violation:?} does not contain {words:?}");
    }
}

#[test]
fn overlapping_holders_are_rejected() {
    history("a+1 a-1 b+2 b-2 a+3 a-3").check_one_holder().expect("one holder after the other");
    history("a+1").check_one_holder().expect("a holder that never exits does not overlap with another");
    assert_rejected(
        history("a+1 a-1 b+2 c+3 b-2 c-3").check_one_holder(),
        &["event 3, c", "b was inside since event 2"],
    );
    assert_rejected(history("a+1 a+2").check_one_holder(), &["event 1, a"]);
}

#[test]
fn exit_without_enter_is_rejected() {
    assert_rejected(history("a+1 b-1").check_one_holder(), &["event 1, b exited"]);
    assert_rejected(history("a+1 a-2").check_one_holder(), &["event 1, a exited with 2"]);
}

#[test]
fn tokens_that_do_not_rise_are_rejected() {
    history("a+1 a-1 b+5 b-5 a+6").check_tokens_rise().expect("the tokens rise");
    assert_rejected(
        history("a+1 a-1 b+5 b-5 c+4").check_tokens_rise(),
        &["c entered with 4", "b had entered with 5"],
    );
    assert_rejected(
        history("a+1 a-1 b+1").check_tokens_rise(),
        &["b entered with 1", "a had entered with 1"],
    );
}
