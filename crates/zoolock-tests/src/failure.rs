//! What went wrong in the harness, in words: a test can only print it.

use std::fmt;

/// The harness could not do what a test asked.
pub struct Failure(String);

/// A result of the harness.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Makes a failure of a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// Says what was being done when `cause` came up.
    pub fn during(what: impl fmt::Display, cause: impl fmt::Display) -> Self {
        Self(format!("{what}: {cause}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// `expect` prints Debug; server logs inside the message must keep their line breaks.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}
