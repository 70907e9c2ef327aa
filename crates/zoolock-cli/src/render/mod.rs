//! The layout of what the command prints.

pub(crate) mod status;
pub(crate) mod text;
