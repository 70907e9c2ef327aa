//! One lock shared with clients of other makes, all at once, on both servers.
//!
//! Each make's clients run in a process of their own. A referee that has nothing to do with the lock sees whether two
//! are inside where one may be. `ZOOLOCK_LONG=1` does 2,000 sections each.

mod fairness;
mod last_numbers;
mod make;
mod migration;
mod mutex;
mod peer;
mod queue;
mod referee;
mod refusals;
mod rwlock;
mod sight;
