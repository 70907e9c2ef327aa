//! The error type of the test support: a message, because a test can only print it.

use std::fmt;

/// An error of the test support.
pub struct TestFailure(String);

/// A result of the test support.
pub type Result<T> = std::result::Result<T, TestFailure>;

/// A result of a test program. The program prints the error before it ends.
pub type Outcome<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

impl TestFailure {
    /// Creates a failure from a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// Creates a failure that says during which action `cause` occurred.
    pub fn during(action: impl fmt::Display, cause: impl fmt::Display) -> Self {
        Self(format!("{action}: {cause}"))
    }
}

impl fmt::Display for TestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// `expect` prints Debug, and server logs in the message must keep their line breaks.
impl fmt::Debug for TestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TestFailure {}
