//! Caps on one request, so that none keeps the core from other connections for long, and the weight of a long path.
//! docs/design/work.md explains them.

/// Maximum number of operations of a `multi` and of a `multiRead`. Curator's tests send 10,001.
pub(crate) const MAX_OPERATIONS: usize = 16_384;

/// Maximum size of the data, names and paths in one reply, in bytes. Each of them counts [`REPLY_ITEM_BYTES`] more than its
/// length.
pub(crate) const MAX_REPLY_BYTES: usize = 6 << 20;

/// Number of bytes that a piece of data, a name or a path counts more than its length, for the memory around it.
pub(crate) const REPLY_ITEM_BYTES: usize = 16;

/// Maximum number of names in the path of a znode.
pub(crate) const MAX_PATH_NAMES: usize = 4096;

/// Returns the number of short paths that take about as long to look up and to send as this path.
pub(crate) fn weight(path: &str) -> usize {
    let names = path.bytes().filter(|byte| *byte == b'/').count();
    1 + names / 16 + path.len() / 4096
}
