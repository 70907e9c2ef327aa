//! Searches of a model: all states, or a shortest path to a violation.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use crate::table;

/// Searches all states, breadth first. Returns their number.
///
/// # Panics
/// If a property is violated, or if the search does not reach a state that it must reach.
pub(crate) fn expect_no_violation<M>(name: &str, model: M) -> usize
where
    M: Model<State: Clone + Debug + Hash + PartialEq + Send + Sync> + Send + Sync + 'static,
    M: Model<Action: Clone + Debug + PartialEq + Send + Sync>,
{
    let begun = Instant::now();
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).threads(1).spawn_bfs().join();
    check(name, begun, &checker)
}

/// Searches all states, depth first, which takes less memory. Returns their number.
///
/// # Panics
/// As for [`expect_no_violation`].
pub(crate) fn expect_no_violation_in_depth<M>(name: &str, model: M) -> usize
where
    M: Model<State: Clone + Debug + Hash + PartialEq + Send + Sync> + Send + Sync + 'static,
    M: Model<Action: Clone + Debug + PartialEq + Send + Sync>,
{
    let begun = Instant::now();
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).threads(1).spawn_dfs().join();
    check(name, begun, &checker)
}

fn check<M>(name: &str, begun: Instant, checker: &impl Checker<M>) -> usize
where
    M: Model<State: Clone + Debug + Hash + PartialEq, Action: Clone + Debug + PartialEq>,
{
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: {states} states, {depth} deep, {:.1?}", begun.elapsed());
    let mut discoveries = checker.discoveries();
    for property in checker.model().properties() {
        let found = discoveries.remove(property.name);
        match (property.expectation, found) {
            (Expectation::Always, Some(path)) => {
                panic!("{name}: violated `{}` by {:?}", property.name, path.into_actions());
            }
            (Expectation::Sometimes, None) => panic!("{name}: never reached `{}`", property.name),
            _ => {}
        }
    }
    states
}

/// Searches for the shortest path that violates a property. Its length must be in `docs/BUGS.md`.
///
/// # Panics
/// If nothing violates the property, or if `docs/BUGS.md` does not list the length.
pub(crate) fn expect_violation<M>(switch: &str, name: &str, property: &str, model: &M)
where
    M: Model<State: Hash, Action: Clone + Debug>,
{
    let found = find_shortest_violation(model, property);
    let (steps, states) = found.unwrap_or_else(|| panic!("{name}: {switch} violates nothing"));
    println!("{switch}, {name}: violated `{property}` by {} steps, {states} states", steps.len());
    println!("  {steps:?}");
    table::check_steps(switch, steps.len());
}

/// Searches, breadth first, for a state that violates the property. Returns the steps to the first
/// such state, and the number of states that were seen. Stateright's own search returns the last
/// such state of a batch, whose path may be longer.
fn find_shortest_violation<M>(model: &M, property: &str) -> Option<(Vec<M::Action>, usize)>
where
    M: Model<State: Hash, Action: Clone>,
{
    let property = model.properties().into_iter().find(|known| known.name == property)?;
    let mut seen = HashSet::new();
    // For each state: the index of the preceding state, and the step from there.
    let mut previous: Vec<(usize, Option<M::Action>)> = Vec::new();
    let mut queue = VecDeque::new();
    let mut actions = Vec::new();
    for state in model.init_states() {
        seen.insert(digest(&state));
        previous.push((0, None));
        queue.push_back((state, previous.len() - 1));
    }
    while let Some((state, index)) = queue.pop_front() {
        if !(property.condition)(model, &state) {
            let mut steps = Vec::new();
            let mut at = index;
            while let (from, Some(step)) = &previous[at] {
                steps.push(step.clone());
                at = *from;
            }
            steps.reverse();
            return Some((steps, seen.len()));
        }
        model.actions(&state, &mut actions);
        for action in actions.drain(..) {
            let Some(next) = model.next_state(&state, action.clone()) else { continue };
            if seen.insert(digest(&next)) {
                previous.push((index, Some(action)));
                queue.push_back((next, previous.len() - 1));
            }
        }
    }
    None
}

fn digest(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}
