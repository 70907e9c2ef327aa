//! What the figures must show.

use super::client::{Client, Who};
use super::results::{Entry, Results};
use crate::servers::Kind;
use crate::stats::short;

/// A bound for zoolock's figure in a work.
pub(super) struct Target {
    work: &'static str,
    ours: Kind,
    at_most: f64,
    of: Of,
    cpu: bool,
}

/// What it is a bound against.
#[derive(Clone, Copy)]
pub(super) enum Of {
    /// The figure of somebody in this work (`""`) or another one.
    One(&'static str, Client, Kind),
    /// The best lock on ZooKeeper of another make.
    BestPeer,
    Micros(f64),
    /// No peer gets to the end.
    NobodyElse,
}

/// How it came out.
pub(super) struct Verdict {
    pub(super) work: &'static str,
    pub(super) what: String,
    pub(super) bound: String,
    pub(super) found: String,
    pub(super) reached: Option<bool>,
}

impl Target {
    pub(super) fn new(work: &'static str, at_most: f64, of: Of) -> Self {
        Self { work, ours: Kind::Apache, at_most, of, cpu: false }
    }

    /// Processor time rather than time.
    pub(super) fn cpu(work: &'static str, at_most: f64) -> Self {
        Self { cpu: true, ..Self::new(work, at_most, Of::BestPeer) }
    }

    /// On our server in place of ZooKeeper.
    pub(super) fn on_ours(work: &'static str) -> Self {
        Self { ours: Kind::Ours, ..Self::new(work, 1.0, Of::One("", Client::Zoolock, Kind::Apache)) }
    }

    pub(super) fn judge(&self, results: &Results) -> Verdict {
        let pick = |entry: &Entry| if self.cpu { entry.cpu() } else { entry.median() };
        let figure = |work: &str, client, server| {
            let entry = results
                .work(if work.is_empty() { self.work } else { work })?
                .entry(Who { client, server })?;
            entry.failed.is_none().then(|| pick(entry))?
        };
        let measured = results.work(self.work);
        let ours = figure("", Client::Zoolock, self.ours);
        let peers = measured
            .iter()
            .flat_map(|work| &work.entries)
            .filter(|entry| entry.who.client.is_zookeeper_peer() && entry.who.server == Kind::Apache);
        let best = peers
            .clone()
            .filter(|entry| entry.failed.is_none())
            .filter_map(|entry| Some((pick(entry)?, entry.who.client)))
            .min_by(|(one, _), (other, _)| one.total_cmp(other));
        let what = if self.cpu { "processor time of the client" } else { "" };
        if let Of::NobodyElse = self.of {
            let (all, failed) = (peers.clone().count(), peers.filter(|entry| entry.failed.is_some()).count());
            return Verdict {
                work: self.work,
                what: what.to_owned(),
                bound: "no other lock on ZooKeeper gets there".to_owned(),
                found: format!("{failed} of {all} fail"),
                reached: (all > 0).then_some(all == failed),
            };
        }
        let (name, reference) = match self.of {
            Of::One(work, client, server) => {
                let there = if work.is_empty() { String::new() } else { format!(" in “{work}”") };
                let name = match client {
                    Client::Etcd | Client::Redis => Who { client, server }.name(),
                    Client::Zoolock => format!("zoolock on {}", server.name()),
                    client => client.name().to_owned(),
                };
                (format!("{name}{there}"), figure(work, client, server))
            }
            Of::BestPeer => {
                let name = best.map_or("none", |(_, client)| client.name());
                (format!("the best other lock on ZooKeeper ({name})"), best.map(|(figure, _)| figure))
            }
            Of::Micros(micros) => (format!("{micros:.0} µs"), Some(micros)),
            Of::NobodyElse => unreachable!("it is judged above"),
        };
        let ratio = ours.zip(reference).map(|(ours, reference)| ours / reference);
        let on = if self.ours == Kind::Ours { "on zoolock serve" } else { what };
        Verdict {
            work: self.work,
            what: on.to_owned(),
            bound: format!("at most {} × {name}", factor(self.at_most)),
            found: ratio.map_or("not measured".to_owned(), |ratio| format!("{} ×", short_ratio(ratio))),
            reached: ratio.map(|ratio| ratio <= self.at_most),
        }
    }
}

fn factor(factor: f64) -> String {
    if factor < 0.1 { format!("1/{:.0}", 1.0 / factor) } else { format!("{factor:.2}") }
}

fn short_ratio(ratio: f64) -> String {
    if ratio < 0.01 { format!("1/{}", short(1.0 / ratio)) } else { short(ratio) }
}
