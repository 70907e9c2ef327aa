//! The costs under which the model does what a server was seen to do.

use serde::{Deserialize, Serialize};

use super::model::{Cost, Load, run};

/// So many at once, each with a lock of its own, without a rest: turns a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) clients: usize,
    pub(crate) rate: f64,
}

/// A search halves its steps so often.
const HALVINGS: usize = 7;
/// The first step is a factor of this.
const STEP: f64 = 1.6;

/// The costs that come closest, by the squares of the logarithms of what they are off: a search that goes along one axis
/// at a time (Hooke and Jeeves, 1961).
pub(crate) fn fit(points: &[Point]) -> Cost {
    let alone = points.iter().map(|point| point.rate).fold(f64::INFINITY, f64::min);
    let together = points.iter().map(|point| point.rate).fold(0.0, f64::max);
    // Two writes a turn.
    let mut best = [0.25 / alone, 0.25 / alone, 0.5 / together];
    let mut least = off(cost(best), points);
    let mut step = STEP;
    for _ in 0..HALVINGS {
        let mut moved = true;
        while moved {
            moved = false;
            for axis in 0..best.len() {
                for factor in [step, 1.0 / step] {
                    let mut tried = best;
                    tried[axis] *= factor;
                    let now = off(cost(tried), points);
                    if now < least {
                        (best, least, moved) = (tried, now, true);
                    }
                }
            }
        }
        step = step.sqrt();
    }
    cost(best)
}

/// What the model says of a point.
pub(crate) fn rate(cost: Cost, clients: usize) -> f64 {
    // Long enough for some thousand turns, whoever is slow.
    let turn = 2.0 * (cost.way + cost.sync + cost.write) + 2.0 * cost.write * clients as f64;
    let (warm_up, counted) = (3.0 * turn, turn * (4_000.0 / clients as f64).max(10.0));
    let load = Load { clients, think: 0.0, hold: 0.0, sharers: 1, homes: vec![0; clients], warm_up, counted };
    run(cost, &load, 1).rate
}

fn off(cost: Cost, points: &[Point]) -> f64 {
    points.iter().map(|point| (rate(cost, point.clients) / point.rate).ln().powi(2)).sum()
}

fn cost([way, sync, write]: [f64; 3]) -> Cost {
    Cost { way, sync, write }
}

#[cfg(test)]
mod tests {
    use super::{Cost, Point, fit, rate};

    #[test]
    fn costs_are_found_again() {
        let real = Cost { way: 250e-6, sync: 400e-6, write: 60e-6 };
        let points = [1, 4, 16, 64, 256].map(|clients| Point { clients, rate: rate(real, clients) });
        let found = fit(&points);
        for point in points {
            let off = rate(found, point.clients) / point.rate;
            assert!((off - 1.0).abs() < 0.03, "{found:?} is off by {off} with {} clients", point.clients);
        }
        assert!((found.write / real.write - 1.0).abs() < 0.05, "{found:?}");
    }
}
