//! The targets, and whether the figures reach them.

use super::client::{Client, ClientOnServer};
use super::results::{Entry, Results};
use crate::servers::Kind;
use crate::stats::{median, short};

/// A bound for zoolock's figure in a work.
pub(super) struct Target {
    work: &'static str,
    ours: Kind,
    at_most: f64,
    reference: Reference,
    cpu: bool,
}

/// The reference of a bound.
#[derive(Clone, Copy)]
pub(super) enum Reference {
    /// The figure of a client in this work (`""`) or another one.
    One(&'static str, Client, Kind),
    /// The best ZooKeeper lock of another library.
    BestPeer,
    Micros(f64),
    /// All peers fail.
    AllPeersFail,
}

/// The result of a comparison with a target.
pub(super) struct Verdict {
    pub(super) work: &'static str,
    pub(super) what: String,
    pub(super) bound: String,
    pub(super) found: String,
    pub(super) reached: Option<bool>,
}

impl Target {
    pub(super) fn new(work: &'static str, at_most: f64, reference: Reference) -> Self {
        Self { work, ours: Kind::Apache, at_most, reference, cpu: false }
    }

    /// Uses zoolock's figure on zoolock's server.
    pub(super) fn with_our_server(self) -> Self {
        Self { ours: Kind::Ours, ..self }
    }

    /// Returns a target for processor time, against the best peer.
    pub(super) fn cpu(work: &'static str, at_most: f64) -> Self {
        Self { cpu: true, ..Self::new(work, at_most, Reference::BestPeer) }
    }

    /// Returns the target that zoolock is not slower on its own server than on ZooKeeper.
    pub(super) fn on_ours(work: &'static str) -> Self {
        Self { ours: Kind::Ours, ..Self::new(work, 1.0, Reference::One("", Client::Zoolock, Kind::Apache)) }
    }

    pub(super) fn judge(&self, results: &Results) -> Verdict {
        let figures = |work: &str, client, server| {
            let entry = results
                .work(if work.is_empty() { self.work } else { work })?
                .entry(ClientOnServer { client, server })?;
            entry.failed.is_none().then(|| self.figures(entry))
        };
        let measured = results.work(self.work);
        let ours = figures("", Client::Zoolock, self.ours);
        let peers = measured
            .iter()
            .flat_map(|work| &work.entries)
            .filter(|entry| entry.who.client.is_zookeeper_peer() && entry.who.server == Kind::Apache);
        // The best peer is the one with the highest ratio.
        let best = peers
            .clone()
            .filter(|entry| entry.failed.is_none())
            .filter_map(|entry| {
                Some((median_of_ratios(ours.as_ref()?, &self.figures(entry))?, entry.who.client))
            })
            .max_by(|(one, _), (other, _)| one.total_cmp(other));
        let what = if self.cpu { "processor time of the client" } else { "" };
        if let Reference::AllPeersFail = self.reference {
            let (all, failed) = (peers.clone().count(), peers.filter(|entry| entry.failed.is_some()).count());
            return Verdict {
                work: self.work,
                what: what.to_owned(),
                bound: "no other ZooKeeper lock completes".to_owned(),
                found: format!("{failed} of {all} fail"),
                reached: (all > 0).then_some(all == failed),
            };
        }
        let (name, ratio) = match self.reference {
            Reference::One(work, client, server) => {
                let there = if work.is_empty() { String::new() } else { format!(" in “{work}”") };
                let name = match client {
                    Client::Floor => format!("floor on {}", server.name()),
                    Client::Etcd | Client::Redis => ClientOnServer { client, server }.name(),
                    Client::Zoolock => format!("zoolock on {}", server.name()),
                    client => client.name().to_owned(),
                };
                let compare = if work.is_empty() { median_of_ratios } else { ratio_of_medians };
                let both = ours.zip(figures(work, client, server));
                (format!("{name}{there}"), both.and_then(|(ours, theirs)| compare(&ours, &theirs)))
            }
            Reference::BestPeer => {
                let name = best.map_or("none", |(_, client)| client.name());
                (format!("the best other lock on ZooKeeper ({name})"), best.map(|(ratio, _)| ratio))
            }
            Reference::Micros(micros) => {
                (format!("{micros:.0} µs"), ours.and_then(|ours| ratio_of_medians(&ours, &[micros])))
            }
            Reference::AllPeersFail => unreachable!("it is judged above"),
        };
        let on = if self.ours == Kind::Ours { "on zoolock serve" } else { what };
        Verdict {
            work: self.work,
            what: on.to_owned(),
            bound: format!("at most {} × {name}", factor(self.at_most)),
            found: ratio.map_or("not measured".to_owned(), |ratio| format!("{} ×", short_ratio(ratio))),
            reached: ratio.map(|ratio| ratio <= self.at_most),
        }
    }

    /// Returns the figures of the rounds.
    fn figures(&self, entry: &Entry) -> Vec<f64> {
        entry.rounds.iter().map(|round| if self.cpu { round.cpu } else { round.figure }).collect()
    }
}

/// Returns the median of the ratios of the rounds. Both clients ran in each round at nearly the same time. So what
/// changes from one minute to the next, such as a disk, is the same for both.
fn median_of_ratios(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    Some(median(&ratios)).filter(|ratio| ratio.is_finite())
}

/// Returns the ratio of the medians, for works that were measured one after the other.
fn ratio_of_medians(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    Some(median(ours) / median(theirs)).filter(|ratio| ratio.is_finite())
}

fn factor(factor: f64) -> String {
    if factor < 0.1 { format!("1/{:.0}", 1.0 / factor) } else { format!("{factor:.2}") }
}

fn short_ratio(ratio: f64) -> String {
    if ratio < 0.01 { format!("1/{}", short(1.0 / ratio)) } else { short(ratio) }
}

#[cfg(test)]
mod tests {
    use super::{median_of_ratios, ratio_of_medians};

    #[test]
    fn ratio_ignores_machine_speed() {
        // Twice as slow in the second half of the rounds.
        let (ours, theirs) = ([10.0, 11.0, 20.0, 22.0], [9.0, 10.0, 20.0, 20.0]);
        assert_eq!(median_of_ratios(&ours, &theirs), Some(1.1));
        assert_eq!(ratio_of_medians(&ours, &theirs), Some(15.5 / 15.0));
        // A round that only one client finished does not count.
        assert_eq!(median_of_ratios(&ours, &theirs[..2]), Some(f64::midpoint(1.1, 10.0 / 9.0)));
        assert_eq!(median_of_ratios(&[], &theirs), None);
    }
}
