//! Visibility: which contenders of different client libraries see each other.
//!
//! A contender that does not see an earlier contender does not wait for it. Then both may hold at
//! once. zoolock reads the names of all client libraries. Other libraries read only their own names
//! and a few more. So a contender that lists the queue checks whether all contenders there exclude
//! each other. If they do not, it does not join. `docs/INTEROP.md` has the table of what each
//! library sees, and explains how this was found out.

use crate::names::{Name, Names, Role, Spelling};

/// Two contenders in one queue that should exclude each other, and do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Clash {
    /// The contender that does not wait for `ignored`.
    pub viewer: Name,
    /// The contender for which `viewer` should wait.
    pub ignored: Name,
    /// Set if `ignored` is our own contender.
    pub ours: bool,
    /// A format for our name that all contenders in the queue would see. `None` if there is no such
    /// format, or if `ignored` is not ours.
    pub remedy: Option<Spelling>,
}

/// Returns two contenders that would hold at once: both of `others`, or one of them and `me`, our own name.
pub fn census(others: impl Iterator<Item = Name>, me: Option<Name>, names: Names) -> Option<Clash> {
    let mut seen: Vec<Name> = Vec::new();
    for name in others {
        let kind = |known: &&mut Name| (known.spelling, known.role) == (name.spelling, name.role);
        match seen.iter_mut().find(kind) {
            None => seen.push(name),
            // Of several names with one format and role, the first in the queue is reported.
            Some(known) if name.position() < known.position() => *known = name,
            Some(_) => {}
        }
    }
    let among = |all: &[Name]| {
        let pairs = all.iter().flat_map(|viewer| all.iter().map(move |ignored| (*viewer, *ignored)));
        let mut clashes = pairs.filter(|(viewer, ignored)| !sees(viewer, ignored, names));
        clashes.next()
    };
    if let Some((viewer, ignored)) = among(&seen) {
        return Some(Clash { viewer, ignored, ours: false, remedy: None });
    }
    let me = me?;
    let viewer = *seen.iter().find(|other| !sees(other, &me, names))?;
    let fits = |spelling: &Spelling| {
        seen.iter().all(|other| sees(other, &Name { spelling: *spelling, ..me }, names))
    };
    let remedy = REMEDIES.into_iter().find(fits);
    Some(Clash { viewer, ignored: me, ours: true, remedy })
}

/// The formats that our own name can have, the best one first.
const REMEDIES: [Spelling; 6] = [
    Spelling::Lock,
    Spelling::Marked,
    Spelling::CuratorLock,
    Spelling::CuratorMarked,
    Spelling::Kazoo,
    Spelling::WriteLock,
];

