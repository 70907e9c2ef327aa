//! The layout of printed text.

pub(crate) mod history;
pub(crate) mod status;
pub(crate) mod text;
