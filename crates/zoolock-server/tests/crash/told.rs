//! All that clients were told, and what it obliges the next server to.

use std::collections::{BTreeMap, BTreeSet};

use zoolock_server::Hidden;

/// A number that one client counts up in a znode.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counter {
    /// The highest that anybody has heard of.
    pub(crate) told: i64,
    /// The highest that was asked for.
    pub(crate) sent: i64,
}

#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The highest zxid of a change.
    pub(crate) change: i64,
    /// The highest zxid at all.
    pub(crate) zxid: i64,
    pub(crate) counters: BTreeMap<String, Counter>,
    /// Who was told to exist, with the owner where that was told; nobody has asked to delete it.
    present: BTreeMap<String, Option<i64>>,
    /// Somebody has asked to delete it.
    doomed: BTreeSet<String>,
    pub(crate) gone: BTreeSet<String>,
    /// The names that were given out.
    given: BTreeSet<String>,
    pub(crate) closed: Vec<(i64, Hidden)>,
}

impl Told {
    pub(crate) fn zxid(&mut self, zxid: i64) {
        self.zxid = self.zxid.max(zxid);
    }

    pub(crate) fn change(&mut self, zxid: i64) {
        self.zxid(zxid);
        self.change = self.change.max(zxid);
    }

    pub(crate) fn counted(&mut self, path: &str, value: i64) {
        let counter = self.counters.get_mut(path).expect("a counter");
        assert!(value <= counter.sent, "{path} says {value}, which nobody has asked for");
        counter.told = counter.told.max(value);
    }

    pub(crate) fn exists(&mut self, path: &str, owner: Option<i64>) {
        if !self.doomed.contains(path) {
            let known = self.present.entry(path.to_owned()).or_default();
            *known = known.or(owner);
        }
    }

    pub(crate) fn given(&mut self, path: &str) {
        assert!(self.given.insert(path.to_owned()), "{path} was given out before");
    }

    pub(crate) fn doomed(&mut self, path: &str) {
        self.present.remove(path);
        self.doomed.insert(path.to_owned());
    }

    pub(crate) fn gone(&mut self, path: &str) {
        assert!(self.doomed.contains(path), "nobody has asked to delete {path}");
        self.gone.insert(path.to_owned());
    }

    pub(crate) fn present(&self) -> &BTreeMap<String, Option<i64>> {
        &self.present
    }
}
