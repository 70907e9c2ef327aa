//! The shortest way to a violation. Stateright's search by breadth keeps the last one of a batch, which is longer.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use stateright::Model;

pub(crate) struct Counterexample<A> {
    pub(crate) steps: Vec<A>,
    /// How many states were seen on the way.
    pub(crate) states: usize,
}

/// The first state, by breadth, that violates this property.
pub(crate) fn shortest<M: Model<State: Hash, Action: Clone>>(
    model: &M,
    property: &str,
) -> Option<Counterexample<M::Action>> {
    let property = model.properties().into_iter().find(|known| known.name == property)?;
    let mut seen = HashSet::new();
    // From which state, and by which step.
    let mut ways: Vec<(usize, Option<M::Action>)> = Vec::new();
    let mut queue = VecDeque::new();
    let mut actions = Vec::new();
    for state in model.init_states() {
        seen.insert(digest(&state));
        ways.push((0, None));
        queue.push_back((state, ways.len() - 1));
    }
    while let Some((state, way)) = queue.pop_front() {
        if !(property.condition)(model, &state) {
            let mut steps = Vec::new();
            let mut at = way;
            while let (from, Some(step)) = &ways[at] {
                steps.push(step.clone());
                at = *from;
            }
            steps.reverse();
            return Some(Counterexample { steps, states: seen.len() });
        }
        model.actions(&state, &mut actions);
        for action in actions.drain(..) {
            let Some(next) = model.next_state(&state, action.clone()) else { continue };
            if seen.insert(digest(&next)) {
                ways.push((way, Some(action)));
                queue.push_back((next, ways.len() - 1));
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
