//! The file names of segments and snapshots.

use crate::ids::Zxid;

/// The name of a segment until it is complete.
pub(super) const SEGMENT_TMP: &str = "segment.tmp";
/// The name of a snapshot until it is complete.
pub(super) const SNAPSHOT_TMP: &str = "snapshot.tmp";

/// The name of the record of the end of the log. It does not begin like the names of the segments, so that a pattern that
/// removes them leaves it.
pub(crate) const END_RECORD: &str = "end-of-log";
/// The name of that record until it is complete.
pub(super) const END_RECORD_TMP: &str = "end-of-log.tmp";

/// Returns the name of the segment that begins after this transaction.
pub(super) fn segment_name(after: Zxid) -> String {
    format!("log.{:016x}", after.0)
}

/// Returns the name of the snapshot that ends with this transaction.
pub(super) fn snapshot_name(zxid: Zxid) -> String {
    format!("snapshot.{:016x}", zxid.0)
}

/// Returns a name for a damaged file, which is kept for inspection. The name is not one of `names`.
pub(super) fn damaged_name(name: &str, names: &[String]) -> String {
    let numbered = |number: usize| match number {
        1 => format!("{name}.damaged"),
        number => format!("{name}.damaged.{number}"),
    };
    (1..).map(numbered).find(|name| !names.contains(name)).expect("the names are finite")
}

/// Returns the transaction numbers of the file names that `of` can build, in ascending order. Skips other names.
pub(super) fn sorted_zxids(names: &[String], of: fn(Zxid) -> String) -> Vec<Zxid> {
    let number = |name: &String| {
        let digits = name.rsplit_once('.')?.1;
        let zxid = Zxid(i64::from_str_radix(digits, 16).ok()?);
        (of(zxid) == *name).then_some(zxid)
    };
    let mut found: Vec<Zxid> = names.iter().filter_map(number).collect();
    found.sort_unstable();
    found
}