/// Returns whether a client that uses the name `viewer` waits for an earlier `other`, or need not
/// wait. Returns true if the client library is not known.
fn sees(viewer: &Name, other: &Name, names: Names) -> bool {
    use Spelling::*;
    // Readers need not see each other. But the library of a reader has writers, too, so the check covers readers.
    if viewer.spelling == other.spelling {
        return true;
    }
    match viewer.spelling {
        // zoolock reads all names. The name of a .NET mutex also begins with `lock-`, so the mutex
        // is taken for a zoolock contender here.
        Lock | Marked | Own => true,
        // Curator's mutex orders names by the number after the last `lock-`. It compares other
        // names as text, so their order may be wrong.
        CuratorLock => matches!(other.spelling, Lock | UnknownLock),
        CuratorMarked => matches!(other.spelling, Marked),
        // LeaderLatch compares the text after the last `latch-`, which begins with a digit, with the
        // whole names of other contenders. So it sorts them behind its own name, and leads at once.
        CuratorLease | CuratorLatch => false,
        Kazoo => names.kazoo_pattern && matches!(other.spelling, Lock | CuratorLock | UnknownLock),
        // WriteLock orders names by the number after the last dash.
        WriteLock => {
            matches!(other.spelling, Lock | CuratorLock | CuratorLatch | Aiozk | UnknownLock | UnknownDash)
        }
        // A writer of zk-ruby waits for all names that end in digits, a reader only for zk-ruby's writers.
        Ruby => viewer.role == Role::Exclusive,
        DotNet => false,
        // aiozk's Lock waits for all names that end in digits.
        Aiozk => true,
        // A reader of aiozk's SharedLock waits only for names that begin with `write-`.
        AiozkMarked => false,
        // It is not known for which names these clients wait, so no clash is reported here. `show`
        // and `doctor` report these contenders.
        UnknownLock | UnknownDash | Unknown => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301";
    const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";

    fn name(name: &str) -> Name {
        Name::parse(name).expect("name is a contender")
    }

    fn clash(others: &[&str], me: &str, kazoo_pattern: bool) -> Option<Clash> {
        let names = Names { kazoo_pattern, ..Names::default() };
        census(others.iter().map(|other| name(other)), Some(name(me)), names)
    }

    #[test]
    fn visible_contenders_do_not_clash() {
        let (curator, writer) = (format!("{UUID}-lock-0000000004"), format!("{UUID}-__WRIT__0000000004"));
        let kazoo = format!("{HEX}__lock__0000000004");
        let aiozk = format!("lock-{HEX}-0000000003");
        for (others, me) in [
            (vec![curator.as_str(), "lock-0000000003"], "lock-0000000007"),
            (vec!["x-1-0000000002", "lock-0000000003"], "lock-0000000007"),
            (vec![writer.as_str(), "__READ__0000000003"], "__WRIT__0000000007"),
            (vec!["lock-0000000001", "upgr-0000000003"], "__WRIT__0000000007"),
            (vec![kazoo.as_str()], &format!("{HEX}__rlock__0000000007")),
            (vec!["ex0000000001"], "lock-0000000007"),
            (vec!["0000000001", aiozk.as_str(), "ex0000000002"], "__WRIT__0000000007"),
            (vec!["mylock-0000000001", curator.as_str()], "lock-0000000007"),
            (vec!["mylock-0000000001", "x-1-0000000002"], "lock-0000000007"),
            (vec!["job-0000000001", "x-1-0000000002"], "lock-0000000007"),
        ] {
            assert_eq!(clash(&others, me, false), None, "{others:?}");
        }
        assert_eq!(clash(&[&kazoo], "lock-0000000007", true), None);
        assert_eq!(clash(&[&kazoo, "mylock-0000000001"], "lock-0000000007", true), None);
    }

    #[test]
    fn client_that_ignores_unknown_contender_is_refused() {
        let curator = format!("{UUID}-lock-0000000004");
        let aiozk = format!("lock-{HEX}-0000000003");
        for (viewer, ignored) in [
            (curator.as_str(), "job-0000000003"),
            (&curator, &aiozk),
            ("x-1-0000000004", "0000000003"),
            (&format!("{HEX}__lock__0000000004"), &aiozk),
            ("sh0000000004", "job-0000000003"),
        ] {
            let clash = clash(&[ignored, viewer], "lock-0000000007", true).expect("clash is found");
            assert_eq!((clash.viewer, clash.ignored, clash.ours), (name(viewer), name(ignored), false));
        }
        let reader = format!("read-{HEX}-0000000004");
        let clash = clash(&[&reader], "lock-0000000007", false).expect("clash with aiozk's reader is found");
        assert_eq!((clash.viewer, clash.ours, clash.remedy), (name(&reader), true, None));
    }

    #[test]
    fn clash_names_a_remedy() {
        let (curator, writer) = (format!("{UUID}-lock-0000000004"), format!("{UUID}-__WRIT__0000000004"));
        let kazoo = format!("{HEX}__lock__0000000004");
        for (other, me, remedy) in [
            (kazoo.as_str(), "lock-0000000007", Some(Spelling::Kazoo)),
            (&curator, "__WRIT__0000000007", Some(Spelling::Lock)),
            (&writer, "lock-0000000007", Some(Spelling::Marked)),
            (&writer, "upgr-0000000007", Some(Spelling::Marked)),
            ("x-1-0000000002", "__WRIT__0000000007", Some(Spelling::Lock)),
            ("write-0000000002", "lock-0000000007", None),
        ] {
            let clash = clash(&[other], me, false).expect("clash is found");
            assert_eq!((clash.viewer, clash.ignored), (name(other), name(me)));
            assert_eq!((clash.ours, clash.remedy), (true, remedy), "{other} and {me}");
        }
    }

    #[test]
    fn clash_between_other_contenders_is_found() {
        let (curator, kazoo) = (format!("{UUID}-lock-0000000004"), format!("{HEX}__lock__0000000005"));
        for pattern in [false, true] {
            for me in ["lock-0000000007", &format!("{HEX}__lock__0000000007")] {
                let clash =
                    clash(&["lock-0000000002", &curator, &kazoo], me, pattern).expect("clash is found");
                assert!(!clash.ours && clash.remedy.is_none());
                let curators = [clash.viewer, clash.ignored].contains(&name(&curator));
                assert!(curators || clash.viewer == name(&kazoo), "{clash:?}");
            }
        }
    }

    #[test]
    fn clash_names_first_of_equal_contenders() {
        let curator = |number: i32| format!("{UUID}-lock-{number:010}");
        let kazoo = format!("{HEX}__lock__0000000009");
        for numbers in [[4, 5, 6], [6, 5, 4], [5, 4, 6], [6, 4, 5]] {
            let mut others = vec![kazoo.clone()];
            others.extend(numbers.map(curator));
            let others: Vec<_> = others.iter().map(String::as_str).collect();
            let clash = clash(&others, "lock-0000000010", true).expect("clash is found");
            assert!([clash.viewer, clash.ignored].contains(&name(&curator(4))), "{clash:?}");
        }
    }

    #[test]
    fn leader_latch_clashes_with_every_lock() {
        let (latch, curator) = (format!("{UUID}-latch-0000000004"), format!("{UUID}-lock-0000000007"));
        for me in ["lock-0000000007", "__READ__0000000007", "permit-1-0000000007", &curator] {
            let clash = clash(&[&latch], me, true).expect("clash is found");
            assert_eq!((clash.viewer, clash.ours, clash.remedy), (name(&latch), true, None), "{me}");
        }
        let two_latches = [latch.as_str(), &format!("{UUID}-latch-0000000005")].map(name);
        assert_eq!(census(two_latches.into_iter(), None, Names::default()), None);
        let beside_curator = clash(&[&latch, &curator], "lock-0000000008", false).expect("clash is found");
        assert!(!beside_curator.ours, "{beside_curator:?}");
    }

    #[test]
    fn reader_of_other_spelling_clashes() {
        let reader = format!("{UUID}-__READ__0000000004");
        assert_eq!(clash(&[&reader], "__READ__0000000007", false), None);
        assert!(clash(&[&reader], "upgr-0000000007", false).is_some());
        assert!(clash(&[&format!("{HEX}__rlock__0000000001")], "__READ__0000000007", false).is_some());
    }
}
