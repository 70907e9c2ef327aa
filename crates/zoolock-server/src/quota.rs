//! Quotas: what lies below a path is counted in a znode under `/zookeeper/quota`.
//!
//! As in Apache ZooKeeper the limits are for operators to look at; nothing is refused. The counts change without a
//! version, a zxid or an event.

use crate::state::State;

const QUOTA: &str = "/zookeeper/quota";
const LIMITS: &str = "zookeeper_limits";
const STATS: &str = "zookeeper_stats";

/// Counts a znode that came, with so many bytes.
pub(crate) fn created(path: &str, bytes: i64, state: &mut State) {
    if let Some((above, STATS)) = path.rsplit_once('/')
        && let Some(counted) = above.strip_prefix(QUOTA)
    {
        begin(counted, path, state);
    }
    changed(path, bytes, 1, state);
}

/// Counts what changed at a path: bytes, and znodes.
pub(crate) fn changed(path: &str, bytes: i64, count: i64, state: &mut State) {
    // The usual case: nobody set a quota.
    if state.tree.get(QUOTA).is_none_or(|node| node.child_count() == 0) {
        return;
    }
    let Some(limited) = limited(path, state) else { return };
    let stats = format!("{QUOTA}{limited}/{STATS}");
    let Some(node) = state.tree.get(&stats) else { return };
    let mut counts = Counts::parse(node.data().unwrap_or_default());
    counts.count = counts.count.saturating_add(count);
    counts.bytes = counts.bytes.saturating_add(bytes);
    write(&stats, &counts, state);
}

/// Nothing but the data changes.
fn write(stats: &str, counts: &Counts, state: &mut State) {
    let Some(node) = state.tree.get(stats) else { return };
    let (version, mzxid, mtime) = (node.version(), node.mzxid(), node.stat().mtime);
    state.tree.set_data(stats, Some(counts.to_text().as_bytes()), version, mzxid, mtime);
}

/// Counts all that is there, when the znode for the counts comes.
fn begin(counted: &str, stats: &str, state: &mut State) {
    let mut counts = Counts { count: 0, bytes: 0, others: Vec::new() };
    let mut todo = vec![counted.to_owned()];
    while let Some(path) = todo.pop() {
        let Some(node) = state.tree.get(&path) else { continue };
        counts.count += 1;
        counts.bytes += len(node.data());
        todo.extend(node.children().map(|name| format!("{path}/{name}")));
    }
    write(stats, &counts, state);
}

/// The nearest path with limits, this one or one above.
fn limited<'a>(path: &'a str, state: &State) -> Option<&'a str> {
    let mut at = path;
    while !at.is_empty() {
        if state.tree.get(&format!("{QUOTA}{at}/{LIMITS}")).is_some() {
            return Some(at);
        }
        at = at.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    None
}

/// How many bytes of data there are.
pub(crate) fn len(data: Option<&[u8]>) -> i64 {
    data.map_or(0, |data| i64::try_from(data.len()).unwrap_or(i64::MAX))
}

/// What a znode for counts says: `count=3,bytes=70`, and perhaps more that only limits have.
struct Counts {
    count: i64,
    bytes: i64,
    others: Vec<(String, i64)>,
}

impl Counts {
    /// What is no number counts as "none"; clients may write what they like. (Apache ZooKeeper exits.)
    fn parse(text: &[u8]) -> Self {
        let mut counts = Counts { count: -1, bytes: -1, others: Vec::new() };
        let text = String::from_utf8_lossy(text);
        for pair in text.split([',', ';']).filter(|pair| !pair.is_empty()) {
            let mut parts = pair.split('=');
            let name = parts.next().unwrap_or_default();
            let value = parts.next().and_then(|value| value.parse().ok()).unwrap_or(-1);
            match name {
                "count" => counts.count = value,
                "bytes" => counts.bytes = value,
                name => {
                    counts.others.retain(|(known, _)| known != name);
                    counts.others.push((name.to_owned(), value));
                }
            }
        }
        counts.others.sort();
        counts
    }

    /// With the odd "=" before what comes third, as `StatsTrack.toString` has it.
    fn to_text(&self) -> String {
        let mut text = format!("count={},bytes={}", self.count, self.bytes);
        if !self.others.is_empty() {
            text.push('=');
        }
        for (name, value) in &self.others {
            text.push_str(&format!(";{name}={value}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(text: &str) -> String {
        Counts::parse(text.as_bytes()).to_text()
    }

    #[test]
    fn counts_read_and_look_as_in_zookeeper() {
        assert_eq!(again("count=3,bytes=70"), "count=3,bytes=70");
        assert_eq!(again(""), "count=-1,bytes=-1");
        assert_eq!(
            again("bytes=5=;countHardLimit=2;byteHardLimit=9"),
            "count=-1,bytes=5=;byteHardLimit=9;countHardLimit=2"
        );
        assert_eq!(again("count=x,,bytes"), "count=-1,bytes=-1");
    }
}
