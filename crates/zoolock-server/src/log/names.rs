//! The names of the files.

use crate::ids::Zxid;

/// A segment that has no name yet.
pub(super) const SEGMENT_TMP: &str = "log.tmp";
/// A snapshot that has no name yet.
pub(super) const SNAPSHOT_TMP: &str = "snapshot.tmp";

/// The segment whose first transaction comes after this one.
pub(super) fn segment_name(after: Zxid) -> String {
    format!("log.{:016x}", after.get())
}

/// The snapshot whose last transaction is this one.
pub(super) fn snapshot_name(zxid: Zxid) -> String {
    format!("snapshot.{:016x}", zxid.get())
}

/// The name of a snapshot that is damaged, and kept for people to look at.
pub(super) fn damaged_name(zxid: Zxid) -> String {
    format!("{}.damaged", snapshot_name(zxid))
}

/// The numbers in the names that begin like this, in order.
pub(super) fn numbered(names: &[String], of: fn(Zxid) -> String) -> Vec<Zxid> {
    let number = |name: &String| {
        let digits = name.rsplit_once('.')?.1;
        let zxid = Zxid::from_wire(i64::from_str_radix(digits, 16).ok()?);
        (of(zxid) == *name).then_some(zxid)
    };
    let mut found: Vec<Zxid> = names.iter().filter_map(number).collect();
    found.sort_unstable();
    found
}
