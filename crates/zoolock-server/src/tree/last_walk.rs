//! The last walk along a path, so that the next one continues where their paths part.
//!
//! A write looks up its znode and its parent znode several times, and the writes of a multi often have the same parent.
//! Each name of a path takes a search in the index, so a deep path would take long each time. The walk keeps the znodes
//! along the last path. A path that begins with the same names starts at the last znode that both have.
//!
//! Only a znode without children is removed. So a removal takes at most the last znode from the walk, and a new znode
//! takes none.

use std::sync::{Mutex, PoisonError};

/// The znodes along the path that was looked up last. The mutex is never contended, because the core is locked meanwhile.
#[derive(Debug, Default)]
pub(super) struct LastWalk(Mutex<Walk>);

#[derive(Debug, Default)]
struct Walk {
    /// The part of the path that was found.
    path: String,
    /// The end of each name in `path`, and the slot of its znode.
    znodes: Vec<(usize, u32)>,
}

/// A clone of a tree begins without a walk.
impl Clone for LastWalk {
    fn clone(&self) -> Self {
        LastWalk::default()
    }
}

impl LastWalk {
    /// Returns the slot of the znode at a path. `root` is the slot of the root, and `child` returns the slot of a child, by
    /// the slot of its parent and its name.
    pub(super) fn find(
        &self,
        path: &str,
        root: u32,
        child: impl Fn(u32, &str) -> Option<u32>,
    ) -> Option<u32> {
        let mut walk = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        walk.keep_common(path);
        while walk.path.len() < path.len() {
            let name = path[walk.path.len()..].strip_prefix('/')?.split('/').next()?;
            let found = child(walk.last().unwrap_or(root), name)?;
            walk.path.push('/');
            walk.path.push_str(name);
            let end = walk.path.len();
            walk.znodes.push((end, found));
        }
        Some(walk.last().unwrap_or(root))
    }

    /// Forgets a znode without children, which is removed.
    pub(super) fn remove(&mut self, id: u32) {
        let walk = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if walk.last() == Some(id) {
            walk.keep(walk.znodes.len() - 1);
        }
    }
}

impl Walk {
    /// Keeps the znodes that are also on this path.
    fn keep_common(&mut self, path: &str) {
        let common = common_bytes(&self.path, path);
        let is_common =
            |end: usize| end <= common && path.as_bytes().get(end).is_none_or(|next| *next == b'/');
        let mut kept = self.znodes.partition_point(|(end, _)| *end <= common);
        // The last name may be the beginning of a longer one.
        if kept > 0 && !is_common(self.znodes[kept - 1].0) {
            kept -= 1;
        }
        self.keep(kept);
    }

    fn keep(&mut self, count: usize) {
        self.znodes.truncate(count);
        self.path.truncate(self.znodes.last().map_or(0, |(end, _)| *end));
    }

    fn last(&self) -> Option<u32> {
        self.znodes.last().map(|(_, id)| *id)
    }
}

/// Returns the number of bytes that both paths begin with.
fn common_bytes(a: &str, b: &str) -> usize {
    // Long paths are often the same, or one is that of the parent. A comparison of whole strings is the fastest.
    let shorter = a.len().min(b.len());
    if a.as_bytes()[..shorter] == b.as_bytes()[..shorter] {
        return shorter;
    }
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}
