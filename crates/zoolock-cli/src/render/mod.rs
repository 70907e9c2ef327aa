//! The layout of printed text.

pub(crate) mod columns;
pub(crate) mod deadlock;
pub(crate) mod history;
pub(crate) mod remedy;
pub(crate) mod status;
pub(crate) mod text;
