//! Each checker takes what is right and refuses what is not.

use zoolock_tests::history::{History, Recorder, Violation};

/// `a+3` joins nobody: `a` enters with token 3; `a-3` leaves; `a?` joins.
fn history(steps: &str) -> History<u64> {
    let recorder = Recorder::new();
    for step in steps.split_whitespace() {
        let (who, rest) = step.split_at(1);
        let token = || rest[1..].parse().expect("a token");
        match &rest[..1] {
            "?" => recorder.join(who),
            "+" => recorder.enter(who, token()),
            "-" => recorder.exit(who, token()),
            other => panic!("no such step: {other}"),
        }
    }
    recorder.history()
}

#[track_caller]
fn refused(checked: Result<(), Violation>, because: &[&str]) {
    let violation = checked.expect_err("the history is bad").to_string();
    for words in because {
        assert!(violation.contains(words), "{violation:?} does not say {words:?}");
    }
}

#[test]
fn two_inside_at_once_are_refused() {
    history("a+1 a-1 b+2 b-2 a+3 a-3").one_holder().expect("one after the other");
    history("a+1").one_holder().expect("whoever died inside did not overlap with anybody");
    refused(history("a+1 a-1 b+2 c+3 b-2 c-3").one_holder(), &["event 3, c", "b was inside since event 2"]);
    refused(history("a+1 a+2").one_holder(), &["event 1, a"]);
}

#[test]
fn leaving_without_having_entered_is_refused() {
    refused(history("a+1 b-1").one_holder(), &["event 1, b left"]);
    refused(history("a+1 a-2").one_holder(), &["event 1, a left with 2"]);
}

#[test]
fn more_inside_than_permits_are_refused() {
    history("a+1 b+2 a-1 c+3 b-2 c-3").at_most(2).expect("two at most");
    refused(history("a+1 b+2 c+3").at_most(2), &["event 2, c", "at most 2"]);
}

#[test]
fn tokens_that_do_not_rise_are_refused() {
    history("a+1 a-1 b+5 b-5 a+6").tokens_rise().expect("they rise");
    refused(history("a+1 a-1 b+5 b-5 c+4").tokens_rise(), &["c entered with 4", "b had entered with 5"]);
    refused(history("a+1 a-1 b+1").tokens_rise(), &["b entered with 1", "a had entered with 1"]);
}

#[test]
fn overtaking_is_refused() {
    let queue = ["a", "b", "c", "a"];
    history("a+1 b+2 c+3 a+4").in_order(&queue).expect("in order, a twice");
    history("a+1 c+3").in_order(&queue).expect("b gave up");
    refused(history("b+1 c+2 a+3 b+4").in_order(&queue), &["event 3, b entered after a (event 2)"]);
    refused(history("a+1 c+2 b+3").in_order(&queue), &["event 2, b entered after c (event 1)"]);
    refused(history("a+1 x+2").in_order(&queue), &["event 1, x", "never in the queue"]);
}

#[test]
fn starving_is_refused() {
    history("b+1 a+2 a+3").everyone_entered(&["a", "b", "a"]).expect("whatever the order");
    refused(history("a+1").everyone_entered(&["a", "b", "c"]), &["b never got its turn", "1 more"]);
    refused(history("a+1").everyone_entered(&["a", "a"]), &["a never got its turn"]);
}

#[test]
fn a_fair_mutex_is_checked_for_all_of_it() {
    let good = history("a? b? a+1 c? a-1 b+2 b-2 c+3 c-3");
    assert_eq!(good.joined(), ["a", "b", "c"]);
    assert_eq!(good.entered(), ["a", "b", "c"]);
    good.is_fair_mutex(&good.joined()).expect("it is fair");
    let queue = ["a", "b"];
    for bad in ["a+1 b+2 a-1 b-2", "a+2 a-2 b+1 b-1", "b+1 b-1 a+2 a-2", "a+1 a-1"] {
        assert!(history(bad).is_fair_mutex(&queue).is_err(), "{bad}");
    }
}
