//! Exclusive holds: which contenders may hold together, which contender held last, and which
//! reports about that contender are true.

use zoolock_core::Record;
use zoolock_core::acquisition::{Node, Previous};
use zoolock_core::names::Prefix;

use super::ghost::{Fate, Reader, Trace, Violation};
use super::plan::Plan;
use super::scenario::Scenario;
use super::tree::{Child, Directory, Name, Tree};
use super::world::World;

/// An exclusive hold. It begins when the contender writes its `held` marker, or is granted the lock
/// without such a marker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    at: usize,
    /// The transaction that created the directory.
    directory: i64,
    /// The position of this hold in the order of holds: the queue position of the znode, and 0. For
    /// an upgrade: the reader's queue position and the writer's czxid, because an upgrade holds at
    /// the position of its reader.
    order: (i64, i64),
    /// The znode that was granted.
    pub(crate) czxid: i64,
    name: Name,
    /// Set if the successor learns of the release from the release marker (`World::on_release`).
    tells: bool,
    /// Set if the holder was told of its grant, and did not give it back.
    pub(crate) granted: bool,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum End {
    /// The hold has not ended.
    No,
    /// The holder released.
    Clean,
    /// The hold ended in another way.
    Gone,
}

/// Returns whether contenders with these prefixes never hold together.
pub(crate) fn exclude_each_other(one: Prefix, other: Prefix) -> bool {
    let permit = |prefix| matches!(prefix, Prefix::Permit(_));
    let both_upgradable = one == Prefix::Upgradable && other == Prefix::Upgradable;
    one.is_exclusive() || other.is_exclusive() || both_upgradable || permit(one) != permit(other)
}

/// Returns whether no conflicting znode is queued before this child now. For permits: whether they
/// fit beside the permits that are queued before them. `reader`: the reader of an upgrade.
pub(crate) fn is_clear(tree: &Tree, at: usize, child: &Child, reader: Option<Reader>, plan: Plan) -> bool {
    let mut before = tree.children(at).iter().filter(|other| other.position < child.position);
    match (child.name.prefix, reader) {
        (_, Some(reader)) => {
            // A contender that waits for the reader does not matter.
            let harmless = |other: &Child| {
                let waits =
                    exclude_each_other(reader.prefix, other.name.prefix) && other.position > reader.position;
                other.czxid == reader.czxid || waits
            };
            tree.holds(at, reader.czxid) && before.all(harmless)
        }
        (Prefix::Permit(take), _) => {
            let weight = |other: &Child| match other.name.prefix {
                Prefix::Permit(take) => Some(take),
                _ => None,
            };
            let ahead: Option<u32> = before.map(weight).sum();
            // If the record has no size, the contender writes the size of its own plan.
            let own = if let Plan::Permits { size, .. } = plan { Some(size) } else { None };
            let (Some(ahead), Some(size)) = (ahead, tree.size(at).or(own)) else { return false };
            ahead + take <= size
        }
        (prefix, _) => before.all(|other| !exclude_each_other(prefix, other.name.prefix)),
    }
}

/// Returns whether two contenders that exclude each other hold together, or more permits are held
/// than the semaphore ever had.
pub(crate) fn too_many_hold(world: &World, scenario: &Scenario) -> bool {
    // For each held lock: its directory, the prefix of the holder's znode, the czxid of the
    // reader's znode if the holder is an upgrade, and the czxid of the holder's znode.
    let mut held: Vec<(usize, Prefix, Option<i64>, i64)> = Vec::new();
    for i in 0..world.clients.len() {
        let Some(node) = holding(world, i, scenario) else { continue };
        let reader = world.clients[i].ghost.reader.map(|reader| reader.czxid);
        let existing = scenario.wants[i].iter().filter(|&&at| world.leader.holds(at, node.czxid.0));
        held.extend(existing.map(|&at| (at, node.prefix, reader, node.czxid.0)));
    }
    let permits = |&(_, prefix, ..): &(usize, Prefix, _, _)| match prefix {
        Prefix::Permit(take) => take,
        _ => 0,
    };
    // No scenario has both permits and several directories, so all permits are of one semaphore.
    let taken: u32 = held.iter().map(permits).sum();
    let collide = |one: &(usize, Prefix, Option<i64>, i64), other: &(usize, Prefix, Option<i64>, i64)| {
        one.0 == other.0
            && exclude_each_other(one.1, other.1)
            && one.2 != Some(other.3)
            && other.2 != Some(one.3)
    };
    let collides = |(at, one): (usize, &_)| held[at + 1..].iter().any(|other| collide(one, other));
    taken > world.history.largest_size || held.iter().enumerate().any(collides)
}

