//! Queues with contenders of several libraries: their display, requests to release, breaking, and wait graphs.

mod breaking;
mod owners;
pub(crate) mod queue;
mod reading;
mod revoking;
mod semaphores;
mod unreadable;
mod views;
mod zkcli;
