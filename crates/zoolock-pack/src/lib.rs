//! What goes into the packages of zoolock beside the program: a bill of its materials, and the licences of all that is
//! in it. And who runs the container file, where there is no registry of images.

#![forbid(unsafe_code)]

pub mod container;
pub mod licences;
pub mod materials;
pub mod sbom;

/// What went wrong, for people.
pub type Result<T> = std::result::Result<T, String>;
