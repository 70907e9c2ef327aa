//! Checks that no contender starves.
//!
//! The measure is how often other contenders acquire the lock during a contender's wait. Each such
//! grant is an entry. The measure does not depend on the speed of the machine. In a fair queue,
//! each other contender has at most one entry during the wait. It may have a few more while the
//! request is on its way to the server.

/// The waits of a contender: for each of its grants, the number of entries of other contenders
/// during the wait before it.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) name: String,
    pub(crate) passed: Vec<usize>,
}

/// Statistics of the numbers in [`Waits::passed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passes {
    /// The ninetieth percentile.
    usual: usize,
    /// The maximum.
    most: usize,
}

impl Passes {
    pub(crate) fn of(passed: &[usize]) -> Passes {
        let mut sorted = passed.to_vec();
        sorted.sort_unstable();
        let usual = sorted.get(sorted.len() * 9 / 10).copied().unwrap_or_default();
        Passes { usual, most: sorted.last().copied().unwrap_or_default() }
    }
}

/// Describes the first contender that starves.
///
/// A contender starves if at least a tenth of its waits each have more than `3 * contenders.len()`
/// entries of others. In a long run, it also starves if more than half of all entries of the others
/// fall into one of its waits.
pub(crate) fn find_starved(contenders: &[Waits]) -> Option<String> {
    let total: usize = contenders.iter().map(|contender| contender.passed.len()).sum();
    let usual = 3 * contenders.len();
    contenders.iter().enumerate().find_map(|(index, contender)| {
        let others = total - contender.passed.len();
        let passes = Passes::of(&contender.passed);
        let starved = passes.usual > usual || (others > 2 * usual && passes.most > others / 2);
        starved.then(|| {
            format!(
                "contender {index} starved: others entered {} times in a tenth of its waits, {} times in one wait",
                passes.usual, passes.most
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the waits of contenders that acquire the lock in this order. Each contender requests
    /// the lock again right after it releases it.
    fn contenders(order: &[usize]) -> Vec<Waits> {
        let count = order.iter().max().map_or(0, |last| last + 1);
        let contender = |index: usize| Waits { name: index.to_string(), passed: Vec::new() };
        let mut contenders: Vec<Waits> = (0..count).map(contender).collect();
        let mut asked = vec![0; count];
        for (at, index) in order.iter().enumerate() {
            contenders[*index].passed.push(at - asked[*index]);
            asked[*index] = at + 1;
        }
        contenders
    }

    #[test]
    fn contenders_in_turn_do_not_starve() {
        let order: Vec<usize> = (0..400).map(|at| at % 4).collect();
        let contenders = contenders(&order);
        assert_eq!(Passes::of(&contenders[3].passed), Passes { usual: 3, most: 3 });
        assert_eq!(find_starved(&contenders), None);
    }

    #[test]
    fn one_long_wait_is_not_starvation() {
        let order: Vec<usize> =
            (0..400).map(|at| if (40..80).contains(&at) { at % 3 } else { at % 4 }).collect();
        assert_eq!(find_starved(&contenders(&order)), None);
    }

    #[test]
    fn contender_that_enters_last_starves() {
        let order: Vec<usize> = (0..300).map(|at| at % 3).chain((0..100).map(|_| 3)).collect();
        assert!(find_starved(&contenders(&order)).is_some());
    }

    #[test]
    fn contender_that_is_passed_repeatedly_starves() {
        let order: Vec<usize> = (0..400).map(|at| if at % 20 == 19 { 3 } else { at % 3 }).collect();
        assert!(find_starved(&contenders(&order)).is_some());
    }
}
