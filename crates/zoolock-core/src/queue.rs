//! The order of contenders, and who waits for whom.

use crate::ids::Sequence;
use crate::names::{Name, Role, native_name};

/// What a listing of the directory says to one contender for the mutex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nobody stands before us.
    Held,
    /// This child stands right before us.
    WaitFor(String),
    /// We are not in the list.
    Gone,
    /// A semaphore lives in this directory.
    OtherKind,
}

/// Finds the place of the mutex contender `me` among `children`.
///
/// A mutex waits for the nearest lower contender of any family and any role. Children that are no contenders are
/// passed over.
pub fn decide<S: AsRef<str>>(children: &[S], me: Sequence) -> Decision {
    let mine = native_name(me);
    let position = me.0 as u32;
    let mut found = false;
    let mut before: Option<(u32, &str)> = None;
    for child in children {
        let child = child.as_ref();
        if child == mine {
            found = true;
            continue;
        }
        let Some(name) = Name::parse(child) else { continue };
        if name.role == Role::Permit {
            return Decision::OtherKind;
        }
        let theirs = name.position();
        // The same number twice: Curator's read under its own write repeats the writer's. Whoever it is, it was
        // there before we could be granted.
        if theirs <= position && before.is_none_or(|(nearest, _)| nearest < theirs) {
            before = Some((theirs, child));
        }
    }
    match (found, before) {
        (false, _) => Decision::Gone,
        (true, None) => Decision::Held,
        (true, Some((_, name))) => Decision::WaitFor(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_lower_contender_of_any_family_is_waited_for() {
        let hex = "3f2504e04f8911d39a0c0305e82c3301";
        let kazoo = format!("{hex}__lock__0000000004");
        let children = ["lock-0000000009", "config", "lock-0000000002", kazoo.as_str(), "lock-0000000005"];
        assert_eq!(decide(&children, Sequence(9)), Decision::WaitFor("lock-0000000005".to_owned()));
        assert_eq!(decide(&children, Sequence(5)), Decision::WaitFor(kazoo.clone()));
        assert_eq!(decide(&children, Sequence(2)), Decision::Held);
        assert_eq!(decide(&children, Sequence(3)), Decision::Gone);
    }

    #[test]
    fn numbers_are_compared_as_numbers_and_the_wrapped_ones_come_last() {
        let children = ["lock-2147483647", "lock--2147483648", "x-1-0000000001"];
        assert_eq!(decide(&children, Sequence(i32::MIN)), Decision::WaitFor("lock-2147483647".to_owned()));
        assert_eq!(decide(&children, Sequence(i32::MAX)), Decision::WaitFor("x-1-0000000001".to_owned()));
    }

    #[test]
    fn a_semaphore_is_recognised() {
        let children = ["lock-0000000002", "permit-1-0000000001"];
        assert_eq!(decide(&children, Sequence(2)), Decision::OtherKind);
    }
}
