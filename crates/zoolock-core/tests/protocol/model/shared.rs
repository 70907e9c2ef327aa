//! Copy on write. Most steps change one client of several, so states share the clients that do not change.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A value that states share. A change first copies a value that other states share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Shared<T> {
        Shared(Arc::new(value))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}
