//! The error type of the test support. It contains only a message, because a test only prints it.

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

    /// Creates a failure from the action that failed and the cause.
    pub fn during(action: impl fmt::Display, cause: impl fmt::Display) -> Self {
        Self(format!("{action}: {cause}"))
    }
}

impl fmt::Display for TestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// `expect` prints the `Debug` form. This form keeps the line breaks of server logs in the message.
impl fmt::Debug for TestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TestFailure {}
