//! The targets, and whether the figures reach them.

use super::client::{ClientOnServer, ComparedClient};
use super::results::{ClientResult, Results, WorkResults};
use crate::servers::ServerKind;
use crate::stats::{median, spread, three_digits};

/// The works in which zoolock must not be slower on its own server than on ZooKeeper.
const NOT_SLOWER_ON_OURS: [&str; 9] =
    ["alone", "far", "loop", "few", "many", "most", "locks", "process", "articles"];

/// A bound for zoolock's figure in a work.
struct Target {
    work: &'static str,
    ours: ServerKind,
    at_most: f64,
    reference: BoundReference,
    cpu: bool,
}

/// The reference of a bound.
#[derive(Clone, Copy)]
enum BoundReference {
    /// The figure of a client in the work of this name. `""` is the work of the target.
    One(&'static str, ComparedClient, ServerKind),
    /// The best ZooKeeper lock of another library.
    BestPeer,
    Micros(f64),
    /// No number: the target is that all peers fail.
    AllPeersFail,
}

/// The result of a comparison with a target.
pub(super) struct TargetVerdict {
    pub(super) work: &'static str,
    pub(super) what: String,
    pub(super) bound: String,
    pub(super) found: String,
    pub(super) reached: Option<bool>,
}

/// Returns the verdicts on the targets of all works that were measured.
pub(super) fn verdicts(results: &Results) -> Vec<TargetVerdict> {
    let measured = targets().into_iter().filter(|target| results.work(target.work).is_some());
    measured.map(|target| target.judge(results)).chain(judge_our_server(results)).collect()
}

/// Judges all works of [`NOT_SLOWER_ON_OURS`] at once. Returns `None` if none of them was measured.
fn judge_our_server(results: &Results) -> Option<TargetVerdict> {
    let figures = |work: &WorkResults, server| {
        let entry = work.entry(ClientOnServer { client: ComparedClient::Zoolock, server })?;
        entry.failed.is_none().then(|| entry.rounds.iter().map(|round| round.figure).collect::<Vec<f64>>())
    };
    let works: Vec<&WorkResults> =
        NOT_SLOWER_ON_OURS.into_iter().filter_map(|name| results.work(name)).collect();
    let ratios: Option<Vec<f64>> = works
        .iter()
        .map(|&work| median_of_ratios(&figures(work, ServerKind::Ours)?, &figures(work, ServerKind::Apache)?))
        .collect();
    let range = ratios.map(|ratios| spread(&ratios));
    (!works.is_empty()).then(|| TargetVerdict {
        work: "each work but rest and shared",
        what: "on zoolock serve".to_owned(),
        bound: format!("at most {} × zoolock on {}", format_factor(1.0), ServerKind::Apache.name()),
        found: range.map_or("not measured".to_owned(), |(least, most)| {
            format!("{} to {} ×", short_ratio(least), short_ratio(most))
        }),
        reached: range.map(|(_, most)| most <= 1.0),
    })
}

/// Returns the targets of all works.
fn targets() -> Vec<Target> {
    use ComparedClient::{Curator, Floor, Raw, Same, ZookeeperClient};
    let at = |client: ComparedClient| BoundReference::One("", client, ServerKind::Apache);
    let mut targets = vec![
        Target::new("alone", 1.15, at(Floor)),
        Target::new("alone", 1.20, BoundReference::One("", Floor, ServerKind::Ours)).with_our_server(),
        Target::new("alone", 1.10, at(Raw)),
        Target::new("alone", 0.8, at(Curator)),
        Target::new("alone", 1.0, BoundReference::One("", ComparedClient::Etcd, ServerKind::Etcd)),
        Target::cpu("alone", 0.6),
        Target::new("far", 1.05, at(Raw)),
        Target::new("far", 1.0 / 1.25, BoundReference::BestPeer),
        Target::new("loop", 0.6, at(Floor)),
        Target::new("few", 0.65, BoundReference::BestPeer),
        Target::new("many", 0.25, at(Curator)),
        Target::new("many", 0.4, at(ZookeeperClient)),
        Target::new("most", 1.2, BoundReference::One("many", ComparedClient::Zoolock, ServerKind::Apache)),
        Target::new("most", 1.0, BoundReference::AllPeersFail),
        Target::new("locks", 1.0 / 0.9, at(Same)),
        Target::new("locks", 1.0 / 0.6, at(Raw)),
        Target::new("process", 1.0 / 50.0, at(Curator)),
        // A fifth of the 3 ms that were published.
        Target::new("articles", 1.0, BoundReference::Micros(600.0)),
    ];
    targets.push(Target::new(
        "shared",
        1e-2,
        BoundReference::One("alone", ComparedClient::Redis, ServerKind::Redis),
    ));
    for peer in [Curator, ComparedClient::WriteLock, ZookeeperClient, ComparedClient::Kazoo] {
        targets.push(Target::new("shared", 1e-3, BoundReference::One("alone", peer, ServerKind::Apache)));
    }
    targets
}

impl Target {
    fn new(work: &'static str, at_most: f64, reference: BoundReference) -> Self {
        Self { work, ours: ServerKind::Apache, at_most, reference, cpu: false }
    }

