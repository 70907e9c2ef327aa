//! What was measured, and what follows from it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zoolock::Sharded;

use super::fit::{self, Point};
use super::model::{self, Cost, Load, Outcome as Fared};
use crate::Outcome;
use crate::servers::Kind;

/// The points.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) machine: String,
    pub(super) servers: Vec<Server>,
}

/// What was seen of one kind of server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Server {
    pub(super) kind: Kind,
    pub(super) points: Vec<Point>,
    /// The server's processor time for a turn, with the most clients; of three, that of the one they speak to.
    pub(super) turn_cpu_us: f64,
    pub(super) each: Option<Each>,
}

/// What there costs something while nothing happens.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Each {
    /// With this timeout: a client with a longer one is heard less often.
    pub(super) session_timeout_s: f64,
    /// Processor time a second.
    pub(super) session_cpu_us: f64,
    pub(super) session_bytes: f64,
    pub(super) lock_bytes: f64,
    pub(super) waiter_bytes: f64,
}

/// All there is to tell.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) measured: Measured,
    pub(super) fitted: Vec<Fitted>,
    pub(super) answers: Vec<Answer>,
    pub(super) spread: Vec<Spread>,
}

/// What a kind of server takes for a write, by the model.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Fitted {
    pub(super) kind: Kind,
    pub(super) cost: Cost,
    /// What the model makes of each measured point.
    pub(super) rates: Vec<f64>,
}

/// What the model is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Question {
    pub(super) clients: usize,
    pub(super) ensembles: usize,
    pub(super) think_s: f64,
    pub(super) hold_s: f64,
    pub(super) sharers: usize,
    warm_up_s: f64,
    counted_s: f64,
}

/// What it says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) asked: Question,
    pub(super) fared: Fared,
}

/// How evenly names fall, and what moves when an ensemble is added.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Spread {
    pub(super) ensembles: usize,
    /// The locks of the fullest beside those of the average one.
    pub(super) fullest: f64,
    /// Of all locks, those that move to the one that is added.
    pub(super) moved: f64,
}

impl Question {
    pub(super) fn all(quick: bool) -> Vec<Self> {
        let counted_s = if quick { 1.0 } else { 30.0 };
        let numbers: &[(usize, &[usize])] = if quick {
            &[(1_000, &[1, 2])]
        } else {
            &[(1_000, &[1]), (10_000, &[1]), (100_000, &[1, 2, 4]), (1_000_000, &[1, 8, 16, 32])]
        };
        let mut all = Vec::new();
        for sharers in [1, 10] {
            for (clients, ensembles) in numbers {
                all.extend(ensembles.iter().map(|ensembles| Self {
                    clients: *clients,
                    ensembles: *ensembles,
                    think_s: 60.0,
                    hold_s: 0.1,
                    sharers,
                    warm_up_s: counted_s / 3.0,
                    counted_s,
                }));
            }
        }
        all
    }

    fn ask(&self, cost: Cost) -> Fared {
        let load = Load {
            clients: self.clients,
            think: self.think_s,
            hold: self.hold_s,
            sharers: self.sharers,
            homes: homes(self.ensembles, self.clients.div_ceil(self.sharers)),
            warm_up: self.warm_up_s,
            counted: self.counted_s,
        };
        model::run(cost, &load, 1)
    }
}

impl Figures {
    /// What follows: of three servers where they were measured, since that is what such numbers of clients are for.
    pub(super) fn of(measured: Measured, questions: &[Question]) -> Outcome<Self> {
        let fitted: Vec<Fitted> = measured
            .servers
            .iter()
            .map(|server| {
                let cost = fit::fit(&server.points);
                let rates = server.points.iter().map(|point| fit::rate(cost, point.clients)).collect();
                Fitted { kind: server.kind, cost, rates }
            })
            .collect();
        let three = fitted.iter().find(|fitted| fitted.kind == Kind::Ensemble);
        let cost = three.or(fitted.first()).ok_or("nothing was measured")?.cost;
        let answers = questions.iter().map(|asked| Answer { asked: asked.clone(), fared: asked.ask(cost) });
        let answers = answers.collect();
        let spread = [2, 4, 8, 16].into_iter().map(Spread::of).collect();
        Ok(Self { measured, fitted, answers, spread })
    }
}

impl Spread {
    const LOCKS: usize = 100_000;

    fn of(ensembles: usize) -> Self {
        let (before, after) = (homes(ensembles, Self::LOCKS), homes(ensembles + 1, Self::LOCKS));
        let mut counts = BTreeMap::<u32, usize>::new();
        before.iter().for_each(|home| *counts.entry(*home).or_default() += 1);
        let most = counts.values().copied().max().unwrap_or(0);
        let moved = before.iter().zip(&after).filter(|(old, new)| old != new).count();
        Self {
            ensembles,
            fullest: most as f64 * ensembles as f64 / Self::LOCKS as f64,
            moved: moved as f64 / Self::LOCKS as f64,
        }
    }
}

/// Which ensemble has each lock, as the library computes it.
fn homes(ensembles: usize, locks: usize) -> Vec<u32> {
    let names: Vec<String> = (0..ensembles).map(|at| format!("ensemble-{at}")).collect();
    let at: BTreeMap<&str, u32> = names.iter().map(String::as_str).zip(0..).collect();
    (0..locks)
        .map(|lock| {
            let home = Sharded::home(names.iter().map(String::as_str), &format!("/zoolock/accounts/{lock}"));
            home.and_then(|home| at.get(home).copied()).unwrap_or(0)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn an_ensemble_that_is_added_takes_its_share() {
        let four = Spread::of(4);
        assert!((four.moved * 5.0 - 1.0).abs() < 0.05, "{four:?}");
        assert!((1.0..1.05).contains(&four.fullest), "{four:?}");
    }
}
