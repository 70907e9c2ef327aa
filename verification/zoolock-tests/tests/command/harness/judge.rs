//! Tests of the judge: it accepts an allowed history, and finds the violation in each history that is not allowed.

use zoolock_tests::judge::{Judge, Share, conflicting};

const SHARED: Share = Share::Shared;
const UPGRADABLE: Share = Share::Upgradable;
const EXCLUSIVE: Share = Share::Exclusive;

fn permits(count: u32) -> Share {
    Share::Permits { count, size: 3 }
}

/// Judges a history. `a+3` means that `a` enters with token 3 and the whole lock, and `a-` that it exits. `aR`, `aU` and
/// `a2` mean that `a` enters as a reader, as an upgradable reader, and with two of three permits.
fn judge(steps: &str) -> Judge<char, u64> {
    let judge = Judge::new();
    for step in steps.split_whitespace() {
        let mut step = step.chars();
        let who = step.next().expect("a step names a holder");
        match step.next().expect("a step has an event") {
            '+' => judge.enter(who, step.as_str().parse().expect("the token is a number")),
            '-' => judge.exit(&who),
            'R' => drop(judge.enter_with(who, SHARED, None)),
            'U' => drop(judge.enter_with(who, UPGRADABLE, None)),
            count => {
                let count = count.to_digit(10).expect("a number of permits");
                judge.enter_with(who, permits(count), None);
            }
        }
    }
    judge
}

#[test]
fn allowed_histories_are_accepted() {
    for steps in [
        "a+1 a- b+2 b- a+3 a-",
        // A holder that never exits does not overlap with another.
        "a+1",
        "aR bR cU bR a- b- b- c- d+1",
        "a2 b1 a- c2 b- d1",
        "a+1 a- bR b- c+5",
    ] {
        judge(steps).check().unwrap_or_else(|violation| panic!("{steps}: {violation}"));
    }
}

#[test]
fn violations_are_found() {
    for (steps, words) in [
        ("a+1 a- b+2 c+3 b- c-", ["grant 2: 'c' entered with the share Exclusive", "('b', Exclusive)"]),
        ("a+1 a+2", ["grant 1: 'a'", "('a', Exclusive)"]),
        ("aR b+1", ["'b' entered with the share Exclusive", "('a', Shared)"]),
        ("a+1 bR", ["'b' entered with the share Shared", "('a', Exclusive)"]),
        ("aU bU", ["'b' entered with the share Upgradable", "('a', Upgradable)"]),
        ("a+1 b1", ["'b' entered with the share Permits", "('a', Exclusive)"]),
        ("a2 bR", ["'b' entered with the share Shared", "('a', Permits"]),
        ("a2 b1 c1", ["'c' entered with the share Permits { count: 1, size: 3 }", "('b', Permits"]),
        ("a4", ["Permits { count: 4, size: 3 }", "beside []"]),
        ("a+1 b-", ["'b' exited without having entered", "('a', Exclusive)"]),
        ("a+1 a- a-", ["'a' exited without having entered", "[]"]),
        ("a+1 a- b+5 b- c+4", ["'c' entered with the token 4", "'b' had entered with 5"]),
        ("a+1 a- b+1", ["'b' entered with the token 1", "'a' had entered with 1"]),
        ("a+2 a- bR b- c+1", ["'c' entered with the token 1", "'a' had entered with 2"]),
    ] {
        let violation = judge(steps).check().expect_err(steps).to_string();
        assert!(words.iter().all(|words| violation.contains(words)), "{steps}: {violation:?}, not {words:?}");
    }
}

#[test]
fn conflicting_holders_are_named() {
    for (new, holders, expected) in [
        (EXCLUSIVE, &[][..], None),
        (EXCLUSIVE, &[SHARED, UPGRADABLE], Some(vec![0, 1])),
        (SHARED, &[SHARED, UPGRADABLE], None),
        (SHARED, &[SHARED, EXCLUSIVE], Some(vec![1])),
        (UPGRADABLE, &[SHARED, UPGRADABLE], Some(vec![1])),
        (permits(1), &[permits(1), permits(1)], None),
        (permits(2), &[permits(1), permits(1)], Some(vec![0, 1])),
        (permits(4), &[], Some(Vec::new())),
    ] {
        let found = conflicting(new, holders.iter().copied().enumerate());
        assert_eq!(found, expected, "{new:?} beside {holders:?}");
    }
}

#[test]
fn holders_are_counted() {
    let judge = judge("aR bR a- c1");
    assert_eq!((judge.most_holders(), judge.grant_count()), (2, 3));
    let judge = self::judge("a1 b1");
    assert!(!judge.is_full());
    judge.enter_with('c', permits(1), None);
    assert!(judge.is_full());
    assert_eq!(judge.checked_grants(), ['a', 'b', 'c']);
}