/// Returns the client's znode in the first of its directories, if the client holds its locks. The
/// client holds if its machine returns a znode from `holding()`, and its session exists on the
/// leader. For an upgrade, the reader's znode must exist, too.
pub(crate) fn holding(world: &World, i: usize, scenario: &Scenario) -> Option<Node> {
    let client = &world.clients[i];
    let node = client.machine().and_then(|machine| machine.held_node())?;
    let exists = |reader: Reader| world.leader.holds(scenario.wants[i][0], reader.czxid);
    (client.session && client.ghost.reader.is_none_or(exists)).then_some(node)
}

impl World {
    /// Records which znodes have no conflicting znode before them. Called after each transaction.
    pub(crate) fn record_clear_traces(&mut self, scenario: &Scenario) {
        let tree = &self.leader;
        for (i, client) in self.clients.iter_mut().enumerate() {
            let (reader, plan, wants) = (client.ghost.reader, scenario.plans[i], &scenario.wants[i]);
            for at in 0..client.ghost.traces.len() {
                let Trace { fate, was_clear, czxid, .. } = client.ghost.traces[at];
                if fate != Fate::Exists || was_clear {
                    continue;
                }
                let clear = |&at: &usize| {
                    let child = tree.created_by(at, czxid);
                    child.is_some_and(|child| is_clear(tree, at, child, reader, plan))
                };
                if wants.iter().all(clear) {
                    client.ghost.traces[at].was_clear = true;
                }
            }
        }
    }

    /// Records that a contender writes its `held` marker.
    pub(crate) fn on_begun(&mut self, i: usize, at: usize, node: &Node) {
        self.record_hold(i, at, node.czxid.0, false);
    }

    fn order(&self, i: usize, trace: &Trace) -> (i64, i64) {
        match self.clients[i].ghost.reader {
            Some(reader) => (reader.position, trace.czxid),
            None => (trace.position, 0),
        }
    }

    pub(crate) fn record_hold(&mut self, i: usize, at: usize, czxid: i64, granted: bool) {
        let found = self.history.holds.iter().position(|hold| (hold.at, hold.czxid) == (at, czxid));
        if let Some(found) = found {
            if granted {
                self.history.holds[found].granted = true;
            }
            return;
        }
        // A deleted znode begins no hold. A `held` marker begins a hold only if there was a moment
        // at which the contender was the head of all its queues.
        let begins =
            |trace: &&Trace| trace.at == at && trace.fate == Fate::Exists && (granted || trace.was_clear);
        let Some(trace) = self.clients[i].ghost.traces_of(czxid).find(begins) else { return };
        let &Trace { directory, name, .. } = trace;
        let (order, tells, end) = (self.order(i, trace), false, End::No);
        self.history.holds.push(Hold { at, directory, order, czxid, name, tells, granted, end });
    }

    /// Records that a znode was deleted. `own`: set if the acquisition that created the znode
    /// deleted it. `cleanly`: set if the holder released, and was not unwinding from a panic.
    pub(crate) fn on_deleted(&mut self, at: usize, czxid: i64, own: bool, cleanly: bool) {
        let found = self.history.holds.iter().position(|hold| (hold.at, hold.czxid) == (at, czxid));
        let Some(found) = found else { return };
        if own && !self.history.holds[found].granted {
            // The contender gave up before it was granted, and has undone its `held` marker.
            self.history.holds.remove(found);
        } else {
            self.history.holds[found].end = if cleanly { End::Clean } else { End::Gone };
        }
    }

