//! One lock shared with clients of other libraries at the same time, on both servers.
//!
//! The clients run in processes of their own. A referee in the test checks, without the server, that contenders hold the
//! lock together only where they may. `ZOOLOCK_LONG=1` runs 2,000 sections for each contender.

pub(crate) mod contenders;
mod fairness;
mod last_numbers;
mod migration;
mod mutex;
mod referee;
mod refusals;
mod rwlock;
mod unknown;
mod violations;
mod visibility;
