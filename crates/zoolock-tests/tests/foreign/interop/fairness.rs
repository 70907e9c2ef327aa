//! Whether anybody starved.
//!
//! Time is counted in sections, so that a slow machine is slow for everybody: what counts is how many times others came
//! in between the moment when a contender asked and the moment when it was inside. In a queue that is at most once each,
//! and a few times more where its request was on its way meanwhile.

use crate::interop::peer::Contender;

/// How often others came in while a contender waited: nine of ten of its waits saw fewer than `usual`, none more than
/// `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) usual: usize,
    pub(crate) most: usize,
}

/// For each contender.
pub(crate) fn passed(contenders: &[Contender]) -> Vec<Passed> {
    let mut all: Vec<i64> =
        contenders.iter().flat_map(|contender| contender.entered.iter().copied()).collect();
    all.sort_unstable();
    let since = |zxid: i64| all.partition_point(|entered| *entered <= zxid);
    contenders
        .iter()
        .map(|contender| {
            let waits = contender.asked.iter().zip(&contender.entered);
            let mut passed: Vec<usize> =
                waits.map(|(asked, entered)| since(entered - 1).saturating_sub(since(*asked))).collect();
            passed.sort_unstable();
            let usual = passed.get(passed.len() * 9 / 10).copied().unwrap_or_default();
            Passed { usual, most: passed.last().copied().unwrap_or_default() }
        })
        .collect()
}

/// Says who starved: whoever is passed by each other contender three times in more than a tenth of its waits, or waits
/// in one of them while the others have half of all their sections.
pub(crate) fn starved(contenders: &[Contender]) -> Option<String> {
    let total: usize = contenders.iter().map(|contender| contender.entered.len()).sum();
    let usual = 3 * contenders.len();
    passed(contenders).into_iter().enumerate().find_map(|(index, passed)| {
        let others = total - contenders[index].entered.len();
        let starved = passed.usual > usual || (others > 2 * usual && passed.most > others / 2);
        starved.then(|| {
            format!(
                "contender {index} starved: others came in {} times in a tenth of its waits, {} times in one of them",
                passed.usual, passed.most
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contenders that come in in this order, each asking again right after it was inside.
    fn contenders(order: &[usize]) -> Vec<Contender> {
        let count = order.iter().max().map_or(0, |last| last + 1);
        let mut contenders: Vec<Contender> =
            (0..count).map(|_| Contender { asked: Vec::new(), entered: Vec::new() }).collect();
        let mut asks = vec![0; count];
        for (at, index) in order.iter().enumerate() {
            let zxid = 10 * (at as i64 + 1);
            contenders[*index].asked.push(asks[*index]);
            contenders[*index].entered.push(zxid);
            asks[*index] = zxid + 1;
        }
        contenders
    }

    #[test]
    fn in_turn_nobody_starves() {
        let order: Vec<usize> = (0..400).map(|at| at % 4).collect();
        let contenders = contenders(&order);
        assert_eq!(passed(&contenders)[3], Passed { usual: 3, most: 3 });
        assert_eq!(starved(&contenders), None);
    }

    #[test]
    fn one_long_wait_is_an_accident() {
        let order: Vec<usize> =
            (0..400).map(|at| if (40..80).contains(&at) { at % 3 } else { at % 4 }).collect();
        assert_eq!(starved(&contenders(&order)), None);
    }

    #[test]
    fn whoever_is_let_in_when_the_others_have_left_starves() {
        let order: Vec<usize> = (0..300).map(|at| at % 3).chain((0..100).map(|_| 3)).collect();
        assert!(starved(&contenders(&order)).is_some());
    }

    #[test]
    fn whoever_is_passed_again_and_again_starves() {
        let order: Vec<usize> = (0..400).map(|at| if at % 20 == 19 { 3 } else { at % 3 }).collect();
        assert!(starved(&contenders(&order)).is_some());
    }
}