    /// Checks what a holder is told about the last exclusive holders. `traces`: the holder's
    /// znodes, one for each lock.
    pub(crate) fn check_previous(
        &mut self,
        i: usize,
        traces: &[Trace],
        previous: Previous,
        scenario: &Scenario,
    ) {
        let Some(first) = traces.first() else { return };
        let ghost = &self.clients[i].ghost;
        let (mut clean, mut crashed, mut untold_crash, mut could_tell) = (true, false, false, true);
        for trace in traces {
            let order = self.order(i, trace);
            let holds = || self.history.holds.iter();
            let earlier = |hold: &&Hold| hold.directory == trace.directory && hold.order < order;
            let last = holds().filter(earlier).max_by_key(|hold| hold.order);
            let last_granted = holds().filter(|h| earlier(h) && h.granted).max_by_key(|hold| hold.order);
            clean &= last_granted.is_some_and(|hold| hold.end == End::Clean);
            let gone = last.filter(|hold| hold.end == End::Gone);
            crashed |= gone.is_some();
            // Suppose that an operator deletes the reader's znode of an upgrade, but not its
            // writer's znode. The writer's znode stays in the queue, behind the successor's znode.
            // The successor reads that the writer's znode still exists. If the upgrade dies between
            // that read and the successor's grant, the successor cannot know of the crash. So it
            // need not report it.
            let meddled =
                |hold: &Hold| scenario.budget.breaks > 0 && hold.order.1 != 0 && hold.czxid > trace.czxid;
            let tracked = gone.is_some_and(|hold| hold.granted && !meddled(hold));
            untold_crash |= tracked && scenario.keeps_its_records();
            let told = self.right_before(trace.directory, trace.name);
            let directory = self.leader.0[trace.at].as_ref();
            // A multi-lock that lost one of its locks leaves no `released` marker in the others.
            let all_clean = |hold: &Hold| holds().all(|h| h.czxid != hold.czxid || h.end == End::Clean);
            could_tell &= told.is_some_and(|hold| hold.tells && all_clean(hold))
                && directory.is_some_and(|directory| !directory.has_misdirected_write);
        }
        // A contender lists first, and then reads the record. If its znode is deleted in between, a
        // later holder may have written the record, so the report about the previous holder may be
        // wrong. That is no violation, because the contender soon receives the deletion of its
        // znode. The check stays strict for a native mutex, whose first read needs no listing. It
        // also stays strict for a multi-lock, which reads all of its znodes again before its grant.
        let exists = |trace: &Trace| {
            let reader = ghost.reader.map(|reader| reader.czxid);
            [Some(trace.czxid), reader].into_iter().flatten().all(|czxid| self.leader.holds(trace.at, czxid))
        };
        let strict = first.name.prefix == Prefix::Lock || traces.len() > 1 || exists(first);
        let meddling = scenario.budget.scribbles + scenario.budget.copies + scenario.budget.resizes > 0;
        let violation = match previous {
            Previous::Clean if !clean && strict => Violation::FalseClean,
            Previous::Crashed if !crashed && strict => Violation::FalseCrash,
            Previous::Unknown if untold_crash => Violation::UntoldCrash,
            Previous::Unknown if ghost.read && could_tell && !meddling => Violation::Untold,
            _ => return,
        };
        self.record_violation(violation);
    }

    /// Returns the hold of the mutex whose sequence number is directly before that of `name`.
    /// Returns `None` if that mutex was not granted, or if `name` is not the name of a mutex.
    fn right_before(&self, directory: i64, name: Name) -> Option<&Hold> {
        let before = Name { sequence: name.sequence.wrapping_sub(1), ..name };
        let is_it = |hold: &&Hold| hold.directory == directory && hold.name == before && hold.granted;
        self.history.holds.iter().find(is_it).filter(|_| name.prefix == Prefix::Lock)
    }

    /// Checks a release whose marker overwrites foreign data. This is allowed only if the holder
    /// has not read the record, and its predecessor did not release (`docs/design/look-ahead.md`,
    /// "What look-ahead leaves open").
    pub(crate) fn check_overwritten_record(&mut self, i: usize, at: usize, node: &Node) {
        let Some(Directory { czxid, record: Record::Foreign, .. }) = self.leader.0[at] else { return };
        let released = self.right_before(czxid, Name::of(node)).is_some_and(|hold| hold.end == End::Clean);
        let ghost = &self.clients[i].ghost;
        if ghost.read || ghost.held != node.czxid.0 || released {
            self.record_violation(Violation::WroteOver);
        }
    }

    /// Records a release. Sets `tells` if the successor learns of the release from the marker. The
    /// successor does not learn of it in these cases:
    /// * The holder has not read the record, and its predecessor did not release. Then the holder
    ///   assumes a wrong version of the record, and the server refuses the marker.
    /// * The connection broke before the holder could read the record. Then the holder writes no
    ///   marker.
    /// * Another znode of this multi-lock was deleted. Then the marker does not say `released`.
    pub(crate) fn on_release(&mut self, i: usize) {
        let ghost = &self.clients[i].ghost;
        let (read, interrupted, czxid) = (ghost.read, ghost.interrupted, ghost.held);
        let traces: Vec<Trace> = ghost.traces_of(czxid).cloned().collect();
        for trace in &traces {
            let before = self.right_before(trace.directory, trace.name);
            // A holder whose connection broke before it could read the record does not assume a
            // version.
            let guesses = !interrupted && before.is_some_and(|hold| hold.end == End::Clean);
            let holds = &self.history.holds;
            let found = holds.iter().position(|hold| (hold.at, hold.czxid) == (trace.at, czxid));
            if let Some(found) = found {
                let lost_another = traces.iter().any(|t| t.at != trace.at && t.fate != Fate::Exists);
                self.history.holds[found].tells = (read || guesses) && !lost_another;
            }
        }
    }
}
