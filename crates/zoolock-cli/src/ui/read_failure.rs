//! Failures of reads, as the pages show them.

use maud::{Markup, Render, html};

use crate::base::reporter::escape_unprintable;

/// Reason why a read failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReadFailure {
    /// No server answers. Nothing is known about the locks since then.
    Unreachable(String),
    /// A server answers, but the read is not possible.
    Other(String),
}

impl Render for ReadFailure {
    fn render(&self) -> Markup {
        let (title, why) = match self {
            Self::Unreachable(why) => ("The servers do not answer.", why),
            Self::Other(why) => ("The read failed.", why),
        };
        html! { strong { (title) } " " (escape_unprintable(why)) }
    }
}