    /// Returns the target for zoolock's figure on zoolock's server.
    fn with_our_server(self) -> Self {
        Self { ours: ServerKind::Ours, ..self }
    }

    /// Returns a target for processor time, against the best peer.
    fn cpu(work: &'static str, at_most: f64) -> Self {
        Self { cpu: true, ..Self::new(work, at_most, BoundReference::BestPeer) }
    }

    fn judge(&self, results: &Results) -> TargetVerdict {
        let figures = |work: &str, client, server| {
            let entry = results
                .work(if work.is_empty() { self.work } else { work })?
                .entry(ClientOnServer { client, server })?;
            entry.failed.is_none().then(|| self.figures(entry))
        };
        let measured = results.work(self.work);
        let ours = figures("", ComparedClient::Zoolock, self.ours);
        let peers = measured
            .iter()
            .flat_map(|work| &work.entries)
            .filter(|entry| entry.who.client.is_zookeeper_peer() && entry.who.server == ServerKind::Apache);
        // The best peer is the one for which the ratio of zoolock's figure to the peer's figure is
        // highest.
        let best = peers
            .clone()
            .filter(|entry| entry.failed.is_none())
            .filter_map(|entry| {
                Some((median_of_ratios(ours.as_ref()?, &self.figures(entry))?, entry.who.client))
            })
            .max_by(|(one, _), (other, _)| one.total_cmp(other));
        let what = if self.cpu { "processor time of the client" } else { "" };
        if let BoundReference::AllPeersFail = self.reference {
            let (all, failed) = (peers.clone().count(), peers.filter(|entry| entry.failed.is_some()).count());
            return TargetVerdict {
                work: self.work,
                what: what.to_owned(),
                bound: "no other ZooKeeper lock completes".to_owned(),
                found: format!("{failed} of {all} fail"),
                reached: (all > 0).then_some(all == failed),
            };
        }
        let (name, ratio) = match self.reference {
            BoundReference::One(work, client, server) => {
                let there = if work.is_empty() { String::new() } else { format!(" in “{work}”") };
                let name = match client {
                    ComparedClient::Floor => format!("floor on {}", server.name()),
                    ComparedClient::Etcd | ComparedClient::Redis => ClientOnServer { client, server }.name(),
                    ComparedClient::Zoolock => format!("zoolock on {}", server.name()),
                    client => client.name().to_owned(),
                };
                let compare = if work.is_empty() { median_of_ratios } else { ratio_of_medians };
                let both = ours.zip(figures(work, client, server));
                (format!("{name}{there}"), both.and_then(|(ours, theirs)| compare(&ours, &theirs)))
            }
            BoundReference::BestPeer => {
                let name = best.map_or("none", |(_, client)| client.name());
                (format!("the best other lock on ZooKeeper ({name})"), best.map(|(ratio, _)| ratio))
            }
            BoundReference::Micros(micros) => {
                (format!("{micros:.0} µs"), ours.and_then(|ours| ratio_of_medians(&ours, &[micros])))
            }
            BoundReference::AllPeersFail => unreachable!("this reference is judged above"),
        };
        let on = if self.ours == ServerKind::Ours { "on zoolock serve" } else { what };
        TargetVerdict {
            work: self.work,
            what: on.to_owned(),
            bound: format!("at most {} × {name}", format_factor(self.at_most)),
            found: ratio.map_or("not measured".to_owned(), |ratio| format!("{} ×", short_ratio(ratio))),
            reached: ratio.map(|ratio| ratio <= self.at_most),
        }
    }

    /// Returns the figures of the rounds.
    fn figures(&self, entry: &ClientResult) -> Vec<f64> {
        entry.rounds.iter().map(|round| if self.cpu { round.cpu } else { round.figure }).collect()
    }
}

/// Returns the median of the ratios of the rounds. In each round both clients run at nearly the same time. So slow
/// changes of the machine, such as of its disk, affect both alike.
fn median_of_ratios(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    Some(median(&ratios)).filter(|ratio| ratio.is_finite())
}

/// Returns the ratio of the medians, for works that were measured one after the other.
fn ratio_of_medians(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    Some(median(ours) / median(theirs)).filter(|ratio| ratio.is_finite())
}

fn format_factor(factor: f64) -> String {
    if factor < 0.1 { format!("1/{:.0}", 1.0 / factor) } else { format!("{factor:.2}") }
}

fn short_ratio(ratio: f64) -> String {
    if ratio < 0.01 { format!("1/{}", three_digits(1.0 / ratio)) } else { three_digits(ratio) }
}

#[cfg(test)]
mod tests {
    use super::{median_of_ratios, ratio_of_medians};

    #[test]
    fn ratio_ignores_machine_speed() {
        // In the second half of the rounds, the machine is half as fast.
        let (ours, theirs) = ([10.0, 11.0, 20.0, 22.0], [9.0, 10.0, 20.0, 20.0]);
        assert_eq!(median_of_ratios(&ours, &theirs), Some(1.1));
        assert_eq!(ratio_of_medians(&ours, &theirs), Some(15.5 / 15.0));
        // A round that only one client finished does not count.
        assert_eq!(median_of_ratios(&ours, &theirs[..2]), Some(f64::midpoint(1.1, 10.0 / 9.0)));
        assert_eq!(median_of_ratios(&[], &theirs), None);
    }
}
